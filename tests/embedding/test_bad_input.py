"""What an embedded engine says to arguments that make no sense, with either store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import stellwerk
from stellwerk.errors import InvalidInput, NotFound

Process: TypeAlias = Callable[..., tuple[str, bytes]]
Call: TypeAlias = Callable[[Any], Any]


@pytest.fixture(params=[":memory:", "orders.db"])
async def engine(
    request: pytest.FixtureRequest, process: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[stellwerk.Engine]:
    monkeypatch.chdir(tmp_path)
    async with stellwerk.open_engine(request.param) as opened:
        await opened.deploy(process("approve"))
        yield opened


CALLS: list[tuple[Call, str]] = [
    (lambda engine: engine.start(7), "expected a string, not int @ $.process"),
    (lambda engine: engine.start("order", []), "expected a dict, not list @ $.variables"),
    (lambda engine: engine.start("order", business_key=b"A"), "expected a string, not bytes @ $.business_key"),
    (lambda engine: engine.start("order", request_id="\0"), "NUL character @ $.request_id"),
    (lambda engine: engine.start("order", version=True), "expected a whole number, not bool @ $.version"),
    (lambda engine: engine.instance("\ud800"), "lone surrogate @ $.instance_id"),
    (lambda engine: engine.history(10**30), "expected a string, not int @ $.instance_id"),
    (lambda engine: engine.replay("x", "1"), "expected a whole number, not str @ $.at"),
    (lambda engine: engine.replay("x", -(10**30)), f"expected a number up to {2**53 - 1} @ $.at"),
    (lambda engine: engine.instances(limit=10**30), f"expected a number up to {2**53 - 1} @ $.limit"),
    (lambda engine: engine.instances(with_incident="no"), "expected True or False, not str @ $.with_incident"),
    (lambda engine: engine.instances(started_from=1.0), "expected a datetime, not float @ $.started_from"),
    (lambda engine: engine.tasks(limit=0), "at least 1 @ $.limit"),
    (lambda engine: engine.user_tasks(limit=-1), "at least 1 @ $.limit"),
    (lambda engine: engine.retry_incidents(limit=-1), "at least 1 @ $.limit"),
    (lambda engine: engine.retry_incidents(incident_ids="abc"), "expected a list of strings, not str @ $.incident_ids"),
    (lambda engine: engine.retry_incidents(incident_ids=[1]), "expected a string, not int @ $.incident_ids[0]"),
    (
        lambda engine: engine.wait_for_end("x", timeout_seconds=float("nan")),
        "expected a number, not NaN @ $.timeout_seconds",
    ),
    (lambda engine: engine.publish("paid", ttl_ms="1"), "expected a whole number, not str @ $.ttl_ms"),
    (lambda engine: engine.prune(3), "expected a timedelta, not int @ $.older_than"),
    (lambda engine: engine.prune(timedelta(-1)), "older_than must not be negative"),
    (lambda engine: engine.backup(3), "expected a path, not int @ $.target"),
    (lambda engine: engine.backup("a\0b"), "NUL character @ $.target"),
    (lambda engine: engine.deploy("\ud800.bpmn"), "lone surrogate @ $.files"),
    (lambda engine: engine.deploy((1, b"")), "expected a string, not int @ $.files"),
    (lambda engine: engine.drain("now"), "expected a number, not str @ $.seconds"),
    (lambda engine: engine.start_worker(None), "expected a Worker, not NoneType @ $.worker"),
]


@pytest.mark.parametrize(("call", "complaint"), CALLS, ids=[f"call {number}" for number, _ in enumerate(CALLS)])
async def test_bad_input_is_named(engine: stellwerk.Engine, call: Call, complaint: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        await call(engine)
    assert complaint in refused.value.message
    assert not await engine.instances()


async def test_what_is_unknown_is_not_found(engine: stellwerk.Engine) -> None:
    for call in (engine.instance, engine.history, engine.trace, engine.replay, engine.variables):
        with pytest.raises(NotFound):
            await call("nobody")


async def test_a_parameter_that_does_not_exist_is_python_s_own_error(engine: stellwerk.Engine) -> None:
    start: Any = engine.start
    with pytest.raises(TypeError, match="bussiness_key"):
        await start("order", bussiness_key="A-17")


def test_a_worker_s_options_are_checked() -> None:
    make: Any = stellwerk.Worker
    with pytest.raises(InvalidInput, match="reconnect_seconds_max must be positive seconds, not 'x'"):
        make(reconnect_seconds_max="x")
