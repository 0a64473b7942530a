"""Timers, messages, errors: who catches what, and what an interruption takes away."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from stellwerk.core import commands as c
from stellwerk.core import facts as f
from stellwerk.core.decide import NotOpen
from stellwerk.errors import LimitExceeded
from stellwerk.limits import Limits
from stellwerk.model.iso8601 import parse_instant

if TYPE_CHECKING:
    from tests.core.conftest import Machine

    Make = Callable[..., Machine]


# --- waiting -------------------------------------------------------------------------------------------------------


def test_a_timer_catch_event_waits_for_its_duration(machine: Make) -> None:
    run = machine("s start -> t\nt catch timer PT5M -> a\na task A")
    run.start()
    (timer,) = run.live.timers.values()
    assert timer.due_at_ms == 1_000_000 + 300_000
    run.fire("t")
    assert run.open == ["a"]
    with pytest.raises(NotOpen):
        run.do(c.FireTimer(timer.id))


def test_a_date_in_the_past_is_due_at_once_and_one_that_does_not_exist_is_an_incident(machine: Make) -> None:
    run = machine("s start -> t\nt catch timer ${when} -> a\na task A")
    run.start({"when": "1969-12-31T00:00:00Z"})
    (timer,) = run.live.timers.values()
    assert timer.due_at_ms < 0
    run = machine("s start -> t\nt catch timer ${when} -> a\na task A")
    run.start({"when": "2026-02-30T00:00:00Z"})
    assert run.incidents == [("model_fault", "t")]
    run.do(c.SetVariables({"when": "2026-02-28T00:00:00Z"}))
    run.resolve()
    assert len(run.live.timers) == 1


def test_a_message_is_waited_for_under_the_business_key(machine: Make) -> None:
    run = machine("s start -> m\nm catch message paid -> r\nr receive delivered -> e\ne end")
    run.start(business_key="order-7")
    (subscription,) = run.live.subscriptions.values()
    assert (subscription.name, subscription.key) == ("paid", "order-7")
    run.message("m", {"amount": 5})
    assert run.variables == {"amount": 5}
    run.message("r")
    assert run.status == "COMPLETED"


def test_an_event_based_gateway_takes_the_first_event_and_gives_up_the_others(machine: Make) -> None:
    model = """
        s start -> g
        g first -> t, m, r
        t catch timer PT1H -> late
        m catch message yes -> a
        r receive no -> b
        late task L
        a task A
        b task B
        """
    for element, expected in (("t", "late"), ("m", "a"), ("r", "b")):
        run = machine(model)
        run.start()
        if element == "t":
            run.fire("t")
        else:
            run.message(element, {"x": 1})
        assert run.open == [expected]
        assert not run.live.timers
        assert not run.live.subscriptions


def test_a_link_goes_on_at_the_catch_event_of_its_name(machine: Make) -> None:
    run = machine("a task A -> go\ngo throw link there\nhere catch link there -> b\nb task B")
    run.start()
    assert run.open == ["a"], "a link's catch event does not begin anything"
    run.complete("a")
    assert run.open == ["b"]


# --- boundary events -----------------------------------------------------------------------------------------------


def test_an_interrupting_timer_cancels_the_task_and_only_its_path_runs(machine: Make) -> None:
    run = machine("s start -> a\na task A -> e\nt timer@a PT1M -> b\nb task B\ne end")
    run.start()
    task_id = run.task("a")
    run.fire("t")
    assert run.open == ["b"]
    assert run.rows.tasks[task_id] == "CANCELLED"
    with pytest.raises(NotOpen):
        run.do(c.CompleteTask(task_id, 1, None, "digest"))


def test_completing_the_task_disarms_its_timer(machine: Make) -> None:
    run = machine("s start -> a\na task A -> b\nt timer@a PT1M -> x\nx task X\nb task B")
    run.start()
    (timer,) = run.live.timers.values()
    run.complete("a")
    with pytest.raises(NotOpen):
        run.do(c.FireTimer(timer.id))
    assert run.open == ["b"]


def test_a_loop_that_reenters_an_interrupted_task_leaves_no_old_one_open(machine: Make) -> None:
    run = machine("s start -> m\nm xor -> a\na task A -> e\nt timer@a PT1M -> m\ne end")
    run.start()
    for _ in range(3):
        run.fire("t")
        assert run.open == ["a"]
        assert len(run.live.timers) == 1
    run.complete("a")
    assert run.status == "COMPLETED"


def test_a_non_interrupting_timer_runs_beside_its_activity_once(machine: Make) -> None:
    run = machine("s start -> a\na task A -> e\nt timer~a PT1M -> b\nb task B -> e\ne end")
    run.start()
    run.fire("t")
    assert run.open == ["a", "b"]
    assert not run.live.timers
    run.complete("a")
    run.complete("b")
    assert run.status == "COMPLETED"


def test_a_cycle_is_armed_again_from_its_schedule_and_ends_with_its_scope(machine: Make) -> None:
    run = machine("s start -> a\na task A -> e\nt timer~a R3/PT10M -> b\nb pass\ne end")
    run.start()
    first = next(iter(run.live.timers.values())).due_at_ms
    run.now_ms = first + 90_000
    run.fire("t")
    assert [timer.due_at_ms for timer in run.live.timers.values()] == [first + 600_000]
    run.fire("t")
    run.fire("t")
    assert not run.live.timers
    assert run.entered("b") == 3
    run = machine("s start -> a\na task A -> e\nt timer~a R/PT10M -> b\nb pass\ne end")
    run.start()
    run.now_ms = first + 3_600_000 + 1
    run.fire("t")
    assert [timer.due_at_ms for timer in run.live.timers.values()] == [first + 4_200_000], "not what was missed"
    run.now_ms = first + 4_800_000
    run.fire("t")
    assert [timer.due_at_ms for timer in run.live.timers.values()] == [first + 4_800_000], "one that is due now counts"
    run.complete("a")
    assert run.status == "COMPLETED"


def test_fault_135_a_cycle_with_a_start_in_the_past_keeps_to_its_schedule(machine: Make) -> None:
    for interval, following in (("P1D", "1970-01-11T00:00:00Z"), ("P1M", "1970-02-01T00:00:00Z")):
        run = machine(f"s start -> a\na task A -> e\nt timer~a R/1970-01-01T00:00:00Z/{interval} -> b\nb pass\ne end")
        run.now_ms = parse_instant("1970-01-10T07:30:00Z")
        run.start()
        run.fire("t")
        assert run.now_ms == parse_instant("1970-01-10T07:30:00Z"), "the first time fires at once"
        assert [timer.due_at_ms for timer in run.live.timers.values()] == [parse_instant(following)]


def test_a_non_interrupting_message_may_come_many_times(machine: Make) -> None:
    run = machine("s start -> a\na task A -> e\nm message~a note -> b\nb task B\ne end")
    run.start()
    for _ in range(3):
        run.message("m")
    assert run.open == ["a", "b", "b", "b"]
    run.complete("a")
    assert not run.live.subscriptions


def test_messages_wait_when_the_instance_has_no_room_for_more_tokens(machine: Make) -> None:
    run = machine("s start -> a\na task A\nm message~a note -> b\nb task B", limits=Limits(instance_tokens_max=2))
    run.start()
    run.message("m")
    with pytest.raises(LimitExceeded):
        run.message("m")


def test_an_interrupting_message_on_a_subprocess_cancels_everything_inside(machine: Make) -> None:
    run = machine(
        """
        s start -> p
        p sub -> e
            ps start -> a, q, u
            a task A
            t timer~a PT1M -> u
            q sub
                b task B
                n message@b note
            u user
        m message@p stop -> z
        z task Z -> e
        e end
        """
    )
    run.start()
    run.fail("b")
    run.message("m", {"why": "late"})
    assert run.open == ["z"]
    assert not any((run.live.timers, run.live.subscriptions, run.live.user_tasks, run.live.incidents))
    assert len(run.live.scopes) == 1
    assert run.variables == {"why": "late"}


# --- errors --------------------------------------------------------------------------------------------------------

LEVELS = """
s start -> p
p sub -> e
    ps start -> q
    q sub -> pe
        qs start -> a
        a task A -> qe
        own error@a OWN -> x1
        x1 task X1
        qe end
    inner_all error@q -> x2
    x2 task X2
    pe end
outer error@p OUTER -> x3
x3 task X3
outer_all error@p -> x4
x4 task X4
e end
"""


@pytest.mark.parametrize("code, expected", [("OWN", "x1"), ("OUTER", "x2"), ("OTHER", "x2")])
def test_an_error_is_caught_by_the_innermost_that_can(machine: Make, code: str, expected: str) -> None:
    run = machine(LEVELS)
    run.start()
    decision = run.bpmn_error("a", code, {"detail": 1})
    assert run.open == [expected]
    assert [ending.final_state for ending in decision.endings] == ["COMPLETED"]
    assert run.variables["detail"] == 1
    assert run.variables["code"] == code
    assert run.variables["message"] == "it is wrong"


@pytest.mark.parametrize("code, expected", [("B", "specific"), ("C", "every")])
def test_on_one_level_the_matching_code_goes_before_the_catch_all(machine: Make, code: str, expected: str) -> None:
    run = machine("s start -> a\na task A\nx error@a -> every\ny error@a B -> specific\nevery task E\nspecific task S")
    run.start()
    run.bpmn_error("a", code)
    assert run.open == [expected]


def test_an_error_end_event_interrupts_the_subprocess_that_catches_it(machine: Make) -> None:
    run = machine(
        """
        s start -> p
        p sub -> e
            ps start -> a, b
            a task A -> x
            x end error WRONG
            b task B
        caught error@p WRONG -> z
        z task Z
        e end
        """
    )
    run.start()
    other = run.task("b")
    run.complete("a")
    assert run.open == ["z"]
    assert run.rows.tasks[other] == "CANCELLED"


def test_an_uncaught_error_is_an_incident_and_the_task_can_be_offered_again(machine: Make) -> None:
    run = machine("s start -> a\na task A -> e\ne end")
    run.start()
    decision = run.bpmn_error("a", "WRONG")
    assert run.incidents == [("bpmn_error", "a")]
    assert [ending.final_state for ending in decision.endings] == ["FAILED"]
    run.resolve(retries=2)
    assert run.open == ["a"]
    run.complete("a")
    assert run.status == "COMPLETED"


def test_an_uncaught_error_end_event_can_be_tried_again(machine: Make) -> None:
    run = machine("s start -> x\nx end error WRONG")
    run.start()
    assert run.incidents == [("bpmn_error", "x")]
    run.resolve()
    assert run.incidents == [("bpmn_error", "x")]


# --- technical failures --------------------------------------------------------------------------------------------


def test_L2_a_single_try_expiry_is_an_incident_and_the_row_is_expired(machine: Make) -> None:
    run = machine("s start -> a\na task A -> e\nall error@a -> x\nx task X\ne end")
    run.start()
    decision = run.fail("a", c.FailureKind.LOCK_EXPIRED)
    assert [ending.final_state for ending in decision.endings] == ["EXPIRED"]
    assert run.incidents == [("lock_expired", "a")], "a catch-all does not catch technical failures"
    assert not run.open
    run.resolve()
    assert run.open == ["a"]


@pytest.mark.parametrize(
    "code, kind",
    [
        ("stellwerk:lock-expired", c.FailureKind.LOCK_EXPIRED),
        ("stellwerk:lock-expired", c.FailureKind.LOCK_EXPIRIES_EXHAUSTED),
        ("stellwerk:retries-exhausted", c.FailureKind.RETRIES_EXHAUSTED),
    ],
)
def test_L2_a_boundary_event_can_ask_for_technical_failures(machine: Make, code: str, kind: c.FailureKind) -> None:
    run = machine(f"s start -> a\na task A -> e\nlast error@a {code} -> x\nx task X\ne end")
    run.start()
    run.fail("a", kind)
    assert run.open == ["x"]
    assert not run.incidents


def test_a_task_with_an_incident_is_cancelled_with_its_scope(machine: Make) -> None:
    run = machine("s start -> a\na task A\nt timer@a PT1M -> b\nb task B")
    run.start()
    task_id = run.task("a")
    run.fail("a")
    with pytest.raises(NotOpen):
        run.do(c.CompleteTask(task_id, 1, None, "digest"))
    incident_id = next(iter(run.live.incidents))
    run.fire("t")
    assert run.rows.tasks[task_id] == "CANCELLED"
    with pytest.raises(NotOpen):
        run.do(c.ResolveIncident(incident_id))
    assert f.IncidentResolved(incident_id, cancelled=True) in run.facts
