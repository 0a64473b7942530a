"""What an import loads: nothing that is not used."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import stellwerk

_ENGINE = ("core", "model", "ports", "actors", "stores", "server", "system", "app", "cli", "testing")


def modules_after(program: str) -> list[str]:
    """Those that a fresh interpreter has loaded."""
    report = f"{program}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True)
    modules: list[str] = json.loads(run.stdout)
    return modules


def engine_parts(modules: list[str]) -> list[str]:
    return [name for name in modules if name.startswith(tuple(f"stellwerk.{part}" for part in _ENGINE))]


def test_importing_the_package_loads_nothing_else() -> None:
    modules = modules_after("import stellwerk")
    assert [name for name in modules if name.startswith("stellwerk")] == ["stellwerk"]
    assert {"trio", "attrs", "attr", "msgspec", "sqlite3", "starlette"}.isdisjoint(modules)


@pytest.mark.parametrize(
    "program",
    [
        "import stellwerk.worker",
        "from stellwerk import Worker, Task, BpmnError, TaskFailure",
        "import stellwerk; worker = stellwerk.Worker(); worker.task('work')(lambda payload: None)",
    ],
)
def test_E6_a_worker_loads_nothing_of_the_engine(program: str) -> None:
    modules = modules_after(program)
    assert "stellwerk.worker" in modules
    assert engine_parts(modules) == []
    assert {"sqlite3", "starlette", "structlog", "cyclopts", "rich"}.isdisjoint(modules)


def test_E6_the_engine_is_loaded_when_it_is_used() -> None:
    modules = modules_after("import stellwerk; stellwerk.open_engine")
    assert "stellwerk.app" in modules
    assert not any(name.startswith(("stellwerk.cli", "stellwerk.testing")) for name in modules)
    assert "cyclopts" not in modules


def test_the_package_shows_its_names_before_they_are_loaded() -> None:
    names = {"open_engine", "Engine", "Worker", "Task", "BpmnError", "TaskFailure"}
    assert set(stellwerk.__all__) == names <= set(dir(stellwerk))
    with pytest.raises(AttributeError, match="module 'stellwerk' has no attribute 'Motor'"):
        _ = stellwerk.Motor
