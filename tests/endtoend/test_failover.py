"""The primary dies and its standby takes over, as Patroni and its kind arrange it: with ``pytest --failover``."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trio

from stellwerk.testing.databases import NoServer, PostgresServer, find_binaries

SETTINGS = {"synchronous_commit": "on"}


@pytest.fixture
def primary(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    if not request.config.getoption("--failover"):
        pytest.skip("a standby that takes over is tried with --failover")
    try:
        server = PostgresServer(SETTINGS)
    except NoServer as error:
        pytest.skip(str(error))
    with server:
        yield server


@contextmanager
def standby_of(primary: PostgresServer) -> Iterator[PostgresServer]:
    """Without it, the primary acknowledges no commit from now on."""
    standby = PostgresServer(SETTINGS)
    try:
        shutil.rmtree(standby.data)
        connection = f"host={primary.directory} port={primary.port} user=postgres"
        _run(standby, "pg_basebackup", "-D", str(standby.data), "-d", connection, "-R", "-c", "fast")
        standby.start()
        primary.reload(synchronous_standby_names="*")
        while not primary.query("SELECT FROM pg_stat_replication WHERE sync_state = 'sync'"):
            assert standby.is_running, standby.log
        yield standby
    finally:
        standby.close()


def _run(server: PostgresServer, program: str, *arguments: str) -> None:
    path = find_binaries()[0] / program
    if not path.exists():
        pytest.skip(f"this PostgreSQL has no {program}")
    owner = pwd.getpwuid(server.directory.stat().st_uid)
    user: dict[str, Any] = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
    done = subprocess.run(
        [str(path), *arguments],
        cwd=server.directory,
        capture_output=True,
        text=True,
        **(user if os.geteuid() == 0 else {}),
    )
    assert done.returncode == 0, done.stderr


def _kill(server: PostgresServer) -> None:
    pid = int((server.data / "postmaster.pid").read_text().splitlines()[0])
    os.kill(pid, signal.SIGKILL)
    server.stop()


async def test_standby_takes_over_from_a_primary_that_was_killed(
    primary: PostgresServer,
    cluster_of: Any,
    loaded: Callable[[Any], AbstractAsyncContextManager[Any]],
    tmp_path: Path,
) -> None:
    dsn = primary.create_database()
    database = urlsplit(dsn).path
    with standby_of(primary) as standby:
        hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
        cluster = cluster_of(tmp_path, primary, dsn)
        try:
            cluster.add_nodes(*[f"postgresql://postgres@{hosts}{database}"] * 2)
            cluster.add_workers(4)
            async with loaded(cluster) as load:
                await trio.to_thread.run_sync(_kill, primary)
                await trio.to_thread.run_sync(_run, standby, "pg_ctl", "promote", "-D", str(standby.data))
                cluster.server, cluster.dsn = standby, standby.dsn(database.lstrip("/"))
                print(f"taken over within {await load.recovery():.1f} s")
            await trio.to_thread.run_sync(cluster.stop)
        finally:
            cluster.end()
