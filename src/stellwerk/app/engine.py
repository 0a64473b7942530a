"""The public face of an engine inside a program."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TypeAlias, Unpack

import trio

from stellwerk.actors.definitions import Deployment
from stellwerk.app.arguments import path_of, seconds_of, text_of
from stellwerk.app.engine_reads import EngineReads
from stellwerk.app.engine_upkeep import EngineUpkeep
from stellwerk.app.in_process import InProcessWorkers, WorkerOptions
from stellwerk.app.life import EngineLife, while_open
from stellwerk.app.options import PolicyOption, policy_of
from stellwerk.app.serving import ServedEngine
from stellwerk.errors import InvalidInput
from stellwerk.json_values import JsonObject
from stellwerk.ports import InstanceSummary
from stellwerk.worker import Worker

__all__ = ["Engine"]

_File: TypeAlias = str | os.PathLike[str] | tuple[str, bytes]


class Engine(EngineReads, EngineUpkeep):
    """What `stellwerk.open_engine` gives. All methods may be called from any task of the trio run that it lives in.

    What changes something returns when that is durable. Variables are JSON objects: dicts with string names. Instants
    (``…_ms``) are milliseconds since 1970-01-01T00:00:00Z. The errors are in `stellwerk.errors`: `CallerError` and its
    kinds say that a request cannot be done as it is, `StoreUnavailable` that the file cannot be used now.
    """

    def __init__(self, served: ServedEngine, workers: InProcessWorkers, life: EngineLife) -> None:
        super().__init__(served.node, life)
        self._served = served
        self._workers = workers

    def __repr__(self) -> str:
        return f"<Engine {self._served!r}, {self._workers!r}>"

    @property
    def url(self) -> str:
        """Of its port, without a slash at the end, for `Worker` and for the command line's ``--url``.

        :raises Conflict: it was opened without a port.
        """
        return self._served.url

    # --- definitions -----------------------------------------------------------------------------------------------

    @while_open
    async def deploy(
        self, *files: _File, failure_policy: PolicyOption | None = None, adopt_java: bool = False
    ) -> Deployment:
        """Deploy BPMN files, all of them or none: paths, or pairs of a name and the content.

        → `definitions` with their versions, keys that were `unchanged`, and `warnings`. ``failure_policy`` is for
        models that say nothing of their own. ``adopt_java``: Java classes and beans become topics of their names.

        :raises DeployRefused: a file cannot run; it has every finding of every file with its line.
        :raises LimitExceeded: a file is too large. OSError: a file cannot be read.
        """
        if not files:
            raise InvalidInput("name at least one file to deploy")
        contents = [await self._content(file) for file in files]
        return await self._node.deploy(contents, failure_policy=policy_of(failure_policy), adopt_java=adopt_java)

    async def _content(self, file: _File) -> tuple[str, bytes]:
        if isinstance(file, tuple):
            name, content = text_of("files", file[0]), file[1]
            if not isinstance(content, bytes):
                raise InvalidInput(f"{name}: the content of a file is bytes, not {type(content).__name__}")
            return name, content
        path, size_max = path_of("files", file), self._node.limits.definition_bytes_max
        return path.name, await self._node.ports.background.run_sync(partial(_read, path, size_max + 1))

    # --- instances -------------------------------------------------------------------------------------------------

    @while_open
    async def start(
        self,
        process: str,
        variables: JsonObject | None = None,
        *,
        business_key: str | None = None,
        request_id: str | None = None,
        start_event_id: str | None = None,
        version: int | None = None,
    ) -> str:
        """Start an instance of the process with this id, of its newest version or of ``version``. → the instance's id

        The same ``request_id`` again gives the same instance and starts no second one.

        :raises NotFound: there is no such process, version or start event. Conflict: the process is disabled.
        :raises IdempotencyConflict: the ``request_id`` came before with other variables or another business key.
        :raises InvalidInput: the variables are no JSON. LimitExceeded: they are too large.
        """
        return await self._node.start_instance(
            process,
            variables or {},
            business_key=business_key,
            request_id=request_id,
            start_event_id=start_event_id,
            version=version,
        )

    @while_open
    async def wait_for_end(
        self, instance_id: str, *, timeout_seconds: float | None = None, or_incident: bool = False
    ) -> InstanceSummary:
        """Wait until the instance ends, or also until it has an open incident.

        → its summary: ``status`` is COMPLETED, FAILED or CANCELLED; RUNNING when time was up, or for an incident.

        :raises NotFound: there is no such instance.
        """
        return await self._node.wait_for_end(instance_id, timeout_seconds=timeout_seconds, or_incident=or_incident)

    @while_open
    async def set_variables(self, instance_id: str, variables: JsonObject) -> None:
        """Set variables of the process's own scope by hand; others keep their values. A task that failed gets them when
        its incident is resolved.

        :raises NotFound: there is no such instance. Conflict: it has ended.
        """
        await self._node.set_variables(instance_id, variables)

    @while_open
    async def cancel(self, instance_id: str, reason: str) -> None:
        """End the instance as CANCELLED, without compensation; its workers are told to give up.

        :raises NotFound: there is no such instance. Conflict: it has ended.
        """
        await self._node.cancel_instance(instance_id, reason)

    # --- what instances wait for -----------------------------------------------------------------------------------

    @while_open
    async def complete_user_task(self, user_task_id: str, variables: JsonObject | None = None) -> None:
        """:raises NotFound: there is no such open user task. Conflict: its instance moved on meanwhile."""
        await self._node.complete_user_task(user_task_id, variables or {})

    @while_open
    async def publish(
        self,
        name: str,
        key: str = "",
        variables: JsonObject | None = None,
        *,
        ttl_ms: int | None = None,
        message_id: str | None = None,
    ) -> str:
        """Publish a message. → its id

        It is correlated once, with whoever waits for this name and correlation key now or within ``ttl_ms`` (0: now;
        None: an hour), or it starts an instance with the key as its business key. The same ``message_id`` again is no
        second message while the first is kept.

        :raises InvalidInput: the variables are no JSON. LimitExceeded: they are too large.
        """
        return await self._node.publish_message(name, key, variables or {}, ttl_ms=ttl_ms, message_id=message_id)

    # --- workers ---------------------------------------------------------------------------------------------------

    def worker(self, **options: Unpack[WorkerOptions]) -> Worker:
        """A worker for this engine, without a socket. It works like any other, by the same protocol.

        Run it by `start_worker`, or by ``await nursery.start(worker.serve)`` in a nursery inside this engine's block.
        Options are those of `stellwerk.worker.Worker`. In virtual time plain functions run in trio's thread instead of
        one of their own: one at a time, and they must not block.
        """
        return self._workers.make(**options)

    @while_open
    async def start_worker(self, worker: Worker) -> None:
        """Run a worker until it stops or the engine ends; returns when it runs. What `Worker.serve` raises later ends
        the engine's block.

        :raises Conflict: it runs already, has no handler, or was made by another engine.
        """
        if not isinstance(worker, Worker):
            raise InvalidInput(f"expected a Worker, not {type(worker).__name__} @ $.worker")
        await self._workers.start(worker)

    async def drain(self, seconds: float) -> None:
        """Hand out no more tasks: workers of `start_worker` stop when their handlers have ended, others are told to go
        elsewhere; all that within so many seconds. Then handlers are told to give up and all connections are closed.

        Everything else goes on until the end of the block, but no worker can connect any more.
        """
        seconds_of("seconds", seconds)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._served.wait_for_workers, seconds)
            await self._workers.stop(grace=seconds)
        await self._served.hang_up()


def _read(path: Path, bytes_max: int) -> bytes:
    with path.open("rb") as stream:
        return stream.read(bytes_max)
