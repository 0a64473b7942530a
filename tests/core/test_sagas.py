"""Compensation: by event, and because a scope fails (requirement E4, consistency rule 15)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from stellwerk.core import commands as c
from stellwerk.core.decide import NotOpen
from stellwerk.errors import Conflict
from stellwerk.model.process import FailurePolicy

if TYPE_CHECKING:
    from tests.core.conftest import Machine

    Make = Callable[..., Machine]

SAGA = FailurePolicy.COMPENSATE

TRIP = """
s start -> flight
flight task flight -> hotel
no_flight handler no_flight of flight
hotel task hotel -> pay
no_hotel handler no_hotel of hotel
pay task pay -> e
e end
"""


def test_E4_the_last_failure_compensates_in_reverse_order_one_after_the_other(machine: Make) -> None:
    run = machine(TRIP, SAGA)
    run.start({"who": "Ada"})
    run.complete("flight", {"booking": "F1"})
    run.complete("hotel", {"booking": "H2"})
    decision = run.fail("pay")
    assert [ending.final_state for ending in decision.endings] == ["FAILED"]
    assert run.open == ["no_hotel"]
    assert _seen(run, "no_hotel") == {"who": "Ada", "booking": "H2"}
    run.complete("no_hotel")
    assert run.open == ["no_flight"]
    assert _seen(run, "no_flight") == {"who": "Ada", "booking": "F1"}, "as it was when the flight was booked"
    run.complete("no_flight", {"refunded": True})
    assert run.status == "FAILED"
    assert run.variables["refunded"] is True
    assert run.names().count("TokenFailed") == 1


def _seen(run: Machine, element_id: str) -> object:
    task_id = run.task(element_id)
    (variables,) = [
        getattr(fact, "variables", None)
        for fact in run.facts
        if type(fact).__name__ == "TaskCreated" and getattr(fact, "task_id", None) == task_id
    ]
    return variables


def test_E4_an_uncaught_business_error_compensates(machine: Make) -> None:
    run = machine(TRIP, SAGA)
    run.start()
    run.complete("flight")
    run.bpmn_error("hotel", "NO_ROOM")
    assert run.open == ["no_flight"]
    run.complete("no_flight")
    assert run.status == "FAILED"
    assert getattr(run.facts[-1], "code", None) == "NO_ROOM"


def test_a_task_that_an_operator_gives_up_is_an_incident_whatever_the_policy_and_the_model(machine: Make) -> None:
    """Neither compensation nor the model's own way out: somebody wants to look."""
    run = machine(TRIP + "caught error@pay stellwerk:retries-exhausted -> e", SAGA)
    run.start()
    run.complete("flight")
    run.complete("hotel")
    task_id = run.task("pay")
    decision = run.do(c.GiveUpTask(task_id, "no attempts are left"))
    assert [(ending.task_id, ending.final_state) for ending in decision.endings] == [(task_id, "FAILED")]
    assert run.incidents == [("retries_exhausted", "pay")]
    assert run.open == []
    with pytest.raises(NotOpen):
        run.do(c.GiveUpTask(task_id, "again"))
    run.resolve()
    run.complete("pay")
    assert run.status == "COMPLETED"


def test_rule_15_a_task_whose_scope_has_failed_is_not_given_up(machine: Make) -> None:
    run = machine(
        """
s start -> flight
flight task flight -> both
no_flight handler no_flight of flight
both and -> a, b
a task a -> e
b task b -> e
e end
no_b handler no_b of b
""",
        SAGA,
    )
    run.start()
    run.complete("flight")
    task_id = run.task("b")
    run.fail("a")
    with pytest.raises(Conflict, match="its scope has failed"):
        run.do(c.GiveUpTask(task_id, "no"))


def test_E4_with_nothing_to_compensate_an_incident_waits(machine: Make) -> None:
    run = machine(TRIP, SAGA)
    run.start()
    run.fail("flight")
    assert run.incidents == [("retries_exhausted", "flight")]
    run.resolve()
    run.complete("flight")
    assert run.open == ["hotel"]


def test_E4_a_failing_handler_is_an_incident_and_never_nests(machine: Make) -> None:
    run = machine(TRIP, SAGA)
    run.start()
    run.complete("flight")
    run.complete("hotel")
    run.fail("pay")
    run.fail("no_hotel")
    assert run.incidents == [("compensation_failed", "no_hotel")]
    run.resolve()
    run.bpmn_error("no_hotel", "CLOSED")
    assert run.incidents == [("compensation_failed", "no_hotel")]
    run.resolve()
    run.complete("no_hotel")
    run.complete("no_flight")
    assert run.status == "FAILED"


PARALLEL = """
s start -> f
f and -> card, mail, stock, done
card task card -> j
no_card handler no_card of card
mail task mail -> j
stock task stock -> j
no_stock handler no_stock of stock
done task done -> j
no_done handler no_done of done
j and -> e
e end
"""


def test_rule_15_leased_siblings_with_a_handler_are_drained_then_compensated(machine: Make) -> None:
    run = machine(PARALLEL, SAGA)
    run.start()
    card, mail = run.task("card"), run.task("mail")
    run.complete("done")
    run.fail("stock")
    assert run.rows.tasks[mail] == "CANCELLED"
    assert card in run.rows.draining
    assert run.open == ["card"], "nothing is compensated while the card may be charged"
    decision = run.complete("card", {"charge": 9})
    assert [ending.final_state for ending in decision.endings] == ["COMPLETED"]
    assert run.open == ["no_card"], "what completed last is undone first"
    assert _seen(run, "no_card") == {"charge": 9}
    run.complete("no_card")
    run.complete("no_done")
    assert run.status == "FAILED"


@pytest.mark.parametrize("how", ["fail", "expire", "error", "drain"])
def test_rule_15_a_draining_task_that_is_not_completed_just_ends(machine: Make, how: str) -> None:
    run = machine(PARALLEL, SAGA)
    run.start()
    card = run.task("card")
    run.complete("done")
    run.fail("stock")
    match how:
        case "fail":
            decision = run.fail("card")
        case "expire":
            decision = run.fail("card", c.FailureKind.LOCK_EXPIRED)
        case "error":
            decision = run.bpmn_error("card", "WRONG")
        case _:
            decision = run.do(c.EndDraining(card))
    assert [ending.final_state for ending in decision.endings] == ["CANCELLED"]
    assert run.open == ["no_done"]
    run.complete("no_done")
    assert run.status == "FAILED"


def test_rule_15_a_drained_completion_counts_as_something_to_compensate(machine: Make) -> None:
    run = machine(PARALLEL, SAGA)
    run.start()
    run.fail("mail")
    assert run.open == ["card", "done", "stock"], "all drain"
    for task_id in list(run.live.tasks)[:2]:
        run.do(c.EndDraining(task_id))
    run.complete("done")
    assert run.open == ["no_done"]
    run.complete("no_done")
    assert run.status == "FAILED"


def test_rule_15_when_all_drained_tasks_end_undone_the_scope_just_fails(machine: Make) -> None:
    run = machine(PARALLEL, SAGA)
    run.start()
    run.fail("mail")
    for task_id in list(run.live.tasks):
        run.do(c.EndDraining(task_id))
    assert run.status == "FAILED"


NESTED = """
s start -> outside
outside task outside -> f
no_outside handler no_outside of outside
f and -> p, other
other task other -> j
p sub -> j
    ps start -> a
    a task A -> q
    no_a handler no_a of a
    q sub -> b
        qs start -> x
        x task X -> y
        no_x handler no_x of x
        y task Y
    b task B
late timer@p PT1H -> j
j xor -> last
last task last
"""


def test_E4_failure_rises_scope_by_scope_and_each_is_compensated(machine: Make) -> None:
    run = machine(NESTED, SAGA)
    run.start()
    run.complete("outside")
    run.complete("a")
    run.complete("x")
    other = run.task("other")
    run.fail("y")
    assert run.open == ["no_x", "other"], "only the innermost scope fails at first"
    assert not run.live.timers, "nothing may interrupt what is being compensated"
    run.complete("no_x")
    assert run.open == ["no_a", "other"]
    run.complete("no_a")
    assert run.open == ["no_outside"]
    assert run.rows.tasks[other] == "CANCELLED"
    run.complete("no_outside")
    assert run.status == "FAILED"


def test_E4_completed_activities_of_active_nested_scopes_are_compensated_too(machine: Make) -> None:
    run = machine(NESTED, SAGA)
    run.start()
    run.complete("outside")
    run.complete("a")
    run.complete("x")
    run.fail("other")
    assert run.open == ["no_x"]
    run.complete("no_x")
    assert run.open == ["no_a"]
    run.complete("no_a")
    run.complete("no_outside")
    assert run.status == "FAILED"


def test_E4_a_completed_subprocess_is_undone_from_inside(machine: Make) -> None:
    run = machine(NESTED, SAGA)
    run.start()
    run.complete("outside")
    run.complete("a")
    run.complete("x")
    run.complete("y")
    run.fail("b")
    assert run.open == ["no_x", "other"]
    run.complete("no_x")
    run.complete("no_a")
    run.complete("no_outside")
    assert run.status == "FAILED"


def test_a_subprocess_with_a_handler_of_its_own_uses_that(machine: Make) -> None:
    run = machine(
        """
        s start -> p
        p sub -> z
            a task A
            no_a handler no_a of a
        no_p handler no_p of p
        z task Z
        """,
        SAGA,
    )
    run.start()
    run.complete("a")
    run.fail("z")
    assert run.open == ["no_p"]
    run.complete("no_p")
    assert run.status == "FAILED"


def test_a_second_failure_while_a_nested_scope_compensates_waits_for_it(machine: Make) -> None:
    run = machine(NESTED, SAGA)
    run.start()
    run.complete("outside")
    run.complete("a")
    run.complete("x")
    run.fail("y")
    run.fail("other")
    assert run.open == ["no_x"]
    run.complete("no_x")
    assert run.open == ["no_a"]
    run.complete("no_a")
    assert run.open == ["no_outside"]
    run.complete("no_outside")
    assert run.status == "FAILED"


def test_a_failing_instance_can_be_cancelled(machine: Make) -> None:
    run = machine(NESTED, SAGA)
    run.start()
    run.complete("outside")
    run.complete("a")
    run.fail("b") if "b" in run.open else run.fail("x")
    assert run.open == ["no_a", "other"]
    run.do(c.CancelInstance("stop it"))
    assert run.status == "CANCELLED"


def test_an_error_caught_outside_cancels_without_compensating(machine: Make) -> None:
    run = machine(
        """
        s start -> p
        p sub -> e
            ps start -> a
            a task A -> b
            no_a handler no_a of a
            b task B
        caught error@p WRONG -> z
        z task Z -> y
        y throw compensate -> e
        e end
        """,
        SAGA,
    )
    run.start()
    run.complete("a")
    run.bpmn_error("b", "WRONG")
    assert run.open == ["z"]
    run.complete("z")
    assert run.status == "COMPLETED", "what was completed in an interrupted subprocess is out of reach"


# --- by event ------------------------------------------------------------------------------------------------------

THROW = """
s start -> f
f and -> a, b
a task A -> j
no_a handler no_a of a
b task B -> j
no_b handler no_b of b
j and -> t
t throw compensate {ref} -> z
z task Z -> again
again throw compensate -> e
e end
"""


def test_a_throw_event_compensates_its_scope_and_waits(machine: Make) -> None:
    run = machine(THROW.format(ref=""))
    run.start()
    run.complete("b")
    run.complete("a")
    assert run.open == ["no_a"]
    run.complete("no_a")
    assert run.open == ["no_b"]
    run.complete("no_b")
    assert run.open == ["z"]
    run.complete("z")
    assert run.status == "COMPLETED", "each activity is compensated once"


def test_a_throw_event_may_name_one_activity(machine: Make) -> None:
    run = machine(THROW.format(ref="b"))
    run.start()
    run.complete("b")
    run.complete("a")
    assert run.open == ["no_b"]
    run.complete("no_b")
    run.complete("z")
    assert run.open == ["no_a"], "the rest"
    run.complete("no_a")
    assert run.status == "COMPLETED"


def test_every_run_in_a_loop_is_compensated(machine: Make) -> None:
    run = machine(
        """
        s start -> m
        m xor -> a
        a task A -> g
        no_a handler no_a of a
        g xor -> m[${more}], x[default]
        x end compensate
        """
    )
    run.start()
    for number in (1, 2, 3):
        run.complete("a", {"number": number, "more": number < 3})
    for number in (3, 2, 1):
        assert isinstance(_seen(run, "no_a"), dict)
        assert _seen(run, "no_a") == {"number": number, "more": number < 3}
        run.complete("no_a")
    assert run.status == "COMPLETED"


def test_a_failing_scope_waits_for_a_compensation_under_way(machine: Make) -> None:
    run = machine(
        """
        s start -> a
        a task A -> f
        no_a handler no_a of a
        f and -> t, b
        t throw compensate -> e
        b task B -> e
        e end
        """,
        SAGA,
    )
    run.start()
    run.complete("a")
    assert run.open == ["b", "no_a"]
    run.fail("b")
    assert run.incidents == [("retries_exhausted", "b")], "all that there is is being compensated already"
    run.complete("no_a")
    run.resolve()
    run.complete("b")
    assert run.status == "COMPLETED"


def test_a_failing_scope_lets_running_handlers_end_before_it_compensates_the_rest(machine: Make) -> None:
    run = machine(
        """
        s start -> a
        a task A -> c
        no_a handler no_a of a
        c task C -> f
        no_c handler no_c of c
        f and -> t, b
        t throw compensate a -> e
        b task B -> e
        e end
        """,
        SAGA,
    )
    run.start()
    run.complete("a")
    run.complete("c")
    assert run.open == ["b", "no_a"]
    run.fail("b")
    assert run.open == ["no_a"]
    run.complete("no_a")
    assert run.open == ["no_c"]
    run.complete("no_c")
    assert run.status == "FAILED"


def test_a_finished_handler_task_is_not_open(machine: Make) -> None:
    run = machine(TRIP, SAGA)
    run.start()
    run.complete("flight")
    run.fail("hotel")
    task_id = run.task("no_flight")
    run.complete("no_flight")
    with pytest.raises(NotOpen):
        run.do(c.CompleteTask(task_id, 1, None, "digest"))


HANDLER_BODY = """
<process id="process" isExecutable="true">
  <startEvent id="s"/><sequenceFlow id="f0" sourceRef="s" targetRef="a"/>
  <serviceTask id="a" camunda:type="external" camunda:topic="A"/>
  <sequenceFlow id="f1" sourceRef="a" targetRef="b"/>
  <serviceTask id="b" camunda:type="external" camunda:topic="B"/>
  <subProcess id="undo" isForCompensation="true">
    <serviceTask id="u1" camunda:type="external" camunda:topic="U1"/>
    <sequenceFlow id="f2" sourceRef="u1" targetRef="u2"/>
    <serviceTask id="u2" camunda:type="external" camunda:topic="U2"/>
    <serviceTask id="never" isForCompensation="true" camunda:type="external" camunda:topic="never"/>
    <boundaryEvent id="c1" attachedToRef="u1"><compensateEventDefinition/></boundaryEvent>
    <association id="w1" associationDirection="One" sourceRef="c1" targetRef="never"/>
  </subProcess>
  <boundaryEvent id="note" attachedToRef="undo" cancelActivity="false"><timerEventDefinition>
    <timeDuration>PT1H</timeDuration></timerEventDefinition></boundaryEvent>
  <sequenceFlow id="f3" sourceRef="note" targetRef="remind"/>
  <serviceTask id="remind" camunda:type="external" camunda:topic="R"/>
  <boundaryEvent id="c0" attachedToRef="a"><compensateEventDefinition/></boundaryEvent>
  <association id="w0" associationDirection="One" sourceRef="c0" targetRef="undo"/>
</process>"""


def test_E4_a_handler_may_be_a_subprocess_with_boundary_events(machine: Make) -> None:
    run = machine(HANDLER_BODY, SAGA)
    run.start({"n": 1})
    run.complete("a", {"n": 2})
    run.fail("b")
    assert run.open == ["u1"]
    assert _seen(run, "u1") == {"n": 2}
    run.fire("note")
    assert run.open == ["remind", "u1"]
    run.fail("remind")
    assert run.open == ["u1"], "what runs beside a handler in a failing scope is not worth an incident"
    run.complete("u1")
    run.fail("u2")
    assert run.incidents == [("compensation_failed", "u2")], "a failing handler compensates nothing itself"
    run.resolve()
    run.complete("u2")
    assert run.status == "FAILED"


def test_what_runs_beside_a_handler_is_cancelled_when_the_scope_is_gone(machine: Make) -> None:
    run = machine(HANDLER_BODY, SAGA)
    run.start()
    run.complete("a")
    run.fail("b")
    run.fire("note")
    remind = run.task("remind")
    run.complete("u1")
    run.complete("u2")
    assert run.status == "FAILED"
    assert run.rows.tasks[remind] == "CANCELLED"


def test_a_draining_task_whose_mapping_fails_is_still_compensated(machine: Make) -> None:
    run = machine(
        """
        <process id="process" isExecutable="true">
          <parallelGateway id="f"/>
          <sequenceFlow id="f1" sourceRef="f" targetRef="a"/><sequenceFlow id="f2" sourceRef="f" targetRef="b"/>
          <serviceTask id="a" camunda:type="external" camunda:topic="A"><extensionElements><camunda:inputOutput>
            <camunda:outputParameter name="y">${missing}</camunda:outputParameter></camunda:inputOutput>
          </extensionElements></serviceTask>
          <serviceTask id="b" camunda:type="external" camunda:topic="B"/>
          <serviceTask id="undo" isForCompensation="true" camunda:type="external" camunda:topic="U"/>
          <boundaryEvent id="c0" attachedToRef="a"><compensateEventDefinition/></boundaryEvent>
          <association id="w0" associationDirection="One" sourceRef="c0" targetRef="undo"/>
        </process>""",
        SAGA,
    )
    run.start()
    run.fail("b")
    run.complete("a", {"charge": 5})
    assert _seen(run, "undo") == {"charge": 5}
    run.complete("undo")
    assert run.status == "FAILED"
