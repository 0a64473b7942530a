"""What a workload is: a process, what its workers and its client do, and what must have come out in the end.

Everything that is not fixed is drawn by keys of the instance's own seed: which attempt at which element takes how long
and ends how. Nothing depends on what other instances, workers or faults do, so a plan can lose any of them and the
rest does the same as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import attrs

from simulations.kernel.draws import sub_seed
from simulations.plans.plan import InstanceSpec
from simulations.workloads.reading import Reading
from stellwerk.json_values import JsonObject

__all__ = [
    "Behaviour",
    "Call",
    "Cancel",
    "ClientEvent",
    "CompleteUserTask",
    "Failed",
    "Publish",
    "Raised",
    "Redeploy",
    "Returned",
    "StartInstance",
    "Workload",
    "no_events",
    "option",
    "revised",
]


# --- what handlers do ----------------------------------------------------------------------------------------------


@attrs.frozen
class Call:
    """A handler is called."""

    element: str
    attempt: int
    """Counts the leases of the task from 1; many of them may never have reached a handler."""
    began_before: int
    """How often a handler had begun this task before."""
    variables: JsonObject


@attrs.frozen
class Returned:
    """The task is done. To `variables` comes a stamp under the element's id: which lease did it (`stamp_of`)."""

    variables: JsonObject = attrs.field(factory=dict)


@attrs.frozen
class Failed:
    """A technical failure: the worker reports that this attempt failed."""

    message: str
    retry_after: float | None = None
    """Seconds until the next attempt; None: as the model says."""
    retries: int | None = None
    """Attempts that are left; None: the engine counts."""
    is_plain: bool = False
    """Any exception, instead of the SDK's own `TaskFailure`."""


@attrs.frozen
class Raised:
    """A business error, which the process may catch."""

    code: str
    variables: JsonObject = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Behaviour:
    seconds: float
    """How long the handler works, on its worker's clock."""
    then: Returned | Failed | Raised
    extend_seconds: float | None = None
    """It asks for a longer lease as soon as it begins."""
    crash: bool = False
    """It would like its worker to lose power when the work is done and nobody knows of it yet. The cluster decides."""


# --- what the client does ------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class StartInstance:
    """Start the newest version of the process; the spec's key is both business key and Idempotency-Key."""

    process: str
    variables: JsonObject = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Publish:
    """A message. The client repeats it with the same id until it was answered.

    It lives for as long as messages do unless somebody says otherwise. Clocks of nodes that are an hour off take
    nothing of that away beside a database, whose own clock jumps by less; in a file they do, which is made up for.
    """

    after: float
    """Seconds after the spec's `at`."""
    name: str
    key: str
    message_id: str
    variables: JsonObject = attrs.field(factory=dict)
    ttl_ms: int | None = None
    """None: the client says nothing of it."""


@attrs.frozen(kw_only=True)
class Cancel:
    """Cancel the instance, repeated until it was answered (200, or 409 when it has ended)."""

    after: float
    reason: str


@attrs.frozen(kw_only=True)
class Redeploy:
    """Deploy a file, repeated until it was answered."""

    after: float
    file: str
    xml: bytes = attrs.field(repr=False)


@attrs.frozen(kw_only=True)
class CompleteUserTask:
    """From then on look for the instance's open user task at this element and complete it, until that was answered
    (200, or 404 after a request without an answer: it was done) or the instance has ended."""

    after: float
    element: str
    variables: JsonObject = attrs.field(factory=dict)


ClientEvent: TypeAlias = Publish | Cancel | Redeploy | CompleteUserTask


# --- the whole -----------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Workload:
    """One kind of instance. What it promises stands in its module, and `judge` holds it to that.

    `judge` and `judge_together` yield one sentence for each broken promise. They are right under all faults as long as
    the quiet phase came to its end: they count only on what the engine promises.
    """

    name: str
    files: Mapping[str, bytes]
    """To be deployed before the first instance: file name to BPMN."""
    topics: tuple[str, ...]
    start: Callable[[InstanceSpec], StartInstance | Publish]
    """A `Publish` starts the instance by a message, whose key is the spec's."""
    behave: Callable[[InstanceSpec, Call], Behaviour]
    judge: Callable[[InstanceSpec, Reading], Iterator[str]]
    events: Callable[[InstanceSpec], tuple[ClientEvent, ...]]
    """In order of time. The client does one after the other: each begins when the one before was answered."""
    judge_together: Callable[[Sequence[tuple[InstanceSpec, Reading]]], Iterable[str]] | None = None
    """What holds between several instances of this kind."""
    repair: JsonObject = attrs.field(factory=dict)
    """Variables that the operator sets before it resolves an incident of an instance; empty: none."""
    options: Mapping[str, tuple[int | str | bool, ...]] = attrs.field(factory=dict)
    """`InstanceSpec.options` that it understands, with their values, the simplest first (for shrinking)."""
    waits_for_operator: bool = False
    """Even without any fault there may be an incident."""


def no_events(_spec: InstanceSpec) -> tuple[ClientEvent, ...]:
    return ()


_Option = int | str | bool


def option(spec: InstanceSpec, name: str, values: Sequence[_Option]) -> _Option:
    """What the spec says, or else one of `values`, drawn by its seed.

    :raises ValueError: the spec says something else.
    """
    given = spec.options.get(name)
    if given is None:
        return values[sub_seed(spec.seed, "option", name) % len(values)]
    if given not in values:
        raise ValueError(f"instance {spec.key}: option {name} of {spec.kind} is one of {list(values)}, not {given!r}")
    assert not isinstance(given, float)
    return given


def revised(xml: bytes, revision: str) -> bytes:
    """The same process as another file: deployed, it is a new version that does the same."""
    return xml.rstrip() + f"\n<!-- revision {revision} -->\n".encode()
