"""Each workload of the simulations on a real node in virtual time: without faults its judgement finds nothing, and what
must not happen it finds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

import attrs
import pytest
import trio

from simulations.plans.plan import InstanceSpec
from simulations.workloads.base import (
    Call,
    Cancel,
    ClientEvent,
    CompleteUserTask,
    Publish,
    Redeploy,
    revised,
)
from simulations.workloads.judging import judge
from simulations.workloads.performing import Handlers
from simulations.workloads.reading import EventAnswer, InstanceOutcome, Reading
from simulations.workloads.registry import WORKLOADS
from stellwerk.app.engine import Engine
from stellwerk.core import facts as f
from stellwerk.errors import Conflict
from stellwerk.ports import HistoryStep, InstanceFilter, TaskQuery
from stellwerk.testing import ProcessTest, open_process_test, run_in_virtual_time
from stellwerk.worker import Worker

T = TypeVar("T")
Outcomes = dict[str, list[InstanceOutcome]]

_SECONDS_MAX = 60.0


# --- playing ---------------------------------------------------------------------------------------------------------


@attrs.define
class Play:
    """The instances of one kind, with one worker and one client, and no faults."""

    test: ProcessTest
    kind: str
    specs: Sequence[InstanceSpec]
    handlers: Handlers
    answers: dict[str, list[EventAnswer]] = attrs.field(factory=dict)
    start_sent: dict[str, float] = attrs.field(factory=dict)
    finished: set[str] = attrs.field(factory=set)
    """Specs whose client has nothing more to do."""

    @property
    def engine(self) -> Engine:
        return self.test.engine

    async def play(self) -> Outcomes:
        workload = WORKLOADS[self.kind]
        for name, xml in workload.files.items():
            await self.test.deploy((name, xml))
        worker = Worker(worker_id="worker-1", max_tasks=20)
        for topic in workload.topics:
            worker.task(topic)(self.handlers.function(trio.sleep))
        self.test.use_worker(worker)
        async with trio.open_nursery() as nursery:
            for spec in self.specs:
                nursery.start_soon(self._client, spec)
            await self._pass_time()
        return {spec.key: await self._outcomes(spec) for spec in self.specs}

    async def _pass_time(self) -> None:
        """Until all have ended and their clients too; the operator looks twice a second."""
        while trio.current_time() < _SECONDS_MAX:
            await self.test.advance(seconds=0.5)
            records = list(self.test.recording)
            if len(self.finished) == len(self.specs) and all(record.state.ended for record in records):
                return
            for record in records:
                for incident_id in list(record.state.incidents):
                    if WORKLOADS[self.kind].repair:
                        await self.engine.set_variables(record.instance_id, WORKLOADS[self.kind].repair)
                    await self.engine.resolve_incident(incident_id)
        raise AssertionError(f"not all of {self.kind} has ended within {_SECONDS_MAX} seconds")

    async def _client(self, spec: InstanceSpec) -> None:
        await trio.sleep_until(spec.at)
        self.start_sent[spec.key] = trio.current_time()
        start = WORKLOADS[self.kind].start(spec)
        if isinstance(start, Publish):
            await self._do(spec, start)
        else:
            await self.engine.start(start.process, start.variables, business_key=spec.key, request_id=spec.key)
        self.answers[spec.key] = []
        for event in WORKLOADS[self.kind].events(spec):
            await trio.sleep_until(spec.at + event.after)
            sent = trio.current_time()
            status, version = await self._do(spec, event)
            answered = trio.current_time()
            self.answers[spec.key].append(
                EventAnswer(event=event, sent=sent, answered=answered, status=status, version=version)
            )
        self.finished.add(spec.key)

    async def _do(self, spec: InstanceSpec, event: ClientEvent) -> tuple[int, int | None]:
        """→ the status that HTTP would give, and the version of a deployment."""
        match event:
            case Publish():
                await self.engine.publish(
                    event.name, event.key, event.variables, message_id=event.message_id, ttl_ms=event.ttl_ms
                )
                return 201, None
            case Redeploy():
                deployment = await self.engine.deploy((event.file, event.xml))
                return 201, deployment.definitions[0].version
            case Cancel():
                try:
                    await self.engine.cancel(await self._instance_id(spec), event.reason)
                except Conflict:
                    return 409, None
                return 200, None
            case CompleteUserTask():
                (row,) = await self.engine.node.user_tasks(await self._instance_id(spec), limit=10)
                await self.engine.complete_user_task(str(row["user_task_id"]), event.variables)
                return 200, None

    async def _instance_id(self, spec: InstanceSpec) -> str:
        (summary,) = await self.engine.node.ports.store.instances(InstanceFilter(business_key=spec.key), limit=2)
        return summary.instance_id

    async def _outcomes(self, spec: InstanceSpec) -> list[InstanceOutcome]:
        store = self.engine.node.ports.store
        return [
            InstanceOutcome(
                instance_id=summary.instance_id,
                definition_id=summary.definition_id,
                steps=await store.history(summary.instance_id, after=0),
                runs=self.handlers.runs_of(summary.instance_id),
                events=self.answers[spec.key],
                tasks=await self.engine.node.tasks(TaskQuery(instance_id=summary.instance_id), limit=100),
                start_sent=self.start_sent[spec.key],
            )
            for summary in await store.instances(InstanceFilter(business_key=spec.key), limit=100)
        ]


async def _play(kind: str, specs: Sequence[InstanceSpec]) -> Outcomes:
    async with open_process_test() as test:
        return await Play(test, kind, specs, Handlers(WORKLOADS, specs, trio.current_time)).play()


_CHOICES: dict[str, tuple[dict[str, str | int | float | bool | None], ...]] = {
    "sequence": ({"steps": 1}, {"steps": 3}, {"steps": 4}),
    "saga": (
        {"fails_at": "nowhere"},
        {"fails_at": "ship", "way": "error"},
        {"fails_at": "ship", "way": "exhausts"},
        {"fails_at": "charge", "way": "gives_up"},
        {"fails_at": "reserve", "way": "error"},
        {"fails_at": "reserve", "way": "exhausts"},
    ),
    "saga_parallel": ({"fails": False}, {"fails": True}, {"fails": True}, {"fails": True}),
    "saga_thrown": ({"throws": "nothing"}, {"throws": "all"}, {"throws": "charge"}),
    "retries": ({"failures": 0}, {"failures": 3, "gives_up": False}, {"failures": 2, "gives_up": True}),
    "message_race": ({"sent": "never"}, {"sent": "early"}, {"sent": "late"}, {"sent": "late"}),
    "withdrawal": ({"withdraws": False}, {"withdraws": True}, {"withdraws": True}, {"withdraws": True}),
    "cancelled": ({"cancels": False}, {"cancels": True}, {"cancels": True}, {"cancels": True}),
    "redeployed": ({"redeploys": False}, {"redeploys": True}, {"redeploys": True}, {"redeploys": False}),
    "errors": ({"code": "none"}, {"code": "known"}, {"code": "other"}),
}
"""What the instances of a kind are like; four that are drawn, for kinds that are not here."""


@cache
def played(kind: str) -> tuple[tuple[InstanceSpec, ...], Mapping[str, list[InstanceOutcome]]]:
    choices = _CHOICES.get(kind, ({}, {}, {}, {}))
    specs = tuple(
        InstanceSpec(key=f"i{number}", kind=kind, at=round(number * 0.7, 3), seed=number * 101, options=options)
        for number, options in enumerate(choices, start=1)
    )
    return specs, run_in_virtual_time(_play, kind, specs)


@pytest.mark.parametrize("kind", WORKLOADS)
def test_without_faults_every_instance_ends_as_its_workload_promises(kind: str) -> None:
    specs, outcomes = played(kind)
    assert list(judge(WORKLOADS, specs, outcomes)) == []
    assert all(Reading(outcome).state.ended for found in outcomes.values() for outcome in found)


@pytest.mark.parametrize("kind", WORKLOADS)
def test_all_that_a_workload_deploys_can_be_deployed_again_as_a_new_version(kind: str) -> None:
    async def versions() -> list[int]:
        async with open_process_test() as test:
            found = []
            for name, xml in WORKLOADS[kind].files.items():
                assert not (await test.deploy((name, xml))).warnings
                again = await test.deploy((name, revised(xml, "r1")))
                found += [row.version for row in again.definitions]
            return found

    assert run_in_virtual_time(versions) == [2] * len(WORKLOADS[kind].files)


def test_without_faults_a_slow_handler_runs_once_and_a_failing_one_as_often_as_it_fails() -> None:
    _, slow = played("slow")
    assert [len(outcome.runs) for (outcome,) in slow.values()] == [1, 1, 1, 1]
    _, retries = played("retries")
    assert [len(outcome.runs) for (outcome,) in retries.values()] == [1, 4, 3]


def test_what_is_drawn_for_an_instance_does_not_depend_on_the_others() -> None:
    specs, together = played("sequence")
    (alone,) = run_in_virtual_time(_play, "sequence", specs[2:])[specs[2].key]
    (among,) = together[specs[2].key]
    assert [(run.element, run.end, run.says) for run in alone.runs] == [
        (run.element, run.end, run.says) for run in among.runs
    ]


@pytest.mark.parametrize("kind", WORKLOADS)
def test_an_option_that_does_not_exist_is_refused(kind: str) -> None:
    workload = WORKLOADS[kind]
    for name in workload.options:
        spec = InstanceSpec(key="i1", kind=kind, at=0.0, seed=1, options={**_first(kind), name: "nonsense"})
        with pytest.raises(ValueError, match=f"instance i1: option {name} of {kind} is one of .*, not 'nonsense'"):
            _everything(spec)


def _first(kind: str) -> dict[str, str | int | float | bool | None]:
    """What makes the workload look at all of its options."""
    return {"failures": 1} if kind == "retries" else {"fails_at": "reserve"} if kind == "saga" else {}


def _everything(spec: InstanceSpec) -> None:
    workload = WORKLOADS[spec.kind]
    workload.start(spec)
    workload.events(spec)
    for element in ("work", "check", "reserve", "ship"):
        workload.behave(spec, Call(element, 1, 0, {}))


# --- what must not happen --------------------------------------------------------------------------------------------


def problems(kind: str, doctored: Mapping[str, list[InstanceOutcome]], *changed: InstanceSpec) -> str:
    """`changed`: specs that take the place of those with the same key."""
    specs, _ = played(kind)
    now = {spec.key: spec for spec in (*specs, *changed)}
    return "\n".join(f"{key}: {problem}" for key, problem in judge(WORKLOADS, now.values(), doctored))


def outcomes_of(kind: str, key: str, change: Callable[[InstanceOutcome], InstanceOutcome]) -> Outcomes:
    """What was played, with one outcome changed."""
    _, outcomes = played(kind)
    (outcome,) = outcomes[key]
    return {**outcomes, key: [change(outcome)]}


def with_facts(outcome: InstanceOutcome, change: Callable[[list[f.Fact]], Sequence[f.Fact]]) -> InstanceOutcome:
    facts = [fact for step in outcome.steps for fact in step.facts]
    return attrs.evolve(outcome, steps=[HistoryStep(1, 0, tuple(change(facts)))])


def replaced(kind: str, key: str, fact_type: type[T], change: Callable[[T], f.Fact | None]) -> Outcomes:
    """Each fact of a type changed, or left out (None)."""

    def in_all(facts: list[f.Fact]) -> list[f.Fact]:
        new = [change(fact) if isinstance(fact, fact_type) else fact for fact in facts]
        return [fact for fact in new if fact is not None]

    return outcomes_of(kind, key, lambda outcome: with_facts(outcome, in_all))


def entered_twice(kind: str, key: str, node: str) -> Outcomes:
    def twice(facts: list[f.Fact]) -> list[f.Fact]:
        is_it = [isinstance(fact, f.TokenEntered) and fact.node_id == node for fact in facts]
        return [fact for fact, again in zip(facts, is_it, strict=True) for fact in [fact] * (1 + again)]

    return outcomes_of(kind, key, lambda outcome: with_facts(outcome, twice))


def with_runs(kind: str, key: str, **changes: Any) -> Outcomes:
    """All runs changed."""
    return outcomes_of(
        kind, key, lambda outcome: attrs.evolve(outcome, runs=[attrs.evolve(run, **changes) for run in outcome.runs])
    )


def begun_again(kind: str, key: str, element: str, **changes: Any) -> Outcomes:
    """A handler began once more on a later lease of the same task."""

    def again(outcome: InstanceOutcome) -> InstanceOutcome:
        run = next(run for run in outcome.runs if run.element == element)
        changed = attrs.evolve(run, **{"fence": run.fence + 1, "attempt": run.attempt + 1, **changes})
        return attrs.evolve(outcome, runs=[*outcome.runs, changed])

    return outcomes_of(kind, key, again)


def spec_of(kind: str, key: str, **options: str | int | bool) -> InstanceSpec:
    specs, _ = played(kind)
    return attrs.evolve(next(spec for spec in specs if spec.key == key), options=dict(options))


def key_where(kind: str, is_it: Callable[[Reading], bool]) -> str:
    """An instance of what was played."""
    _, outcomes = played(kind)
    return next(key for key, (outcome,) in outcomes.items() if is_it(Reading(outcome)))


def test_an_instance_that_is_missing_or_doubled_or_was_never_asked_for_is_found() -> None:
    _, outcomes = played("sequence")
    assert "i1: has 0 instances instead of one: none" in problems("sequence", {**outcomes, "i1": []})
    assert "i1: has 2 instances instead of one" in problems("sequence", {**outcomes, "i1": outcomes["i1"] * 2})
    assert "x9: nobody asked for this instance" in problems("sequence", {**outcomes, "x9": outcomes["i1"]})
    assert "i1: has the business key 'i2'" in problems("sequence", {**outcomes, "i1": outcomes["i2"]})


def test_a_history_that_cannot_be_folded_is_found() -> None:
    torn = replaced("sequence", "i2", f.ActivityStarted, lambda _: None)
    assert "i2: has a history that cannot be folded: KeyError" in problems("sequence", torn)


def test_an_instance_that_has_not_ended_or_ended_with_something_open_is_found() -> None:
    endless = replaced("sequence", "i1", f.InstanceCompleted, lambda _: None)
    assert "i1: has not ended: RUNNING" in problems("sequence", endless)
    open_task = replaced("sequence", "i1", f.TaskCompleted, lambda _: None)
    assert "i1: has ended with open tasks at ['step1']" in problems("sequence", open_task)
    waiting = replaced("poison", "i1", f.IncidentResolved, lambda _: None)
    assert "i1: has ended with open incidents at ['work']" in problems("poison", waiting)


def test_a_result_that_no_handler_gave_is_found() -> None:
    assert "is completed, but no handler returned" in problems("sequence", with_runs("sequence", "i1", end="cancelled"))
    assert "on which no handler returned" in problems("sequence", with_runs("sequence", "i1", worker_id="w"))
    assert "which no handler returned there" in problems("sequence", with_runs("sequence", "i1", fence=7))
    forged = replaced(
        "errors", "i2", f.VariablesSet, lambda fact: attrs.evolve(fact, variables={**fact.variables, "work": 1})
    )
    assert "has a result of work, whose task was never completed" in problems("errors", forged)


def test_a_lease_that_was_begun_twice_or_is_of_no_task_is_found() -> None:
    twice = begun_again("sequence", "i1", "step1", fence=played("sequence")[1]["i1"][0].runs[0].fence)
    assert "handlers began 2 times on one lease at step1" in problems("sequence", twice)
    foreign = begun_again("sequence", "i1", "step1", task_id="another")
    assert "a handler got task another at step1, which its history does not have" in problems("sequence", foreign)


def test_a_failure_without_a_cause_is_found() -> None:
    exhausted = key_where("poison", lambda reading: not reading.errors)
    calm = with_runs("poison", exhausted, end="returned")
    assert "the task at work failed for good (retries_exhausted) without a cause" in problems("poison", calm)
    unsaid = with_runs("saga", "i2", says="another")
    assert "error declined is reported for the task at ship, but no handler raised it" in problems("saga", unsaid)
    for kind in ("lock_expired", "lock_expiries_exhausted", "undeliverable"):
        expired = replaced("saga", "i3", f.TaskFailed, lambda fact, kind=kind: attrs.evolve(fact, kind=kind))  # type: ignore[misc]
        assert f"the task at ship failed for good ({kind}) without a cause" in problems("saga", expired)


def test_steps_that_are_left_out_or_entered_twice_are_found() -> None:
    _, outcomes = played("sequence")
    too_few = problems("sequence", outcomes, spec_of("sequence", "i2", steps=4))
    assert "i2: completed ['step1', 'step2', 'step3'] instead of" in too_few
    assert "step2 was entered 2 times instead of 1" in problems("sequence", entered_twice("sequence", "i2", "step2"))
    for kind in ("slow", "storm"):
        assert "end was entered 2 times instead of 1" in problems(kind, entered_twice(kind, "i1", "end"))


def test_a_handler_that_saw_another_result_than_the_instance_has_is_found() -> None:
    saw = problems("sequence", with_runs("sequence", "i2", saw={"step1": "something else"}))
    assert "attempt 1 at step2 saw step1 = 'something else', which in the end is {'attempt'" in saw
    for kind, element in (("parallel", "last"), ("user_task", "book")):
        assert f"at {element} saw" in problems(kind, with_runs(kind, "i1", saw={}))
    assert "saw item = None" in problems("message_start", with_runs("message_start", "i1", saw={}))
    assert "without having seen what the operator had set" in problems("poison", with_runs("poison", "i1", saw={}))


# --- joins and boundary events ---------------------------------------------------------------------------------------


def test_a_join_that_fires_twice_or_too_early_is_found() -> None:
    assert "last was entered 2 times instead of 1" in problems("parallel", entered_twice("parallel", "i1", "last"))
    reading = Reading(played("parallel")[1]["i1"][0])
    reading.tasks_at("last")[0].created_at = reading.tasks_at("b1")[0].ended_at - 1
    found = "\n".join(WORKLOADS["parallel"].judge(spec_of("parallel", "i1"), reading))
    assert "last was begun before b1 had ended" in found


@pytest.mark.parametrize("kind", ["boundary_timer", "withdrawal", "reminders"])
def test_a_boundary_event_that_happens_beside_the_completion_is_found(kind: str) -> None:
    key = key_where(kind, lambda reading: not reading.messages and len(reading.timers_fired) < 3)
    if kind == "withdrawal":
        found = problems(
            kind,
            replaced(kind, key, f.SubscriptionClosed, lambda fact: f.MessageCorrelated(fact.subscription_id, "m")),
        )
        assert "took the messages [('event', 'm')] instead of" in found
    else:
        found = problems(kind, replaced(kind, key, f.TimerDisarmed, lambda fact: f.TimerFired(fact.timer_id)))
        assert "event was entered" in found
    assert "completed ['" in found


def test_a_boundary_timer_that_leaves_the_task_completed_is_found() -> None:
    key = key_where("boundary_timer", lambda reading: bool(reading.timers_fired))
    both = replaced(
        "boundary_timer", key, f.TaskCancelled, lambda fact: f.TaskCompleted(fact.task_id, worker_id="worker-1")
    )
    assert "completed ['work', 'instead'] instead of ['instead']" in problems("boundary_timer", both)


# --- sagas -----------------------------------------------------------------------------------------------------------


def swapped_undoing(kind: str, key: str) -> Outcomes:
    """The handlers run in the order of completion."""

    def change(facts: list[f.Fact]) -> list[f.Fact]:
        (started,) = [fact for fact in facts if isinstance(fact, f.CompensationStarted)]
        instead = dict(zip(started.activities, reversed(started.activities), strict=True))
        changed: list[f.Fact] = []
        for fact in facts:
            if isinstance(fact, f.CompensationStarted):
                fact = attrs.evolve(fact, activities=fact.activities[::-1])
            elif isinstance(fact, f.CompensationHandlerStarted | f.CompensationHandlerEnded):
                fact = attrs.evolve(fact, activity_id=instead[fact.activity_id])
            changed.append(fact)
        return changed

    return outcomes_of(kind, key, lambda outcome: with_facts(outcome, change))


def test_undoing_in_the_wrong_order_is_found() -> None:
    assert "undid ['reserve', 'charge'] instead of ['charge', 'reserve']" in problems(
        "saga", swapped_undoing("saga", "i2")
    )
    both = key_where("saga_parallel", lambda reading: len(reading.undone) == 2)
    assert "undid [" in problems("saga_parallel", swapped_undoing("saga_parallel", both))
    assert "undid [" in problems("saga_thrown", swapped_undoing("saga_thrown", "i2"))


def test_undoing_what_was_not_to_be_undone_or_too_little_is_found() -> None:
    _, outcomes = played("saga_thrown")
    too_much = problems("saga_thrown", outcomes, spec_of("saga_thrown", "i2", throws="charge"))
    assert "undid ['charge', 'reserve'] instead of ['charge']" in too_much
    too_little = problems("saga_thrown", outcomes, spec_of("saga_thrown", "i3", throws="all"))
    assert "undid ['charge'] instead of ['charge', 'reserve']" in too_little
    forgotten = replaced("saga_thrown", "i3", f.VariablesSet, lambda fact: None if "why" in fact.variables else fact)
    assert "the error's variables are lost: why is None" in problems("saga_thrown", forgotten)


def test_a_saga_that_fails_or_succeeds_against_its_handlers_is_found() -> None:
    _, outcomes = played("saga")
    assert "although ship never goes well" in problems("saga", outcomes, spec_of("saga", "i1", fails_at="ship"))
    lucky = problems("saga", outcomes, spec_of("saga", "i1", fails_at="reserve"))
    assert "reserve goes well only after an incident, and there was none" in lucky
    unlucky = problems("saga", outcomes, spec_of("saga", "i2", fails_at="nowhere"))
    assert "but nothing had failed for good but ['ship']" in unlucky
    _, parallel = played("saga_parallel")
    assert "is completed after" in problems("saga_parallel", parallel, spec_of("saga_parallel", "i1", fails=True))


def test_a_handler_that_undoes_with_other_variables_than_the_activity_left_is_found() -> None:
    undone = problems("saga", with_runs("saga", "i2", saw={}))
    assert "undo_charge saw charge = None, but charge had left {'attempt'" in undone


def test_a_booking_that_is_completed_after_the_failure_without_being_waited_for_is_found() -> None:
    drained = key_where(
        "saga_parallel", lambda reading: any(task.draining and task.end == "TaskCompleted" for task in reading.tasks)
    )
    not_waited = replaced("saga_parallel", drained, f.TaskDraining, lambda _: None)
    assert "was completed after the failure without having been waited for" in problems("saga_parallel", not_waited)


# --- messages and people ---------------------------------------------------------------------------------------------


def test_messages_that_are_swapped_foreign_or_lost_are_found() -> None:
    def swap(fact: f.MessageCorrelated) -> f.MessageCorrelated:
        order, _, key = fact.message_id.partition(" ")
        return attrs.evolve(fact, message_id=f"{'second' if order == 'first' else 'first'} {key}")

    swapped = problems("messages", replaced("messages", "i1", f.MessageCorrelated, swap))
    assert "took the messages [('first', 'second i1'), ('second', 'first i1')] instead of" in swapped
    foreign = replaced("messages", "i1", f.VariablesSet, lambda fact: None if "by_first" in fact.variables else fact)
    assert "the variables of the first message are lost" in problems("messages", foreign)
    started = replaced("message_start", "i1", f.InstanceStarted, lambda fact: attrs.evolve(fact, message_id="other"))
    assert "took the messages [('begin', 'other')]" in problems("message_start", started)
    paid = key_where("message_race", lambda reading: bool(reading.messages))
    other = replaced("message_race", paid, f.MessageCorrelated, lambda fact: attrs.evolve(fact, message_id="other"))
    assert "took the messages [('payment', 'other')] instead of" in problems("message_race", other)


def test_a_gateway_that_takes_two_ways_is_found() -> None:
    paid = key_where("message_race", lambda reading: bool(reading.messages))
    both = replaced("message_race", paid, f.TimerDisarmed, lambda fact: f.TimerFired(fact.timer_id))
    assert "took 1 messages, and the timers fired: ['deadline']" in problems("message_race", both)


def test_a_user_task_whose_variables_are_lost_is_found() -> None:
    lost = replaced("user_task", "i1", f.VariablesSet, lambda fact: None if "approved" in fact.variables else fact)
    assert "approved is None instead of 'i1'" in problems("user_task", lost)
    assert "approve was entered 2 times" in problems("user_task", entered_twice("user_task", "i1", "approve"))


# --- failures --------------------------------------------------------------------------------------------------------


def test_an_attempt_that_is_used_up_too_much_is_found() -> None:
    _, outcomes = played("retries")
    given_up = problems("retries", outcomes, spec_of("retries", "i3", failures=2, gives_up=False))
    assert "failed for good ['retries_exhausted'], although the worker gave up 0 times" in given_up


@pytest.mark.parametrize("kind", ["single_try", "single_try_caught"])
def test_a_single_try_that_is_begun_twice_is_found(kind: str) -> None:
    again = problems(kind, begun_again(kind, "i1", "work"))
    assert "a single try was begun 2 times, with 0 incidents resolved" in again


def test_a_single_try_that_is_completed_although_it_was_caught_is_found() -> None:
    raised = f.ErrorRaised("work", "stellwerk:lock-expired", None, "event")

    def change(facts: list[f.Fact]) -> list[f.Fact]:
        return [facts[0], raised, *facts[1:]]

    caught = outcomes_of("single_try_caught", "i1", lambda outcome: with_facts(outcome, change))
    found = problems("single_try_caught", caught)
    assert "completed ['work'] instead of ['inquire']" in found
    assert "failed for good [] and was offered again 0 times" in found


def test_poison_that_goes_well_by_itself_is_found() -> None:
    def without(facts: list[f.Fact]) -> list[f.Fact]:
        return [fact for fact in facts if not isinstance(fact, f.IncidentOpened | f.IncidentResolved)]

    harmless = problems("poison", outcomes_of("poison", "i1", lambda outcome: with_facts(outcome, without)))
    assert "went well without an incident" in harmless
    lost = replaced("poison", "i1", f.VariablesSet, lambda fact: None if "repaired" in fact.variables else fact)
    assert "what the operator set is lost" in problems("poison", lost)


def test_an_error_that_the_wrong_event_catches_is_found() -> None:
    _, outcomes = played("errors")
    wrong = problems("errors", outcomes, spec_of("errors", "i2", code="other"))
    assert "the errors and who caught them are [('known', 'on_known')]" in wrong
    assert "on_any was entered 0 times instead of 1" in wrong


# --- changes ---------------------------------------------------------------------------------------------------------


def test_an_answer_to_a_cancellation_that_is_not_true_is_found() -> None:
    def answered(key: str, status: int) -> Outcomes:
        def change(outcome: InstanceOutcome) -> InstanceOutcome:
            event = Cancel(after=0.0, reason="r")
            answer = EventAnswer(event=event, sent=0.0, answered=1.0, status=status)
            return attrs.evolve(outcome, events=[answer])

        return outcomes_of("cancelled", key, change)

    completed = key_where("cancelled", lambda reading: reading.status == "COMPLETED")
    cancelled = key_where("cancelled", lambda reading: reading.status == "CANCELLED")
    assert "was cancelled, says an answer, but ended COMPLETED" in problems("cancelled", answered(completed, 200))
    assert "could not be cancelled, says the only answer" in problems("cancelled", answered(cancelled, 409))
    other = replaced("cancelled", cancelled, f.InstanceCancelled, lambda fact: attrs.evolve(fact, reason="other"))
    assert "is cancelled with the reason 'other'" in problems("cancelled", other)


def test_a_step_of_another_version_or_a_version_that_is_too_old_is_found() -> None:
    def mixed(fact: f.ActivityStarted) -> f.ActivityStarted:
        return attrs.evolve(fact, node_id="step2.i3") if fact.node_id == "step2.base" else fact

    found = problems("redeployed", replaced("redeployed", "i1", f.ActivityStarted, mixed))
    assert "completed ['step1.base', 'step2.i3'] instead of ['step1.base', 'step2.base']" in found
    old = outcomes_of("redeployed", "i4", lambda outcome: attrs.evolve(outcome, definition_id="redeployed:1"))
    assert "i4 was asked for after" in problems("redeployed", old)
    assert "version 1 is 'base' and 'i" in problems("redeployed", old)
