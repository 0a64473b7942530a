"""Shared by the tests of the stores."""

from __future__ import annotations
