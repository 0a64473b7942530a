"""Values that some databases, or some readers of JSON, cannot hold: every store gives the same answers (fault 104), and
what identifies something is a text that nobody rounds (fault 107)."""

from __future__ import annotations

import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import attrs
import pytest

from stellwerk.app import MEMORY, AppConfig, ServedEngine, serve_engine
from stellwerk.app.databases import Database
from stellwerk.stores.postgres.dsn import PostgresConfig
from stellwerk.system.logging import LogLevel

REFUSED: dict[object, str] = {
    "a\0": "NUL character @ ",
    "\ud800": "not JSON|lone surrogate @ ",
    "\udc00\ud800": "not JSON|lone surrogate @ ",
    math.nan: "not JSON",
    math.inf: "not JSON",
    -math.inf: "not JSON",
}
"""Each with what the answer says about it."""
REFUSED_TEXTS = {value: words for value, words in REFUSED.items() if isinstance(value, str)}
KEPT: tuple[object, ...] = (
    "\\u0000",
    "\\\\u0000 \\ud800",
    "\x01\x7f\u2028\ufffe",
    "\U0001f600",
    10**30,
    -(10**30),
    2**53 + 1,
    1e308,
    5e-324,
    -0.0,
)
KEPT_TEXTS = [value for value in KEPT if isinstance(value, str)]


@attrs.frozen
class Reply:
    status: int
    body: Any


@attrs.frozen
class Place:
    """An engine on one of the stores, and who talks to it."""

    store: str
    engine: ServedEngine
    client: Any


@pytest.fixture
async def places(
    tmp_path: Path, postgres_dsn: str, connect_to: Callable[[ServedEngine], Any], order_model: str
) -> AsyncIterator[list[Place]]:
    databases: dict[str, Database] = {
        "memory": MEMORY,
        "SQLite": tmp_path / "engine.db",
        "PostgreSQL": PostgresConfig(dsn=postgres_dsn),
    }
    async with AsyncExitStack() as stack:
        places = []
        for store, database in databases.items():
            config = AppConfig(db=database, port=0, log_level=LogLevel.ERROR, synchronous="NORMAL")
            engine = await stack.enter_async_context(serve_engine(config))
            await engine.node.deploy([("order.bpmn", order_model.encode())])
            client = await stack.enter_async_context(connect_to(engine))
            places.append(Place(store, engine, client))
        yield places


async def on_every_store(places: list[Place], ask: Callable[[Place], Any]) -> Any:
    """What all of them answer: the same."""
    answers = {place.store: await ask(place) for place in places}
    for store, answer in answers.items():
        assert answer == answers["memory"], (store, answers)
    return answers["memory"]


# --- refused ---------------------------------------------------------------------------------------------------------


def values_somewhere(value: object) -> Iterator[tuple[str, dict[str, object]]]:
    """Requests with that value in a place for values."""
    for hidden in (value, [1, value], {"deep": {"in": [value]}}):
        yield "/process-instances", {"process_def_id": "order", "variables": {"v": hidden}}
        yield "/messages", {"name": "paid", "variables": {"v": hidden}}
        yield "/process-instances/nobody/variables", {"variables": {"v": hidden}}
        yield "/user-tasks/nobody/complete", {"variables": {"v": hidden}}


def texts_somewhere(text: str) -> Iterator[tuple[str, dict[str, object]]]:
    """Requests with that text in a place for texts."""
    yield "/process-instances", {"process_def_id": "order", "variables": {text: 1}}
    yield "/process-instances", {"process_def_id": "order", "variables": {"v": {text: 1}}}
    yield "/process-instances", {"process_def_id": "order", "business_key": text}
    yield "/process-instances", {"process_def_id": "order", "request_id": text}
    yield "/process-instances", {"process_def_id": text}
    yield "/messages", {"name": text, "key": "k"}
    yield "/messages", {"name": "paid", "key": text}
    yield "/messages", {"name": "paid", "message_id": text}
    yield "/process-instances/nobody/cancel", {"reason": text}


async def test_fault_104_what_no_json_can_hold_is_refused_alike_on_every_store(places: list[Place]) -> None:
    requests = [(asked, words) for value, words in REFUSED.items() for asked in values_somewhere(value)]
    requests += [(asked, words) for text, words in REFUSED_TEXTS.items() for asked in texts_somewhere(text)]
    for (path, body), words in requests:

        async def post(place: Place, path: str = path, body: dict[str, object] = body) -> tuple[int, Any]:
            reply = await place.client.post(path, body)
            return reply.status, reply.body

        status, answer = await on_every_store(places, post)
        assert (status, answer["code"]) == (400, "invalid"), (path, body)
        assert re.search(words, answer["detail"])

    async def left(place: Place) -> tuple[Any, Any]:
        instances, messages = await place.client.get("/process-instances"), await place.client.get("/messages")
        return instances.body["instances"], messages.body["messages"]

    assert await on_every_store(places, left) == ([], [])


# --- what a worker says ----------------------------------------------------------------------------------------------


@attrs.frozen
class Said:
    """What a worker was told of a report, and what the task and its instance were like then."""

    answer: dict[str, Any]
    task: Any
    variables: Any


Report = Callable[[Place, dict[str, object]], Awaitable[Said]]


@pytest.fixture
def report(connect_worker: Callable[..., Any]) -> Report:
    """Of a new instance's task: ``await report(place, {"type": "complete", "variables": {}})``."""

    async def report_it(place: Place, message: dict[str, object]) -> Said:
        instance_id = await place.client.start()
        async with connect_worker(place.engine, "charge") as worker:
            offer = await worker.task()
            await worker.say(**message, ref=1, task_id=offer["task_id"], fence=offer["fence"])
            answer = await worker.next("ack", "nack", "error")
        view = (await place.client.get(f"/process-instances/{instance_id}")).body
        if view["status"] == "RUNNING":
            await place.engine.node.cancel_instance(instance_id, "looked at")
        return Said(answer, view["tasks"][0], view["variables"])

    return report_it


def reports_with(value: object) -> Iterator[dict[str, object]]:
    yield {"type": "complete", "variables": {"v": [value]}}
    yield {"type": "complete", "variables": value}
    yield {"type": "fail", "message": "m", "details": {"d": value}}
    yield {"type": "bpmn_error", "code": "C", "details": value}
    yield {"type": "bpmn_error", "code": "C", "variables": {"v": value}}


def reports_with_text(text: str) -> Iterator[dict[str, object]]:
    yield {"type": "complete", "variables": {text: 1}}
    yield {"type": "fail", "message": text}
    yield {"type": "bpmn_error", "code": text}
    yield {"type": "bpmn_error", "code": "C", "message": text}


async def test_fault_104_a_report_with_such_a_value_is_refused_and_the_task_goes_on(
    places: list[Place], report: Report
) -> None:
    reports = [message for value in REFUSED for message in reports_with(value)]
    reports += [message for text in REFUSED_TEXTS for message in reports_with_text(text)]
    for message in reports:

        async def said(place: Place, message: dict[str, object] = message) -> tuple[Any, ...]:
            said = await report(place, message)
            return said.answer, said.task["outcome"], said.task["error_message"]

        answer, outcome, error_message = await on_every_store(places, said)
        assert (answer["type"] in ("nack", "error"), answer["code"]) == (True, "invalid"), message
        assert (outcome, error_message) == (None, None)

    async def last(place: Place) -> Any:
        return (await report(place, {"type": "complete", "variables": {"done": True}})).variables

    assert await on_every_store(places, last) == {"done": True}


# --- kept ------------------------------------------------------------------------------------------------------------


def same(value: object, expected: object) -> bool:
    """Equal, of one type, and no zero is negative."""
    return repr(value) == repr(0.0 if expected == 0 else expected)


async def test_fault_104_values_come_back_as_they_were_sent(places: list[Place], report: Report) -> None:
    names = {f"v{number}": value for number, value in enumerate(KEPT)} | dict.fromkeys(KEPT_TEXTS, 1)

    def check(found: dict[str, object], *ways: str) -> None:
        assert found.keys() == names.keys(), ways
        for name, value in names.items():
            assert same(found[name], value), (*ways, name)

    for place in places:
        instance_id = await place.client.start(variables=names)
        view = (await place.client.get(f"/process-instances/{instance_id}")).body
        check(view["variables"], place.store, "of the instance")
        check(view["tasks"][0]["variables"], place.store, "of the task")
        await place.engine.node.cancel_instance(instance_id, KEPT_TEXTS[0])
        view = (await place.client.get(f"/process-instances/{instance_id}?history=true")).body
        assert view["reason"] == KEPT_TEXTS[0]
        started = view["history"][0]
        assert started["event_type"] == "InstanceStarted"
        check(started["payload"]["variables"], place.store, "in the history")
        said = await report(place, {"type": "complete", "variables": names})
        assert said.answer["type"] == "ack"
        check(said.variables, place.store, "a result")
        said = await report(place, {"type": "fail", "message": "m", "details": names})
        check(said.task["attempts"][0]["details"], place.store, "details of a failure")


async def test_fault_104_texts_come_back_as_they_were_sent(places: list[Place], report: Report) -> None:
    for place in places:
        for text in KEPT_TEXTS:
            instance_id = await place.client.start(business_key=text, request_id=text)
            assert await place.client.start(business_key=text, request_id=text) == instance_id
            listed = await place.client.get(f"/process-instances?business_key={quote(text)}")
            assert [row["business_key"] for row in listed.body["instances"]] == [text], place.store
            await place.engine.node.cancel_instance(instance_id, text)
            said = await report(place, {"type": "fail", "message": text})
            assert (said.answer["type"], said.task["error_message"]) == ("ack", text), place.store
            published = {"name": text, "key": text, "message_id": text, "variables": {text: text}}
            assert (await place.client.post("/messages", published)).status == 201
            kept = (await place.client.get(f"/messages/{quote(text, safe='')}")).body
            assert (kept["message_id"], kept["name"], kept["key"]) == (text, text, text), place.store


# --- fault 107 -------------------------------------------------------------------------------------------------------

IDS = re.compile(r"(.+_)?id|id")
PATHS = (
    "/process-definitions",
    "/process-instances",
    "/process-instances/{instance_id}?history=true",
    "/process-instances/{instance_id}/history",
    "/process-instances/{instance_id}/trace",
    "/process-instances/{instance_id}/state",
    "/process-instances/{instance_id}/wait?timeout_ms=0",
    "/external-tasks",
    "/external-tasks/{task_id}",
    "/workers",
    "/messages",
    "/messages/{message_id}",
    "/user-tasks",
    "/incidents",
    "/nodes",
)


def ids_in(value: object) -> Iterator[tuple[str, object]]:
    """Each field that names something, wherever it is."""
    if isinstance(value, list):
        for item in value:
            yield from ids_in(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            if IDS.fullmatch(name):
                yield name, item
            elif name.endswith("_ids"):
                yield from ((name, each) for each in item)
            else:
                yield from ids_in(item)


async def test_fault_107_ids_are_texts_in_every_answer(
    places: list[Place], connect_worker: Callable[..., Any], stuck_model: str
) -> None:
    found: set[str] = set()
    for place in places:
        await place.engine.node.deploy([("stuck.bpmn", stuck_model.encode())])
        instance_id = await place.client.start(variables={"n": 1})
        await place.client.start("approval")
        await place.client.has_incident(await place.client.start("stuck"))
        published = await place.client.post("/messages", {"name": "nobody waits", "message_id": "7"})
        async with connect_worker(place.engine, "charge") as worker:
            offer = await worker.task()
            named = {"instance_id": instance_id, "task_id": offer["task_id"], **published.body}
            answers = [(path, await place.client.get(path.format(**named))) for path in PATHS]
        answers.append(("tasks", Reply(200, offer)))
        for path, answer in answers:
            assert answer.status == 200, path
            for name, value in ids_in(answer.body):
                assert value is None or isinstance(value, str), (place.store, path, name, value)
                found.add(name)
    assert found >= {"instance_id", "task_id", "token_id", "message_id", "incident_id", "user_task_id", "node_id"}


async def test_fault_107_fences_and_times_are_exact_for_readers_that_know_doubles_only(
    places: list[Place], connect_worker: Callable[..., Any]
) -> None:
    """The numbers that are the engine's own."""
    for place in places:
        await place.client.start()
        async with connect_worker(place.engine, "charge") as worker:
            offer = await worker.task()
        numbers = [value for value in offer.values() if isinstance(value, int)]
        assert numbers
        assert all(abs(number) < 2**53 for number in numbers), (place.store, offer)
