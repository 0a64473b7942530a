"""What an operator sees when the database goes away and comes back: one line each way, and a node that is not ready."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from typing import Any
from urllib.parse import urlsplit

import attrs
import pytest
import trio

from stellwerk.app import AppConfig, serve_engine
from stellwerk.errors import Conflict, StoreUnavailable
from stellwerk.stores.postgres.dsn import PostgresConfig
from stellwerk.stores.postgres.outages import Answers, Asking, OutageLog
from stellwerk.system.logging import LogFormat, open_log
from stellwerk.testing.databases import PostgresAccess, PostgresServer

WHERE = "PostgreSQL database orders on db:5432"


@attrs.define
class SetClock:
    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return int(self.now * 1000)

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)


class Watched:
    """Answers of a database, with a log in which their lines stand."""

    def __init__(self) -> None:
        self.clock = SetClock()
        self._stream = StringIO()
        inner = open_log(form=LogFormat.JSON, stream=self._stream)
        self.answers = Answers(self.clock, inner, WHERE)
        self.log = OutageLog(inner, self.answers)

    def lines(self) -> list[tuple[str, str]]:
        rows = [json.loads(line) for line in self._stream.getvalue().splitlines()]
        return [(row["level"], row["event"]) for row in rows]

    def asked(self, what: Asking = "read", problem: Exception | None = None) -> None:
        try:
            with self.answers.asking(what):
                if problem is not None:
                    raise problem
        except StoreUnavailable:
            self.log.warning("somebody could not do something", reason=f"{WHERE}: cannot be reached")
        except Conflict:
            pass


@pytest.fixture
def watched() -> Watched:
    return Watched()


AWAY = StoreUnavailable(f"{WHERE}: cannot be reached")


def test_outage_is_one_line_when_it_begins_and_one_when_it_ends(watched: Watched) -> None:
    for _ in range(20):
        watched.asked(problem=AWAY)
        watched.asked("write", AWAY)
        watched.log.warning("the store does not work", error=AWAY.message)  # as the committer says it, too
        watched.clock.now += 2
    assert watched.lines() == [("warning", "the store does not work")]
    watched.asked("read")
    assert len(watched.lines()) == 1, "who writes is not answered yet"
    watched.asked("write")
    watched.log.info("the store works again")
    assert watched.lines()[1:] == [("info", "the store works again")]
    watched.log.warning("somebody could not do something", reason="for a reason of its own")
    assert watched.lines()[-1] == ("warning", "somebody could not do something")


def test_other_troubles_are_told_during_an_outage(watched: Watched) -> None:
    watched.asked(problem=AWAY)
    watched.log.warning("incident opened", message="declined")
    watched.log.error("an operation failed", error=f"{WHERE}: a fault of ours")
    assert watched.lines()[1:] == [("warning", "incident opened"), ("error", "an operation failed")]


def test_database_that_is_half_there_is_not_told_over_and_over(watched: Watched) -> None:
    for _ in range(10):
        watched.asked(problem=AWAY)
        watched.asked()
        watched.clock.now += 0.3
    assert watched.lines() == [("warning", "the store does not work")]


def test_node_is_not_ready_once_nothing_was_answered_for_five_seconds(watched: Watched) -> None:
    watched.asked()
    assert watched.answers.trouble() is None
    watched.asked(problem=AWAY)
    assert watched.answers.trouble() is None, "a moment is for others to bridge"
    watched.clock.now += 5
    watched.asked(problem=AWAY)
    assert watched.answers.trouble() == AWAY.message
    watched.asked(problem=Conflict("not now"))
    assert watched.answers.trouble() is None, "that was an answer"
    watched.clock.now += 60
    assert watched.answers.trouble() is None, "nothing was asked"


def test_question_that_hangs_counts_and_one_that_was_given_up_does_not(watched: Watched) -> None:
    watched.asked()
    with watched.answers.asking("read"):
        watched.clock.now += 6
        assert "not answered for 6 s" in str(watched.answers.trouble())
        watched.asked()
        assert watched.answers.trouble() is None
    with pytest.raises(KeyboardInterrupt), watched.answers.asking("write"):
        raise KeyboardInterrupt
    watched.clock.now += 6
    assert watched.answers.trouble() is None


# --- with a server ---------------------------------------------------------------------------------------------------


def _config(dsn: str) -> AppConfig:
    return AppConfig(db=PostgresConfig(dsn=dsn, connect_seconds_max=2), port=0, log_format=LogFormat.JSON)


async def _until_ready_is(url: str, status: int) -> str:
    with trio.fail_after(20):
        while (answer := await trio.to_thread.run_sync(_get, url, "/readyz"))[0] != status:
            await trio.sleep(0.02)
    assert await trio.to_thread.run_sync(_get, url, "/livez") == (200, "ok")
    return answer[1]


def _get(url: str, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


async def test_node_is_not_ready_while_its_database_is_away(
    breakable_server: PostgresServer, breakable_dsn: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serve_engine(_config(breakable_dsn)) as engine:
        await engine.node.ports.store.claim_timers(0, 1)  # it reads and writes
        await _until_ready_is(engine.url, 200)
        breakable_server.stop()
        assert "cannot be reached" in await _until_ready_is(engine.url, 503)
        seen_away_at = trio.current_time()
        breakable_server.start()
        away_seconds = trio.current_time() - seen_away_at
        assert await _until_ready_is(engine.url, 200) == "ok"
        name = engine.node.config.identity.name
        with trio.fail_after(10):
            lines: list[dict[str, Any]] = []
            while not any(line["event"] == "the store works again" for line in lines):
                await trio.sleep(0.05)
                lines += [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert {line["node"] for line in lines} == {name}
    told = [line for line in lines if line["event"] != "listening"]
    assert [(line["level"], line["event"]) for line in told] == [
        ("warning", "the store does not work"),
        ("info", "the store works again"),
    ]
    assert re.search("cannot be reached|connection was|shutting down|terminating", told[0]["reason"])
    assert told[1]["seconds"] >= round(away_seconds, 1)


async def test_node_on_a_database_that_is_read_only_is_not_ready(
    postgres_server: PostgresAccess, postgres_dsn: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = urlsplit(postgres_dsn).path.strip("/")
    postgres_server.query(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    async with serve_engine(_config(postgres_dsn)) as engine:
        assert "read-only" in await _until_ready_is(engine.url, 503)
    events = [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()]
    assert events.count("the store does not work") == 1


async def test_connections_bear_the_name_that_operators_see(postgres_server: PostgresAccess, postgres_dsn: str) -> None:
    async with serve_engine(_config(postgres_dsn)) as engine:
        name = engine.node.config.identity.name
        statement = "SELECT DISTINCT application_name AS name FROM pg_stat_activity WHERE datname = current_database()"
        rows = postgres_server.query(f"{statement} AND pid <> pg_backend_pid()", dsn=postgres_dsn)
        assert [row["name"] for row in rows] == [f"stellwerk {name}"]


# --- rights ----------------------------------------------------------------------------------------------------------


@contextmanager
def _role(server: PostgresAccess, name: str) -> Iterator[str]:
    server.query(f"CREATE ROLE {name} LOGIN")
    try:
        yield name
    finally:
        server.query(f"DROP OWNED BY {name}")
        server.query(f"DROP ROLE {name}")


async def test_way_out_of_missing_rights_helps(open_link: Any, breakable_server: PostgresServer) -> None:
    """The schema is somebody else's: what the message says is what has to be done."""
    dsn_of: Callable[[str], str] = lambda user: breakable_server.tcp_dsn("owned", user=user)  # noqa: E731
    with _role(breakable_server, "first_user"), _role(breakable_server, "second_user"):
        breakable_server.query("CREATE DATABASE owned OWNER first_user")
        try:
            async with serve_engine(_config(dsn_of("first_user"))):
                pass
            with pytest.raises(StoreUnavailable, match=r"permission denied.*GRANT owner TO user"):
                async with serve_engine(_config(dsn_of("second_user"))):
                    pass
            breakable_server.query("GRANT first_user TO second_user")
            async with serve_engine(_config(dsn_of("second_user"))) as engine:
                await _until_ready_is(engine.url, 200)
        finally:
            breakable_server.query("DROP DATABASE owned WITH (FORCE)")
