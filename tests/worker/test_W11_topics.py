"""Several topics in one worker, and in one fetch: what goes over the wire, and that each topic keeps its own limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

import stellwerk
from stellwerk.worker import Task, Worker

if TYPE_CHECKING:
    from tests.worker.conftest import Asked, Observed, PolledEngine, ScriptedEngine

MakeTask = Callable[..., dict[str, Any]]
Offer = Callable[..., dict[str, Any]]
TOPICS = ["a", "b", "c", "d", "e"]


async def at_once(payload: object) -> None: ...


async def never_ready(payload: object) -> None:
    await trio.sleep_forever()


class Ends:
    """A handler whose tasks end when they are told to."""

    def __init__(self) -> None:
        self._events: dict[str, trio.Event] = {}

    async def __call__(self, payload: object, task: Task) -> None:
        await self._events.setdefault(task.id, trio.Event()).wait()

    def end(self, task_id: str) -> None:
        self._events.setdefault(task_id, trio.Event()).set()


def topics_of(poll: Asked) -> list[str]:
    topics = poll.body["task_types"]
    assert isinstance(topics, list)
    return sorted(topics)


# --- pushed ----------------------------------------------------------------------------------------------------------


async def test_W11_one_connection_and_one_message_subscribe_to_all_topics(
    autojump_clock: MockClock, engine: ScriptedEngine, observed: Observed, nursery: trio.Nursery, offer: Offer
) -> None:
    done: Counter[str] = Counter()
    for topic in TOPICS:

        @observed.worker.task(topic, max_tasks=3)
        async def handle(payload: object, task: Task) -> None:
            done[task.topic] += 1

    await nursery.start(observed.worker.serve)
    peer = await engine.accept_welcomed()
    await wait_all_tasks_blocked()
    while peer.count("subscribe") < len(TOPICS):
        await peer.receive_any()
    subscribed = {message["topic"]: message["max_tasks"] for message in peer.log if message["type"] == "subscribe"}
    assert subscribed == dict.fromkeys(TOPICS, 3)
    await peer.offer(*(offer(f"t-{topic}", topic=topic) for topic in TOPICS))
    for topic in TOPICS:
        await peer.ack(await peer.receive("complete", task_id=f"t-{topic}"))
    assert done == Counter(TOPICS)
    assert len(engine.dials) == 1


# --- polled ----------------------------------------------------------------------------------------------------------


async def test_W11_one_request_waits_for_the_tasks_of_all_topics(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, nursery: trio.Nursery
) -> None:
    for topic in TOPICS:
        polling.worker.task(topic, max_tasks=3)(at_once)
    nursery.start_soon(polled.bring_nothing)
    await nursery.start(polling.worker.serve)
    await trio.sleep(95)
    assert polling.worker.is_healthy()
    assert [poll.at for poll in polled.log] == pytest.approx([0, *range(0, 100, 10)], abs=0.01)
    for poll in polled.log:
        assert (topics_of(poll), poll.body["max_tasks"]) == (TOPICS, 3)
    assert polled.dials == 1


async def test_W11_one_answer_brings_tasks_of_several_topics(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, nursery: trio.Nursery, pulled_task: MakeTask
) -> None:
    seen: list[tuple[str, str]] = []
    for topic in TOPICS:

        @polling.worker.task(topic)
        async def handle(payload: object, task: Task) -> None:
            seen.append((task.topic, task.id))

    await nursery.start(polling.worker.serve)
    await (await polled.receive_poll()).answer([pulled_task(f"t-{topic}", topic=topic) for topic in TOPICS])
    for topic in TOPICS:
        await (await polled.receive("complete", f"t-{topic}")).answer()
    assert sorted(seen) == [(topic, f"t-{topic}") for topic in TOPICS]


async def test_W11_topics_whose_options_differ_are_asked_for_apart(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, nursery: trio.Nursery
) -> None:
    """One request has one lock duration, one filter and one choice of variables."""
    options: dict[str, dict[str, Any]] = {
        "a": {},
        "b": {},
        "long": {"lock_duration": 60},
        "as long": {"lock_duration": 60},
        "filtered": {"filter": "x"},
        "narrow": {"variables": ["x"]},
    }
    for topic, chosen in options.items():
        polling.worker.task(topic, **chosen)(at_once)
    await nursery.start(polling.worker.serve)
    polls = [await polled.receive_poll() for _ in range(4)]
    assert sorted(map(topics_of, polls)) == [["a", "b"], ["as long", "long"], ["filtered"], ["narrow"]]


async def test_W11_a_poll_asks_for_no_more_than_each_of_its_topics_has_room_for(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, nursery: trio.Nursery, pulled_task: MakeTask
) -> None:
    """All that it brings may be of one topic."""
    polling.worker.task("few", max_tasks=2)(never_ready)
    polling.worker.task("many", max_tasks=10)(never_ready)
    await nursery.start(polling.worker.serve)
    poll = await polled.receive_poll()
    assert (topics_of(poll), poll.body["max_tasks"]) == (["few", "many"], 2)
    await poll.answer([pulled_task("t1", topic="few"), pulled_task("t2", topic="many")])
    polls = {tuple(topics_of(poll)): poll.body["max_tasks"] for poll in [await polled.receive_poll() for _ in "12"]}
    assert polls == {("few",): 1, ("many",): 9}
    assert polling.errors == []


async def test_W11_a_topic_of_which_there_is_more_is_polled_alone_for_all_its_room_and_later_together_again(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, nursery: trio.Nursery, pulled_task: MakeTask
) -> None:
    polling.worker.task("few", max_tasks=1)(at_once)
    polling.worker.task("many", max_tasks=50)(never_ready)
    await nursery.start(polling.worker.serve)
    first = await polled.receive_poll()
    began = first.at
    await first.answer([pulled_task("t0", topic="many")])
    nursery.start_soon(polled.extend_all)
    more = await polled.receive_poll(task_types=["many"])
    assert more.body["max_tasks"] == 49
    await more.answer([pulled_task(f"t{number}", topic="many") for number in range(1, 11)])
    rest = await polled.receive_poll(task_types=["few"])
    again = await polled.receive_poll(task_types=["many"])
    assert again.body["max_tasks"] == 39
    for poll in (rest, again):
        assert poll.at + poll.body["wait_ms"] / 1000 == pytest.approx(began + 10, abs=0.01)
    await trio.sleep_until(began + 10)
    await again.answer([])
    await rest.answer([])
    together = await polled.receive_poll()
    assert (topics_of(together), together.body["max_tasks"]) == (["few", "many"], 1)
    assert together.at == pytest.approx(began + 10, abs=0.02)


async def test_fault_36_a_full_topic_does_not_hold_up_the_others(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, nursery: trio.Nursery, pulled_task: MakeTask
) -> None:
    polling.worker.task("slow", max_tasks=1)(never_ready)
    polling.worker.task("quick", max_tasks=1)(at_once)
    nursery.start_soon(polled.extend_all)
    await nursery.start(polling.worker.serve)
    await (await polled.receive_poll()).answer([pulled_task("s", topic="slow")])
    for number in range(20):
        poll = await polled.receive_poll()
        assert topics_of(poll) == ["quick"]
        await poll.answer([pulled_task(f"q{number}", topic="quick")])
        await (await polled.receive("complete", f"q{number}")).answer()
    assert trio.current_time() == pytest.approx(0)


async def test_fault_32_a_topic_that_gets_room_is_polled_at_once_beside_the_others_and_then_with_them(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, nursery: trio.Nursery, pulled_task: MakeTask
) -> None:
    handler = Ends()
    for topic in ("a", "b", "c"):
        polling.worker.task(topic, max_tasks=1)(handler)
    await nursery.start(polling.worker.serve)
    await (await polled.receive_poll()).answer([pulled_task("t1", topic="a")])
    others = await polled.receive_poll()
    assert topics_of(others) == ["b", "c"]
    await trio.sleep(4)
    handler.end("t1")
    await (await polled.receive("complete", "t1")).answer()
    beside = await polled.receive_poll()
    assert (topics_of(beside), beside.at) == (["a"], 4)
    assert beside.body["wait_ms"] == pytest.approx(6_000, abs=10)
    await trio.sleep_until(10)
    await others.answer([])
    await trio.sleep(0.1)
    assert polled.count("fetch-and-lock") == 4, "the other answer is due"
    await beside.answer([])
    together = await polled.receive_poll()
    assert (topics_of(together), together.body["wait_ms"]) == (["a", "b", "c"], 10_000)
    assert together.at == pytest.approx(10.1)


async def test_an_answer_that_is_late_does_not_hold_up_other_topics(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, nursery: trio.Nursery, pulled_task: MakeTask
) -> None:
    handler = Ends()
    for topic in ("a", "b"):
        polling.worker.task(topic, max_tasks=1)(handler)
    await nursery.start(polling.worker.serve)
    await (await polled.receive_poll()).answer([pulled_task("t1", topic="a")])
    late = await polled.receive_poll(task_types=["b"])
    handler.end("t1")
    await (await polled.receive("complete", "t1")).answer()
    await (await polled.receive_poll(task_types=["a"])).answer([])
    poll = await polled.receive_poll(task_types=["a"])
    await trio.sleep_until(10)
    await poll.answer([])
    poll = await polled.receive_poll(task_types=["a"])
    assert poll.at == pytest.approx(10.25)
    await late.answer([pulled_task("t2", topic="b")])
    await poll.answer([pulled_task("t3", topic="a")])
    for task_id in ("t2", "t3"):
        handler.end(task_id)
        await (await polled.receive("complete", task_id)).answer()
    assert polling.errors == []


async def test_a_forbidden_topic_is_found_out_and_the_others_get_work_until_the_worker_gives_up(
    autojump_clock: MockClock, polled: PolledEngine, polling: Observed, nursery: trio.Nursery, pulled_task: MakeTask
) -> None:
    for topic in ("a", "b", "c"):
        polling.worker.task(topic)(at_once)
    refused: list[list[str]] = []

    async def answer() -> None:
        while True:
            poll = await polled.receive("fetch-and-lock")
            if "b" in topics_of(poll):
                refused.append(topics_of(poll))
                await poll.refuse(403, "forbidden")
            elif polled.count("complete") < 2 and poll.body["wait_ms"]:
                await poll.answer([pulled_task(f"t-{topic}", topic=topic) for topic in topics_of(poll)])
            elif not poll.body["wait_ms"]:
                await poll.answer([])

    async def acknowledge() -> None:
        while True:
            await (await polled.receive("complete")).answer()

    nursery.start_soon(answer)
    nursery.start_soon(acknowledge)
    with pytest.raises(BaseException, match="because forbidden"):
        await polling.worker.serve()
    assert refused == [["a", "b", "c"], ["b"], ["b"], ["b"], ["b"]]
    assert {asked.task_id for asked in polled.log if asked.verb == "complete"} == {"t-a", "t-c"}


# --- whatever comes --------------------------------------------------------------------------------------------------


@attrs.define
class Backlog:
    """An engine with tasks of several topics, handed out in the order in which they came."""

    engine: PolledEngine
    make_task: MakeTask
    limits: dict[str, int]
    waiting: list[tuple[str, str]] = attrs.field(factory=list)
    """Topic and id."""
    held: Counter[str] = attrs.field(factory=Counter)
    topic_of: dict[str, str] = attrs.field(factory=dict)
    parked: int = 0
    most_parked: int = 0
    came: trio.Event = attrs.field(factory=trio.Event)

    def add(self, topic: str) -> None:
        task_id = f"t{len(self.topic_of)}"
        self.topic_of[task_id] = topic
        self.waiting.append((topic, task_id))
        self.came.set()
        self.came = trio.Event()

    async def serve(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                asked = await self.engine.receive("fetch-and-lock|complete|extend-lock")
                nursery.start_soon(self._polled if asked.verb == "fetch-and-lock" else self._told, asked)

    async def _polled(self, poll: Asked) -> None:
        topics = topics_of(poll)
        self.parked += 1
        with trio.move_on_after(poll.body["wait_ms"] / 1000):
            while not any(topic in topics for topic, _ in self.waiting):
                await self.came.wait()
        self.parked -= 1
        given = [task for task in self.waiting if task[0] in topics][: poll.body["max_tasks"]]
        for task in given:
            self.waiting.remove(task)
            self.held[task[0]] += 1
            assert self.held[task[0]] <= self.limits[task[0]], f"{topics} {poll.body['max_tasks']}"
        await poll.answer([self.make_task(task_id, topic=topic) for topic, task_id in given])

    async def _told(self, asked: Asked) -> None:
        if asked.verb == "extend-lock":
            await asked.extend()
        else:
            self.held[self.topic_of[asked.task_id]] -= 1
            await asked.answer()


works = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 6), st.floats(0, 3, width=16)), min_size=1, max_size=6
)


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(works=works, limits=st.tuples(*[st.integers(1, 4)] * 3), long_poll_s=st.sampled_from([0.0, 0.3, 10.0]))
def test_W11_no_topic_gets_more_than_its_limit_all_tasks_are_done_and_one_poll_is_left(
    polled_engine: type[PolledEngine],
    pulled_task: MakeTask,
    works: list[tuple[str, int, float]],
    limits: tuple[int, int, int],
    long_poll_s: float,
) -> None:
    done: list[str] = []

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            engine = polled_engine(nursery)
            worker = Worker("http://engine:1", transport="http", dial=engine.dial, long_polling_timeout=long_poll_s)
            backlog = Backlog(engine, pulled_task, dict(zip("abc", limits, strict=True)))
            for topic, most in backlog.limits.items():

                @worker.task(topic, max_tasks=most)
                async def handle(payload: object, task: Task) -> None:
                    await trio.sleep(len(task.id) * 0.25)
                    done.append(task.id)

            nursery.start_soon(backlog.serve)
            await nursery.start(worker.serve)
            for topic, count, pause_s in works:
                for _ in range(count):
                    backlog.add(topic)
                await trio.sleep(pause_s)
            await trio.sleep(40)
            assert sorted(done) == sorted(backlog.topic_of)
            asked = engine.count("fetch-and-lock")
            await trio.sleep(20)
            fewest = 20 / max(long_poll_s, 0.5)
            assert engine.count("fetch-and-lock") - asked == pytest.approx(fewest, abs=2)
            assert backlog.parked <= 1
            assert {tuple(topics_of(poll)) for poll in engine.log[-3:]} == {("a", "b", "c")}
            nursery.cancel_scope.cancel()

    trio.run(run, clock=MockClock(autojump_threshold=0))


# --- at a real engine ------------------------------------------------------------------------------------------------


PROCESS = """<process id="p-{0}" isExecutable="true">
    <startEvent id="s-{0}"/><sequenceFlow id="f1-{0}" sourceRef="s-{0}" targetRef="t-{0}"/>
    <serviceTask id="t-{0}" stellwerk:topic="{0}"/>
    <sequenceFlow id="f2-{0}" sourceRef="t-{0}" targetRef="e-{0}"/><endEvent id="e-{0}"/>
  </process>"""
MODEL = f"""<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" targetNamespace="t" id="d"
             xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn">{"".join(map(PROCESS.format, TOPICS))}
</definitions>""".encode()


@pytest.mark.parametrize("transport", ["http", "websocket"])
async def test_W11_at_a_real_engine_five_topics_take_one_poll_or_one_session(
    autojump_clock: MockClock, transport: Any
) -> None:
    done: Counter[str] = Counter()
    async with stellwerk.open_engine() as engine:
        await engine.deploy(("model.bpmn", MODEL))
        worker = engine.worker(transport=transport)
        for topic in TOPICS:

            @worker.task(topic, max_tasks=2)
            async def handle(payload: object, task: Task) -> None:
                await trio.sleep(1)
                done[task.topic] += 1

        await engine.start_worker(worker)
        await trio.sleep(1)
        node = engine._node
        assert (len(node.polling), node.statistics()["sessions"]) == ((1, 0) if transport == "http" else (0, 1))
        ids = [await engine.start(f"p-{topic}") for topic in TOPICS for _ in range(5)]
        for instance_id in ids:
            assert (await engine.wait_for_end(instance_id)).status == "COMPLETED"
        assert done == Counter(TOPICS * 5)
        await trio.sleep(30)
        assert len(node.polling) == (1 if transport == "http" else 0)
