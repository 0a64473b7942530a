"""Sequences, gateways, implicit forks, subprocesses: tokens are neither lost nor doubled."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from stellwerk.core import commands as c
from stellwerk.core.decide import NotOpen
from stellwerk.core.instance import External
from stellwerk.errors import Conflict, InvalidInput, NotFound
from stellwerk.limits import Limits

if TYPE_CHECKING:
    from tests.core.conftest import Machine

    Make = Callable[..., Machine]

THREE = """
s start -> a
a task A -> b
b task B -> c
c task C -> e
e end
"""


def test_E3_completing_a_task_moves_its_token_on_in_the_same_step(machine: Make) -> None:
    run = machine(THREE)
    run.start({"order": 7})
    assert run.open == ["a"]
    decision = run.complete("a", {"paid": True})
    names = [type(fact).__name__ for fact in decision.facts]
    assert names[0] == "TaskCompleted"
    assert names[-1] == "TaskCreated"
    assert run.open == ["b"]
    assert [ending.final_state for ending in decision.endings] == ["COMPLETED"]
    run.complete("b")
    run.complete("c", 42)
    assert run.status == "COMPLETED"
    assert run.variables == {"order": 7, "paid": True, "result": 42}


def test_E2_external_is_the_mode_of_the_token_while_its_task_is_open(machine: Make) -> None:
    run = machine("s start -> a\na task pay -> b\nb user -> e\ne end")
    run.start()
    (token,) = run.live.tokens.values()
    assert token.external == External("pay", 3, None)
    run.complete("a")
    (token,) = run.live.tokens.values()
    assert token.node_id == "b"
    assert token.external is None


def test_E2_the_mode_carries_type_retries_and_timeout_of_the_model(machine: Make) -> None:
    xml = """<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" targetNamespace="t"
        xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn"><process id="p" isExecutable="true">
      <startEvent id="s"/><endEvent id="e"/><manualTask id="m"/>
      <serviceTask id="a" stellwerk:topic="pay" stellwerk:retries="5" stellwerk:lockDuration="PT20S"/>
      <sequenceFlow id="f1" sourceRef="s" targetRef="m"/><sequenceFlow id="f2" sourceRef="m" targetRef="a"/>
      <sequenceFlow id="f3" sourceRef="a" targetRef="e"/></process></definitions>"""
    run = machine(xml)
    run.start()
    (token,) = run.live.tokens.values()
    assert token.external == External("pay", 5, 20_000)
    assert run.entered("m") == 1, "inline: done inside the engine, in the same step"
    run.complete("a")
    assert run.status == "COMPLETED"


def test_the_worker_gets_all_variables_and_returns_only_its_result(machine: Make) -> None:
    run = machine(THREE)
    run.start({"x": 1})
    run.complete("a", {"y": 2})
    (created,) = [fact for fact in run.facts if getattr(fact, "topic", None) == "B"]
    assert getattr(created, "variables", None) == {"x": 1, "y": 2}


@pytest.mark.parametrize("value, expected", [(5, "high"), (2, "low"), (3, "middle")])
def test_exclusive_gateway_takes_the_first_true_condition_else_the_default(
    machine: Make, value: int, expected: str
) -> None:
    run = machine(
        """
        s start -> g
        g xor -> low[${n < 3}], middle[default], high[${n > 3}], never[${n > 4}]
        low task L
        middle task M
        high task H
        never task N
        """
    )
    run.start({"n": value})
    assert run.open == [expected]


def test_no_condition_true_and_no_default_is_an_incident_that_can_be_tried_again(machine: Make) -> None:
    run = machine("s start -> g\ng xor -> a[${go}], b[${n > 1}]\na task A\nb task B")
    run.start({"go": False, "n": 0})
    assert run.incidents == [("model_fault", "g")]
    run.do(c.SetVariables({"go": True}))
    run.resolve()
    assert run.open == ["a"]
    assert run.incidents == []


def test_an_expression_that_fails_after_an_activity_is_tried_again_without_repeating_the_activity(
    machine: Make,
) -> None:
    run = machine("s start -> a\na task A -> b[${x > 1}], c[default]\nb task B\nc task C")
    run.start()
    run.complete("a")
    assert run.incidents == [("model_fault", "a")]
    run.resolve()
    assert run.incidents == [("model_fault", "a")]
    run.do(c.SetVariables({"x": 2}))
    run.resolve()
    assert run.open == ["b"]
    assert run.names().count("ActivityCompleted") == 1


def test_parallel_gateway_joins_what_it_split(machine: Make) -> None:
    run = machine(
        """
        s start -> f
        f and -> a, b, c
        a task A -> j
        b task B -> j
        c task C -> j
        j and -> d
        d task D
        """
    )
    run.start()
    assert run.open == ["a", "b", "c"]
    run.complete("b")
    run.complete("a")
    assert run.open == ["c"]
    run.complete("c")
    assert run.open == ["d"]
    run.complete("d")
    assert run.status == "COMPLETED"


def test_a_gateway_joins_and_splits_at_once(machine: Make) -> None:
    run = machine(
        """
        s start -> f
        f and -> a, b
        a task A -> j
        b task B -> j
        j and -> x, y
        x task X
        y task Y
        """
    )
    run.start()
    run.complete("a")
    run.complete("b")
    assert run.open == ["x", "y"]
    run.complete("x")
    run.complete("y")
    assert run.status == "COMPLETED"


def test_a_join_counts_one_token_for_each_flow_and_a_second_pass_starts_fresh(machine: Make) -> None:
    run = machine(
        """
        s start -> f
        f and -> a, x1, x2
        x1 pass -> x
        x2 pass -> x
        x task X -> j
        a task A -> j
        j and -> z
        z task Z
        """
    )
    run.start()
    assert run.open == ["a", "x", "x"]
    run.complete("x")
    run.complete("x")
    assert run.open == ["a"], "two tokens over one flow do not make a join"
    run.complete("a")
    assert run.open == ["z"]
    run.complete("z")
    assert run.incidents == [("model_fault", "j")], "the second token waits for one that cannot come, and says so"


def test_a_loop_through_a_join_fires_it_once_for_each_round(machine: Make) -> None:
    run = machine(
        """
        s start -> m
        m xor -> f
        f and -> a, b
        a task A -> j
        b task B -> j
        j and -> g
        g xor -> m[${again}], e[default]
        e end
        """
    )
    run.start()
    for again in (True, True, False):
        assert run.open == ["a", "b"]
        run.complete("b", {"again": again})
        run.complete("a")
    assert run.status == "COMPLETED"
    assert run.entered("g") == 3


def test_several_flows_without_condition_are_all_taken_and_merges_do_not_wait(machine: Make) -> None:
    run = machine("s start -> a, b\na pass -> c\nb pass -> c\nc task C -> e\ne end")
    run.start()
    assert run.open == ["c", "c"]
    run.complete("c")
    run.complete("c")
    assert run.status == "COMPLETED"


def test_conditional_and_default_flows_leave_an_activity(machine: Make) -> None:
    model = "s start -> a\na task A -> b[${n > 1}], c[${n > 2}], d[default]\nb task B\nc task C\nd task D"
    for number, expected in ((3, ["b", "c"]), (2, ["b"]), (1, ["d"])):
        run = machine(model)
        run.start()
        run.complete("a", {"n": number})
        assert run.open == expected


def test_a_subprocess_ends_when_no_token_is_left_in_it(machine: Make) -> None:
    run = machine(
        """
        s start -> p
        p sub -> z
            ps start -> a, b
            a task A -> pe
            b task B
            pe end
        z task Z
        """
    )
    run.start()
    run.complete("a")
    assert run.open == ["b"]
    run.complete("b")
    assert run.open == ["z"]


def test_nested_subprocesses_without_anything_to_do_pass(machine: Make) -> None:
    run = machine(
        """
        s start -> p
        p sub -> e
            ps start -> q
            q sub -> pe
                r pass
            pe end
        e end
        """
    )
    run.start()
    assert run.status == "COMPLETED"


def test_a_process_without_start_event_begins_at_the_nodes_without_incoming_flows(machine: Make) -> None:
    run = machine("a task A -> c\nb task B -> c\nc user")
    run.start()
    assert run.open == ["a", "b"]


def test_a_start_names_one_of_several_none_start_events(machine: Make) -> None:
    model = "s start -> a\na task A -> e\nt start -> b\nb task B -> e\ne end"
    with pytest.raises(Conflict, match="several none start events: name one") as refused:
        machine(model).start()
    assert refused.value.code == "ambiguous_start"
    run = machine(model)
    run.start(start_event_id="t")
    assert run.open == ["b"]
    run.complete("b")
    assert run.status == "COMPLETED"


def test_terminate_ends_its_scope_only(machine: Make) -> None:
    run = machine(
        """
        s start -> p
        p sub -> z
            ps start -> a, b
            a task A -> x
            x end terminate
            b task B
        z task Z -> f
        f and -> y, t
        y user
        t end terminate
        """
    )
    run.start()
    run.complete("a")
    assert run.open == ["z"]
    run.complete("z")
    assert run.status == "COMPLETED"
    assert run.facts[-1].__class__.__name__ == "InstanceCompleted"
    assert getattr(run.facts[-1], "terminated", False)


def test_a_loop_without_wait_state_becomes_an_incident(machine: Make) -> None:
    run = machine("s start -> m\nm xor -> p\np pass -> m", limits=Limits(steps_in_one_command_max=500))
    run.start()
    assert len(run.incidents) == 1
    run.resolve()
    assert len(run.incidents) == 1
    run.do(c.CancelInstance("enough"))
    assert run.status == "CANCELLED"


def test_a_fork_in_a_loop_stops_at_the_bound_on_tokens(machine: Make) -> None:
    run = machine("s start -> m\nm xor -> f\nf and -> m, a\na user", limits=Limits(instance_tokens_max=40))
    run.start()
    assert len(run.live.tokens) <= 40
    assert run.incidents == [("model_fault", "f")]


def test_a_long_sequence_in_one_step_needs_no_recursion(machine: Make) -> None:
    lines = [f"p{number} pass -> p{number + 1}" for number in range(3000)]
    run = machine("s start -> p0\n" + "\n".join(lines) + "\np3000 end")
    run.start()
    assert run.status == "COMPLETED"


# --- refusals ------------------------------------------------------------------------------------------------------


def test_a_finished_task_is_not_open_also_when_the_instance_has_ended(machine: Make) -> None:
    run = machine("s start -> a\na task A")
    run.start()
    task_id = run.task("a")
    run.complete("a")
    with pytest.raises(NotOpen) as refusal:
        run.do(c.CompleteTask(task_id, 1, {}, "digest"))
    assert refusal.value.code == "not_open"


def test_commands_to_an_ended_instance_are_refused(machine: Make) -> None:
    run = machine("s start -> e\ne end")
    run.start()
    for command in (c.CancelInstance("why"), c.SetVariables({"a": 1})):
        with pytest.raises(Conflict) as refusal:
            run.do(command)
        assert refusal.value.code == "ended"


def test_an_instance_cannot_be_started_twice(machine: Make) -> None:
    run = machine(THREE)
    run.start()
    with pytest.raises(Conflict) as refusal:
        run.start()
    assert refusal.value.code == "exists"


def test_what_does_not_exist_is_refused(machine: Make) -> None:
    run = machine(THREE)
    with pytest.raises(NotFound):
        run.do(c.FireTimer("none"))
    with pytest.raises(NotFound):
        run.start(start_event_id="a")
    run.start()
    for command in (
        c.FireTimer("none"),
        c.CorrelateMessage("none", "m", {}),
        c.CompleteUserTask("none", {}),
        c.ResolveIncident("none"),
        c.EndDraining("none"),
    ):
        with pytest.raises(NotOpen):
            run.do(command)
    with pytest.raises(InvalidInput):
        run.do(c.ResolveIncident("none", retries=0))
    with pytest.raises(NotFound):
        run.do(c.SetVariables({}, scope_id="none"))
    with pytest.raises(NotOpen):
        run.do(c.EndDraining(run.task("a")))


def test_cancelling_takes_everything_away(machine: Make) -> None:
    run = machine(
        """
        s start -> f
        f and -> a, u, p, t, m
        a task A
        late timer@a PT1H -> a
        u user
        p sub
            b task B
            n message~b news
        t catch timer PT5M
        m receive money
        """
    )
    run.start()
    run.fail("b")
    run.do(c.CancelInstance("changed my mind"))
    assert run.status == "CANCELLED"
    assert sorted(run.rows.tasks.values()) == ["CANCELLED", "CANCELLED"]
