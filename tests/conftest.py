"""Options of the whole test suite."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]  # for the tests of our own plugin

# Before anything imports it: its assertions shall tell what they compared.
pytest.register_assert_rewrite("stellwerk.testing.store_contract")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", type=int, default=12, help="how often the engine is killed with SIGKILL under load")
    parser.addoption("--kill-seed", type=int, default=1, help="the seed of the moments at which it is killed")
