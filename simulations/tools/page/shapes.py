"""What is drawn, before anything is known of pixels: instants are seconds, and lanes have names."""

from __future__ import annotations

from typing import Literal, TypeAlias

from stellwerk.values import frozen

__all__ = ["Arrow", "ArrowTone", "Bar", "BarTone", "Keyframe", "Lane", "LeaseBar", "Mark", "Story"]

BarTone: TypeAlias = Literal["down", "frozen", "cut", "slow", "database", "clock", "other"]
ArrowTone: TypeAlias = Literal["request", "answer", "refusal", "grant", "commit", "lost"]


@frozen
class Lane:
    name: str
    kind: Literal["host", "task", "instance"]
    detail: str = ""
    """What it is in the plan or the model."""


@frozen
class Bar:
    """A host is not as it should be, from `start` to `end`."""

    lane: str
    start: float
    end: float
    tone: BarTone
    label: str
    title: str
    is_state: bool = False
    """What really is (down, frozen), in place of what the plan did."""


@frozen
class LeaseBar:
    task: str
    worker: str
    fence: int
    start: float
    end: float
    """When it really ended, or the end of the story."""
    until: float | None
    """The promised end; None where the trace does not tell."""
    ending: str
    """``COMPLETED``, ``READY``, ``LOCKED``: the state after it; empty: it did not end."""
    title: str


@frozen
class Arrow:
    start_lane: str
    start: float
    end_lane: str
    end: float
    tone: ArrowTone
    label: str
    title: str


@frozen
class Mark:
    """One instant on a lane."""

    lane: str
    at: float
    tone: str
    title: str


@frozen
class Keyframe:
    """How a lane is from this instant on."""

    lane: str
    at: float
    tone: str
    text: str
    until: float | None = None
    """Of a lease: its promised end, to count down to."""


@frozen
class Story:
    start: float
    end: float
    lanes: tuple[Lane, ...]
    bars: tuple[Bar, ...]
    leases: tuple[LeaseBar, ...]
    arrows: tuple[Arrow, ...]
    marks: tuple[Mark, ...]
    keyframes: tuple[Keyframe, ...]
    violated_at: float | None
    violation: str
