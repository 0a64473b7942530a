"""Figures and tables that tools put into pages of documentation."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulations.checks.sometimes import SOMETIMES
from simulations.plans.faults import FAULTS
from simulations.tools.campaigns import Campaign, append_campaign
from simulations.tools.figures import figures
from simulations.tools.main import main
from simulations.tools.outcomes import Outcome
from simulations.tools.tables import TABLES
from simulations.tools.writing import plain, write_part
from stellwerk.cli.mistakes import Mistake

PAGE = "# A page\n\n<!-- campaign -->\nold\n<!-- end -->\n\n<!-- mutants -->\n<!-- end -->\n\nThe end.\n"


def campaign(commit: str, *, cuts: int, expired: int) -> Campaign:
    one = Campaign(began="2026-01-02T03:04:05+00:00", commit=commit, python="3.11.2", real_seconds=2.0, twins=1)
    outcome = Outcome(sometimes={"expired": expired}, faults={"cut": cuts}, simulated_seconds=3600.0, cpu_seconds=60.0)
    one.add("small all", outcome)
    return one


def test_the_newest_commit_stands_beside_all_campaigns() -> None:
    campaigns = [campaign("old", cuts=5, expired=4), *(campaign("new", cuts=1, expired=0) for _ in range(2))]
    lines = figures(campaigns, ("expired", "lost"), ("cut", "reset")).splitlines()
    assert lines[0].startswith("*Newest*: campaigns on commit new, 2026-01-02, Python 3.11.2.")
    assert "|  | newest | all |" in lines
    assert "| runs | 2 | 3 |" in lines
    assert "| simulated hours | 2.0 | 3.0 |" in lines
    assert "| simulated seconds for each real one | 1,800 | 1,800 |" in lines
    assert "| minutes of processor time | 2 | 3 |" in lines
    assert "| small all | 2 | 3 |" in lines
    assert "| cut | 2 | 7 |" in lines
    assert "| reset | 0 | 0 |" in lines, "what never happened is told"
    assert "| expired | 0 | 1 | 4 |" in lines
    assert "| lost | 0 | 0 | 0 |" in lines


def test_coverage_fills_its_part_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    append_campaign(tmp_path / "campaigns.json", campaign("new", cuts=1, expired=0))
    append_campaign(tmp_path / "campaigns.json", campaign("new", cuts=1, expired=0))
    for _ in range(2):
        assert main(["coverage", "--results", str(tmp_path), "--last", "1", "--markdown", str(page)]) == 1
    text = page.read_text()
    assert text.startswith("# A page\n\n<!-- campaign -->\n\n*Newest*: campaigns on commit new")
    assert text.endswith("<!-- end -->\n\n<!-- mutants -->\n<!-- end -->\n\nThe end.\n")
    assert "old" not in text
    assert "| runs | 1 | 1 |" in text
    assert [name for name in (*FAULTS, *SOMETIMES) if f"| {name} | " not in text] == []


def test_mutants_fill_their_part_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    main(["mutants", "--bug", "completion-by-anybody", "--seeds", "1", "--mix", "small", "--markdown", str(page)])
    text = page.read_text()
    assert "old" in text, "another part stays as it was"
    assert "`--seeds 1 --mix small`, commit " in text
    assert "| 1 | `completion-by-anybody` | A completion is taken from whoever sends it" in text


def test_a_page_that_is_not_there_is_made_and_filled_again(tmp_path: Path) -> None:
    page = tmp_path / "new" / "page.md"
    write_part(page, "campaign", "one")
    write_part(page, "campaign", "another\n")
    assert page.read_text() == "<!-- campaign -->\n\nanother\n\n<!-- end -->\n"


@pytest.mark.parametrize(("text", "count"), [("# A page\n", 0), (PAGE + PAGE, 2), ("<!-- campaign -->\nopen", 0)])
def test_a_page_without_its_part_is_left_as_it_is(text: str, count: int, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(Mistake, match=rf"page\.md: has {count} parts between <!-- campaign --> and <!-- end -->"):
        write_part(page, "campaign", "figures")
    assert page.read_text() == text


def test_a_page_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(Mistake, match="cannot be read"):
        write_part(tmp_path, "campaign", "figures")


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("the usual\nfailure (rule 15).", "the usual failure."),
        ("both (rules 16 and 18), and a|b", "both, and a\\|b"),
        ("waited for (consistency.md 15).", "waited for."),
        ("as the rules say (all of them)", "as the rules say (all of them)"),
    ],
)
def test_sentences_of_the_code_become_cells(text: str, cell: str) -> None:
    assert plain(text) == cell


def test_every_row_of_a_table_has_all_its_cells() -> None:
    for draw in TABLES.values():
        head, _, *rows = draw().splitlines()
        assert len(rows) > 15
        assert {row.replace("\\|", "").count("|") for row in rows} == {head.count("|")}
