"""What befell the hosts: bars for faults of the plan, and for being down or frozen as it really was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simulations.kernel.trace import Row
from simulations.tools.page.shapes import Bar, BarTone, Keyframe
from simulations.tools.rows import host_of, seconds_of, text_of
from stellwerk.values import frozen

__all__ = ["fault_bars", "host_keyframes", "state_bars", "tone_of"]

_TONES: tuple[tuple[str, BarTone], ...] = (
    ("clock", "clock"),
    ("wall", "clock"),
    ("freeze", "frozen"),
    ("cut_database", "cut"),
    ("power_cut", "down"),
    ("crash", "down"),
    ("restart", "down"),
    ("slow", "slow"),
    ("database", "database"),
    ("cut", "cut"),
    ("swizzle", "cut"),
    ("silence", "cut"),
    ("refuse", "cut"),
    ("reset", "cut"),
)
"""By what the name of the fault contains; the first that fits."""


@frozen
class _Fault:
    key: str
    name: str
    hosts: tuple[str, ...]
    start: float
    is_momentary: bool


def tone_of(fault: str) -> BarTone:
    return next((tone for part, tone in _TONES if part in fault), "other")


def fault_bars(rows: Sequence[Row], end: float) -> list[Bar]:
    """On the lane of each host that a fault names, from its begin to its end (or that of the story)."""
    open_faults: dict[str, _Fault] = {}
    bars: list[Bar] = []
    for row in rows:
        if row.kind != "fault":
            continue
        key, phase = text_of(row, "key"), text_of(row, "phase")
        if phase == "begin":
            open_faults[key] = _Fault(
                key, text_of(row, "fault", "name"), _hosts(row), seconds_of(row), not row.data.get("seconds")
            )
        ended = [key] if phase == "end" else list(open_faults) if phase == "heal" else []
        for fault in [open_faults.pop(key) for key in ended if key in open_faults]:
            lasts = phase == "end" or not fault.is_momentary
            bars += _bars(fault, seconds_of(row) if lasts else fault.start)
    for fault in open_faults.values():
        bars += _bars(fault, fault.start if fault.is_momentary else end)
    return sorted(bars, key=lambda bar: (bar.start, bar.label))


def _hosts(row: Row) -> tuple[str, ...]:
    named = [name for name in (text_of(row, "host"), text_of(row, "other")) if name]
    return tuple(dict.fromkeys(named)) or ("database",)


def _bars(fault: _Fault, end: float) -> Iterator[Bar]:
    for host in fault.hosts:
        others = [name for name in fault.hosts if name != host]
        label = fault.name.replace("_", " ") + (f" ~ {others[0]}" if others else "")
        until = f" to {end:.3f} s" if end > fault.start else ""
        title = f"fault {fault.key}: {label}, {fault.start:.3f} s{until}"
        yield Bar(host, fault.start, end, tone_of(fault.name), label, title)


def state_bars(rows: Sequence[Row], end: float) -> list[Bar]:
    """Down from a crash to the next boot, frozen until the thaw."""
    since: dict[tuple[str, BarTone], float] = {}
    bars: list[Bar] = []

    def close(host: str, tone: BarTone, at: float) -> None:
        start = since.pop((host, tone), None)
        if start is not None:
            bars.append(Bar(host, start, at, tone, tone, f"{host} {tone}, {start:.3f} s to {at:.3f} s", is_state=True))

    for row in rows:
        host, at = host_of(row.place), seconds_of(row)
        match row.kind:
            case "crash" | "exit":
                close(host, "frozen", at)
                since.setdefault((host, "down"), at)
            case "boot":
                close(host, "down", at)
            case "freeze":
                since.setdefault((host, "frozen"), at)
            case "thaw":
                close(host, "frozen", at)
            case _:
                pass
    for host, tone in list(since):
        close(host, tone, end)
    return sorted(bars, key=lambda bar: (bar.start, bar.lane))


def host_keyframes(hosts: Sequence[str], bars: Sequence[Bar], states: Sequence[Bar], start: float) -> list[Keyframe]:
    """What each host is at every instant at which that changes."""
    keyframes = []
    for host in hosts:
        own = [bar for bar in (*bars, *states) if bar.lane == host]
        instants = sorted({start, *(bar.start for bar in own), *(bar.end for bar in own)})
        keyframes += [_keyframe(host, at, own) for at in instants]
    return keyframes


def _keyframe(host: str, at: float, bars: Sequence[Bar]) -> Keyframe:
    now = [bar for bar in bars if bar.start <= at < bar.end]
    real = [bar for bar in now if bar.is_state]
    if real:
        return Keyframe(host, at, real[-1].tone, real[-1].label)
    labels = dict.fromkeys(bar.label for bar in now if bar.tone not in ("down", "frozen"))
    tone = next((bar.tone for bar in now), "up")
    return Keyframe(host, at, tone, ", ".join(labels)) if labels else Keyframe(host, at, "up", "up")
