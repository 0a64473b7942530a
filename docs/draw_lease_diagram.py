"""Draws the life of an external task from the transition table of `stellwerk.core.lease` into ``docs/task-life.md``.

Run it after every change of the table: ``python docs/draw_lease_diagram.py``. A test compares the page with it.
"""

from __future__ import annotations

from pathlib import Path

from stellwerk.core.external_task import TaskState
from stellwerk.core.lease import TRANSITIONS

PAGE = Path(__file__).with_name("task-life.md")
BEGIN, END = "<!-- drawn from the table: begin -->", "<!-- drawn from the table: end -->"


def mermaid() -> str:
    """The table as a Mermaid state diagram; commands that lead the same way share an arrow."""
    lines = ["stateDiagram-v2", "    [*] --> READY : token arrives"]
    for source, commands in TRANSITIONS.items():
        for target in TaskState:
            labels = [kind.value for kind, targets in commands.items() if target in targets]
            if labels:
                lines.append(f"    {source.value} --> {target.value} : {', '.join(labels)}")
    lines += [f"    {state.value} --> [*]" for state, commands in TRANSITIONS.items() if not commands]
    return "\n".join(lines) + "\n"


def table() -> str:
    """The same as a table, for readers without a renderer."""
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
    return f"{before}{BEGIN}\n\n```mermaid\n{mermaid()}```\n\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
