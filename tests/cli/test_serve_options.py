"""Which database ``serve`` and the other commands take, and how many processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

SECRET = "sesame-12345"
WITHOUT_EXTRA = """
import sys
sys.modules["asyncpg"] = None
from stellwerk.cli.main import run
sys.exit(run({arguments!r}))
"""


@pytest.mark.parametrize(
    "arguments, what",
    [
        (["--nodes", "4"], "--nodes 4: a file belongs to one process; several need --db postgresql://"),
        (["--nodes", "0", "--db", "postgresql://h/d"], "--nodes 0: 1 to 64 processes"),
        (["--listen-db", "postgresql://h/d"], "a direct way to the database is for postgresql://"),
        (["--db", "mysql://u:sesame-12345@h/d"], "mysql://…: a database is a file, :memory:, or postgresql://"),
        (["--db", "postgresql://h:port/d"], "the DSN of the database is malformed"),
        (["--db", "postgresql://u:sesame-12345@@h/d"], "write the characters @ / ? #"),
        (["--db", "postgresql://h/d", "--listen-db", "h"], "does not begin with postgresql://"),
        (["--db", "postgresql://h/d", "--synchronous", "normal"], "--synchronous is for SQLite files"),
    ],
)
def test_options_that_do_not_go_together_are_one_clear_line(stellwerk: Run, arguments: list[str], what: str) -> None:
    ended = stellwerk("serve", *arguments)
    assert (ended.exit_code, ended.is_one_clear_line) == (2, True), ended
    assert what in ended.err
    assert SECRET not in ended.err


@pytest.mark.parametrize(
    "db",
    [
        f"host=db dbname=orders password={SECRET}",
        f"dbname = orders password={SECRET}",
        f"jdbc:postgresql://u:{SECRET}@db/orders",
        f"postgresql:/u:{SECRET}@db/orders",
        f"PostgreSQL://u:{SECRET}@db/orders",
    ],
)
@pytest.mark.parametrize("command", ["serve", "instances"])
def test_other_forms_for_a_database_of_postgresql_make_no_file(
    stellwerk: Run, tmp_path: Path, command: str, db: str
) -> None:
    ended = stellwerk(command, "--db", db)
    assert (ended.exit_code, ended.is_one_clear_line) == (2, True), ended
    assert "postgresql://user@host:5432/database" in ended.err
    assert SECRET not in ended.err
    assert list(tmp_path.iterdir()) == []


def test_only_postgresql_is_waited_for(stellwerk: Run) -> None:
    ended = stellwerk("serve", "--db", "orders.db", "--wait-for-db", "5s")
    assert (ended.exit_code, ended.is_one_clear_line) == (2, True), ended
    assert "--wait-for-db" in ended.err


def test_database_comes_from_the_environment(stellwerk: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STELLWERK_DB", f"postgresql://u:{SECRET}@127.0.0.1:1/orders?connect_timeout=1")
    ended = stellwerk("serve", "--port", "0", "--synchronous", "normal")
    assert "--synchronous is for SQLite files" in ended.err
    monkeypatch.setenv("STELLWERK_DB", str(tmp_path / "no" / "such.db"))
    assert "there is no directory" in stellwerk("serve").err
    # What is given counts; and only `serve` is meant by the variable.
    assert "a database is a file" in stellwerk("serve", "--db", "oracle://x").err
    monkeypatch.setenv("STELLWERK_URL", "http://127.0.0.1:1")
    assert stellwerk("instances").exit_code == 3


def test_password_on_the_command_line_is_remarked_upon_and_not_repeated(stellwerk: Run) -> None:
    ended = stellwerk("serve", "--db", f"postgresql://u:{SECRET}@127.0.0.1:1/d?sslmode=disable", "--nodes", "99")
    assert SECRET not in ended.err + ended.out
    for command in ("instances", "nodes"):
        ended = stellwerk(command, "--db", f"postgresql://u:{SECRET}@h:port/d")
        assert (ended.exit_code, ended.is_one_clear_line) == (2, True), ended
        assert SECRET not in ended.err


@pytest.mark.parametrize("command", [["serve", "--port", "0"], ["nodes"]])
def test_missing_extra_is_one_clear_line(command: list[str]) -> None:
    arguments = [*command, "--db", "postgresql://127.0.0.1:1/d"]
    script = WITHOUT_EXTRA.format(arguments=arguments)
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        "stellwerk: PostgreSQL needs asyncpg, which is not installed: pip install 'stellwerk[postgres]'\n"
    )


def test_nodes_lists_the_one_engine_of_a_file(start_engine: Run, stellwerk: Run) -> None:
    engine = start_engine()
    ended = stellwerk("nodes", "--url", engine.url)
    assert (ended.exit_code, ended.err) == (0, "")
    assert engine.url in ended.out
    assert f":{engine.process.pid} " in ended.out
    assert "SILENT" not in ended.out
