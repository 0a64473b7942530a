"""What a run gives, as the tools need it: the result in this process, and its summary that goes between processes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Protocol

import attrs

from simulations.kernel.properties import Violation
from simulations.kernel.trace import Row
from simulations.plans.plan import Plan

__all__ = ["Outcome", "RunResult", "Simulate", "simulate"]


class RunResult(Protocol):
    """Of `simulations.running.simulate`."""

    @property
    def plan(self) -> Plan: ...
    @property
    def violations(self) -> Sequence[Violation]: ...
    @property
    def sometimes(self) -> Mapping[str, int]: ...
    @property
    def counters(self) -> Mapping[str, int]:
        """Faults that really began, by kind."""

    @property
    def simulated_seconds(self) -> float: ...
    @property
    def cpu_seconds(self) -> float: ...
    @property
    def trace_digest(self) -> str: ...
    @property
    def schedule_digest(self) -> str: ...
    @property
    def rows(self) -> Sequence[Row] | None:
        """None unless the trace was asked for."""


class Simulate(Protocol):
    def __call__(self, plan: Plan, *, keep_trace: bool = False, mutant: str | None = None) -> RunResult: ...


def simulate(plan: Plan, *, keep_trace: bool = False, mutant: str | None = None) -> RunResult:
    """The real thing, which takes the whole engine to import."""
    from simulations.running import simulate as run

    return run(plan, keep_trace=keep_trace, mutant=mutant)


_NAMES = re.compile(r"\w+\.py:\d+|[\w-]*\d[\w.#:-]*")
_SIGNATURE_CHARS = 120


@attrs.frozen(kw_only=True)
class Outcome:
    """JSON values only."""

    invariant: str | None = None
    """Of the first violation; None: it went well."""
    message: str = ""
    violated_us: int = 0
    sometimes: dict[str, int] = attrs.field(factory=dict)
    faults: dict[str, int] = attrs.field(factory=dict)
    simulated_seconds: float = 0.0
    cpu_seconds: float = 0.0
    trace_digest: str = ""
    schedule_digest: str = ""

    @classmethod
    def of(cls, result: RunResult) -> Outcome:
        first = result.violations[0] if result.violations else None
        return cls(
            invariant=first.invariant if first else None,
            message=first.message if first else "",
            violated_us=first.us if first else 0,
            sometimes=dict(sorted(result.sometimes.items())),
            faults=dict(sorted(result.counters.items())),
            simulated_seconds=result.simulated_seconds,
            cpu_seconds=result.cpu_seconds,
            trace_digest=result.trace_digest,
            schedule_digest=result.schedule_digest,
        )

    @property
    def signature(self) -> str:
        """Of one way of failing. Of the unforeseen (P0) there are many ways: what is said without names and numbers."""
        if self.invariant == "P0":
            return f"P0 {_NAMES.sub('', self.message)[:_SIGNATURE_CHARS]}"
        return self.invariant or ""

    @property
    def digests(self) -> tuple[str, str]:
        return self.trace_digest, self.schedule_digest

    @property
    def verdict(self) -> str:
        if self.invariant is None:
            return "passed"
        return f"[{self.invariant}] {self.message} (at {self.violated_us / 1e6:.6f} s)"
