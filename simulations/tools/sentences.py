"""A row of a trace in words."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from simulations.checks.invariants import INVARIANTS
from simulations.kernel.trace import Row
from simulations.tools.rows import Change, changes_of, leases_in, number_of, text_of

__all__ = ["fence_text", "promise_of", "sentence"]

_CHANGES_MAX = 6
_VALUE_CHARS_MAX = 60
_LEASES_MAX = 4
_FENCE_DIGITS = 4


def promise_of(invariant: str) -> str:
    """Of ``L4-reclaim`` what L4 promises; empty for an unknown one."""
    return INVARIANTS.get(invariant.split("-")[0], "")


def sentence(row: Row, ids: Sequence[str] = ()) -> str:
    """:param ids: of a commit, only what it did to these is told; without any, everything."""
    if row.kind in ("commit", "undone"):
        return _commit(row, ids)
    if row.kind in ("sent", "got"):
        return _message(row, "sends" if row.kind == "sent" else "gets", ids)
    tell = _SENTENCES.get(row.kind)
    return tell(row) if tell else f"{row.kind} {_fields(row.data)}".rstrip()


def fence_text(fence: int | str) -> str:
    """Fences have thirteen digits, of which the last ones tell them apart."""
    text = str(fence)
    return text if len(text) <= _FENCE_DIGITS + 2 else f"…{text[-_FENCE_DIGITS:]}"


def _commit(row: Row, ids: Sequence[str]) -> str:
    changes = changes_of(row)
    told = [change for change in changes if not ids or change.key in ids or change.instance in ids]
    texts = [_change(change) for change in told[:_CHANGES_MAX]]
    others = len(changes) - len(texts)
    if others:
        texts.append(f"{others} other row{'s' if others > 1 else ''}")
    node, number = text_of(row, "node"), text_of(row, "number")
    verb = "commit" if row.kind == "commit" else "UNDONE by the crash: commit"
    return f"{verb} {number}{f' of {node}' if node else ''}: {'; '.join(texts) or 'nothing'}"


def _change(change: Change) -> str:
    if change.fence is None or not change.worker:
        return f"{change.table} {change.key} {change.text}".rstrip()
    step = f"{change.before}→{change.after}"
    return f"task {change.key} {step}, {change.worker} with fence {fence_text(change.fence)}"


def _fault(row: Row) -> str:
    if text_of(row, "phase") == "heal":
        return "the safety phase is over: everything is healed"
    name = text_of(row, "fault", "name").replace("_", " ")
    hosts = " and ".join(host for host in (text_of(row, "host"), text_of(row, "other")) if host)
    verb = {"begin": "begins", "end": "ends"}.get(text_of(row, "phase"), "goes on")
    return f"fault {text_of(row, 'key')} {verb}: {name}{f' ({hosts})' if hosts else ''}"


def _message(row: Row, verb: str, ids: Sequence[str]) -> str:
    leases = [(task, fence) for task, fence in leases_in(row) if not ids or task in ids or text_of(row, "task")]
    shown = ", ".join(f"{task} #{fence_text(fence)}" for task, fence in leases[:_LEASES_MAX])
    others = len(leases_in(row)) - len(leases[:_LEASES_MAX])
    ref, code = text_of(row, "ref"), text_of(row, "code", "reason")
    parts = [
        f"{verb} {text_of(row, 'type', 'message')}",
        shown,
        f"and {others} more" if shown and others else "",
        f"(request {ref})" if ref else "",
        f"[{code}]" if code else "",
    ]
    return " ".join(part for part in parts if part)


def _request(row: Row) -> str:
    what = " ".join(filter(None, (text_of(row, "method"), text_of(row, "path"))))
    return f"asks {text_of(row, 'to')} for {what} ({text_of(row, 'key')}, try {text_of(row, 'number')})"


def _answer(row: Row) -> str:
    of = f"({text_of(row, 'key')}, try {text_of(row, 'number')})"
    if text_of(row, "lost"):
        return f"gets no answer {of}: {text_of(row, 'lost')}"
    told = ": ".join(filter(None, (text_of(row, "code"), text_of(row, "message"))))
    return f"is answered {text_of(row, 'status')} {of} {told}".rstrip()


def _lease(row: Row) -> str:
    until = number_of(row, "until")
    if until is None:
        return f"lets go of {text_of(row, 'task')}, fence {fence_text(text_of(row, 'fence'))}"
    return f"believes to hold {text_of(row, 'task')}, fence {fence_text(text_of(row, 'fence'))}, until {until:.6f} s"


def _handler(row: Row) -> str:
    phase, outcome = text_of(row, "phase"), text_of(row, "outcome")
    verb = {"begin": "begins", "begins": "begins", "end": "ends", "ends": "ends"}.get(phase, phase)
    told = f": {outcome}" if outcome else ""
    return f"handler of {text_of(row, 'task')}, fence {fence_text(text_of(row, 'fence'))}, {verb}{told}"


def _fields(data: Mapping[str, object]) -> str:
    return " ".join(f"{name}={_value(value)}" for name, value in data.items() if value not in ("", None))


def _value(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text if len(text) <= _VALUE_CHARS_MAX else f"{text[: _VALUE_CHARS_MAX - 1]}…"


_SENTENCES: dict[str, Callable[[Row], str]] = {
    "boot": lambda row: f"starts {_fields(row.data)}".rstrip(),
    "exit": lambda _: "has ended",
    "leave": lambda row: f"leaves {_fields(row.data)}".rstrip(),
    "crash": lambda row: f"CRASHES {_fields(row.data)}".rstrip(),
    "freeze": lambda row: f"is frozen {_fields(row.data)}".rstrip(),
    "thaw": lambda row: f"goes on {_fields(row.data)}".rstrip(),
    "fault": _fault,
    "lease": _lease,
    "handler": _handler,
    "request": _request,
    "answer": _answer,
    "log": lambda row: f"logs {_fields(row.data)}",
    "pause": lambda row: f"lingers {_fields(row.data)}",
    "violation": lambda row: f"VIOLATED [{text_of(row, 'invariant')}] {text_of(row, 'message')}",
}
