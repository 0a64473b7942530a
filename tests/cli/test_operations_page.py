"""docs/operations.md says what is so."""

from __future__ import annotations

import re
from pathlib import Path

import attrs

from stellwerk.cli import mistakes
from stellwerk.cli.incidents import KINDS
from stellwerk.cli.main import _COMMANDS
from stellwerk.core.commands import FailureKind
from stellwerk.core.rules.errors import BPMN_ERROR
from stellwerk.core.rules.incidents import COMPENSATION_FAILED, MODEL_FAULT
from stellwerk.limits import Limits

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    match = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert match, title
    return match[1]


def shown(name: str, value: int) -> str:
    """A limit as the page writes it, by the unit at the end of its name."""
    scales = (
        ("_bytes_max", ((1024 * 1024, "MiB"), (1024, "KiB"))),
        ("_ms", ((3_600_000, "h"), (1_000, "s"), (1, "ms"))),
    )
    for suffix, units in scales:
        if re.search(rf"{suffix}(_|$)", name):
            size, unit = next((size, unit) for size, unit in units if value % size == 0)
            return f"{value // size} {unit}"
    return f"{value:,}"


def test_the_table_of_limits_is_that_of_the_program() -> None:
    told: dict[str, str] = {}
    for names, defaults in re.findall(r"^\| (`.*?`) \| (.*?) \|", section("Limits"), re.MULTILINE):
        listed = re.findall(r"`(\w+)`", names)
        values = re.split(r", (?=\d+ [a-zA-Z])", defaults)
        told |= zip(listed, values * len(listed) if len(values) == 1 else values, strict=False)
    assert told == {name: shown(name, value) for name, value in attrs.asdict(Limits()).items()}


def test_every_command_stands_in_the_tables() -> None:
    table = "\n".join(line for line in section("Commands").splitlines() if line.startswith("|"))
    told = re.findall(r"`stellwerk ([a-z-]+)", table)
    assert sorted(told) == sorted(["demo", *(name for name, _, _ in _COMMANDS)])


def test_every_exit_code_is_told() -> None:
    told = re.findall(r"^\| (\d+) \|", section("Exit codes"), re.MULTILINE)
    known = {mistakes.ENDED_BADLY, mistakes.WRONG_USE, mistakes.NO_ENGINE}
    assert {int(code) for code in told} == known | {0, 130}


def test_every_kind_of_incident_is_told() -> None:
    known = {BPMN_ERROR, COMPENSATION_FAILED, MODEL_FAULT, *(kind.value for kind in FailureKind)}
    told = re.findall(r"^\| `(\w+)` \| ", section("Repairing an incident"), re.MULTILINE)
    assert sorted(told) == sorted(KINDS) == sorted(known)
