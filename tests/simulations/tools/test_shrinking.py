"""A failing plan becomes a small one that fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import pytest

from simulations.kernel.properties import Violation
from simulations.plans.files import load_plan
from simulations.plans.plan import Plan
from simulations.tools.oracles import HereOracle
from simulations.tools.outcomes import Outcome, RunResult, Simulate
from simulations.tools.shrink import shrink_plan
from simulations.tools.shrinking import Shrinker, minimal_subset
from stellwerk.cli.mistakes import Mistake

Fails = Callable[[Plan], str | None]


def _simulate(fails: Fails, make_result: type, seen: list[Plan] | None = None) -> Simulate:
    """:param fails: which invariant a plan breaks."""

    def simulate(plan: Plan, *, keep_trace: bool = False, mutant: str | None = None) -> RunResult:
        if seen is not None:
            seen.append(plan)
        invariant = fails(plan)
        violations = () if invariant is None else (Violation(invariant, "it broke", 3_900_000),)
        made: RunResult = make_result(plan=plan, violations=violations, rows=[] if keep_trace else None)
        return made

    return simulate


def _keys(plan: Plan) -> set[str]:
    return {fault.key for fault in plan.faults}


def _shrunk(plan: Plan, simulate: Simulate, told: list[str] | None = None, **limits: float) -> Plan:
    oracle = HereOracle(simulate, "L5", **limits)  # type: ignore[arg-type]  # only seconds_max
    return Shrinker(plan, 3.9, oracle, (told if told is not None else []).append).run()


def test_only_what_matters_is_left(plan: Plan, make_result: type) -> None:
    def fails(plan: Plan) -> str | None:
        matters = {"worker_freeze-1", "slow_link-1"} <= _keys(plan) and "i1" in {spec.key for spec in plan.instances}
        return "L5" if matters else None

    small = _shrunk(plan, _simulate(fails, make_result))
    assert _keys(small) == {"worker_freeze-1", "slow_link-1"}
    assert [spec.key for spec in small.instances] == ["i1"]
    assert (small.options.nodes, small.options.workers) == (2, 3), "hosts that a fault names stay"
    assert small.options.schedule == "fifo"
    assert (small.options.fragment, small.options.pause_seconds, small.options.hint_loss) == (0.0, 0.0, 0.0)
    assert small.options.kinds == ("worker_freeze", "slow_link")
    assert all(0 < fault.seconds < 0.1 for fault in small.faults)
    assert small.options.chaos_seconds < plan.options.chaos_seconds
    assert small.seed == plan.seed


def test_what_is_later_than_the_violation_goes_first(plan: Plan, make_result: type) -> None:
    seen: list[Plan] = []
    _shrunk(plan, _simulate(lambda _: "L5", make_result, seen))
    assert _keys(seen[0]) == _keys(plan) - {"worker_crash-1"}


def test_another_way_of_failing_is_not_followed(plan: Plan, make_result: type) -> None:
    small = _shrunk(plan, _simulate(lambda plan: "L5" if len(plan.faults) >= 3 else "P0", make_result))
    assert len(small.faults) == 3


def test_a_plan_that_fails_by_itself_becomes_the_smallest_there_is(plan: Plan, make_result: type) -> None:
    small = _shrunk(plan, _simulate(lambda _: "L5", make_result))
    assert (small.faults, small.instances) == ((), ())
    assert (small.options.nodes, small.options.workers) == (1, 1)


def test_an_option_that_matters_stays_while_the_others_are_calmed(plan: Plan, make_result: type) -> None:
    options = attrs.evolve(
        plan.options, limits={"mailbox_commands_max": 2, "ready_hints_max": 2}, clocks={"node-1": (900, 1.01)}
    )
    plan = attrs.evolve(plan, options=options)

    def fails(plan: Plan) -> str | None:
        return "L5" if plan.options.limits.get("ready_hints_max") == 2 and plan.options.fragment else None

    small = _shrunk(plan, _simulate(fails, make_result))
    assert small.options.limits == {"ready_hints_max": 2}
    assert small.options.clocks == {}
    assert small.options.fragment == plan.options.fragment
    assert small.options.hint_loss == 0.0


def test_two_unforeseen_errors_are_two_ways_of_failing() -> None:
    one = Outcome(invariant="P0", message="worker-1#2 broke: KeyError: 7, in session.py:13")
    assert one.signature == Outcome(invariant="P0", message="worker-3#1 broke: KeyError: 99, in lists.py:3").signature
    assert (
        one.signature != Outcome(invariant="P0", message="worker-1#2 broke: NameError: 7, in session.py:13").signature
    )
    assert Outcome(invariant="L5", message="a").signature == Outcome(invariant="L5", message="b").signature


def test_what_fails_by_a_coincidence_gets_several_seeds(plan: Plan, make_result: type) -> None:
    def fails(plan: Plan) -> str | None:
        return "L5" if len(plan.faults) == 5 or plan.seed % 3 == 1 else None

    small = _shrunk(plan, _simulate(fails, make_result))
    assert small.faults == ()
    assert small.seed % 3 == 1


def test_a_guess_that_fails_too_is_where_it_begins(plan: Plan, make_result: type) -> None:
    told: list[str] = []
    guess = attrs.evolve(plan, faults=plan.faults[:1], instances=plan.instances[:1])
    simulate = _simulate(lambda plan: "L5" if "worker_freeze-1" in _keys(plan) else None, make_result)
    small = Shrinker(plan, 3.9, HereOracle(simulate, "L5"), told.append, [guess]).run()
    assert told[0] == "what the slice does not touch is left out"
    assert _keys(small) == {"worker_freeze-1"}


def test_no_plan_is_run_twice(plan: Plan, make_result: type) -> None:
    seen: list[Plan] = []
    _shrunk(plan, _simulate(lambda plan: "L5" if "cut-1" in _keys(plan) else None, make_result, seen))
    texts = [repr(one) for one in seen]
    assert len(texts) == len(set(texts))


def test_without_time_the_smallest_so_far_counts(plan: Plan, make_result: type) -> None:
    told: list[str] = []
    same = _shrunk(plan, _simulate(lambda _: "L5", make_result), told, seconds_max=-1.0)
    assert same == plan
    assert told == ["stopped: there may be a smaller one"]


@pytest.mark.parametrize("needed", [(), (3,), (0, 9), (1, 4, 7), tuple(range(10))])
def test_delta_debugging_finds_exactly_what_is_needed(needed: tuple[int, ...]) -> None:
    tried = 0

    def choose(subsets: Sequence[Sequence[int]]) -> int | None:
        nonlocal tried
        tried += len(subsets)
        return next((index for index, subset in enumerate(subsets) if set(needed) <= set(subset)), None)

    assert tuple(minimal_subset(range(10), choose)) == needed
    assert tried < 150


def test_the_command_writes_the_plan_and_a_page(
    plan: Plan, make_result: type, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "shrunk" / "small.json"
    simulate = _simulate(lambda plan: "L5" if "cut-1" in _keys(plan) else None, make_result)
    assert shrink_plan(plan, target, simulate=simulate) == 0
    assert _keys(load_plan(target)) == {"cut-1"}
    assert "L5 violated" in target.with_suffix(".html").read_text(encoding="utf-8")
    output = capsys.readouterr().out
    assert "faults 4 → 1" in output
    assert f"python -m simulations replay {target}" in output


def test_a_plan_that_passes_cannot_be_shrunk(plan: Plan, make_result: type, tmp_path: Path) -> None:
    with pytest.raises(Mistake, match="seed 42, small, all does not fail"):
        shrink_plan(plan, tmp_path / "small.json", simulate=_simulate(lambda _: None, make_result))
