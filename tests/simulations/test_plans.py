"""Plans of the simulations: a seed expands into one, and whatever is left out shifts nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast, get_args

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulations.plans.describing import describe
from simulations.plans.drawing import WEIGHTS, Mode, Size, draw_plan
from simulations.plans.faults import FAULTS, describe_fault, possible_kinds
from simulations.plans.files import REGRESSIONS, load_plan, save_plan, stored_plans
from simulations.plans.fitting import fitted
from simulations.plans.plan import (
    DATABASE,
    SITES,
    Fault,
    FaultKind,
    InstanceSpec,
    InvalidPlan,
    Options,
    Plan,
    from_json,
    to_json,
)
from stellwerk.limits import Limits

seeds = st.integers(0, 2**32)
sizes = st.sampled_from(get_args(Size))
modes = st.sampled_from(get_args(Mode))
kinds = st.sampled_from(list(FAULTS))
quick = settings(max_examples=40, deadline=None, derandomize=True)

FREE_OPTIONS: dict[str, Any] = {
    "worker_tasks": 3,
    "isolation": "read_committed",
    "schedule": "fifo",
    "latency": (0.001, 0.001),
    "slow": 0.0,
    "fragment": 0.9,
    "hint_loss": 1.0,
    "hint_doubling": 1.0,
    "hint_late": 3.0,
    "database_latency": (0.0, 0.0),
    "sync_seconds": 0.5,
    "lock_ms": 7_777,
    "pause_seconds": 9.0,
    "token_seconds": 1.0,
    "limits": {},
    "lock_expiries_max": 2,
    "stays_dead": (),
    "twin_workers": {},
    "clocks": {},
}
"""Options that no host and no time depends on."""


def faults_of(plan: Plan) -> dict[str, Fault]:
    return {fault.key: fault for fault in plan.faults}


def assert_only_differs_by_hosts(before: Plan, after: Plan) -> None:
    """`after` has more hosts: what is drawn otherwise befalls a new one."""
    new = set(after.hosts) - set(before.hosts)
    assert new
    old_faults, new_faults = faults_of(before), faults_of(after)
    assert old_faults.keys() == new_faults.keys()
    for key, fault in new_faults.items():
        assert fault == old_faults[key] or {fault.host, fault.other} & new
    assert before.instances == after.instances
    old_clocks = {host: clock for host, clock in after.options.clocks.items() if host not in new}
    assert old_clocks == before.options.clocks


# --- drawing ----------------------------------------------------------------------------------------------------------


@given(seeds, sizes, modes)
@quick
def test_a_seed_gives_one_plan_and_another_seed_another(seed: int, size: Size, mode: Mode) -> None:
    assert draw_plan(seed, size, mode) == draw_plan(seed, size, mode)
    assert draw_plan(seed, size, mode).instances != draw_plan(seed + 1, size, mode).instances


@given(seeds, sizes, modes, st.sampled_from(sorted(FREE_OPTIONS)))
@quick
def test_another_option_shifts_nothing_else(seed: int, size: Size, mode: Mode, name: str) -> None:
    before = draw_plan(seed, size, mode)
    after = draw_plan(seed, size, mode, **{name: FREE_OPTIONS[name]})
    assert (after.faults, after.instances) == (before.faults, before.instances)
    assert after.options == attrs.evolve(before.options, **{name: FREE_OPTIONS[name]})


@given(seeds, sizes, modes, st.integers(1, 4))
@quick
def test_more_workers_shift_nothing_else(seed: int, size: Size, mode: Mode, more: int) -> None:
    before = draw_plan(seed, size, mode)
    after = draw_plan(seed, size, mode, workers=before.options.workers + more)
    assert_only_differs_by_hosts(before, after)


@given(seeds, modes)
@quick
def test_another_node_shifts_nothing_else(seed: int, mode: Mode) -> None:
    drawn: dict[str, Any] = {"backend": "shared", "spare_nodes": 0}
    before, after = (draw_plan(seed, "small", mode, nodes=nodes, **drawn) for nodes in (2, 3))
    assert_only_differs_by_hosts(before, after)


@given(seeds, sizes, modes, st.integers(0, 20))
@quick
def test_more_instances_shift_nothing_else(seed: int, size: Size, mode: Mode, count: int) -> None:
    before = draw_plan(seed, size, mode, instances=count)
    after = draw_plan(seed, size, mode, instances=count + 3)
    assert (len(before.instances), len(after.instances)) == (count, count + 3)
    by_key = {spec.key: spec for spec in after.instances}
    assert all(by_key[spec.key] == spec for spec in before.instances)
    assert (after.faults, after.options) == (before.faults, before.options)


@given(seeds, sizes, modes, kinds)
@quick
def test_a_kind_of_fault_less_shifts_nothing_else(seed: int, size: Size, mode: Mode, kind: FaultKind) -> None:
    before = draw_plan(seed, size, mode)
    after = draw_plan(seed, size, mode, kinds=tuple(each for each in before.options.kinds if each != kind))
    assert after.faults == tuple(fault for fault in before.faults if fault.kind != kind)
    assert after.instances == before.instances
    assert attrs.evolve(after.options, kinds=before.options.kinds) == before.options


@given(seeds, sizes)
@quick
def test_in_all_mode_everything_that_can_happen_does(seed: int, size: Size) -> None:
    plan = draw_plan(seed, size, "all")
    assert {fault.kind for fault in plan.faults} == set(plan.options.kinds) == set(possible_kinds(plan))
    if plan.options.backend == "shared":
        assert set(plan.options.kinds) == set(get_args(FaultKind)) == set(FAULTS)


def test_in_swarm_mode_each_kind_is_there_in_some_plans_and_not_in_others() -> None:
    plans = [draw_plan(seed, "small", "swarm", backend="shared") for seed in range(60)]
    for kind in FAULTS:
        share = sum(kind in plan.options.kinds for plan in plans) / len(plans)
        assert 0.1 < share < 0.9, kind
    sizes_drawn = [len(plan.options.kinds) for plan in plans]
    assert min(sizes_drawn) <= 6
    assert max(sizes_drawn) >= 22, "one probability is drawn for the plan: there are calm ones and wild ones"


@given(seeds, sizes, modes)
@quick
def test_a_plan_fits_its_own_world(seed: int, size: Size, mode: Mode) -> None:
    plan = draw_plan(seed, size, mode)
    assert list(plan.faults) == sorted(plan.faults, key=lambda fault: (fault.at, fault.key))
    assert list(plan.instances) == sorted(plan.instances, key=lambda spec: (spec.at, spec.key))
    assert all(0 < fault.at <= plan.options.chaos_seconds for fault in plan.faults)
    assert {spec.kind for spec in plan.instances} <= set(WEIGHTS)
    assert all(abs(rate - 1) <= 0.02 for _, rate in plan.options.clocks.values())
    assert {field.name for field in attrs.fields(Limits)} >= set(plan.options.limits)
    assert set(plan.node_hosts) - set(plan.options.stays_dead)
    assert set(plan.worker_hosts) - set(plan.options.stays_dead)
    assert all(fault.amount >= 0 for fault in plan.faults if fault.kind == "database_clock_jump")
    assert all(fault.other in SITES for fault in plan.faults if fault.kind == "crash_at")


def test_sizes() -> None:
    small, large = draw_plan(9, "small", backend="shared"), draw_plan(9, "large", backend="shared")
    assert (small.options.nodes, small.options.workers, len(small.instances)) == (2, 4, 10)
    assert (large.options.nodes, large.options.workers, len(large.instances)) == (3, 10, 60)
    assert (small.options.chaos_seconds, large.options.chaos_seconds) == (12, 30)


def test_in_some_plans_the_store_fails_until_the_end_and_only_there_do_instances_come_until_then() -> None:
    plans = [draw_plan(seed, "small", mode) for seed in range(44) for mode in get_args(Mode)]
    endings = {plan.label: faults_of(plan)["database_refuses-0"] for plan in plans if _ends_in_refusals(plan)}
    assert 0 < len(endings) < len(plans) / 2
    for fault in endings.values():
        assert fault.at < 12 - 1 < 12 <= fault.at + fault.seconds
    late = {plan.label for plan in plans if plan.instances[-1].at > 0.8 * 12}
    assert late
    assert late <= endings.keys()


def _ends_in_refusals(plan: Plan) -> bool:
    return "database_refuses-0" in faults_of(plan)


def test_some_plans_have_one_node_on_a_shared_store() -> None:
    plans = [draw_plan(seed, "small", "swarm", backend="shared") for seed in range(22)]
    assert {plan.options.nodes for plan in plans} == {1, 2}


def test_hosts_stand_still_for_shorter_and_for_longer_than_a_lease() -> None:
    plans = [draw_plan(seed) for seed in range(40)]
    frozen = [
        (fault.seconds, plan.options.lock_ms / 1000)
        for plan in plans
        for fault in plan.faults
        if fault.kind in ("node_freeze", "worker_freeze")
    ]
    longer = sum(seconds > lease for seconds, lease in frozen)
    assert 0.2 < longer / len(frozen) < 0.8


def test_a_file_has_one_node_and_no_faults_of_a_database_server() -> None:
    plan = draw_plan(1, backend="sqlite")
    assert (plan.node_hosts, plan.spare_hosts, plan.options.isolation) == (("node-1",), (), "serialisable")
    assert not {"database_crash", "cut_database", "node_join", "hints_lost"} & set(plan.options.kinds)
    assert {"database_read_only", "node_power_cut", "crash_at"} <= set(plan.options.kinds)


def test_every_store_and_every_hardship_is_drawn_now_and_then() -> None:
    plans = [draw_plan(seed, "small", "swarm") for seed in range(80)]
    for name in ("backend", "isolation", "storm_workers", "spare_nodes", "lock_ms", "pause_seconds", "fragment"):
        assert len({getattr(plan.options, name) for plan in plans}) > 1, name
    assert any(plan.options.stays_dead for plan in plans)
    assert any(plan.options.twin_workers for plan in plans)
    assert any(abs(offset_ms) > 3_500_000 for plan in plans for offset_ms, _ in plan.options.clocks.values())


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"size": "huge"}, "there is no size huge, but small, large"),
        ({"mode": "some"}, "there is no mode some, but all, swarm"),
        ({"worker": 3}, "there is no option worker"),
        ({"nodes": 0}, "there must be a node"),
        ({"backend": "sqlite", "nodes": 2}, "a SQLite file has one node"),
        ({"backend": "sqlite", "kinds": ("cut_database",)}, "kinds that cannot befall this world: cut_database"),
        ({"spare_nodes": 0, "kinds": ("node_join",)}, "kinds that cannot befall this world: node_join"),
        ({"workloads": {"sequel": 1}}, "there is no workload sequel"),
    ],
)
def test_what_cannot_be_drawn_is_said(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidPlan, match=complaint):
        draw_plan(1, **arguments)


def test_another_process_draws_the_same() -> None:
    code = "from simulations.plans.drawing import *; from simulations.plans.plan import *; print(to_json(draw_plan(5)))"
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == to_json(draw_plan(5)) + "\n"


# --- JSON -------------------------------------------------------------------------------------------------------------


@given(seeds, sizes, modes)
@quick
def test_a_plan_survives_json(seed: int, size: Size, mode: Mode) -> None:
    plan = draw_plan(seed, size, mode)
    text = to_json(plan)
    assert from_json(text) == plan
    assert to_json(from_json(text)) == text


SMALL = Plan(
    seed=3,
    faults=(
        Fault(key="f1", at=1, kind="cut", host="node-1", other="worker-1", seconds=2),
        Fault(key="f2", at=1, kind="crash_at", host="node-2", other="after-lease", amount=1),
    ),
    instances=(InstanceSpec(key="i1", kind="sequence", at=0.5, seed=4, options={"steps": 1, "fails": None}),),
)


def test_a_line_for_each_fault_and_instance() -> None:
    lines = to_json(SMALL).splitlines()
    assert sum('"key": ' in line for line in lines) == len(SMALL.faults) + len(SMALL.instances)


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ('"seed": 3', '"seed": "3"', "a whole number is expected, not '3' @ $.seed"),
        ('"seed": 3', '"seed": true', "a whole number is expected, not True @ $.seed"),
        ('"at": 0.5', '"at": "soon"', "a number is expected, not 'soon' @ $.instances[0].at"),
        ('"at": 0.5', '"at": -0.5', "-0.5 is no time @ $.instances[0].at"),
        ('"at": 0.5', '"at": NaN', "nan is no time @ $.instances[0].at"),
        ('"kind": "cut"', '"kind": "cult"', "cult is none of node_crash, node_power_cut"),
        ('"host": "node-1"', '"host": "node-9"', "there is no host 'node-9' @ $.faults[0].host"),
        ('"other": "worker-1"', '"other": ""', "there is no host '' @ $.faults[0].other"),
        ('"after-lease"', '"after-lunch"', "there is no pause point 'after-lunch' @ $.faults[1].other"),
        ('"key": "f2"', '"key": "f1"', "f1 is there twice @ $.faults"),
        ('"key": "i1", ', "", "key is missing @ $.instances[0]"),
        ('"nodes": 2', '"nodes": 2, "knots": 1', "unknown: knots @ $.options"),
        ('"nodes": 2', '"nodes": 0', "there must be a node @ $.options.nodes"),
        ('"stays_dead": []', '"stays_dead": ["node-7"]', "there is no host node-7 @ $.options.stays_dead"),
        ('"steps": 1', '"steps": [1]', "a simple value is expected, not [1] @ $.instances[0].options['steps']"),
        ("0.0005, 0.005", "0.0005", "@ $.options.latency"),
        ('"format": 1', '"format": 2', "format 2 is not 1"),
        ("{", "", "not JSON"),
    ],
)
def test_a_plan_that_is_none_is_refused_with_what_and_where(before: str, after: str, complaint: str) -> None:
    text = to_json(SMALL)
    assert before in text
    with pytest.raises(InvalidPlan) as refused:
        from_json(text.replace(before, after, 1))
    assert complaint in str(refused.value)


@pytest.mark.parametrize("text", ["[]", "null", "3", ""])
def test_other_json_is_no_plan(text: str) -> None:
    with pytest.raises(InvalidPlan):
        from_json(text)


# --- hosts ------------------------------------------------------------------------------------------------------------


def test_the_hosts_of_a_plan() -> None:
    options = Options(nodes=1, spare_nodes=1, workers=2, storm_workers=1, twin_workers={"worker-2": "worker-1"})
    plan = Plan(seed=1, options=attrs.evolve(options, clocks={DATABASE: (5, 1.01)}))
    assert plan.hosts == ("node-1", "node-2", "worker-1", "worker-2", "storm-1", "client", "operator", "database")
    assert plan.spare_hosts == ("node-2",)
    assert [plan.worker_id(host) for host in plan.worker_hosts] == ["worker-1", "worker-1"]
    assert (plan.clock_of(DATABASE), plan.clock_of("node-1")) == ((5, 1.01), (0, 1.0))


def test_how_far_faults_set_the_clock_of_a_file() -> None:
    jumps = [("wall_jump", "node-1", 5_000), ("wall_jump", "node-1", -3_000), ("wall_jump", "worker-1", 60_000)]
    jumps += [("database_clock_jump", DATABASE, 700)]
    faults = tuple(
        Fault(key=f"f{number}", at=1.0, kind=cast("FaultKind", kind), host=host, amount=amount)
        for number, (kind, host, amount) in enumerate(jumps)
    )
    plan = Plan(seed=1, options=Options(nodes=1), faults=faults)
    assert plan.file_clock_jumps_ms == 0
    assert attrs.evolve(plan, options=Options(nodes=1, backend="sqlite")).file_clock_jumps_ms == 8_000


@given(seeds, sizes, st.integers(1, 3), st.integers(0, 4), st.booleans())
@quick
def test_who_takes_hosts_away_keeps_the_rest_as_it_was(
    seed: int, size: Size, nodes: int, workers: int, to_file: bool
) -> None:
    before = draw_plan(seed, size, backend="shared")
    options: dict[str, Any] = {"nodes": nodes, "workers": workers, "spare_nodes": 0, "storm_workers": 0}
    if to_file:
        options |= {"backend": "sqlite", "nodes": 1, "isolation": "serialisable"}
    after = fitted(before, **options)
    assert from_json(to_json(after)) == after, "it fits together"
    assert faults_of(after).items() <= faults_of(before).items()
    gone = set(before.hosts) - set(after.hosts)
    for key in faults_of(before).keys() - faults_of(after).keys():
        fault = faults_of(before)[key]
        assert {fault.host, fault.other} & gone or fault.kind not in possible_kinds(after)
    assert after.instances == before.instances


# --- for people -------------------------------------------------------------------------------------------------------


@given(seeds, sizes, modes)
@quick
def test_everything_in_a_plan_is_described(seed: int, size: Size, mode: Mode) -> None:
    plan = draw_plan(seed, size, mode)
    lines = describe(plan)
    assert str(seed) in lines[0]
    for key in (*(fault.key for fault in plan.faults), *(spec.key for spec in plan.instances)):
        assert sum(f"  {key}: " in line for line in lines) == 1
    assert not any("{" in line and "limits" not in line for line in lines), "no field is left unfilled"


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (Fault(key="f", at=1, kind="node_freeze", host="node-1", seconds=2.5), "node-1 is frozen for 2.5 s"),
        (
            Fault(key="f", at=1, kind="cut_database", host="node-1", other=DATABASE, seconds=2, both=False),
            "nothing passes from node-1 to database for 2 s",
        ),
        (
            Fault(key="f", at=1, kind="database_refuses", host=DATABASE, seconds=2, amount=0.25),
            "the database aborts 25% of all transactions for 2 s",
        ),
        (
            Fault(key="f", at=1, kind="wall_jump", host="worker-1", amount=-5000),
            "the wall clock of worker-1 jumps by -5000 ms",
        ),
    ],
)
def test_faults_in_words(fault: Fault, text: str) -> None:
    assert describe_fault(fault) == text


# --- files ------------------------------------------------------------------------------------------------------------


def test_plans_are_kept_as_files(tmp_path: Path) -> None:
    plan = draw_plan(4)
    save_plan(plan, tmp_path / "new" / "b.json")
    save_plan(SMALL, tmp_path / "new" / "a.json")
    save_plan(plan, tmp_path / "new" / "a.json")
    paths = stored_plans(tmp_path / "new")
    assert [path.name for path in paths] == ["a.json", "b.json"]
    assert [load_plan(path) for path in paths] == [plan, plan]


def test_a_file_that_is_no_plan_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text('{"format": 1}', encoding="utf-8")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidPlan, match=r"broken\.json: seed is missing"):
        load_plan(tmp_path / "broken.json")
    with pytest.raises(InvalidPlan, match=r"bytes\.json: cannot be read"):
        load_plan(tmp_path / "bytes.json")
    with pytest.raises(InvalidPlan, match=r"absent\.json: cannot be read"):
        load_plan(tmp_path / "absent.json")


def test_every_stored_plan_can_be_read() -> None:
    for path in stored_plans(REGRESSIONS):
        load_plan(path)
