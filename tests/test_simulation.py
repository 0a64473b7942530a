"""A handful of simulated runs, and every plan that ever failed.

More seeds: ``--sim-seeds``, or ``python -m simulations hunt``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from simulations.plans.drawing import Mode, Size, draw_plan
from simulations.plans.files import load_plan, save_plan, stored_plans
from simulations.plans.plan import Plan
from simulations.running import Result, simulate
from simulations.tools.children import Child
from simulations.tools.twins import Twin, compare

CANARY = "completion-without-fence"
CANARY_SEEDS = 40


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        first, count = metafunc.config.getoption("--sim-seed"), metafunc.config.getoption("--sim-seeds")
        metafunc.parametrize("seed", range(first, first + count))


def passed(plan: Plan, folder: Path, mutant: str | None = None) -> Result:
    """Where it fails, the plan is kept and the command told."""
    result = simulate(plan, mutant=mutant)
    if result.violations:
        kept = folder / "plan.json"
        save_plan(plan, kept)
        pytest.fail(f"{result.violations[0]}\nreproduce: python -m simulations replay {kept}", pytrace=False)
    return result


def test_P1_small_seed(seed: int, tmp_path: Path) -> None:
    mode: Mode = "all" if seed % 2 else "swarm"
    result = passed(draw_plan(seed, "small", mode), tmp_path)
    assert result.commits > 10, "work was done"


def test_P1_large_seed(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    plan = draw_plan(request.config.getoption("--sim-seed"), "large", "all")
    result = passed(plan, tmp_path)
    assert result.commits > 100, "work was done"
    assert len(result.counters) >= 10, "faults of many kinds befell it"
    assert len(result.sometimes) >= 20, "and had effects"


@pytest.mark.parametrize("path", stored_plans(), ids=lambda path: path.stem)
def test_plan_that_failed_once(path: Path, tmp_path: Path) -> None:
    passed(load_plan(path), tmp_path)


@pytest.mark.parametrize(("size", "mode", "backend"), [("small", "all", "shared"), ("small", "swarm", "sqlite")])
def test_P1_one_plan_gives_one_run_in_processes_with_other_hash_seeds(size: Size, mode: Mode, backend: str) -> None:
    plan = draw_plan(3, size, mode, backend=backend, nodes=1, spare_nodes=0)
    twins = [Twin(f"hash seed {hash_seed}", Child(hash_seed, python=sys.executable)) for hash_seed in (0, 4_711)]
    try:
        assert compare(iter([("seed 3", plan)]), twins, 1) == 0
    finally:
        for twin in twins:
            twin.child.close()


def test_canary_is_found(tmp_path: Path) -> None:
    """Checkers that find nothing any more would pass everything."""
    for seed in range(CANARY_SEEDS):
        plan = draw_plan(seed, "small", "all")
        if simulate(plan, mutant=CANARY).violations:
            passed(plan, tmp_path)
            return
    pytest.fail(f"{CANARY} survived {CANARY_SEEDS} seeds")
