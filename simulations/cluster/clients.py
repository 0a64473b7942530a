"""The client: it deploys what the plan's instances need, starts them, and does to each what its workload says."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Any, assert_never

import attrs
import trio

from simulations.cluster.calls import Caller, ClientObserver, Known
from simulations.cluster.surroundings import Surroundings
from simulations.kernel.draws import chance
from simulations.plans.plan import InstanceSpec
from simulations.workloads.base import (
    Cancel,
    ClientEvent,
    CompleteUserTask,
    Publish,
    Redeploy,
    StartInstance,
    revised,
)
from simulations.workloads.reading import EventAnswer
from simulations.world.hosts import Host
from stellwerk.json_values import JsonObject

__all__ = ["ClientProgram", "ClientRecord"]

_API = "/api/v1"
_DEPLOYED = (201,)
_STARTED = (201,)
_PUBLISHED = (201,)
_CANCELLED = (200, 409)
_COMPLETED = (200, 404, 409)
_LOOK_AGAIN_SECONDS = 0.5
_RUNNING = "RUNNING"
_REDEPLOYED = 0.5
"""Which share of the files a redeployment is of."""


@attrs.define
class ClientRecord:
    """What the client knows about one instance, kept where no crash reaches it."""

    spec: InstanceSpec
    start_sent: float | None = None
    """When it first asked for it; true simulated seconds."""
    instance_id: str | None = None
    is_started: bool = False
    """It was answered; a start by message has no `instance_id` then, until the client needs it."""
    answers: list[EventAnswer] = attrs.field(factory=list)
    """Of the events that it has done; one that it is about stands last, without `answered`."""
    is_done: bool = False
    """All that it had to do with this instance is done."""


class ClientProgram:
    """What runs on the client's host. Started again it goes on where it was."""

    def __init__(self, surroundings: Surroundings, host: Host, observers: Sequence[ClientObserver] = ()) -> None:
        self._surroundings = surroundings
        self._host = host
        self._observers = observers
        self._caller = Caller(surroundings, host, observers)
        self.records = {spec.key: ClientRecord(spec) for spec in surroundings.plan.instances}
        self._deployed = {spec.kind: trio.Event() for spec in surroundings.plan.instances}
        """By kind: its files were deployed."""
        self._revisions: list[int] = []
        self._wake = trio.Event()

    @property
    def is_done(self) -> bool:
        return all(record.is_done for record in self.records.values())

    def redeploy(self, revision: int) -> None:
        """Deploy some files once more, as new versions that do the same."""
        self._revisions.append(revision)
        self._wake.set()

    async def run(self) -> None:
        self._caller = Caller(self._surroundings, self._host, self._observers)
        async with trio.open_nursery() as nursery:
            for kind in self._kinds():
                nursery.start_soon(self._deploy_kind, kind, name=f"deploy {kind}")
            nursery.start_soon(self._redeploy_when_told)
            for record in self.records.values():
                if not record.is_done:
                    nursery.start_soon(self._see_through, record, name=f"instance {record.spec.key}")

    # --- deploying -------------------------------------------------------------------------------------------------

    def _kinds(self) -> Sequence[str]:
        return list(self._deployed)

    async def _deploy_kind(self, kind: str) -> None:
        if not self._deployed[kind].is_set():
            for name, xml in self._surroundings.workloads[kind].files.items():
                known = await self._deploy(f"deploy {name}", name, xml)
                self._expect(known, _DEPLOYED, f"deploying {name}")
            self._deployed[kind].set()

    def _files(self) -> Iterator[tuple[str, bytes]]:
        for kind in self._kinds():
            yield from self._surroundings.workloads[kind].files.items()

    async def _deploy(self, key: str, name: str, xml: bytes) -> Known:
        file = {"name": name, "xml_base64": base64.b64encode(xml).decode()}
        return await self._caller.until_known(key, "POST", f"{_API}/process-definitions", {"files": [file]})

    async def _redeploy_when_told(self) -> None:
        while True:
            while self._revisions:
                revision = self._revisions.pop(0)
                for name, xml in self._files():
                    if chance(self._surroundings.simulation.seed, _REDEPLOYED, "redeploy", revision, name):
                        key = f"deploy {name} revision {revision}"
                        known = await self._deploy(key, name, revised(xml, f"r{revision}"))
                        self._expect(known, _DEPLOYED, key)
            self._wake = trio.Event()
            await self._wake.wait()

    # --- one instance ----------------------------------------------------------------------------------------------

    async def _see_through(self, record: ClientRecord) -> None:
        spec = record.spec
        workload = self._surroundings.workloads[spec.kind]
        await trio.sleep_until(spec.at)
        if not record.is_started:
            await self._deployed[spec.kind].wait()
            await self._start(record, workload.start(spec))
        events = workload.events(spec)
        done = sum(answer.answered is not None for answer in record.answers)
        for number, event in enumerate(events[done:], start=done):
            await trio.sleep_until(spec.at + event.after)
            await self._do(record, event, f"{spec.key} event {number}")
        record.is_done = True

    async def _start(self, record: ClientRecord, start: StartInstance | Publish) -> None:
        if record.start_sent is None:
            record.start_sent = self._surroundings.simulation.now()
        key = f"{record.spec.key} start"
        if isinstance(start, Publish):
            self._expect(await self._publish(key, start), _PUBLISHED, key)
        else:
            known = await self._caller.until_known(
                key,
                "POST",
                f"{_API}/process-instances",
                {
                    "process_def_id": start.process,
                    "variables": start.variables,
                    "business_key": record.spec.key,
                    "request_id": record.spec.key,
                },
            )
            self._expect(known, _STARTED, key)
            record.instance_id = _text(known.answer.json, "instance_id")
        record.is_started = True

    async def _do(self, record: ClientRecord, event: ClientEvent, key: str) -> None:
        answer = self._begun(record, event)
        known = await self._ask_for(record, event, key)
        answer = attrs.evolve(answer, answered=self._surroundings.simulation.now())
        if known is not None:
            unanswered = answer.unanswered + known.unanswered
            answer = attrs.evolve(answer, status=known.answer.status, unanswered=unanswered)
            if isinstance(event, Redeploy):
                answer = attrs.evolve(answer, version=await self._version(key, known))
        record.answers[-1] = answer

    async def _ask_for(self, record: ClientRecord, event: ClientEvent, key: str) -> Known | None:
        """None: there is nothing to be done any more."""
        match event:
            case Publish():
                known = await self._publish(key, event)
                self._expect(known, _PUBLISHED, key)
            case Cancel(reason=reason):
                path = f"{_API}/process-instances/{await self._instance_id(record)}/cancel"
                known = await self._caller.until_known(key, "POST", path, {"reason": reason})
                self._expect(known, _CANCELLED, key)
            case Redeploy(file=file, xml=xml):
                known = await self._deploy(key, file, xml)
                self._expect(known, _DEPLOYED, key)
            case CompleteUserTask():
                return await self._complete(record, event, key)
            case _:
                assert_never(event)
        return known

    def _begun(self, record: ClientRecord, event: ClientEvent) -> EventAnswer:
        if not record.answers or record.answers[-1].answered is not None:
            record.answers.append(EventAnswer(event=event, sent=self._surroundings.simulation.now()))
        else:  # Begun before this host was started again: what was asked for then nobody knows.
            record.answers[-1] = attrs.evolve(record.answers[-1], unanswered=1)
        return record.answers[-1]

    async def _publish(self, key: str, event: Publish) -> Known:
        body: JsonObject = {
            "name": event.name,
            "key": event.key,
            "variables": event.variables,
            "message_id": event.message_id,
        }
        if event.ttl_ms is not None:
            body["ttl_ms"] = event.ttl_ms + self._surroundings.plan.file_clock_jumps_ms
        return await self._caller.until_known(key, "POST", f"{_API}/messages", body)

    async def _version(self, key: str, known: Known) -> int:
        """That the deployment made, or made before without an answer: then it is the newest."""
        rows = _rows(known, "definitions")
        if not rows:
            process_key = _rows(known, "unchanged")[0]
            listed = await self._caller.until_known(f"{key} version", "GET", f"{_API}/process-definitions")
            rows = [row for row in _rows(listed, "definitions") if row["key"] == process_key]
        return max(int(row["version"]) for row in rows)

    # --- looking ---------------------------------------------------------------------------------------------------

    async def _instance_id(self, record: ClientRecord) -> str:
        """Of an instance that a message started it is not known before that was correlated."""
        key = f"{record.spec.key} find"
        while record.instance_id is None:
            path = f"{_API}/process-instances?business_key={record.spec.key}"
            found = _rows(await self._caller.until_known(key, "GET", path), "instances")
            if found:
                record.instance_id = str(found[0]["instance_id"])
            else:
                await trio.sleep(_LOOK_AGAIN_SECONDS)
        return record.instance_id

    async def _complete(self, record: ClientRecord, event: CompleteUserTask, key: str) -> Known | None:
        """None: the instance has ended, and never had such a task open when the client looked."""
        instance_id = await self._instance_id(record)
        while True:
            path = f"{_API}/user-tasks?instance_id={instance_id}"
            rows = _rows(await self._caller.until_known(f"{key} look", "GET", path), "user_tasks")
            for row in rows:
                if row["element_id"] == event.element:
                    path = f"{_API}/user-tasks/{row['user_task_id']}/complete"
                    known = await self._caller.until_known(key, "POST", path, {"variables": event.variables})
                    self._expect(known, _COMPLETED, key)
                    return known
            path = f"{_API}/process-instances/{instance_id}"
            known = await self._caller.until_known(f"{key} status", "GET", path)
            if _object(known.answer.json).get("status") != _RUNNING:
                return None
            await trio.sleep(_LOOK_AGAIN_SECONDS)

    def _expect(self, known: Known, statuses: Sequence[int], what: str) -> None:
        answer = known.answer
        self._surroundings.simulation.properties.always(
            "P0", answer.status in statuses, lambda: f"{what} was answered with {answer.status}: {answer.json}"
        )


def _object(json: object) -> JsonObject:
    assert isinstance(json, dict), json
    return json


def _text(json: object, name: str) -> str:
    text = _object(json)[name]
    assert isinstance(text, str), json
    return text


def _rows(known: Known, name: str) -> list[Any]:
    rows = _object(known.answer.json)[name]
    assert isinstance(rows, list), rows
    return rows
