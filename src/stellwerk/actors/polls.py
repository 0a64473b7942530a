"""What a worker that polls asks for: the values of `Node.fetch_and_lock`, whatever API they come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from stellwerk.core.external_task import ExternalTask
from stellwerk.json_values import JsonValue
from stellwerk.values import frozen

__all__ = ["Poll", "PollTopic", "PolledTasks", "TaskConditions"]


@frozen(kw_only=True)
class TaskConditions:
    """Only tasks for which all of these hold. None: whatever it is."""

    payload: str | None = None
    """A regular expression on the compact JSON of the variables (`payloads.make_task_filter`)."""
    variables: tuple[tuple[str, JsonValue], ...] = ()
    """Top-level variables that have these values. All of them (not any, as some engines have it)."""
    business_key: str | None = None
    definition_ids: tuple[str, ...] | None = None
    """One of these versions (``key:version``)."""
    process_keys: tuple[str, ...] | None = None
    """One of these processes; an entry that ends with ``*`` stands for all that begin so."""


@frozen(kw_only=True)
class PollTopic:
    topic: str
    lock_duration_ms: int
    """A model's own lock duration overrides it."""
    variables: tuple[str, ...] | None = None
    """Only these top-level variables are given; None: all."""
    conditions: TaskConditions = TaskConditions()


@frozen(kw_only=True)
class Poll:
    worker_id: str
    topics: tuple[PollTopic, ...]
    """At least one; each topic once, unless with other conditions."""
    max_tasks: int
    """Over all topics."""
    wait_ms: int = 0
    """How long to wait for the first task. 0: answer at once, with what is READY now."""
    client: str = ""
    """Name and version of its software, for people."""


@attrs.define(eq=False)
class PolledTasks:
    """Leases that are durable and that nobody knows of yet but the caller."""

    tasks: Sequence[ExternalTask]
    """In the order of hand-out; ``lease`` and ``fence`` say how they are held, ``variables`` are those asked for."""
    deadlines: Sequence[float]
    """Of each: monotonic seconds until when its lease can be trusted, which is a little less than the row says."""
    give_back: Callable[[], None]
    """In the background: the answer could not be delivered. Costs no retry; single-try tasks come back as well, since
    nothing of them was read. Whoever gets a `PolledTasks` either delivers all or calls this once."""
