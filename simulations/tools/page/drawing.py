"""The story as SVG.

Everything that has a place in time carries it (``data-s``, ``data-e``: seconds), so that the page's script can zoom:
without the script the drawing is as complete, only still.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from simulations.tools.page.layout import LABEL_WIDTH, STRIP_HEIGHT, TOP, WIDTH, Layout, layout_of, ticks
from simulations.tools.page.shapes import Arrow, Bar, Lane, LeaseBar, Mark, Story
from simulations.tools.rows import brief
from simulations.tools.sentences import fence_text

__all__ = ["drawing", "tint_of"]

_LEASE_HEIGHT = 20
_STATE_HEIGHT = 18
_CHAR_WIDTH = 6.6
_TINTS = 8
_NAME_CHARS_MAX = 17
_GLYPHS = {"boot": "▲", "crash": "✕", "log": "!", "pause": "‖"}
_ARROW_TONES = ("request", "answer", "refusal", "grant", "lost")


def drawing(story: Story) -> str:
    layout = layout_of(story)
    height = layout.height
    body = [
        *_axis(layout),
        *_lanes(layout),
        f'<g clip-path="url(#plot)">{"".join(_contents(story, layout))}</g>',
        *_overlay(story, layout),
    ]
    return (
        f'<svg id="figure" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'aria-label="Lanes of hosts and tasks over time" data-start="{story.start:.6f}" data-end="{story.end:.6f}" '
        f'data-left="{LABEL_WIDTH}" data-right="{layout.x(layout.end):.0f}" data-height="{height:.0f}">'
        f"{_definitions(layout)}{''.join(body)}</svg>"
    )


def tint_of(worker: str) -> int:
    """One of eight colours: workers with numbers beside each other differ."""
    digits = "".join(letter for letter in worker if letter.isdigit())
    return (int(digits) if digits else sum(map(ord, worker))) % _TINTS


def _contents(story: Story, layout: Layout) -> Iterator[str]:
    for bar in story.bars:
        if bar.is_state:
            yield _state(bar, layout)
    for bar in story.bars:
        if not bar.is_state:
            yield from _strip(bar, layout)
    for lease in story.leases:
        yield from _lease(lease, layout)
    for arrow in story.arrows:
        yield from _arrow(arrow, layout)
    for mark in story.marks:
        yield _mark(mark, layout)


# --- frame ---------------------------------------------------------------------------------------------------------


def _definitions(layout: Layout) -> str:
    heads = "".join(
        f'<marker id="head-{tone}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        f'orient="auto-start-reverse"><path d="M0,0.8 L8,4 L0,7.2 z" class="head {tone}"/></marker>'
        for tone in _ARROW_TONES
    )
    plot = (
        f'<rect x="{LABEL_WIDTH}" y="0" width="{layout.x(layout.end) - LABEL_WIDTH:.0f}" height="{layout.height:.0f}"/>'
    )
    hatch = (
        '<pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect width="2" height="6" class="hatch"/></pattern>'
    )
    return f'<defs>{heads}{hatch}<clipPath id="plot">{plot}</clipPath></defs>'


def _axis(layout: Layout) -> Iterator[str]:
    yield '<g id="axis">'
    for at, label in ticks(layout.start, layout.end):
        x = layout.x(at)
        yield f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{layout.height - 20:.0f}"/>'
        yield f'<text class="tick" x="{x:.1f}" y="{TOP - 14}">{label}</text>'
    yield "</g>"


def _lanes(layout: Layout) -> Iterator[str]:
    previous: Lane | None = None
    for row in layout.rows.values():
        lane = row.lane
        if previous is not None and previous.kind == "host" and lane.kind != "host":
            yield f'<line class="divider" x1="0" x2="{WIDTH}" y1="{row.top:.1f}" y2="{row.top:.1f}"/>'
        previous = lane
        name = row.line - 1 if lane.detail else row.line + 4
        yield (
            f'<g class="lane {lane.kind}" data-lane="{escape(lane.name)}"><title>{escape(lane.name)}</title>'
            f'<rect class="ground" x="0" y="{row.top:.1f}" width="{WIDTH}" height="{row.height:.1f}"/>'
            f'<text class="name" x="{LABEL_WIDTH - 12}" y="{name:.1f}">{escape(_short(lane.name))}</text>'
            f"{_detail(lane, row.line)}"
            f'<line class="rail" x1="{LABEL_WIDTH}" x2="{layout.x(layout.end):.1f}" '
            f'y1="{row.line:.1f}" y2="{row.line:.1f}"/></g>'
        )


def _detail(lane: Lane, line: float) -> str:
    if not lane.detail:
        return ""
    return f'<text class="detail" x="{LABEL_WIDTH - 12}" y="{line + 11:.1f}">{escape(_short(lane.detail))}</text>'


def _short(name: str) -> str:
    text = brief(name)
    return text if len(text) <= _NAME_CHARS_MAX else f"…{text[1 - _NAME_CHARS_MAX :]}"


def _overlay(story: Story, layout: Layout) -> Iterator[str]:
    bottom = layout.height - 20
    if story.violated_at is not None:
        x = layout.x(story.violated_at)
        yield (
            f'<g clip-path="url(#plot)"><line id="violation" class="violation" data-s="{story.violated_at:.6f}" '
            f'x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{bottom:.0f}">'
            f"<title>{escape(story.violation)}</title></line>"
            f'<text class="violation" data-at="{story.violated_at:.6f}" x="{x - 6:.1f}" '
            f'y="{layout.height - 6:.0f}">violated at {story.violated_at:.6f} s</text></g>'
        )
    yield f'<line id="cursor" x1="0" x2="0" y1="{TOP - 8}" y2="{bottom:.0f}"/>'


# --- what has a place in time --------------------------------------------------------------------------------------


def _span(layout: Layout, start: float, end: float) -> str:
    x = layout.x(start)
    return f'data-s="{start:.6f}" data-e="{end:.6f}" x="{x:.1f}" width="{max(1.5, layout.x(end) - x):.1f}"'


def _state(bar: Bar, layout: Layout) -> str:
    y = layout.rows[bar.lane].line - _STATE_HEIGHT / 2
    return (
        f'<rect class="state {bar.tone}" data-bar="{escape(bar.lane)}" {_span(layout, bar.start, bar.end)} y="{y:.1f}" '
        f'height="{_STATE_HEIGHT}" rx="2"><title>{escape(bar.title)}</title></rect>'
        + _label("state", bar.label, bar.start, bar.end, y + 13, layout)
    )


def _strip(bar: Bar, layout: Layout) -> Iterator[str]:
    row = layout.rows[bar.lane]
    y = row.line - _STATE_HEIGHT / 2 - 4 - STRIP_HEIGHT * (layout.strips[bar] + 1) + 3
    yield (
        f'<rect class="strip {bar.tone}" data-bar="{escape(bar.lane)}" {_span(layout, bar.start, bar.end)} '
        f'y="{y:.1f}" height="{STRIP_HEIGHT - 2}" rx="2"><title>{escape(bar.title)}</title></rect>'
    )
    x = layout.x(bar.start) + 4
    yield (
        f'<text class="strip {bar.tone}" data-from="{bar.start:.6f}" data-to="{bar.end:.6f}" '
        f'x="{x:.1f}" y="{y + 9:.1f}">{escape(bar.label)}</text>'
    )


def _lease(lease: LeaseBar, layout: Layout) -> Iterator[str]:
    row = layout.rows[lease.task]
    y = row.line - _LEASE_HEIGHT / 2
    title = f"<title>{escape(lease.title)}</title>"
    until = lease.until
    if until is not None and until > lease.end:
        yield (
            f'<rect class="promise tint-{tint_of(lease.worker)}" {_span(layout, lease.start, until)} y="{y + 2:.1f}" '
            f'height="{_LEASE_HEIGHT - 4}" rx="3">{title}</rect>'
        )
    over = until is not None and lease.end > until + 1e-6
    yield (
        f'<rect class="lease tint-{tint_of(lease.worker)}" data-task="{escape(lease.task)}" '
        f'{_span(layout, lease.start, lease.end)} y="{y:.1f}" height="{_LEASE_HEIGHT}" rx="3">{title}</rect>'
    )
    if over and until is not None:
        yield (
            f'<rect class="overdue" {_span(layout, until, lease.end)} y="{y:.1f}" '
            f'height="{_LEASE_HEIGHT}">{title}</rect>'
        )
    text = f"{lease.worker} #{fence_text(lease.fence)}"
    yield _label("lease", text, lease.start, lease.end, y + 14, layout)
    yield _below(lease, text, y + _LEASE_HEIGHT + 10, layout)


def _below(lease: LeaseBar, text: str, y: float, layout: Layout) -> str:
    """The label of a bar that has no room for it."""
    x = layout.x(lease.start)
    hidden = ' style="display:none"' if len(text) * _CHAR_WIDTH + 8 <= layout.x(lease.end) - x else ""
    return (
        f'<text class="word below tint-{tint_of(lease.worker)}" data-word="{lease.start:.6f}" '
        f'data-to="{lease.end:.6f}" data-room="{len(text) * _CHAR_WIDTH + 8:.0f}" '
        f'data-lane="{escape(lease.task)} below" x="{x + 4:.1f}" y="{y:.1f}"{hidden}>{escape(text)}</text>'
    )


def _label(kind: str, text: str, start: float, end: float, y: float, layout: Layout) -> str:
    """Hidden where it has no room; the script looks again when it zooms."""
    x = layout.x(start)
    room = layout.x(end) - x
    needed = len(text) * _CHAR_WIDTH + 8
    fits = needed <= room
    hidden = "" if fits else ' style="display:none"'
    return (
        f'<text class="{kind}" data-from="{start:.6f}" data-to="{end:.6f}" data-room="{needed:.0f}" '
        f'x="{x + 5:.1f}" y="{y:.1f}"{hidden}>{escape(text)}</text>'
    )


def _arrow(arrow: Arrow, layout: Layout) -> Iterator[str]:
    if arrow.start_lane not in layout.rows or arrow.end_lane not in layout.rows:
        return
    y1, y2 = layout.rows[arrow.start_lane].line, layout.rows[arrow.end_lane].line
    down = 1 if y2 > y1 else -1
    head = "" if arrow.tone == "commit" else f' marker-end="url(#head-{arrow.tone})"'
    place = (
        f'data-s="{arrow.start:.6f}" data-e="{arrow.end:.6f}" x1="{layout.x(arrow.start):.1f}" '
        f'x2="{layout.x(arrow.end):.1f}" y1="{y1:.1f}" y2="{y2 - down * 4:.1f}"'
    )
    yield f'<line class="arrow {arrow.tone}" {place}{head}><title>{escape(arrow.title)}</title></line>'
    if arrow.label:
        at, lane, y = _place_of_word(arrow, y1, y2)
        yield (
            f'<text class="word {arrow.tone}" data-word="{at:.6f}" data-lane="{escape(lane)}" '
            f'x="{layout.x(at) + 4:.1f}" y="{y:.1f}">{escape(arrow.label)}</text>'
        )
    yield f'<line class="touch" {place}><title>{escape(arrow.title)}</title></line>'


def _place_of_word(arrow: Arrow, y1: float, y2: float) -> tuple[float, str, float]:
    """Beside the end of the arrow that the trace tells: the host's, not the node's."""
    if arrow.tone == "request":
        return arrow.start, arrow.start_lane, y1 + (12 if y2 > y1 else -6)
    return arrow.end, arrow.end_lane, y2 + (-8 if y2 > y1 else 14)


def _mark(mark: Mark, layout: Layout) -> str:
    y = layout.rows[mark.lane].line
    tone, _, state = mark.tone.partition(" ")
    if tone == "state":
        shape = f'<line class="turn {escape(state)}" x1="0" x2="0" y1="-14" y2="14"/>'
    elif tone in _GLYPHS:
        shape = f'<text class="glyph {tone}" y="4">{_GLYPHS[tone]}</text>'
    else:
        shape = f'<circle class="{escape(tone)}" r="{3 if tone == "step" else 4}"/>'
    return (
        f'<g class="mark" data-x="{mark.at:.6f}" data-y="{y:.1f}" '
        f'transform="translate({layout.x(mark.at):.1f},{y:.1f})">{shape}<title>{escape(mark.title)}</title></g>'
    )
