"""What the page draws, before any browser sees it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import attrs
import pytest

from simulations.kernel.trace import Row
from simulations.tools.explanation import Explanation, explain_run, passing_neighbour
from simulations.tools.outcomes import RunResult
from simulations.tools.page.bars import fault_bars, state_bars, tone_of
from simulations.tools.page.document import page
from simulations.tools.page.drawing import drawing
from simulations.tools.page.layout import layout_of, ticks
from simulations.tools.page.leases import lease_bars
from simulations.tools.page.shapes import Arrow, Story
from simulations.tools.slices import slice_of

MakeRows = Callable[[Sequence[tuple[float, str, str, dict[str, Any]]]], list[Row]]

TASK = "t-4711"


@pytest.fixture
def explanation(failing: RunResult) -> Explanation:
    return explain_run(failing, "python -m simulations run --seed 42 --size small")


@pytest.fixture
def story(explanation: Explanation) -> Story:
    return explanation.story


def test_lanes_are_client_database_nodes_workers_then_instance_and_task(story: Story) -> None:
    names = [lane.name for lane in story.lanes]
    assert names == ["client", "database", "node-1", "node-2", "worker-2", "worker-3", "p-26", TASK]


def test_a_host_is_down_from_its_crash_to_its_next_boot(make_rows: MakeRows) -> None:
    rows = make_rows(
        [
            (0.0, "node-1#1", "boot", {}),
            (1.0, "node-1#1", "freeze", {}),
            (2.0, "node-1#1", "crash", {"how": "power cut"}),
            (5.0, "node-1#2", "boot", {}),
            (7.0, "node-1#2", "exit", {}),
        ]
    )
    bars = [(bar.tone, bar.start, bar.end) for bar in state_bars(rows, 9.0)]
    assert bars == [("frozen", 1.0, 2.0), ("down", 2.0, 5.0), ("down", 7.0, 9.0)]


def test_faults_are_bars_on_every_host_that_they_name(story: Story) -> None:
    cuts = [(bar.lane, bar.start, bar.end, bar.label) for bar in story.bars if bar.tone == "cut"]
    assert sorted(cuts) == [("database", 1.7, 2.9, "cut ~ node-1"), ("node-1", 1.7, 2.9, "cut ~ database")]


def test_a_momentary_fault_has_no_length_and_healing_ends_the_others(make_rows: MakeRows) -> None:
    def fault(at: float, key: str, seconds: float) -> tuple[float, str, str, dict[str, Any]]:
        return (
            at,
            "injector",
            "fault",
            {"phase": "begin", "key": key, "fault": key, "host": "node-1", "seconds": seconds},
        )

    rows = make_rows(
        [fault(1.0, "reset", 0.0), fault(2.0, "silence", 99.0), (3.0, "injector", "fault", {"phase": "heal"})]
    )
    bars = [(bar.label, bar.start, bar.end) for bar in fault_bars(rows, 9.0)]
    assert bars == [("reset", 1.0, 1.0), ("silence", 2.0, 3.0)]


@pytest.mark.parametrize(
    ("fault", "tone"),
    [
        ("node_power_cut", "down"),
        ("cut_database", "cut"),
        ("database_slow", "slow"),
        ("database_read_only", "database"),
        ("database_clock_jump", "clock"),
        ("worker_freeze", "frozen"),
        ("redeploy", "other"),
    ],
)
def test_the_colour_tells_what_kind_of_fault_it_is(fault: str, tone: str) -> None:
    assert tone_of(fault) == tone


def test_each_grant_is_a_bar_that_knows_its_promised_end(story: Story) -> None:
    first, second = story.leases
    assert (first.worker, first.start, first.end, first.until, first.ending) == ("worker-2", 1.0, 3.05, 3.0, "READY")
    assert (second.worker, second.start, second.end, second.ending) == ("worker-3", 3.2, 3.9, "COMPLETED")
    assert second.until == pytest.approx(5.2)


def test_a_renewal_moves_the_promised_end_and_an_undone_grant_is_none(make_rows: MakeRows) -> None:
    def commit(at: float, number: int, change: str) -> tuple[float, str, str, dict[str, Any]]:
        changes = [["tasks", TASK, change]]
        return at, "database", "commit", {"node": "node-1", "number": number, "now_ms": at * 1000, "changes": changes}

    rows = make_rows(
        [
            commit(1.0, 1, "READY→LOCKED worker-1 7 2000"),
            commit(1.5, 2, "LOCKED→LOCKED worker-1 7 2500"),
            commit(2.0, 3, "LOCKED→READY worker-1 7"),
            commit(3.0, 4, "READY→LOCKED worker-2 8 4000"),
            (3.5, "database", "undone", {"number": 4, "node": "node-1"}),
            (9.0, "checks", "violation", {"invariant": "V1", "message": f"{TASK} is forgotten"}),
        ]
    )
    bars = lease_bars(slice_of(rows).rows, (TASK,), 9.0)
    told = [(bar.worker, bar.start, bar.end, bar.until, bar.ending) for bar in bars]
    assert told == [("worker-1", 1.0, 2.0, 2.5, "READY"), ("worker-2", 3.0, 3.5, 4.0, "READY")]


def _arrow(story: Story, tone: str) -> list[tuple[str, str, float, float]]:
    def ends(arrow: Arrow) -> tuple[str, str, float, float]:
        return arrow.start_lane, arrow.end_lane, arrow.start, arrow.end

    return [ends(arrow) for arrow in story.arrows if arrow.tone == tone]


def test_grants_come_from_the_commit_and_requests_go_to_theirs(story: Story) -> None:
    assert _arrow(story, "grant") == [("node-1", "worker-2", 1.0, 1.004), ("node-2", "worker-3", 3.2, 3.206)]
    assert ("worker-2", "node-2", 3.61, 3.9) in _arrow(story, "request")
    assert ("node-2", TASK, 3.9, 3.9) in _arrow(story, "commit")


def test_a_lease_of_which_its_worker_never_heard_is_a_lost_arrow(failing: RunResult) -> None:
    rows = [
        row for row in failing.rows or [] if not (row.place == "worker-3#1" and row.kind in ("got", "lease", "handler"))
    ]
    told = explain_run(attrs.evolve(failing, rows=rows), "")  # type: ignore[misc]  # the made-up result is an attrs class
    assert [(start, end) for start, end, *_ in _arrow(told.story, "lost")] == [("node-2", "worker-3")]


def test_bars_of_one_lane_that_overlap_lie_above_each_other(story: Story) -> None:
    layout = layout_of(story)
    assert {layout.strips[bar] for bar in story.bars if bar.lane == "node-1" and not bar.is_state} == {0, 1}
    tops = [row.top for row in layout.rows.values()]
    assert tops == sorted(tops)


@pytest.mark.parametrize(("start", "end"), [(0.0, 0.003), (1.2, 4.9), (0.0, 600.0)])
def test_the_axis_has_a_dozen_round_instants_at_most(start: float, end: float) -> None:
    marks = ticks(start, end)
    assert 4 <= len(marks) <= 12
    assert all(start < at <= end for at, _ in marks)
    assert len({label for _, label in marks}) == len(marks)


def test_the_drawing_is_well_formed_and_shows_the_violation(story: Story) -> None:
    root = ElementTree.fromstring(drawing(story))
    of_class = {element.get("class") or "" for element in root.iter()}
    assert {"violation", "overdue", "promise tint-3", "state down", "state frozen"} <= of_class


class _Outside(HTMLParser):
    """Everything that a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.urls += [value or "" for name, value in attributes if name in ("src", "href", "xlink:href", "action")]


def test_the_page_needs_nothing_from_elsewhere(explanation: Explanation) -> None:
    html = page(explanation)
    outside = _Outside()
    outside.feed(html)
    assert [url for url in outside.urls if not url.startswith("data:")] == []
    assert "@import" not in html
    assert re.findall(r"url\((?!#)", html) == []


def test_what_a_run_says_cannot_become_markup(explanation: Explanation) -> None:
    html = page(explanation)
    assert "<worker-3>" not in html
    assert "&lt;worker-3&gt;" in html
    assert html.count("</script>") == 2


def test_the_page_has_the_command_the_plan_the_counters_and_the_neighbour(
    failing: RunResult, explanation: Explanation, make_result: type
) -> None:
    def passes(plan: Any, *, keep_trace: bool = False, mutant: str | None = None) -> RunResult:
        made: RunResult = make_result(plan=plan, rows=[row for row in failing.rows or [] if row.kind != "crash"])
        return made

    neighbour, tried = passing_neighbour(failing, passes)
    html = page(attrs.evolve(explanation, neighbour=neighbour, tried=tried))
    assert "python -m simulations run --seed 42 --size small" in html
    assert "worker-2 is frozen for 2.2 s" in html
    assert "lease expired and reclaimed" in html
    assert "The plan without the fault node_power_cut-1 passes." in html
    assert "&quot;seed&quot;: 42" in html


def test_a_run_that_passed_has_a_page_too(failing: RunResult, make_result: type) -> None:
    rows = [row for row in failing.rows or [] if row.kind != "violation"]
    html = page(explain_run(make_result(plan=failing.plan, rows=rows), "again"))
    assert "Every property held" in html
    assert 'id="violation"' not in html
