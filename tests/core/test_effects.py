"""Row changes of changesets that carry several commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from stellwerk.core import commands as c
from stellwerk.core.changes import RowChanges
from stellwerk.core.effects import row_changes
from stellwerk.json_values import loads
from stellwerk.model.process import FailurePolicy

if TYPE_CHECKING:
    from tests.core.conftest import Machine

    Make = Callable[..., Machine]

WIDE = """
s start -> a, u, m
a task A
t timer@a PT1M
u user
m catch message news
"""


def test_what_comes_and_goes_in_one_changeset_occurs_nowhere(machine: Make) -> None:
    run = machine(WIDE)
    run.start()
    run.do(c.CancelInstance("never mind"))
    changes = row_changes(run.facts, run.live)
    assert changes == RowChanges(status="CANCELLED")


def test_a_new_task_carries_what_a_worker_and_an_operator_need(machine: Make) -> None:
    run = machine(WIDE)
    decision = run.start({"order": {"id": 7}})
    (task,) = row_changes(decision.facts, run.live).new_tasks
    (token_id,) = [token.id for token in run.live.tokens.values() if token.node_id == "a"]
    assert (task.element_id, task.topic, task.token_id) == ("a", "A", token_id)
    assert (task.retries, task.lock_expiries_max, task.priority, task.single_try) == (3, 10, 0, False)
    assert loads(task.variables) == {"order": {"id": 7}}


def test_a_task_drained_and_completed_in_one_changeset_is_only_completed(machine: Make) -> None:
    run = machine(
        "s start -> a, b\na task A\nno_a handler U of a\nb task B",
        FailurePolicy.COMPENSATE,
    )
    run.start()
    before = len(run.facts)
    run.fail("b")
    run.complete("a")
    changes = row_changes(run.facts[before:], run.live)
    assert changes.drained_tasks == ()
    assert changes.cancelled_tasks == ()
    assert [task.element_id for task in changes.new_tasks] == ["no_a"]
