"""``stellwerk serve`` on PostgreSQL, with one process and with several that share the port, as an operator meets it."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import attrs
import pytest

MODEL = """<?xml version="1.0" encoding="UTF-8"?>
<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" id="d" targetNamespace="t"
             xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn">
  <process id="order" isExecutable="true">
    <startEvent id="s"/>
    <sequenceFlow id="f1" sourceRef="s" targetRef="charge"/>
    <serviceTask id="charge" stellwerk:topic="charge"/>
    <sequenceFlow id="f2" sourceRef="charge" targetRef="e"/>
    <endEvent id="e"/>
  </process>
</definitions>
"""

WORKER = """
import os
from stellwerk.worker import Worker

worker = Worker("http://127.0.0.1:1")
ledger = os.open("ledger", os.O_CREAT | os.O_APPEND | os.O_WRONLY)

@worker.task("charge", max_tasks=4)
def charge(payload, task):
    os.write(ledger, (task.process_instance_id + "\\n").encode())
"""

SECONDS_MAX = 60.0
FAST_POLL = 0.02


def _environment(**extra: str) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("STELLWERK_", "PG"))}
    return environment | {"NO_COLOR": "1", "PYTHONWARNINGS": "error"} | extra


class Command:
    """A running ``stellwerk …``."""

    def __init__(self, directory: Path, *arguments: str, **environment: str) -> None:
        self.log = directory / f"{arguments[0]}.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "stellwerk", *arguments],
                cwd=directory,
                env=_environment(**environment),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(SECONDS_MAX)
        finally:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()

    def listening(self) -> str:
        """Wait for the line that says so. → the URL"""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        match = re.fullmatch(r"stellwerk \S+ listening on (http://127\.0\.0\.1:\d+)\n", line)
        assert match, f"{line!r}\n{self.log.read_text()}"
        return match[1]

    def events(self, event: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.endswith("}")]
        return [line for line in lines if line["event"] == event]

    def wait_for_events(self, event: str, number: int) -> list[dict[str, Any]]:
        until(lambda: len(self.events(event)) >= number, lambda: self.log.read_text())
        return self.events(event)


def until(condition: Callable[[], object], what: Callable[[], object] = lambda: "") -> None:
    """Other processes do not say when they are done."""
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(FAST_POLL)


@pytest.fixture
def serve(tmp_path: Path, postgres_dsn: str) -> Callable[..., Command]:
    def start(*arguments: str) -> Command:
        return Command(tmp_path, "serve", "--port", "0", "--log-format", "json", *arguments, STELLWERK_DB=postgres_dsn)

    return start


@attrs.frozen
class Answer:
    status: int
    body: Any
    is_last: bool
    """The server closes the connection after it."""


class Client:
    """One HTTP connection, kept alive as long as the server wants it. What goes wrong raises."""

    def __init__(self, url: str) -> None:
        self.connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)

    def ask(self, method: str, path: str, body: object = None) -> Answer:
        content = None if body is None else json.dumps(body)
        self.connection.request(method, path, content)
        response = self.connection.getresponse()
        text = response.read()
        is_json = response.getheader("content-type") == "application/json"
        is_last = response.getheader("connection") == "close"
        return Answer(response.status, json.loads(text) if is_json else text.decode(), is_last)

    def close(self) -> None:
        self.connection.close()


def ask(url: str, method: str, path: str, body: object = None) -> Answer:
    with closing(Client(url)) as client:
        return client.ask(method, path, body)


def deploy(url: str) -> None:
    files = [{"name": "order.bpmn", "xml": MODEL}]
    assert ask(url, "POST", "/api/v1/process-definitions", {"files": files}).status == 201


@contextmanager
def hammering(url: str, *, is_kept_alive: bool) -> Iterator[list[str]]:
    """Start instances without a pause, on one connection or on a new one each; gives their ids. Raises what failed."""
    started: list[str] = []
    failures: list[BaseException] = []
    enough = threading.Event()

    def run() -> None:
        client = Client(url)
        try:
            while not enough.is_set():
                answer = client.ask("POST", "/api/v1/process-instances", {"process_def_id": "order"})
                assert answer.status == 201, answer
                started.append(answer.body["instance_id"])
                if not is_kept_alive:
                    client.close()
        except BaseException as failure:
            failures.append(failure)
        finally:
            client.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield started
    finally:
        enough.set()
        thread.join()
    if failures:
        raise failures[0]


def names_of(url: str) -> set[str]:
    return {row["name"] for row in ask(url, "GET", "/api/v1/nodes").body["nodes"]}


def pids_of(url: str, number: int) -> set[int]:
    """Wait until so many nodes have said that they are there."""
    until(lambda: len(names_of(url)) == number, lambda: names_of(url))
    return {int(name.rpartition(":")[2]) for name in names_of(url)}


# --- one process ---------------------------------------------------------------------------------------------------


def test_one_engine_serves_from_postgresql_and_goes_on_after_a_kill(
    tmp_path: Path, serve: Callable[..., Command]
) -> None:
    with serve() as engine:
        url = engine.listening()
        deploy(url)
        instance_id = ask(url, "POST", "/api/v1/process-instances", {"process_def_id": "order"}).body["instance_id"]
        engine.process.kill()
        engine.process.wait()
    with serve() as engine:
        url = engine.listening()
        assert ask(url, "GET", f"/api/v1/process-instances/{instance_id}").body["status"] == "RUNNING"
        (tmp_path / "shop.py").write_text(WORKER)
        with Command(tmp_path, "worker", "shop:worker", "--url", url):
            wait = f"/api/v1/process-instances/{instance_id}/wait?timeout_ms=20000"
            assert ask(url, "GET", wait).body["status"] == "COMPLETED"
    assert engine.process.returncode == 0


def test_two_engines_share_a_database_and_each_names_both(serve: Callable[..., Command]) -> None:
    with serve() as one, serve() as other:
        urls = {one.listening(), other.listening()}
        assert len(urls) == 2
        deploy(min(urls))
        for url in urls:
            rows = ask(url, "GET", "/api/v1/nodes").body["nodes"]
            assert {row["url"] for row in rows} == urls
            assert ask(url, "GET", "/api/v1/process-definitions").body["definitions"][0]["key"] == "order"


# --- several processes on one port ---------------------------------------------------------------------------------


def test_nodes_say_once_that_they_listen_and_all_stop_at_a_signal(serve: Callable[..., Command]) -> None:
    """A service manager sends it to each process of the service: no node takes that for a second one."""
    with serve("--nodes", "2") as engine:
        url = engine.listening()
        pids = pids_of(url, 2)
        assert engine.process.pid not in pids
        with closing(Client(url)) as idle:
            assert idle.ask("GET", "/livez").status == 200
            for pid in (*pids, engine.process.pid):
                os.kill(pid, signal.SIGTERM)
            engine.wait_for_events("draining", 2)
            assert idle.ask("GET", "/livez").is_last
            assert engine.process.wait(5) == 0
        assert engine.process.stdout is not None
        assert engine.process.stdout.read() == ""
        assert not [pid for pid in pids if _is_alive(pid)]
    assert "Traceback" not in engine.log.read_text()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_second_signal_stops_all_nodes_at_once(serve: Callable[..., Command]) -> None:
    with serve("--nodes", "2") as engine:
        url = engine.listening()
        pids = pids_of(url, 2)
        with closing(Client(url)) as idle:
            idle.ask("GET", "/livez")
            engine.process.terminate()
            engine.wait_for_events("draining", 2)
            engine.process.terminate()
            assert engine.process.wait(2) == 128 + signal.SIGTERM
        until(lambda: not any(map(_is_alive, pids)))


def test_dead_node_is_started_again_while_the_other_serves(serve: Callable[..., Command]) -> None:
    with serve("--nodes", "2") as engine:
        url = engine.listening()
        victim = min(pids_of(url, 2))
        os.kill(victim, signal.SIGKILL)
        (died,) = engine.wait_for_events("node died", 1)
        assert (died["pid"], died["exit_code"]) == (victim, -signal.SIGKILL)
        (started,) = engine.wait_for_events("node started", 1)
        for _ in range(20):
            assert ask(url, "GET", "/livez").status == 200
        # One scrape has the figures of all that run, and only of those.
        text = ask(url, "GET", "/metrics").body
        nodes = re.findall(r'^stellwerk_commits_total\{node="[^"]*:(\d+)"\}', text, re.MULTILINE)
        assert len(nodes) == 2
        assert str(started["pid"]) in nodes
        # The dead one could not say goodbye.
        assert started["pid"] in pids_of(url, 3)


def test_nodes_end_in_order_when_their_parent_is_killed(serve: Callable[..., Command]) -> None:
    with serve("--nodes", "1") as engine:
        (pid,) = pids_of(engine.listening(), 1)
        engine.process.kill()
        until(lambda: not _is_alive(pid))
        assert len(engine.events("stopped")) == 1


def test_rolling_restart_fails_no_request_and_does_no_task_twice(tmp_path: Path, serve: Callable[..., Command]) -> None:
    (tmp_path / "shop.py").write_text(WORKER)
    with serve("--nodes", "2") as engine:
        url = engine.listening()
        deploy(url)
        before = pids_of(url, 2)
        idle = Client(url)
        assert not idle.ask("GET", "/livez").is_last
        with (
            Command(tmp_path, "worker", "shop:worker", "--url", url) as worker,
            hammering(url, is_kept_alive=True) as kept_alive,
            hammering(url, is_kept_alive=False) as fresh,
        ):
            until(lambda: min(len(kept_alive), len(fresh)) > 20)
            engine.process.send_signal(signal.SIGHUP)
            engine.wait_for_events("node replaced", 2)
            since = len(kept_alive), len(fresh)
            until(lambda: len(kept_alive) > since[0] + 20 and len(fresh) > since[1] + 20)
            # What was open before and had nothing to ask since: the old node has waited for it.
            with closing(idle):
                assert idle.ask("GET", "/livez").is_last
            engine.wait_for_events("node ended", 2)
            started = [*kept_alive, *fresh]
        assert worker.process.returncode == 0
        # It was sent away, and has lost no connection.
        assert "the engine asks to connect elsewhere" in worker.log.read_text()
        assert not re.findall(r"WARNING|ERROR", worker.log.read_text())
        assert not before & pids_of(url, 2)
    with serve() as engine:
        url = engine.listening()
        with Command(tmp_path, "worker", "shop:worker", "--url", url):
            wait = "/api/v1/process-instances?status=RUNNING&limit=1"
            until(lambda: not ask(url, "GET", wait).body["instances"])
    done = (tmp_path / "ledger").read_text().split()
    assert set(started) <= set(done)
    assert len(done) == len(set(done)), "a task was handed out twice"


def test_version_that_does_not_start_leaves_the_old_node_at_work(
    tmp_path: Path, serve: Callable[..., Command], postgres_server: Any, postgres_dsn: str
) -> None:
    """As after an upgrade that went wrong: here the database has a schema that is too new for a node that starts."""
    with serve("--nodes", "1") as engine:
        url = engine.listening()
        before = pids_of(url, 1)
        statement = "INSERT INTO stellwerk.schema_migrations VALUES (9999, 'later.sql', 'x', now(), 9999)"
        postgres_server.query(statement, dsn=postgres_dsn)
        engine.process.send_signal(signal.SIGHUP)
        (failed,) = engine.wait_for_events("nodes not replaced: the new one does not start", 1)
        assert "9999" in failed["reason"]
        assert ask(url, "GET", "/readyz").status == 200
        assert pids_of(url, 1) == before


# --- passwords -----------------------------------------------------------------------------------------------------


def with_password(dsn: str, password: str) -> str:
    parts = urlsplit(dsn)
    user, at, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user}:{password}{at}{host}"))


def test_password_appears_nowhere(tmp_path: Path, postgres_dsn: str) -> None:
    secret = "sesame-12345"
    dsn = with_password(postgres_dsn, secret)
    arguments = ("serve", "--port", "0", "--log-format", "json", "--log-level", "debug", "--nodes", "1")
    with Command(tmp_path, *arguments, STELLWERK_DB=dsn) as engine:
        url = engine.listening()
        (pid,) = pids_of(url, 1)
        for process in (engine.process.pid, pid):
            assert secret not in Path(f"/proc/{process}/cmdline").read_text()
        texts = [json.dumps(ask(url, "GET", path).body) for path in ("/api/v1/nodes", "/metrics", "/api/v1/statistics")]
    assert not [text for text in (*texts, engine.log.read_text()) if secret in text]


@pytest.mark.parametrize("nodes", [(), ("--nodes", "2")])
def test_missing_database_is_one_clear_line_without_the_password(
    tmp_path: Path, postgres_dsn: str, nodes: tuple[str, ...]
) -> None:
    parts = urlsplit(with_password(postgres_dsn, "sesame-12345"))._replace(path="/missing")
    result = subprocess.run(
        [sys.executable, "-m", "stellwerk", "serve", "--port", "0", "--log-level", "error", *nodes],
        cwd=tmp_path,
        env=_environment(STELLWERK_DB=urlunsplit(parts)),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert (result.returncode, result.stdout) == (2, ""), result
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert "sesame" not in result.stderr
    assert "PostgreSQL database missing on " in result.stderr
    assert "does not exist: create it with createdb" in result.stderr
