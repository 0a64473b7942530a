"""The page: one file, nothing from elsewhere, in the colours of whoever reads it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path

from simulations.kernel.trace import Row
from simulations.plans.faults import describe_fault
from simulations.plans.plan import to_json
from simulations.tools.explanation import Difference, Explanation, Neighbour
from simulations.tools.page.drawing import drawing
from simulations.tools.page.shapes import Keyframe, Story
from simulations.tools.rows import brief, seconds_of
from simulations.tools.sentences import promise_of, sentence
from simulations.tools.slices import Slice
from stellwerk.cli.output import counted

__all__ = ["page"]

_HERE = Path(__file__).parent
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_LEGEND = (
    ("lease tint-1", "lease"),
    ("promise tint-1", "promised end"),
    ("overdue", "held over its end"),
    ("state down", "down"),
    ("state frozen", "frozen"),
    ("strip cut", "cut off"),
    ("strip slow", "slow"),
    ("strip database", "database fault"),
)


def page(explanation: Explanation) -> str:
    """HTML that needs no other file and no network."""
    story = explanation.story
    title = f"{explanation.outcome.invariant or 'Passed'}: seed {explanation.plan.seed}"
    parts = [
        _header(explanation),
        _figure(story),
        _happened(explanation),
        _neighbour(explanation),
        _plan(explanation),
        _sometimes(explanation),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title>'
        f"<style>\n{_text('style.css')}</style></head>\n<body><main>{''.join(parts)}</main>\n"
        f'<script type="application/json" id="story">{_data(explanation)}</script>\n'
        f"<script>\n{_text('script.js')}</script></body></html>\n"
    )


def _brief(text: str) -> str:
    """Ids and fences by their ends, which stay on one line with the dots before them."""
    return escape(brief(text)).replace("…", "…\N{WORD JOINER}")


def _text(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _data(explanation: Explanation) -> str:
    story = explanation.story
    frames: dict[str, list[list[object]]] = {lane.name: [] for lane in story.lanes}
    for frame in story.keyframes:
        frames[frame.lane].append([frame.at, frame.tone, frame.text, frame.until])
    data = {
        "start": story.start,
        "end": story.end,
        "violatedAt": story.violated_at,
        "moments": sorted({seconds_of(row) for row in explanation.part.rows if seconds_of(row) >= story.start}),
        "frames": frames,
    }
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


# --- sections ------------------------------------------------------------------------------------------------------


def _header(explanation: Explanation) -> str:
    outcome, plan = explanation.outcome, explanation.plan
    if outcome.invariant is None:
        verdict, message, promise = "passed", "Every property held", ""
    else:
        verdict, message, promise = f"{outcome.invariant} violated", outcome.message, promise_of(outcome.invariant)
    tone = "good" if outcome.invariant is None else "bad"
    facts = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in _facts(explanation))
    promised = f'<p class="promise-text">{escape(promise)}</p>' if promise else ""
    return (
        f'<header><p class="over"><span class="badge {tone}">{escape(verdict)}</span> '
        f"{escape(plan.label or f'seed {plan.seed}')}</p>"
        f'<h1 title="{escape(message)}">{_brief(message)}</h1>{promised}'
        f'<p class="command"><code id="command">{escape(explanation.command)}</code>'
        f'<button type="button" id="copy">copy</button></p><dl class="facts">{facts}</dl></header>'
    )


def _facts(explanation: Explanation) -> Iterator[tuple[str, str]]:
    outcome, plan = explanation.outcome, explanation.plan
    options = plan.options
    yield "seed", str(plan.seed)
    yield "about", str(explanation.part.subject)
    if outcome.invariant is not None:
        yield "violated at", f"{outcome.violated_us / 1e6:.6f} s"
    yield "simulated", f"{outcome.simulated_seconds:.3f} s in {outcome.cpu_seconds:.2f} s of CPU"
    yield "cluster", f"{counted(options.nodes, 'node')}, {counted(options.workers, 'worker')}, {options.backend}"
    yield "plan", f"{counted(len(plan.faults), 'fault')}, {counted(len(plan.instances), 'instance')}"
    yield "shown", f"{len(explanation.part.rows):,} of {explanation.rows_count:,} events"
    yield "trace", outcome.trace_digest[:16]


def _figure(story: Story) -> str:
    span = round((story.end - story.start) * 1e6)
    chips = "".join(_chip(lane.name, lane.kind, story.keyframes) for lane in story.lanes)
    legend = "".join(f'<span class="key"><i class="{tone}"></i>{text}</span>' for tone, text in _LEGEND)
    buttons = "".join(
        f'<button type="button" id="{name}" title="{title}">{text}</button>'
        for name, text, title in (
            ("zoom-out", "−", "Zoom out"),
            ("zoom-in", "+", "Zoom in at the cursor"),
            ("fit", "everything", "Show the whole time"),
            ("focus", "around the cursor", "Show a twentieth of the time around the cursor"),
        )
    )
    return (
        f'<section class="card figure"><div class="bar"><div class="legend">{legend}</div>'
        f'<div class="tools">{buttons}</div></div>{drawing(story)}'
        '<div class="scrub"><button type="button" id="previous" title="Event before">◀</button>'
        '<button type="button" id="play" title="Play">play</button>'
        '<button type="button" id="next" title="Next event">▶</button>'
        f'<input type="range" id="scrubber" aria-label="Time" min="0" max="{span}" value="{span}" step="1">'
        '<output id="now" for="scrubber"></output></div>'
        f'<div class="chips" id="chips">{chips}</div></section>'
    )


def _chip(lane: str, kind: str, keyframes: Iterable[Keyframe]) -> str:
    last = [frame for frame in keyframes if frame.lane == lane][-1:]
    tone, text = (last[0].tone, last[0].text) if last else ("none", "")
    return (
        f'<div class="chip {kind}" data-lane="{escape(lane)}" data-tone="{escape(tone)}">'
        f'<b title="{escape(lane)}">{_brief(lane)}</b><span>{escape(text)}</span></div>'
    )


def _happened(explanation: Explanation) -> str:
    part = explanation.part
    rows = "".join(_event(row, part.subject.ids) for row in part.rows)
    dropped = f'<p class="note">{part.dropped:,} earlier events of the slice are left out.</p>' if part.dropped else ""
    return (
        '<section class="card"><h2>What happened</h2>'
        f'<p class="note">{escape(_of_slice(part))} A row moves the cursor.</p>'
        f'{dropped}<div class="scroll" id="events"><table class="events"><tbody>{rows}</tbody></table></div></section>'
    )


def _of_slice(part: Slice) -> str:
    if not part.subject.ids:
        return "The last events: no task and no instance is named that the trace knows."
    return f"The causal slice: what touches {part.subject}, and what befell the hosts that had a part in it."


def _event(row: Row, ids: tuple[str, ...]) -> str:
    return (
        f'<tr class="{escape(row.kind)}" data-at="{seconds_of(row):.6f}" tabindex="0">'
        f'<td class="time">{seconds_of(row):.6f}</td><td class="place">{escape(row.place)}</td>'
        f'<td title="{escape(sentence(row, ids))}">{_brief(sentence(row, ids))}</td></tr>'
    )


def _neighbour(explanation: Explanation) -> str:
    if explanation.outcome.invariant is None:
        return ""
    neighbour = explanation.neighbour
    if neighbour is None:
        tried = explanation.tried
        what = f"None of the {tried} neighbours that were run passes." if tried else "None was sought."
        return f'<section class="card"><h2>Last passing neighbour</h2><p>{what}</p></section>'
    return (
        '<section class="card" id="neighbour"><h2>Last passing neighbour</h2>'
        f"<p>{escape(_capital(neighbour.what))} passes.</p>{_difference(neighbour)}</section>"
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _difference(neighbour: Neighbour) -> str:
    difference = neighbour.difference
    if difference is None:
        return '<p class="note">Their traces are alike.</p>'
    rows = "".join(f'<tr><td class="side">both</td>{_cells(row)}</tr>' for row in difference.before)
    return (
        f'<p class="note">{difference.common:,} events are alike; then:</p>'
        f'<div class="scroll"><table class="events difference"><tbody>{rows}{_parting(difference)}'
        "</tbody></table></div>"
    )


def _parting(difference: Difference) -> str:
    return (
        f'<tr class="bad"><td class="side">this run</td>{_cells(difference.failing)}</tr>'
        f'<tr class="good"><td class="side">neighbour</td>{_cells(difference.passing)}</tr>'
    )


def _cells(row: Row | None) -> str:
    if row is None:
        return '<td class="time"></td><td class="place"></td><td>has ended</td>'
    return (
        f'<td class="time">{seconds_of(row):.6f}</td><td class="place">{escape(row.place)}</td>'
        f"<td>{_brief(sentence(row))}</td>"
    )


def _plan(explanation: Explanation) -> str:
    plan, story = explanation.plan, explanation.story
    until = story.violated_at if story.violated_at is not None else story.end
    hosts = {lane.name for lane in story.lanes}
    faults = "".join(
        f'<tr class="{"later" if fault.at > until else "own" if {fault.host, fault.other} & hosts else ""}">'
        f'<td class="time">{fault.at:.3f}</td><td class="place">{escape(fault.key)}</td>'
        f"<td>{escape(describe_fault(fault))}</td></tr>"
        for fault in plan.faults
    )
    kinds: dict[str, int] = {}
    for spec in plan.instances:
        kinds[spec.kind] = kinds.get(spec.kind, 0) + 1
    instances = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in sorted(kinds.items()))
    table = (
        f'<div class="scroll"><table class="events plan"><tbody>{faults}</tbody></table></div>'
        if plan.faults
        else "<p>No fault at all.</p>"
    )
    return (
        f'<section class="card"><h2>The plan</h2><p class="note">{escape(instances) or "no instances"}.'
        f" Faults that come after the violation are pale.</p>{table}{_options(explanation)}</section>"
    )


def _options(explanation: Explanation) -> str:
    return (
        "<details><summary>The whole plan as JSON, to keep and replay</summary>"
        f'<pre id="plan">{escape(to_json(explanation.plan))}</pre></details>'
    )


def _sometimes(explanation: Explanation) -> str:
    counts = explanation.outcome.sometimes
    items = "".join(f"<li><b>{count:,}</b> {escape(name)}</li>" for name, count in sorted(counts.items()) if count)
    told = f'<ul class="sometimes">{items}</ul>' if items else "<p>Nothing of what should happen now and then did.</p>"
    return f'<section class="card"><h2>What happened now and then</h2>{told}</section>'
