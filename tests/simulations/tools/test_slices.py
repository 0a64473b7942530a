"""What belongs to a violation, and what the report says of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pytest

from simulations.kernel.trace import Row
from simulations.plans.plan import Plan
from simulations.tools.explanation import difference_of, explain_run, passing_neighbour
from simulations.tools.outcomes import RunResult
from simulations.tools.report import report
from simulations.tools.rows import brief, changes_of, leases_in, with_undone
from simulations.tools.sentences import sentence
from simulations.tools.slices import slice_of, subject_of

MakeRows = Callable[[Sequence[tuple[float, str, str, dict[str, Any]]]], list[Row]]

TASK = "t-4711"
INSTANCE = "p-26"


def test_the_subject_is_the_task_that_the_violation_names_and_its_instance(rows: list[Row]) -> None:
    subject = subject_of(rows)
    assert subject.tasks == (TASK,)
    assert subject.instances == (INSTANCE,)
    assert subject.names == {INSTANCE: "i26", TASK: "charge"}


def test_the_slice_holds_what_touches_the_subject_and_befell_its_hosts(rows: list[Row]) -> None:
    part = slice_of(rows)
    kinds = {(row.kind, row.place) for row in part.rows}
    assert ("crash", "node-1#1") in kinds
    assert ("freeze", "worker-2#1") in kinds
    assert ("request", "client#1") in kinds  # by the key that the plan has for the instance
    assert ("violation", "checks") in kinds
    assert not any(row.place == "worker-4#1" and row.kind == "sent" for row in part.rows), "another task's"
    assert set(part.hosts) == {"database", "node-1", "node-2", "worker-2", "worker-3", "client"}


def test_rows_after_the_violation_are_left_out(rows: list[Row]) -> None:
    late = Row(rows[-1].number + 1, 9_000_000, "worker-2#1", "handler", {"task": TASK, "fence": 1, "phase": "end"})
    assert late not in slice_of([*rows, late]).rows


def test_the_answer_to_a_request_of_the_subject_belongs_to_it(make_rows: MakeRows) -> None:
    rows = make_rows(
        [
            (1.0, "worker-2#1", "sent", {"type": "Complete", "ref": 8, "task": TASK, "fence": 1}),
            (1.1, "worker-3#1", "got", {"type": "Ack", "ref": 8}),
            (1.2, "worker-2#1", "got", {"type": "Nack", "ref": 8, "code": "lease_lost"}),
            (1.3, "checks", "violation", {"invariant": "I2", "message": f"task {TASK}: refused"}),
        ]
    )
    assert [row.place for row in slice_of(rows).rows] == ["worker-2#1", "worker-2#1", "checks"]


def test_a_violation_that_names_nothing_shows_what_came_last(make_rows: MakeRows) -> None:
    told: list[tuple[float, str, str, dict[str, Any]]] = [(n / 100, "node-1#1", "log", {"n": n}) for n in range(200)]
    rows = make_rows([*told, (3.0, "checks", "violation", {"invariant": "P2", "message": "every task waits"})])
    part = slice_of(rows)
    assert str(part.subject) == "the whole cluster"
    assert [row.data["n"] for row in part.rows[:-1]] == list(range(141, 200))


def test_what_came_before_the_subject_is_told_only_where_it_still_held(make_rows: MakeRows) -> None:
    def fault(at: float, phase: str, key: str) -> tuple[float, str, str, dict[str, Any]]:
        data = {"phase": phase, "key": key, "fault": "cut", "host": "worker-1", "other": "node-1", "seconds": 2.0}
        return at, "injector", "fault", data

    rows = make_rows(
        [
            (0.0, "node-1#1", "boot", {}),
            (0.0, "worker-1#1", "boot", {}),
            (0.5, "worker-1#1", "crash", {"how": "killed"}),
            (0.6, "worker-1#2", "boot", {}),
            fault(0.7, "begin", "cut-1"),
            fault(0.8, "end", "cut-1"),
            fault(0.9, "begin", "cut-2"),
            (1.0, "worker-1#2", "handler", {"task": TASK, "phase": "begin", "node": "node-1"}),
            (1.1, "worker-1#2", "refused", {"target": "node-1", "reason": "timed out"}),
            (1.2, "worker-1#2", "refused", {"target": "node-1", "reason": "timed out"}),
            (1.3, "checks", "violation", {"invariant": "L1", "message": f"{TASK} has two holders"}),
        ]
    )
    told = [(row.us / 1e6, row.kind) for row in slice_of(rows).rows]
    assert told == [
        (0.0, "boot"),
        (0.6, "boot"),
        (0.9, "fault"),
        (1.0, "handler"),
        (1.1, "refused"),  # once, though it is refused again and again
        (1.3, "violation"),
    ]


def test_a_name_within_a_longer_one_is_another(make_rows: MakeRows) -> None:
    rows = make_rows(
        [
            (1.0, "worker-1#1", "handler", {"task": "t-1", "phase": "begin"}),
            (1.1, "worker-1#1", "handler", {"task": "t-11", "phase": "begin"}),
            (1.2, "checks", "violation", {"invariant": "L1", "message": "t-1 has two holders"}),
        ]
    )
    assert [row.data.get("task") for row in slice_of(rows).rows] == ["t-1", None]


def test_an_undone_commit_tells_what_it_had_changed(make_rows: MakeRows) -> None:
    change = ["tasks", TASK, "LOCKED→COMPLETED worker-1 7", INSTANCE]
    rows = make_rows(
        [
            (1.0, "database", "commit", {"node": "node-1", "number": 3, "now_ms": 5, "changes": [change]}),
            (1.1, "database", "undone", {"node": "node-1", "number": 3}),
            (1.2, "checks", "violation", {"invariant": "D1", "message": f"{TASK} is not what was told"}),
        ]
    )
    undone = slice_of(rows).rows[1]
    assert undone.kind == "undone"
    assert changes_of(undone)[0].after == "COMPLETED"
    assert "UNDONE" in sentence(undone)
    assert changes_of(with_undone(rows)[1]) == changes_of(rows[0])


@pytest.mark.parametrize(
    ("data", "leases"),
    [
        ({"task": "a", "fence": 3}, [("a", "3")]),
        ({"tasks": [["a", 3], ["b", 4]]}, [("a", "3"), ("b", "4")]),
        ({"kept": [["a", 3]], "lost": [["b", 4, "expired"]]}, [("a", "3"), ("b", "4")]),
        ({"lost": "no connection"}, []),
    ],
)
def test_leases_of_every_kind_of_message_are_found(data: dict[str, object], leases: list[tuple[str, str]]) -> None:
    assert leases_in(Row(1, 0, "worker-1#1", "got", data)) == leases


def test_long_ids_and_fences_are_told_by_their_ends() -> None:
    text = "task 019b76da-acd8-738d-b30c-eca141512707: fence 1767225655032, retries 3"
    assert brief(text) == "task …512707: fence …5032, retries 3"


def test_the_report_has_the_verdict_the_events_and_the_command(failing: RunResult) -> None:
    lines = list(report(explain_run(failing, "python -m simulations run --seed 42")))
    text = "\n".join(lines)
    assert lines[0].startswith("FAILED   [L5] task t-4711 was ended")
    assert "db" in next(line for line in lines if "seconds" in line)
    assert "worker-2#1 is frozen" in text
    assert "task t-4711 READY→LOCKED, worker-3 with fence …0052" in text
    assert any(line.endswith("<- violation") for line in lines)
    assert lines[-1] == "again    python -m simulations run --seed 42"


# --- neighbours ----------------------------------------------------------------------------------------------------


class _Passing:
    """Passes when one of these faults is not there."""

    def __init__(self, failing: RunResult, needed: str, result: type) -> None:
        self.failing = failing
        self.needed = needed
        self.result = result
        self.plans: list[Plan] = []

    def __call__(self, plan: Plan, *, keep_trace: bool = False, mutant: str | None = None) -> RunResult:
        assert keep_trace
        self.plans.append(plan)
        fails = any(fault.key == self.needed for fault in plan.faults)
        rows = self.failing.rows or []
        made: RunResult = self.result(
            plan=plan,
            violations=self.failing.violations if fails else (),
            rows=rows if fails else [row for row in rows if row.kind not in ("freeze", "thaw", "fault")],
        )
        return made


def test_the_neighbour_lacks_the_fault_that_matters(failing: RunResult, make_result: type) -> None:
    simulate = _Passing(failing, "slow_link-1", make_result)
    neighbour, tried = passing_neighbour(failing, simulate)
    assert neighbour is not None
    assert neighbour.what == "the plan without the fault slow_link-1"
    assert tried == 2, "the latest fault before the violation comes first; those after it are not tried"
    assert len(neighbour.plan.faults) == len(failing.plan.faults) - 1


def test_the_fault_that_was_left_out_is_no_difference_but_its_first_effect_is(
    failing: RunResult, make_result: type
) -> None:
    rows = list(failing.rows or [])
    passing = [row for row in rows if row.data.get("key") != "worker_freeze-1" and row.kind != "freeze"]
    difference = difference_of(rows, passing, "worker_freeze-1")
    assert difference is not None
    assert difference.failing is not None
    assert difference.failing.kind == "freeze"
    assert len(difference.before) == 3
    assert difference_of(rows, rows) is None


def test_seeds_beside_it_are_tried_when_every_plan_with_a_fault_less_fails(
    failing: RunResult, make_result: type, plan: Plan
) -> None:
    other = attrs.evolve(plan, seed=43, faults=())

    def fails_unless_calm(plan: Plan, *, keep_trace: bool = False, mutant: str | None = None) -> RunResult:
        made: RunResult = make_result(plan=plan, violations=failing.violations if plan.faults else (), rows=[])
        return made

    neighbour, tried = passing_neighbour(failing, fails_unless_calm, seeds=lambda: iter([("the seed 43", other)]))
    assert neighbour is not None
    assert neighbour.what == "the seed 43"
    assert tried == 5
    assert passing_neighbour(failing, fails_unless_calm, limit=2) == (None, 2)
