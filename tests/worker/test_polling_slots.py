"""Whatever becomes of its tasks, a worker that polls never has too many, and in the end asks for all it can."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from stellwerk.worker import BpmnError, Task, Worker

if TYPE_CHECKING:
    from tests.worker.conftest import Asked, PolledEngine

MakeTask = Callable[..., dict[str, Any]]
CAPACITY = 3
LOCK_S = 30.0

ways = st.sampled_from(["return", "raise", "bpmn error", "no json", "slow", "hang", "stubborn"])
answers = st.sampled_from(["good", "good", "busy", "gone", "refused", "cut", "silent"])


@attrs.define
class Whims:
    """An engine that answers by the lists until they are used up, and then as it should."""

    engine: PolledEngine
    make_task: MakeTask
    ways: list[str]
    answers: list[str]
    held_until: dict[str, float] = attrs.field(factory=dict)
    most_held: int = 0
    last_room: int = 0

    async def answer_polls(self) -> None:
        while True:
            poll = await self.engine.receive("fetch-and-lock")
            self.last_room = poll.body["max_tasks"]
            if self.ways and self._next_answer() == "cut":
                await poll.hang_up()
                continue
            if not self.ways:
                await trio.sleep(poll.body["wait_ms"] / 1000)
            given = min(self.last_room, len(self.ways))
            await poll.answer([self._lease(self.ways.pop()) for _ in range(given)])

    def _lease(self, way: str) -> dict[str, Any]:
        now = trio.current_time()
        task_id = f"t{len(self.held_until)}"
        self.held_until[task_id] = now + LOCK_S
        self.most_held = max(self.most_held, sum(until > now for until in self.held_until.values()))
        return self.make_task(task_id, variables={"how": way})

    async def answer_the_rest(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                asked = await self.engine.receive("complete|fail|bpmn-error|unlock|extend-lock")
                nursery.start_soon(self._answer, asked)

    async def _answer(self, asked: Asked) -> None:
        match self._next_answer():
            case "busy":
                await asked.refuse(503, "unavailable")
            case "gone":
                self.held_until[asked.task_id] = 0.0
                await asked.refuse(409, "lease_lost")
            case "refused" if asked.verb not in ("unlock", "extend-lock"):
                await asked.refuse(400, "invalid")
            case "cut":
                await asked.hang_up()
            case "silent":
                return
            case _ if asked.verb == "extend-lock":
                self.held_until[asked.task_id] = trio.current_time() + asked.body["extension_ms"] / 1000
                await asked.extend()
            case _:
                self.held_until[asked.task_id] = 0.0
                await asked.answer()

    def _next_answer(self) -> str:
        return self.answers.pop() if self.answers else "good"


async def handle(payload: dict[str, str], task: Task) -> object:
    match payload["how"]:
        case "raise":
            raise ValueError("no")
        case "bpmn error":
            raise BpmnError("NO")
        case "no json":
            return object()
        case "slow":
            await trio.sleep(70)
        case "hang":
            with trio.move_on_after(300):
                await trio.sleep_forever()
        case "stubborn":
            with trio.CancelScope(shield=True):
                await trio.sleep(90)
        case _:
            pass
    return None


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ways=st.lists(ways, max_size=12), answers=st.lists(answers, max_size=30))
def test_fault_30_no_slot_leaks_and_none_is_used_twice(
    polled_engine: type[PolledEngine], pulled_task: MakeTask, ways: list[str], answers: list[str]
) -> None:
    whims: list[Whims] = []

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            engine = polled_engine(nursery)
            worker = Worker("http://engine:1", transport="http", dial=engine.dial, long_polling_timeout=60)
            worker.task("payment", max_tasks=CAPACITY)(handle)
            whims.append(Whims(engine, pulled_task, list(ways), list(answers)))
            nursery.start_soon(whims[0].answer_polls)
            nursery.start_soon(whims[0].answer_the_rest)
            await nursery.start(worker.serve)
            await trio.sleep(1500)
            assert worker.health().active_task_count == 0
            assert worker.is_healthy()
            nursery.cancel_scope.cancel()

    trio.run(run, clock=MockClock(autojump_threshold=0))
    assert whims[0].ways == []
    assert whims[0].last_room == CAPACITY
    assert whims[0].most_held <= CAPACITY
