"""Sphinx configuration. Build with ``sphinx-build -W docs docs/_build/html``."""

from __future__ import annotations

from importlib.metadata import version as installed_version

project = "stellwerk"
author = "The stellwerk authors"
copyright = "The stellwerk authors, Apache-2.0"  # noqa: A001 - Sphinx wants this name
version = release = installed_version("stellwerk")

extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"stellwerk {release}"
html_static_path = ["_static"]
exclude_patterns = ["_build"]
nitpicky = True
