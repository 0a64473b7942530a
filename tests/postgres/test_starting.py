"""``stellwerk serve`` before its database is there, or has room for it; and how its processes are called."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from stellwerk.testing.databases import PostgresServer

SECONDS_MAX = 60.0


class Serve:
    """A running ``stellwerk serve``."""

    def __init__(self, directory: Path, dsn: str, *arguments: str) -> None:
        self.log = directory / "log"
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("STELLWERK_", "PG"))}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "stellwerk", "serve", "--port", "0", "--log-format", "json", *arguments],
                cwd=directory,
                env=environment | {"STELLWERK_DB": dsn},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def events(self, event: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.endswith("}")]
        return [line for line in lines if line["event"] == event]

    def wait_for(self, event: str, number: int = 1) -> list[dict[str, Any]]:
        deadline = time.monotonic() + SECONDS_MAX
        while len(self.events(event)) < number:
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)
        return self.events(event)

    def listening(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        match = re.fullmatch(r"stellwerk \S+ listening on http://(127\.0\.0\.1:\d+)\n", line)
        assert match, f"{line!r}\n{self.log.read_text()}"
        return match[1]

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(SECONDS_MAX)
        finally:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Serve]]:
    running: list[Serve] = []

    def start(dsn: str, *arguments: str) -> Serve:
        running.append(Serve(tmp_path, dsn, *arguments))
        return running[-1]

    yield start
    for each in running:
        each.close()


@pytest.mark.parametrize("nodes", [1, 2])
def test_engine_waits_for_a_database_that_starts_later(
    serve: Callable[..., Serve], breakable_server: PostgresServer, breakable_dsn: str, nodes: int
) -> None:
    breakable_server.stop()
    engine = serve(breakable_dsn, *([] if nodes == 1 else ["--nodes", str(nodes)]))
    lines = engine.wait_for("waiting for the database", nodes)
    assert {(line["level"], line["seconds_max"]) for line in lines} == {("warning", 60.0)}
    assert len({line["node"] for line in lines}) == nodes
    assert "cannot be reached" in lines[0]["reason"] or "does not answer" in lines[0]["reason"]
    breakable_server.start()
    engine.listening()
    assert len(engine.events("waiting for the database")) == nodes


@pytest.mark.parametrize("nodes", [(), ("--nodes", "2")])
def test_engine_that_waits_for_its_database_can_be_stopped(serve: Callable[..., Serve], nodes: tuple[str, ...]) -> None:
    engine = serve("postgresql://u@127.0.0.1:1/orders", *nodes)
    engine.wait_for("waiting for the database")
    engine.process.terminate()
    assert engine.process.wait(5) == 0
    assert "Traceback" not in engine.log.read_text()


def test_engine_waits_no_longer_than_it_is_told_to(serve: Callable[..., Serve]) -> None:
    engine = serve("postgresql://u@127.0.0.1:1/orders", "--wait-for-db", "1s")
    assert engine.process.wait(SECONDS_MAX) == 2
    (line,) = engine.log.read_text().splitlines()
    assert line.startswith("stellwerk: PostgreSQL database orders on 127.0.0.1:1: cannot be reached")


def test_node_without_room_in_the_database_leaves_the_others_at_work(
    serve: Callable[..., Serve], breakable_server: PostgresServer, breakable_dsn: str
) -> None:
    """Every node would have several connections; there is but one."""
    database = urlsplit(breakable_dsn).path.strip("/")
    breakable_server.query("CREATE ROLE alone LOGIN CONNECTION LIMIT 1 IN ROLE pg_read_all_data, pg_write_all_data")
    breakable_server.query("GRANT ALL ON SCHEMA stellwerk TO alone", dsn=breakable_dsn)
    dsn = breakable_server.tcp_dsn(database, user="alone")
    try:
        engine = serve(dsn, "--nodes", "2", "--wait-for-db", "1s")
        address = engine.listening()
        (line, *_) = engine.wait_for("node not started")
        assert "too many connections" in line["reason"]
        connection = http.client.HTTPConnection(address, timeout=20)
        connection.request("GET", "/livez")
        assert connection.getresponse().status == 200
        connection.close()
        engine.close()
    finally:
        breakable_server.query("REVOKE ALL ON SCHEMA stellwerk FROM alone", dsn=breakable_dsn)
        breakable_server.query("DROP ROLE alone")


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="the system has no /proc")
def test_processes_say_what_they_are(serve: Callable[..., Serve], postgres_dsn: str) -> None:
    engine = serve(postgres_dsn, "--nodes", "1")
    engine.listening()
    tasks = Path(f"/proc/{engine.process.pid}/task").glob("*/children")  # it is a thread that starts a process
    (child,) = " ".join(file.read_text() for file in tasks).split()
    assert "stellwerk serve node 1" in Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")
    assert Path(f"/proc/{child}/comm").read_text().strip() == "stellwerk-node"


def test_hangup_drains_a_single_engine_on_postgresql(serve: Callable[..., Serve], postgres_dsn: str) -> None:
    engine = serve(postgres_dsn)
    engine.listening()
    engine.process.send_signal(signal.SIGHUP)
    assert engine.process.wait(10) == 0
    assert len(engine.events("draining")) == len(engine.events("stopped")) == 1
