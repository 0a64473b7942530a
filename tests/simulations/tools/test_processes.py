"""Hunting, twins and mutants: runs in other processes, which here run something made up."""

from __future__ import annotations

import functools
import os
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

from simulations.plans.files import load_plan
from simulations.plans.plan import Plan
from simulations.tools.campaigns import Campaign
from simulations.tools.children import Child, ChildFailed, Children, Launch
from simulations.tools.hunt import Hunt
from simulations.tools.mutants import Finding, Lab, markdown
from simulations.tools.oracles import PoolOracle
from simulations.tools.twins import Twin, compare, first_divergence

_MADE_UP = '''
    """A run that is decided by its seed: what a seed does to it stands below."""

    import os
    import sys
    import time
    from collections import Counter

    import attrs

    from simulations.kernel.properties import Violation
    from simulations.kernel.trace import Row


    @attrs.frozen
    class Result:
        plan: object
        violations: object
        rows: object
        trace_digest: str
        sometimes = Counter({"lease ran out": 2})
        counters = Counter({"cut": 1})
        simulated_seconds = 10.0
        cpu_seconds = 0.1
        schedule_digest = "s"


    def simulate(plan, *, keep_trace=False, mutant=None):
        seed = plan.seed
        if seed == 66:
            sys.stderr.write("out of memory\\n")
            sys.stderr.flush()
            os._exit(9)
        if seed == 77:
            time.sleep(60)
        if seed == 88:
            raise ValueError("the harness broke")
        says = [f"step {number}" for number in range(5)]
        if seed == 55:
            says[3] = f"hash {hash('a')}"
        rows = [Row(n, n, "node-1#1", "log", {"says": text}) for n, text in enumerate(says)]
        is_broken = seed == 13 or (mutant == "bug" and seed >= 3)
        violations = [Violation("L5", "broken", 7)] if is_broken else []
        return Result(plan, violations, rows if keep_trace else None, "".join(says))
'''


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    folder = tmp_path_factory.mktemp("made_up")
    (folder / "made_up_runs.py").write_text(textwrap.dedent(_MADE_UP), encoding="utf-8")
    return functools.partial(
        Child, simulate="made_up_runs:simulate", environment={**os.environ, "PYTHONPATH": str(folder)}, seconds_max=20.0
    )


@pytest.fixture(scope="module")
def children(launch: Launch) -> Iterator[Children]:
    with Children(2, launch) as pool:
        yield pool


def _plan(seed: int) -> Plan:
    return Plan(seed=seed)


def test_what_a_process_says_comes_back(children: Children) -> None:
    outcome = children.submit(_plan(1)).result()
    assert (outcome.invariant, outcome.sometimes, outcome.faults) == (None, {"lease ran out": 2}, {"cut": 1})
    assert children.submit(_plan(13)).result().verdict == "[L5] broken (at 0.000007 s)"


def test_a_run_that_raises_or_kills_its_process_is_told_and_the_next_one_works(children: Children) -> None:
    with pytest.raises(ChildFailed, match="ValueError: the harness broke"):
        children.submit(_plan(88)).result()
    with pytest.raises(ChildFailed, match=r"ended with code 9: out of memory"):
        children.submit(_plan(66)).result()
    assert children.submit(_plan(1)).result().invariant is None


def test_a_run_that_hangs_is_ended_and_says_where(launch: Callable[..., Child]) -> None:
    child = launch(1, seconds_max=2.0)
    try:
        with pytest.raises(ChildFailed, match=r"(?s)took more than 2 s.*made_up_runs\.py.* in simulate"):
            child.run(_plan(77))
    finally:
        child.close()


# --- hunt ----------------------------------------------------------------------------------------------------------


def _hunt(children: Children, folder: Path, *, keep_going: bool) -> Hunt:
    return Hunt(
        children,
        Campaign(),
        lambda seed: ("small all", _plan(seed)),
        jobs=2,
        failures=folder,
        keep_going=keep_going,
    )


def test_a_hunt_stops_at_the_first_seed_that_fails_and_keeps_its_plan(
    children: Children, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hunting = _hunt(children, tmp_path, keep_going=False)
    hunting.run(range(10, 1_000), 60.0)
    campaign = hunting.campaign
    assert campaign.runs_count < 500, "and not all 990 seeds"
    file = tmp_path / "small-all-13.json"
    assert campaign.failures == [f"{file}: [L5] broken (at 0.000007 s)"]
    assert load_plan(file) == _plan(13)
    output = capsys.readouterr().out
    for command in ("replay", "shrink", "explain"):
        assert f"python -m simulations {command} {file}" in output
    assert campaign.seeds[0].startswith("10..1")


def test_a_hunt_goes_on_and_counts_what_broke_in_other_ways(children: Children, tmp_path: Path) -> None:
    hunting = _hunt(children, tmp_path, keep_going=True)
    hunting.run([12, 13, 66, 88, 14], 60.0)
    verdicts = sorted(failure.partition(": ")[2] for failure in hunting.campaign.failures)
    assert len(verdicts) == 3
    assert verdicts[0] == "[L5] broken (at 0.000007 s)"
    assert all(verdict.startswith("[broke] ") for verdict in verdicts[1:])
    assert hunting.campaign.runs_count == 3
    assert hunting.campaign.sometimes == {"lease ran out": 6}


def test_some_runs_are_done_twice_and_must_be_the_same(children: Children, tmp_path: Path) -> None:
    hunting = _hunt(children, tmp_path, keep_going=True)
    # Seed 55 says what depends on the hash seed; whether a seed has a twin is drawn by its number.
    hunting._draw = lambda seed: ("small all", _plan(55))
    hunting.run(range(40), 60.0)
    assert 1 <= hunting.campaign.twins <= 6
    assert len(hunting.campaign.failures) == hunting.campaign.twins
    assert "[not the same twice]" in hunting.campaign.failures[0]
    one, other = sorted(tmp_path.glob("*.trace"))[:2]
    assert first_divergence(one, other) is not None


def test_no_run_begins_after_the_time_is_over(children: Children, tmp_path: Path) -> None:
    hunting = _hunt(children, tmp_path, keep_going=False)
    hunting.run(range(10), 0.0)
    assert hunting.campaign.runs_count == 0


# --- twins ---------------------------------------------------------------------------------------------------------


def test_twins_show_the_first_event_that_differs(launch: Launch, capsys: pytest.CaptureFixture[str]) -> None:
    twins = [Twin(f"hash seed {seed}", launch(seed)) for seed in (1, 2)]
    try:
        plans = [(f"seed {seed}", _plan(seed)) for seed in (1, 55)]
        assert compare(iter(plans), twins, 2) == 1
    finally:
        for twin in twins:
            twin.child.close()
    output = capsys.readouterr().out
    assert "seed 55: not the same twice" in output
    assert "event 4 differs" in output
    assert '{"says":"step 2"}' in output
    assert "hash seed 2: 3 node-1#1 log" in output
    assert "2 plans in 2 processes each: 1 different" in output


def test_a_trace_that_ends_early_differs_there(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("a\nb\n")
    other.write_text("a\n")
    found = first_divergence(one, other)
    assert found is not None
    assert (found.number, found.common, found.one, found.other) == (2, ("a",), "b", None)
    assert first_divergence(one, one) is None


# --- mutants -------------------------------------------------------------------------------------------------------


@attrs.frozen
class _Bug:
    name: str
    what: str = "a lease is | forgotten"
    number: int | None = 9
    invariants: tuple[str, ...] = ("L5",)
    needs: tuple[str, ...] = ()


def test_a_bug_is_found_by_the_seeds_that_show_it(children: Children) -> None:
    lab = Lab(children, lambda seed, _: _plan(seed), jobs=2)
    finding = lab.examine(_Bug("bug"), range(6))
    assert (finding.runs, finding.found, finding.first, finding.mean) == (6, 3, 4, "2.0")
    assert finding.is_expected
    assert lab.examine(_Bug("bug"), range(40), stops_at_first=True).runs <= 6


def test_a_seed_that_fails_without_the_bug_too_says_nothing(children: Children) -> None:
    finding = Lab(children, lambda seed, _: _plan(seed), jobs=2).examine(_Bug("bug"), range(12, 15))
    assert (finding.runs, finding.found, finding.spoilt) == (2, 2, 1)


def test_a_bug_that_survives_was_found_by_nobody(children: Children) -> None:
    finding = Lab(children, lambda seed, _: _plan(seed), jobs=2).examine(_Bug("bug"), range(3))
    assert (finding.found, finding.first, finding.mean) == (0, None, "–")


def test_the_table_for_the_documentation_has_a_line_for_each() -> None:
    finding = Finding(_Bug("bug"), runs=40, found=10, first=3)
    finding.invariants["L5"] = 10
    lines = markdown([finding]).splitlines()
    assert lines[2] == "| 9 | `bug` | a lease is \\| forgotten | 10/40 | 3 | L5 10 |"


# --- shrinking in several processes ----------------------------------------------------------------------------------


def test_candidates_in_several_processes_give_the_same_answer(children: Children) -> None:
    oracle = PoolOracle(children, "L5", jobs=2)
    plans = [_plan(seed) for seed in (1, 2, 13, 88, 13)]
    assert oracle.first(plans) == 2
    assert oracle.first([_plan(88), _plan(1)]) is None
    assert oracle.first([_plan(13)]) == 0
