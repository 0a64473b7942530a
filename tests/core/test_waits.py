"""What the tokens of an instance wait for, as people are shown it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from stellwerk.core.waits import open_waits
from stellwerk.model.process import FailurePolicy

if TYPE_CHECKING:
    from tests.core.conftest import Machine

    Make = Callable[..., Machine]

GUARDED = """
    s start -> p
    p sub -> e
      q start -> f
      f and -> a, b, m
      a task T -> j
      b user -> j
      m receive paid -> j
      j and -> w
      w end
    late timer@p PT1H -> e
    ping message~p news -> n
    n task N
    e end
"""


def told(run: Machine) -> dict[str, list[str]]:
    """By the node where the token stands."""
    state = run.live
    waits = open_waits(state)
    return {
        token.node_id: [f"{wait.kind.value} {wait.node_id}" for wait in waits.get(token.id, ())]
        for token in state.tokens.values()
    }


def test_tokens_wait_for_work_messages_and_what_may_happen_at_the_boundary(machine: Make) -> None:
    run = machine(GUARDED)
    run.start()
    assert told(run) == {
        "p": ["message ping", "timer late"],
        "a": ["external_task a"],
        "b": ["user_task b"],
        "m": ["message m"],
    }
    waits = [wait for found in open_waits(run.live).values() for wait in found]
    (timer,) = run.live.timers.values()
    assert [wait.due_at_ms for wait in waits if wait.wait_id == timer.id] == [timer.due_at_ms]
    assert {(wait.name, wait.key) for wait in waits if wait.name is not None} == {
        (awaited.name, awaited.key) for awaited in run.live.subscriptions.values()
    }


def test_token_at_a_join_waits_for_others(machine: Make) -> None:
    run = machine(GUARDED)
    run.start()
    run.complete("a")
    assert told(run)["j"] == []


def test_failed_task_waits_for_its_incident_alone(machine: Make) -> None:
    run = machine(GUARDED, policy=FailurePolicy.INCIDENT)
    run.start()
    run.fail("a")
    assert told(run)["a"] == ["incident a"]
    (incident,) = run.live.incidents.values()
    assert incident.id in {wait.wait_id for found in open_waits(run.live).values() for wait in found}


def test_ended_instance_waits_for_nothing(machine: Make) -> None:
    run = machine(GUARDED)
    run.start()
    run.fire("late")
    assert open_waits(run.live) == {}


def test_token_that_compensates_waits_for_that(machine: Make) -> None:
    run = machine("""
        s start -> a
        a task A -> undo
        u handler u of a
        undo throw compensate -> e
        e end
    """)
    run.start()
    run.complete("a")
    assert told(run)["undo"] == ["compensation undo"]
