"""Shared by the tests of the stores."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("stellwerk.testing.store_contract")
