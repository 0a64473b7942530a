"""The benchmarks run: each with sizes that measure nothing, but do everything."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stellwerk.testing.databases import NoServer, find_binaries

CHECKOUT = Path(__file__).parents[2]


def results_of(*arguments: str) -> Any:
    command = [sys.executable, "-m", "tests.benchmarks", *arguments, "--json"]
    run = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return json.loads(run.stdout)


@pytest.fixture(scope="module")
def core() -> Any:
    return results_of("core", "--rounds", "1", "--seconds", "0.02", "--no-install")


def test_push_measures_throughput_cost_and_latency() -> None:
    sizes = ("--rounds", "1", "--seconds", "0.01", "--processes", "chain", "--latency-instances", "3")
    results = results_of("push", *sizes, "--stores", "sqlite-full", "--worker-processes", "2")
    [row] = results["throughput"]
    assert row["life_cycles_per_second"] > row["life_cycles_per_second_with_starts"] > 0
    assert row["engine_cpu_us"] > row["bare_loop_cpu_us"] > 0
    assert row["worker_cpu_us"] > 0
    [row] = results["latency"]
    assert 0 < row["start_to_handler_p50_ms"] <= row["start_to_handler_p99_ms"]
    assert row["handler_to_next_handler_p50_ms"] > 0


def test_http_measures_requests_next_to_an_empty_handler() -> None:
    results = results_of("http", "--rounds", "1", "--tasks", "40", "--stores", "memory")
    rows = {row["request"]: row for row in results["requests"]}
    assert {name: row["rounds"][0]["requests"] for name, row in rows.items()} == {
        "empty handler": 40,
        "fetch-and-lock, 10 tasks": 4,
        "complete": 40,
    }
    assert rows["empty handler"]["cpu_by_empty"] == 1
    assert rows["fetch-and-lock, 10 tasks"]["cpu_us"] > rows["empty handler"]["cpu_us"] > 0
    assert all(row["requests_per_second"] > 0 for row in rows.values())


def test_core_measures_our_own(core: Any) -> None:
    rows = {row["name"]: row for row in core["contestants"]}
    assert rows["decisions"]["cpu_of_decisions"] == rows["embedded"]["cpu_of_embedded"] == 1
    assert rows["core"]["cpu_us"] < rows["embedded"]["cpu_us"]
    assert rows["core and store"]["cpu_us"] < rows["embedded"]["cpu_us"]


@pytest.mark.parametrize("peer", ["camunda-python", "SpiffWorkflow", "bpmn-engine"])
def test_core_measures_peers_that_are_installed(core: Any, peer: str) -> None:
    if peer in core["skipped"]:
        pytest.skip(core["skipped"][peer])
    [row] = [row for row in core["contestants"] if row["name"] == peer]
    assert row["instances_per_second"] > 0
    assert row["version"]


def test_profiles_name_where_time_goes() -> None:
    push = results_of("profile", "push", "--store", "sqlite-full", "--process", "wide", "--instances", "2")
    modules = {module for module, _, _ in push["engine"]["own"]}
    assert any(module.startswith("stellwerk.stores.sqlite") for module in modules), modules
    assert any(module.startswith("stellwerk.worker") for module, _, _ in push["worker"]["own"])
    core = results_of("profile", "core", "--instances", "300")["core"]
    assert any(module.startswith("stellwerk.core") for module, _, _ in core["own"])
    assert sum(share for _, _, share in core["own"]) == pytest.approx(1)


def test_simulation_measures_runs_of_both_sizes_and_where_their_time_goes() -> None:
    results = results_of("simulation", "--seeds", "1", "--rounds", "1")
    small, large = results["sizes"]
    assert (small["size"], large["size"]) == ("small", "large")
    assert 0 < small["cpu_seconds"] < large["cpu_seconds"]
    assert small["steps"] < large["steps"]
    assert large["simulated_per_cpu_second"] > 1
    assert {"trio", "engine", "worker", "simulation: world"} <= {area for area, _ in results["areas"]}
    assert sum(share for _, share in results["areas"]) == pytest.approx(1)


@pytest.fixture(scope="module")
def postgres_is_installed() -> None:
    try:
        find_binaries()
    except NoServer as reason:
        pytest.skip(str(reason))


@pytest.mark.usefixtures("postgres_is_installed")
def test_postgres_measures_our_nodes_and_what_the_database_alone_can_do() -> None:
    sizes = ("--rounds", "1", "--seconds", "0.2", "--latency-tasks", "2")
    results = results_of("postgres", *sizes, "--only", "one node,bare store,bare SQL")
    assert results["failed"] == {}
    rows = {row["name"]: row for row in results["contestants"]}
    assert list(rows) == ["one node", "bare store", "bare SQL"]
    for row in rows.values():
        assert row["tasks_per_second"] > row["tasks_per_second_with_inserts"] > 0, row
        assert row["rate_by_ours"] > 0
    row = rows["one node"]
    assert row["rate_by_ours"] == row["cpu_by_ours"] == row["latency_by_ours"] == 1
    assert row["engine_cpu_us"] > 0
    assert row["worker_cpu_us"] > 0
    assert row["postgres_cpu_us"] > 0
    assert row["instances_per_second"] == pytest.approx(row["tasks_per_second"] / 3)
    assert row["operations_per_transaction"] >= 1
    assert 0 < row["dispatch_p50_ms"] <= row["dispatch_p99_ms"]
    assert rows["bare SQL"]["cpu_us"] < rows["bare store"]["cpu_us"] < row["cpu_us"]


@pytest.mark.usefixtures("postgres_is_installed")
def test_postgres_measures_a_peer_that_is_installed_and_names_one_that_is_not() -> None:
    sizes = ("--rounds", "1", "--seconds", "0.5", "--latency-tasks", "2", "--no-install")
    results = results_of("postgres", *sizes, "--only", "graphile-worker")
    [row] = results["contestants"]
    assert row["name"] == "graphile-worker"
    if results["failed"]:
        assert "is not installed" in results["failed"]["graphile-worker"]
        assert row["tasks_per_second"] is None
        pytest.skip(results["failed"]["graphile-worker"])
    assert row["version"].startswith("0.18.")
    assert row["tasks_per_second"] > 0
    assert row["worker_cpu_us"] > 0
    assert row["postgres_cpu_us"] > 0
    assert 0 < row["dispatch_p50_ms"] <= row["dispatch_p99_ms"]


def test_a_store_that_is_unknown_is_named() -> None:
    command = [sys.executable, "-m", "tests.benchmarks", "push", "--stores", "memory,oracle"]
    run = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    assert run.returncode == 1
    assert "unknown: oracle; known are memory, sqlite-full, sqlite-normal" in run.stderr
