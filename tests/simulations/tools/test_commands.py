"""The command line: what it prints, what it writes, how it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulations.plans.plan import Plan
from simulations.tools.explain import explain_plan
from simulations.tools.main import main
from simulations.tools.outcomes import RunResult
from simulations.tools.run import play
from simulations.tools.writing import write_file
from stellwerk.cli.mistakes import Mistake

_COMMANDS = ("run", "replay", "hunt", "shrink", "twins", "explain", "mutants", "coverage")


@pytest.fixture(autouse=True)
def _somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_help_names_every_command_and_says_what_it_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    output = capsys.readouterr().out
    for command in _COMMANDS:
        assert f" {command} " in output
    assert "the same run, to" in output.lower()


@pytest.mark.parametrize("command", _COMMANDS)
def test_each_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    output = capsys.readouterr().out
    assert f"python -m simulations {command}" in output
    assert len(output.splitlines()) > 8


@pytest.mark.parametrize(
    ("tokens", "complaint"),
    [
        (["run", "--seed", "x"], "--seed"),
        (["run", "--size", "huge"], "--size"),
        (["run", "--mutant", "nobody"], "there is no mutant nobody; there are "),
        (["replay", "nowhere.json"], "nowhere.json: cannot be read"),
        (["shrink", "nowhere.json"], "nowhere.json: cannot be read"),
        (["twins", "9..1"], "9..1: the seeds end before they begin"),
        (["hunt", "--mix", "tiny=3"], "--mix tiny=3"),
        (["hunt", "--jobs", "0"], "--jobs"),
        (["mutants", "--bug", "nobody"], "there is no mutant nobody"),
        (["mutants", "--seeds", "0"], "--seeds 0"),
        (["coverage"], "there is no campaign yet"),
        (["fly"], "fly"),
    ],
)
def test_wrong_use_is_a_line_that_names_it(
    tokens: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(tokens) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert "Traceback" not in error


def test_a_plan_that_is_none_is_refused_with_the_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("plan.json").write_text('{"format": 1, "seed": "x"}')
    assert main(["replay", "plan.json"]) == 2
    assert "$.seed" in capsys.readouterr().err


def test_a_run_that_fails_prints_plan_and_slice_and_ends_with_1(
    failing: RunResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, html = tmp_path / "out" / "trace.txt", tmp_path / "out" / "page.html"
    code = play(failing.plan, "again!", trace=trace, html=html, simulate=lambda *_, **__: failing)
    assert code == 1
    output = capsys.readouterr().out
    assert "worker_freeze-1: worker-2 is frozen for 2.2 s" in output
    assert "FAILED   [L5]" in output
    assert "again    again!" in output
    lines = trace.read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(failing.rows or ())
    assert "checks violation" in "\n".join(lines)
    assert "L5 violated" in html.read_text(encoding="utf-8")


def test_a_run_that_passes_tells_what_happened_in_it(
    plan: Plan, make_result: type, capsys: pytest.CaptureFixture[str]
) -> None:
    result = make_result(plan=plan, sometimes={"lease ran out": 4}, counters={"cut": 2}, rows=[])
    assert play(plan, "again!", quiet=True, simulate=lambda *_, **__: result) == 0
    output = capsys.readouterr().out
    assert output.startswith("passed   20.000 s simulated")
    assert "2 cut" in output
    assert "4  lease ran out" in output


def test_explain_finds_the_neighbour_and_writes_the_page(
    failing: RunResult, make_result: type, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def simulate(plan: Plan, *, keep_trace: bool = False, mutant: str | None = None) -> RunResult:
        if len(plan.faults) == len(failing.plan.faults):
            return failing
        made: RunResult = make_result(plan=plan, rows=(failing.rows or ())[:50])
        return made

    page = tmp_path / "page.html"
    assert explain_plan(failing.plan, "again!", page, simulate=simulate) == 0
    output = capsys.readouterr().out
    assert "passes   the plan without the fault node_power_cut-1" in output
    assert "Last passing neighbour" in page.read_text(encoding="utf-8")


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Mistake, match=r"file/page\.html: cannot be written"):
        write_file(tmp_path / "file" / "page.html", "")
    assert (tmp_path / "file").read_text() == ""


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    for text in ("long", "new"):
        write_file(tmp_path / "deep" / "page.html", text)
    assert [file.read_text() for file in (tmp_path / "deep").iterdir()] == ["new"]
