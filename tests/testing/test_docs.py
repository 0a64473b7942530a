"""What docs/testing.md shows works, as it is shown."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from stellwerk.testing import ProcessTest, StartedInstance

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs/testing.md"
PICTURE = PAGE.parent / "_static/invoice-coverage.svg"


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder(pytester: pytest.Pytester) -> Path:
    """With the processes that the page shows, under the names that it gives them."""
    files = dict(zip(("invoice.bpmn", "picking.bpmn", "payment.bpmn"), _blocks("xml"), strict=True))
    for name, content in files.items():
        assert f'process id="{name.removesuffix(".bpmn")}"' in content
        (pytester.path / name).write_text(content, encoding="utf-8")
    return pytester.path


def test_every_file_that_the_page_uses_is_shown_on_it() -> None:
    used = set(re.findall(r'deploy\("([\w.]+)"', PAGE.read_text(encoding="utf-8")))
    assert used == {"invoice.bpmn", "picking.bpmn", "payment.bpmn"}
    summaries = set(re.findall(r"<summary><code>([\w.]+)</code>", PAGE.read_text(encoding="utf-8")))
    assert summaries == used - {"invoice.bpmn"}


def test_the_picture_is_an_image_wherever_the_page_is_read() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert re.search(r"^!\[[^\]\n]+\]\(_static/invoice-coverage\.svg\)$", text, re.MULTILINE)
    assert "```{" not in text


def test_the_pages_tests_pass(pytester: pytest.Pytester, folder: Path) -> None:
    for number, code in enumerate(_blocks("python")):
        (folder / f"test_page_{number}.py").write_text(code, encoding="utf-8")
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--bpmn-coverage")
    result.assert_outcomes(passed=5)
    shown = [line.split() for line in _blocks("text")[-1].splitlines() if line.startswith("invoice")]
    printed = [line.split() for line in result.outlines]
    assert len(shown) == 3
    assert [line for line in shown if line not in printed] == []


def test_the_pages_program_runs(folder: Path) -> None:
    names: dict[str, Callable[[Path], str]] = {}
    [code] = [code for code in _blocks("python") if "def report(" in code]
    exec(code, names)  # the example is ours
    text = names["report"](folder / "invoice.bpmn")
    assert text.splitlines()[1].startswith("invoice ")
    assert {path.name for path in folder.glob("*.svg")} == {"invoice.svg", "invoice.plain.svg"}


def test_the_pages_test_of_three_days_is_ours() -> None:
    ours = (HERE / "test_three_days.py").read_text(encoding="utf-8")
    body = ours[ours.index(") -> None:\n") :].rstrip()
    assert body in _blocks("python")[0]
    assert len([line for line in body.splitlines() if line]) <= 20
    assert (HERE / "invoice.bpmn").read_text(encoding="utf-8") == _blocks("xml")[0]


def test_the_pages_picture_is_what_is_drawn_now(pytester: pytest.Pytester, folder: Path) -> None:
    (folder / "test_page.py").write_text(_blocks("python")[0], encoding="utf-8")
    pytester.runpytest_inprocess("-p", "no:cacheprovider", "--bpmn-coverage-svg", "drawn").assert_outcomes(passed=1)
    assert (folder / "drawn/invoice.svg").read_text(encoding="utf-8") == PICTURE.read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", [ProcessTest, StartedInstance], ids=lambda kind: kind.__name__)
def test_every_method_is_on_the_page(kind: type) -> None:
    internal = {"advance_to_ms", "advance_until", "instance", "deploy", "start"}
    text = PAGE.read_text(encoding="utf-8")
    names = {name for base in kind.__mro__[:-1] for name, value in vars(base).items() if callable(value)}
    public = {name for name in names if not name.startswith("_")}
    assert {name for name in public - internal if f".{name}(" not in text} == set()
