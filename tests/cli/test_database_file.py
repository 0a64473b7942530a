"""Commands on a database file that no engine holds."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from stellwerk.app import open_engine

Run = Callable[..., Any]

SERVICE = '<serviceTask id="step" stellwerk:topic="charge"/>'
USER = '<userTask id="step" name="Approve"/>'
TIMER = """
<intermediateCatchEvent id="step">
  <timerEventDefinition><timeDuration>PT0S</timeDuration></timerEventDefinition>
</intermediateCatchEvent>
"""
MESSAGE = '<receiveTask id="step" messageRef="m"/>'
CHOICE = """
    <subProcess id="step">
      <startEvent id="i"/>
      <sequenceFlow id="i1" sourceRef="i" targetRef="choice"/>
      <exclusiveGateway id="choice"/>
      <sequenceFlow id="i2" sourceRef="choice" targetRef="j">
        <conditionExpression>=amount &gt; 0</conditionExpression>
      </sequenceFlow>
      <endEvent id="j"/>
    </subProcess>
"""
"""An incident until there is an amount."""


async def _make_database(file: Path) -> None:
    async with open_engine(file):
        pass


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("database") / "empty.db"
    trio.run(_make_database, file)
    return file


@pytest.fixture
def db(empty_database: Path, tmp_path: Path) -> Path:
    """A database without anything in it, ``orders.db`` in the test's directory."""
    return Path(shutil.copy(empty_database, tmp_path / "orders.db"))


@pytest.fixture
def ask(stellwerk: Run, db: Path) -> Run:
    """Run a command on the file."""

    def run(*arguments: str) -> Any:
        return stellwerk(*arguments, "--db", db.name)

    return run


@pytest.fixture
def start(ask: Run, model: Run) -> Callable[..., str]:
    """Deploy a process ``order`` with one step and start an instance; gives its id."""

    def run(step: str, *options: str) -> str:
        assert ask("deploy", model(step, key="order")).exit_code == 0
        started = ask("start", "order", *options)
        assert (started.exit_code, started.err) == (0, "")
        return str(started.out.strip())

    return run


# --- the whole way ---------------------------------------------------------------------------------------------------


def test_everything_can_be_looked_at_in_a_file(ask: Run, start: Run) -> None:
    instance_id = start(SERVICE, "--variables", '{"amount": 12.5}', "--business-key", "A-17")
    assert "order" in ask("definitions").out
    assert instance_id in ask("instances", "--business-key", "A-17", "--since", "1h").out
    assert "12.5" in ask("show", instance_id, "--history").out
    assert f"Instance {instance_id}" in ask("trace", instance_id[:-1]).out
    assert "charge" in ask("tasks", "--topic", "charge", "--state", "ready").out
    for command in ("user-tasks", "incidents", "workers"):
        ended = ask(command)
        assert (ended.exit_code, ended.err) == (0, "")
        assert ended.out.endswith(": none\n")
    (topic,) = json.loads(ask("topics", "--json").out)
    assert (topic["topic"], topic["ready"], topic["workers"], topic["is_unattended"]) == ("charge", 1, 0, True)
    assert "NO WORKER" in ask("topics").out


def test_an_instance_is_changed_by_hand_in_a_file(ask: Run, start: Run) -> None:
    instance_id = start(SERVICE)
    assert ask("set-variables", instance_id, "--variables", '{"a": 1}').out == f"set a in {instance_id}\n"
    assert ask("cancel", instance_id, "--reason", "ordered twice").out == f"cancelled {instance_id}\n"
    view = json.loads(ask("show", instance_id, "--json").out)
    assert (view["status"], view["variables"], view["reason"]) == ("CANCELLED", {"a": 1}, "ordered twice")


def test_a_user_task_is_completed_in_a_file(ask: Run, start: Run) -> None:
    instance_id = start(USER)
    (task,) = json.loads(ask("user-tasks", "--instance", instance_id, "--json").out)
    assert ask("complete", task["user_task_id"], "--variables", '{"ok": true}').exit_code == 0
    view = json.loads(ask("show", instance_id, "--json").out)
    assert (view["status"], view["variables"]) == ("COMPLETED", {"ok": True})


def test_an_incident_is_repaired_in_a_file(ask: Run, start: Run) -> None:
    instance_id = start(CHOICE)
    (incident,) = json.loads(ask("incidents", "--process", "order", "--json").out)
    assert (incident["instance_id"], incident["element_id"]) == (instance_id, "choice")
    assert json.loads(ask("incidents", "--process", "other", "--json").out) == []
    ask("set-variables", instance_id, "--variables", '{"amount": 1}')
    retried = ask("retry", "--element", "choice", "--kind", incident["kind"])
    assert (retried.exit_code, retried.out, retried.err) == (0, "re-queued 1 incident\n", "")
    assert json.loads(ask("show", instance_id, "--json").out)["status"] == "COMPLETED"


def test_nothing_begins_to_work_in_a_file_that_is_looked_at(ask: Run, start: Run, db: Path) -> None:
    """Its timer is due, its message is there; only an engine may act on them."""
    waiting = start(TIMER)
    ask("deploy", "model.bpmn")
    for _ in range(3):
        assert json.loads(ask("show", waiting, "--json").out)["status"] == "RUNNING"
    trio.run(_wait_for_end, db, waiting)
    assert json.loads(ask("show", waiting, "--json").out)["status"] == "COMPLETED"


def test_a_message_waits_in_a_file_for_an_engine(ask: Run, start: Run, db: Path) -> None:
    waiting = start(MESSAGE, "--business-key", "A-17")
    assert ask("message", "paid", "--key", "A-17", "--variables", '{"paid": true}').exit_code == 0
    assert json.loads(ask("show", waiting, "--json").out)["status"] == "RUNNING"
    trio.run(_wait_for_end, db, waiting)
    assert json.loads(ask("show", waiting, "--json").out)["variables"] == {"paid": True}


def test_message_that_is_kept_in_a_file_says_so(ask: Run, db: Path) -> None:
    published = ask("message", "paid", "--message-id", "m-1", "--ttl-seconds", "90")
    assert (published.out, published.err) == ("published m-1: kept up to 90 s in the file, for an engine\n", "")
    assert json.loads(ask("message", "paid", "--message-id", "m-2", "--json").out) == {
        "message_id": "m-2",
        "status": "waiting",
    }
    assert [row["message_id"] for row in json.loads(ask("messages", "--json").out)] == ["m-1", "m-2"]
    assert ask("messages").out.startswith("Messages that are kept")


def test_typo_is_told_in_a_file_too(ask: Run, start: Run) -> None:
    start(MESSAGE, "--business-key", "A-17")
    assert "like it: paid" in ask("message", "payed", "--key", "A-17").err
    assert "\"paid\" is waited for, but not with the key 'A-18'" in ask("message", "paid", "--key", "A-18").err
    right = ask("message", "paid", "--key", "A-17")
    assert (right.exit_code, right.err) == (0, "")
    assert [row["is_awaited"] for row in json.loads(ask("messages", "--json").out)] == [False, False, True]


def test_start_waits_in_a_file_for_nothing_that_cannot_happen(ask: Run, start: Run) -> None:
    """No worker, timer or message does anything there: to wait for one would be to wait for ever."""
    for step in (SERVICE, TIMER, MESSAGE, USER):
        start(step)
        waited = ask("start", "order", "--wait")
        assert (waited.exit_code, waited.out.splitlines()[1:]) == (1, ["RUNNING"])
        assert waited.err == (
            "still running, and it waits as long as no engine runs on the file: workers, timers and messages need one "
            "(stellwerk serve --db orders.db)\n"
        )
    assert json.loads(ask("start", "order", "--wait", "--json").out)["status"] == "RUNNING"


def test_start_waits_in_a_file_for_what_ends_at_once(ask: Run, start: Run) -> None:
    start('<exclusiveGateway id="step"/>')
    ended = ask("start", "order", "--wait", "--variables", '{"a": 1}')
    assert (ended.exit_code, ended.out.splitlines()[1:], ended.err) == (0, ["COMPLETED", "  a = 1"], "")
    start(CHOICE)
    stuck = ask("start", "order", "--wait")
    assert (stuck.exit_code, "incident" in stuck.err, "as long as" in stuck.err) == (1, True, False)


async def _wait_for_end(db: Path, instance_id: str) -> None:
    with trio.fail_after(20):
        async with open_engine(db) as engine:
            await engine.wait_for_end(instance_id)


def test_a_file_is_backed_up_and_pruned(ask: Run, start: Run, stellwerk: Run, tmp_path: Path) -> None:
    kept = start(SERVICE)
    ended = ask("start", "order").out.strip()
    ask("cancel", ended)
    copied = ask("backup", "copy.db")
    assert (copied.exit_code, copied.err) == (0, "")
    assert copied.out.startswith("copied ")
    assert ask("prune", "--older-than", "1h").out == "deleted 0 instances\n"
    assert ask("prune", "--older-than", "0s", "--dry-run").out == "would delete 1 instance\n"
    assert json.loads(ask("prune", "--older-than", "0s", "--json").out) == {"instances": 1, "dry_run": False}
    assert [row["instance_id"] for row in json.loads(ask("instances", "--json").out)] == [kept]
    in_copy = json.loads(stellwerk("instances", "--db", "copy.db", "--json").out)
    assert [row["instance_id"] for row in in_copy] == [ended, kept]
    assert not [name for name in os.listdir(tmp_path) if "backup-" in name or name.endswith("partial")]


def test_what_a_killed_backup_left_is_used_up_by_the_next_one(ask: Run, start: Run, tmp_path: Path) -> None:
    start(SERVICE)
    left = tmp_path / "copy.db.stellwerk-partial"
    left.write_bytes(b"half of it")
    assert ask("backup", "copy.db").exit_code == 0
    assert not left.exists()
    whole = (tmp_path / "copy.db").read_bytes()
    # Killed between giving it its name and taking away the first one: both are the same file.
    left.hardlink_to(tmp_path / "copy.db")
    assert ask("backup", "copy.db").exit_code == 2
    assert (tmp_path / "copy.db").read_bytes() == whole


def test_two_backups_to_one_file_do_not_mix(ask: Run, start: Run, tmp_path: Path) -> None:
    start(SERVICE)
    with (tmp_path / "copy.db.stellwerk-partial").open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        refused = ask("backup", "copy.db")
    assert refused.exit_code == 2
    assert "another one is being written there" in refused.err


# --- files that cannot be used ---------------------------------------------------------------------------------------


def test_a_file_that_is_not_there_is_not_made(stellwerk: Run, model: Run, tmp_path: Path) -> None:
    model(SERVICE)
    for command in (["instances"], ["deploy", "model.bpmn"], ["backup", "copy.db"]):
        ended = stellwerk(*command, "--db", "orders.db")
        assert (ended.exit_code, ended.is_one_clear_line) == (2, True), ended
        assert "orders.db: there is no such file" in ended.err
    assert sorted(os.listdir(tmp_path)) == ["model.bpmn"]


@pytest.mark.parametrize("content", [b"", b"no database", b"<?xml version='1.0'?>" + b" " * 200])
def test_a_file_that_is_no_database_is_left_alone(stellwerk: Run, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "orders.db").write_bytes(content)
    ended = stellwerk("instances", "--db", "orders.db")
    assert (ended.exit_code, ended.err) == (2, "stellwerk: orders.db: is not a database of stellwerk\n")
    assert (os.listdir(tmp_path), (tmp_path / "orders.db").read_bytes()) == (["orders.db"], content)


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_a_database_of_another_program_is_left_alone(stellwerk: Run, tmp_path: Path, mode: str) -> None:
    with sqlite3.connect(tmp_path / "photos.db") as connection:
        connection.execute(f"PRAGMA journal_mode = {mode}")
        connection.execute("CREATE TABLE photos (name TEXT)")
    connection.close()
    before = (tmp_path / "photos.db").read_bytes()
    ended = stellwerk("instances", "--db", "photos.db")
    assert (ended.exit_code, ended.is_one_clear_line) == (2, True), ended
    assert "photos.db" in ended.err
    assert "is an SQLite database, but not one of stellwerk" in ended.err
    assert (os.listdir(tmp_path), (tmp_path / "photos.db").read_bytes()) == (["photos.db"], before)


def test_a_directory_is_no_database(stellwerk: Run) -> None:
    ended = stellwerk("instances", "--db", ".")
    assert (ended.exit_code, ended.is_one_clear_line) == (2, True)
    assert "is a directory" in ended.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write every file")
def test_a_file_that_cannot_be_written_is_one_clear_line(ask: Run, db: Path) -> None:
    db.chmod(0o400)
    ended = ask("instances")
    assert (ended.exit_code, ended.is_one_clear_line) == (2, True)
    assert "permission denied" in ended.err


def test_a_file_of_a_later_version_is_refused(ask: Run, db: Path) -> None:
    with sqlite3.connect(db) as connection:
        connection.execute("INSERT INTO schema_migrations VALUES (9999, 'later', 'x')")
    connection.close()
    ended = ask("instances")
    assert (ended.exit_code, ended.is_one_clear_line) == (2, True)
    assert "later version of stellwerk" in ended.err


def test_url_and_file_exclude_each_other(ask: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = ask("instances", "--url", "http://127.0.0.1:1")
    assert (ended.exit_code, ended.err) == (2, "stellwerk: --url and --db exclude each other\n")
    monkeypatch.setenv("STELLWERK_URL", "http://127.0.0.1:1")
    assert ask("instances").exit_code == 0, "what the environment says is only a default"


def test_mistakes_are_told_as_by_an_engine(ask: Run) -> None:
    for command, what in (
        (("show", "nothing"), "there is no instance nothing"),
        (("start", "order"), 'no process "order" is deployed, nor any other: stellwerk deploy FILE'),
        (("instances", "--limit", "0"), "limit is from 1 to 1000"),
        (("cancel", "../nothing"), "no id"),
    ):
        ended = ask(*command)
        assert (ended.exit_code, ended.is_one_clear_line) == (2, True), ended
        assert what in ended.err


# --- two terminals ---------------------------------------------------------------------------------------------------


def test_a_file_that_an_engine_has_is_asked_through_the_engine(
    stellwerk: Run, start_engine: Run, model: Run, tmp_path: Path
) -> None:
    engine = start_engine("--db", str(tmp_path / "orders.db"))
    model(SERVICE, key="order")
    refused = stellwerk("deploy", "model.bpmn", "--db", "orders.db")
    assert (refused.exit_code, refused.is_one_clear_line) == (2, True)
    assert (
        f"orders.db is in use by another process (pid {engine.process.pid}): an engine, or another stellwerk command; "
        "ask an engine with --url" in refused.err
    )
    assert stellwerk("deploy", "model.bpmn", "--url", engine.url).exit_code == 0
    overwritten = stellwerk("backup", "orders.db", "--force", "--url", engine.url)
    assert (overwritten.exit_code, overwritten.is_one_clear_line) == (2, True)
    assert "in use by another process" in overwritten.err
    assert engine.stop() == 0
    assert "order" in stellwerk("definitions", "--db", "orders.db").out


def test_a_file_that_a_command_has_is_refused_to_others(ask: Run, db: Path) -> None:
    async def hold() -> Any:
        async with open_engine(db):
            return await trio.to_thread.run_sync(ask, "instances")

    ended = trio.run(hold)
    assert (ended.exit_code, ended.is_one_clear_line) == (2, True)
    assert f"in use by another engine (pid {os.getpid()})" in ended.err
    assert ask("instances").exit_code == 0, "the lock ended with its holder"


def test_a_pipe_is_no_database_file(stellwerk: Run, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "orders.db")
    ended = stellwerk("instances", "--db", "orders.db")
    assert (ended.exit_code, ended.err) == (2, "stellwerk: orders.db: is not a file\n")
