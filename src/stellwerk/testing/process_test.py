"""An engine in virtual time, for tests of processes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeAlias, TypeVar

import trio

from stellwerk.actors.definitions import Deployment
from stellwerk.app.embedding import open_engine
from stellwerk.app.engine import Engine
from stellwerk.app.options import PolicyOption
from stellwerk.errors import NotFound
from stellwerk.testing.coverage import Coverage
from stellwerk.testing.hands import Hands
from stellwerk.testing.instance import StartedInstance, Variables
from stellwerk.testing.passing_time import PassingTime
from stellwerk.testing.recording import InstanceRecord
from stellwerk.worker import Worker

__all__ = ["ProcessTest", "open_process_test"]

F = TypeVar("F", bound=Callable[..., object])
_File: TypeAlias = str | os.PathLike[str] | tuple[str, bytes]


class ProcessTest(PassingTime):
    """Made by `open_process_test` or the pytest fixture ``process_test``.

    Time stands still unless the test moves it. Everything that is awaited returns when nothing moves any more without
    time passing, and everything that happened is durable.
    """

    def __init__(self, engine: Engine, folders: Iterable[Path] = ()) -> None:
        super().__init__(engine)
        self._folders = (*folders, Path())
        self._hands = Hands(engine.node)

    # --- definitions and instances ---------------------------------------------------------------------------------

    async def deploy(
        self, *files: _File, failure_policy: PolicyOption | None = None, adopt_java: bool = False
    ) -> Deployment:
        """Deploy BPMN files: paths, or pairs of a name and the content. See `Engine.deploy`.

        A relative path is looked for beside the test's file first, then in the working directory.

        :raises DeployRefused: a file cannot run. FileNotFoundError: it is in none of these places.
        """
        found = [file if isinstance(file, tuple) else self._found(Path(file)) for file in files]
        deployment = await self.engine.deploy(*found, failure_policy=failure_policy, adopt_java=adopt_java)
        await self.settle()
        return deployment

    def _found(self, path: Path) -> Path:
        places = [folder / path for folder in self._folders]
        for place in places:
            if place.exists():
                return place
        raise FileNotFoundError(f"there is no {' and no '.join(dict.fromkeys(str(place) for place in places))}")

    async def start(
        self,
        process: str,
        variables: Variables = None,
        *,
        business_key: str | None = None,
        start_event_id: str | None = None,
        version: int | None = None,
    ) -> StartedInstance:
        """Start an instance. See `Engine.start`.

        :raises NotFound: the process is not deployed.
        """
        instance_id = await self.engine.start(
            process,
            dict(variables or {}),
            business_key=business_key,
            start_event_id=start_event_id,
            version=version,
        )
        await self.settle()
        return self.instance(instance_id)

    def instance(self, instance_id: str) -> StartedInstance:
        """:raises NotFound: there is no such instance."""
        record = self.recording.get(instance_id)
        if record is None:
            raise NotFound(f"there is no instance {instance_id}")
        return self._of(record)

    def instances(self, process: str | None = None) -> list[StartedInstance]:
        """All instances (of one process), also those that messages started, in the order in which they began."""
        return [self._of(record) for record in self.recording if process in (None, record.process.key)]

    def _of(self, record: InstanceRecord) -> StartedInstance:
        return StartedInstance(record, self, self._hands)

    async def publish(
        self, name: str, key: str = "", variables: Variables = None, *, ttl_ms: int | None = None
    ) -> bool:
        """Publish a message. → whether an instance took it, or was started by it, at once.

        If not, it waits for its taker until its time to live ends (`Engine.publish`).
        """
        message_id = await self.engine.publish(name, key, dict(variables or {}), ttl_ms=ttl_ms)
        await self.settle()
        return any(message_id in record.messages for record in self.recording)

    # --- workers ---------------------------------------------------------------------------------------------------

    def task(
        self,
        topic: str,
        *,
        max_tasks: int | None = None,
        lock_duration: float | None = None,
        variables: Iterable[str] | None = None,
    ) -> Callable[[F], F]:
        """Decorator: a real worker handles the topic's tasks with this function, see `Worker.task`.

        Plain functions run in the test's own thread. Handlers may sleep by `trio.sleep`: that takes virtual time.

        :raises Conflict: the topic has a handler already.
        """
        return self._workers.new(topic).task(
            topic, max_tasks=max_tasks, lock_duration=lock_duration, variables=variables
        )

    def use_worker(self, worker: Worker) -> None:
        """Handle the topics of a worker as your program has it. It is not changed, and connects to nothing: its
        handlers run as those of `task`, in this engine.

        :raises Conflict: one of its topics has a handler already.
        """
        self._workers.new(*worker.topics).include(worker)


@asynccontextmanager
async def open_process_test(
    db: str | os.PathLike[str] = ":memory:",
    *,
    failure_policy: PolicyOption | None = None,
    coverage: Coverage | None = None,
    folders: Iterable[Path] = (),
) -> AsyncIterator[ProcessTest]:
    """An engine in virtual time, inside a trio run whose clock can be moved (`run_in_virtual_time`).

    ``db``: in memory, or a file. ``failure_policy`` is for models that say nothing of their own. What was visited is
    added to ``coverage`` in the end. ``folders``: where `ProcessTest.deploy` looks for relative paths first.

    :raises Conflict: the clock of this trio run cannot be moved.
    """
    async with open_engine(db, failure_policy=failure_policy) as engine:
        test = ProcessTest(engine, folders)
        await test.settle()
        try:
            yield test
        finally:
            if coverage is not None:
                with trio.CancelScope(shield=True):
                    await coverage.add_engine(engine.node, test.recording)
