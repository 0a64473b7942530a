"""Options of the whole test suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stellwerk.testing.databases import NoServer, PostgresAccess, find_server

pytest_plugins = ["pytester"]  # for the tests of our own plugin

# Before anything imports it: its assertions shall tell what they compared.
pytest.register_assert_rewrite("stellwerk.testing.store_contract")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", type=int, default=12, help="how often the engine is killed with SIGKILL under load")
    parser.addoption("--kill-seed", type=int, default=1, help="the seed of the moments at which it is killed")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresAccess]:
    """One server for all tests; who stops or chokes it starts one of its own (`PostgresServer`)."""
    try:
        server = find_server()
    except NoServer as error:
        pytest.skip(str(error))
    with server:
        yield server


@pytest.fixture
def postgres_dsn(postgres_server: PostgresAccess) -> Iterator[str]:
    """A database of its own for the test, migrated."""
    dsn = postgres_server.create_database()
    yield dsn
    postgres_server.drop_database(dsn)
