"""The page about the simulations: its tables are those of the code, its commands exist, its example fails as told."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from simulations.checks.invariants import INVARIANTS
from simulations.checks.sometimes import SOMETIMES
from simulations.kernel.scheduling import TRIO_VERSIONS
from simulations.mutants.registry import MUTANTS
from simulations.plans.describing import describe
from simulations.plans.faults import FAULTS
from simulations.plans.files import load_plan
from simulations.running import simulate
from simulations.tools.main import _make_app
from simulations.tools.tables import TABLES
from simulations.workloads.registry import WORKLOADS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/simulation.md"
README = ROOT / "simulations/README.md"
EXAMPLE = ROOT / "docs/_static/forgotten-leases.json"
MUTANT = "start-forgets-leases"


def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def part(mark: str) -> str:
    [text] = re.findall(rf"<!-- {mark} -->\n(.*?)<!-- end -->", page(), re.DOTALL)
    return str(text).strip()


def first_cells(table: str) -> list[str]:
    return [line.split(" | ")[0].strip("|` ") for line in table.splitlines() if line.startswith("| ")]


@pytest.mark.parametrize("mark", TABLES)
def test_a_table_is_that_of_the_code(mark: str) -> None:
    assert part(mark) == TABLES[mark](), "drawn anew by: python -m simulations.tools.tables docs/simulation.md"


@pytest.mark.parametrize(
    ("mark", "known"),
    [("faults", FAULTS), ("workloads", WORKLOADS), ("invariants", INVARIANTS), ("sometimes", SOMETIMES)],
)
def test_a_table_has_everything_that_there_is(mark: str, known: Mapping[str, object]) -> None:
    assert first_cells(part(mark))[1:] == list(known)


def test_tables_say_nothing_in_terms_that_the_page_does_not_have() -> None:
    tables = "\n".join(map(part, TABLES))
    assert re.findall(r"\brules? \d+|consistency\.md|\{\w+", tables) == []


def test_figures_are_of_everything_that_is_counted() -> None:
    figures = part("campaign")
    if not figures:
        pytest.skip("no campaign has been put into the page yet")
    counted = {
        cells[0]: int(cells[2].replace(",", ""))
        for line in figures.splitlines()
        if (cells := line.strip("| ").split(" | "))[0] in {*FAULTS, *SOMETIMES}
    }
    assert counted.keys() == {*FAULTS, *SOMETIMES}, "python -m simulations coverage --markdown docs/simulation.md"
    assert [name for name, count in counted.items() if count == 0] == [], "what never happened was not tested"


def test_the_table_of_mutants_has_all_of_them() -> None:
    table = part("mutants")
    if not table:
        pytest.skip("no mutants have been put into the page yet")
    named = [line.split(" | ")[1].strip("`") for line in table.splitlines()[4:]]
    assert named == list(MUTANTS), "python -m simulations mutants --markdown docs/simulation.md"


# --- commands --------------------------------------------------------------------------------------------------------


def commands() -> Iterator[str]:
    for text in (page(), README.read_text(encoding="utf-8")):
        yield from re.findall(r"^(?:again    )?(python -m simulations .*)$", text, re.MULTILINE)
        yield from re.findall(r"`(python -m simulations [^`]*)`", text)


def test_there_are_commands_of_every_kind() -> None:
    assert {command.split()[3] for command in commands()} >= {
        *("run", "replay", "hunt", "shrink", "twins", "explain", "mutants", "coverage")
    }


@pytest.mark.parametrize("command", sorted(set(commands())))
def test_a_command_exists_with_its_options(command: str) -> None:
    tokens = shlex.split(command)[3:]
    if tokens != ["--help"]:
        function, _, _ = _make_app().parse_args(tokens, print_error=False, exit_on_error=False)
        assert function.__name__ == tokens[0]


def test_the_other_commands_and_paths_that_are_named_exist() -> None:
    text = page() + README.read_text(encoding="utf-8")
    modules = re.findall(r"python -m (simulations\.[\w.]+)", text)
    assert modules
    assert [name for name in modules if not (ROOT / name.replace(".", "/")).with_suffix(".py").exists()] == []
    paths = re.findall(r"`((?:simulations|tests|docs)/[\w/.-]+)`", page())
    assert len(paths) > 3
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_folders_of_the_readme_are_those_that_there_are() -> None:
    [tree] = re.findall(r"```text\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    named = {line.split()[0] for line in tree.splitlines()} - {"results/"}
    assert [name for name in named if not (README.parent / name).exists()] == []
    packages = {f"{path.parent.name}/" for path in README.parent.glob("*/__init__.py")}
    assert packages - named == set()


def test_the_versions_of_trio_are_those_of_the_code() -> None:
    first, below = (".".join(map(str, version)) for version in TRIO_VERSIONS)
    assert f"it works from {first} to below {below}" in page()


# --- the example -----------------------------------------------------------------------------------------------------


def test_the_example_fails_with_its_mutant_as_the_page_says() -> None:
    plan = load_plan(EXAMPLE)
    [violation] = simulate(plan, mutant=MUTANT).violations
    assert f"FAILED   [{violation.invariant}] " in page()
    assert "it was released by nobody" in violation.message
    assert "it was released by nobody" in page()


def test_the_example_passes_without_it() -> None:
    assert simulate(load_plan(EXAMPLE)).violations == []


def test_the_example_is_as_small_as_the_page_says() -> None:
    plan = load_plan(EXAMPLE)
    assert (len(plan.faults), len(plan.instances), plan.options.workers, plan.options.nodes) == (1, 1, 1, 2)
    assert "1 fault, 1 instance, 1 worker, 2 nodes" in page()
    assert any("node-1 loses its power" in line for line in describe(plan))
