"""Draws the life of an external task from the transition table of `stellwerk.core.lease`.

Run it after every change of the table: ``python docs/draw_lease_diagram.py``. It writes the table in ``task-life.md``
and the picture ``_static/task-life.svg``. A test compares both with what is drawn. The places of states and arrows are
chosen here by hand; which arrows there are, and what stands at them, comes from the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from stellwerk.core.external_task import TaskState
from stellwerk.core.lease import TRANSITIONS

PAGE = Path(__file__).with_name("task-life.md")
PICTURE = PAGE.parent / "_static" / "task-life.svg"
BEGIN, END = "<!-- drawn from the table: begin -->", "<!-- drawn from the table: end -->"

WIDTH, HEIGHT = 150, 56
READY, LOCKED, COMPLETED = TaskState.READY, TaskState.LOCKED, TaskState.COMPLETED
FAILED, EXPIRED, CANCELLED = TaskState.FAILED, TaskState.EXPIRED, TaskState.CANCELLED
PLACES = {
    READY: (150, 290),
    LOCKED: (480, 290),
    COMPLETED: (850, 290),
    FAILED: (480, 110),
    EXPIRED: (850, 110),
    CANCELLED: (480, 500),
}
"""The middles of the states."""
ARROWS = {
    (READY, READY): ("M95 318 C70 372 150 372 130 322", (72, 366), "end"),
    (READY, LOCKED): ("M225 278 H401", (313, 270), "middle"),
    (READY, FAILED): ("M225 266 L416 141", (352, 214), "middle"),
    (READY, CANCELLED): ("M185 318 V500 H401", (196, 440), "start"),
    (LOCKED, READY): ("M405 302 H229", (313, 320), "middle"),
    (LOCKED, LOCKED): ("M500 318 C500 384 590 384 535 321", (582, 350), "start"),
    (LOCKED, COMPLETED): ("M555 290 H771", (696, 264), "start"),
    (LOCKED, FAILED): ("M480 262 V142", (470, 196), "end"),
    (LOCKED, EXPIRED): ("M540 262 L772 136", (722, 182), "start"),
    (LOCKED, CANCELLED): ("M450 318 V468", (440, 388), "end"),
    (FAILED, READY): ("M405 120 L178 260", (262, 186), "end"),
    (FAILED, CANCELLED): ("M555 116 C730 190 710 440 560 484", (686, 400), "start"),
    (EXPIRED, READY): ("M850 82 V40 H120 V258", (475, 32), "middle"),
    (EXPIRED, CANCELLED): ("M925 110 H952 V500 H559", (746, 492), "middle"),
}
"""A path, the place of its label, and to which side of that place the label lies."""
STYLE = """\
.ground{fill:#f7f8fa;stroke:#d5dae1}.state{fill:#fff;stroke:#9aa5b4;stroke-width:1.6}
.lease{fill:#eaf1fb;stroke:#5b8fd6;stroke-width:1.6}.final{fill:#eef7ee;stroke:#5c9e63;stroke-width:3}
.name{fill:#1d2530;font-size:15px;font-weight:600;text-anchor:middle}.label{fill:#3d4856;font-size:13px}
.arrow{stroke:#66727f;stroke-width:1.6;fill:none}.tip{fill:#66727f}.start{fill:#66727f}
@media (prefers-color-scheme:dark){.ground{fill:#161b22;stroke:#2f3742}.state{fill:#1f262f;stroke:#596575}
.lease{fill:#1c2c42}.final{fill:#1b2e20}.name{fill:#eef2f7}.label{fill:#c3ccd8}.arrow{stroke:#aeb9c7}
.tip,.start{fill:#aeb9c7}}"""


def arrows() -> dict[tuple[TaskState, TaskState], list[str]]:
    """The commands that lead from one state to another."""
    found: dict[tuple[TaskState, TaskState], list[str]] = {}
    for source, commands in TRANSITIONS.items():
        for kind, targets in commands.items():
            for target in targets:
                found.setdefault((source, target), []).append(kind.value)
    return found


def picture() -> str:
    """The table as an SVG document. A state or an arrow without a place here is an error."""
    labels = arrows()
    assert labels.keys() == ARROWS.keys(), labels.keys() ^ ARROWS.keys()
    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 980 560" role="img" aria-labelledby="title" '
        "font-family=\"system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif\">",
        '<title id="title">The life of an external task: its states, and what leads from one to another</title>',
        f"<style>{STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="tip" d="M0 0 L10 5 L0 10 z"/></marker></defs>',
        '<rect class="ground" x="1" y="1" width="978" height="558" rx="14"/>',
        '<circle class="start" cx="30" cy="290" r="8"/>',
        '<path class="arrow" d="M38 290 H71" marker-end="url(#tip)"/>',
        *(line for ends, commands in labels.items() for line in arrow_lines(ends, commands)),
        *(line for state in TaskState for line in state_lines(state)),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def arrow_lines(ends: tuple[TaskState, TaskState], commands: list[str]) -> Iterator[str]:
    path, (x, y), anchor = ARROWS[ends]
    yield f'<path class="arrow" d="{path}" marker-end="url(#tip)"/>'
    pieces = [", ".join(commands)] if anchor == "middle" else commands
    for number, text in enumerate(pieces):
        yield f'<text class="label" x="{x}" y="{y + 16 * number}" text-anchor="{anchor}">{text}</text>'


def state_lines(state: TaskState) -> Iterator[str]:
    x, y = PLACES[state]
    kind = "lease" if state is LOCKED else "state" if TRANSITIONS[state] else "final"
    box = f'x="{x - WIDTH // 2}" y="{y - HEIGHT // 2}" width="{WIDTH}" height="{HEIGHT}" rx="9"'
    yield f'<rect class="{kind}" {box}/>'
    yield f'<text class="name" x="{x}" y="{y + 5}">{state.value}</text>'


def table() -> str:
    """The same as a table."""
    lines = ["| from | command | to |", "|---|---|---|"]
    for source, commands in TRANSITIONS.items():
        lines += [
            f"| {source.value} | {kind.value} | {' or '.join(target.value for target in targets)} |"
            for kind, targets in commands.items()
        ]
    return "\n".join(lines) + "\n"


def page(text: str) -> str:
    """`text` with the part between the two marks drawn anew."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    PICTURE.write_text(picture(), encoding="utf-8")
