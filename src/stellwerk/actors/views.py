"""Reading: one instance whole, and waiting for its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum

import attrs
import trio

from stellwerk.actors.histories import recorded_steps
from stellwerk.core.evolve import fold
from stellwerk.core.external_task import ExternalTask, TaskAttempt
from stellwerk.core.facts import InstanceCancelled, InstanceFailed
from stellwerk.core.history import decode_state
from stellwerk.core.instance import InstanceState, InstanceStatus, Token
from stellwerk.core.waits import OpenWait, open_waits
from stellwerk.errors import NotFound
from stellwerk.instants import InstantMs
from stellwerk.json_values import JsonObject
from stellwerk.ports import HistoryStep, InstanceSummary, KeptMessage, Store, StoredInstance, TaskQuery

__all__ = [
    "EndWaiters",
    "InstanceOutcome",
    "InstanceView",
    "MessageStatus",
    "MessageView",
    "Waiter",
    "message_view",
    "outcome_of",
    "tasks_of",
    "view_of",
]


_ROWS_MAX = 2**31 - 1
"""All of them: an instance is shown whole."""


@attrs.frozen(kw_only=True)
class InstanceOutcome:
    """How far an instance has come, in brief."""

    summary: InstanceSummary
    variables: JsonObject
    """Of the process scope."""
    reason: str | None
    """Why it failed or was cancelled; None when it did not."""
    incidents: Sequence[Mapping[str, object]]


@attrs.frozen(kw_only=True)
class InstanceView:
    """What stands in the store about one instance."""

    summary: InstanceSummary
    tokens: tuple[Token, ...]
    waits: Mapping[str, tuple[OpenWait, ...]]
    """What each token waits for now."""
    variables: JsonObject
    """Of the process scope."""
    reason: str | None
    """Why it failed or was cancelled; None when it did not."""
    steps: Sequence[HistoryStep] | None
    """Every one; None where nobody asked for them."""
    tasks: tuple[tuple[ExternalTask, tuple[TaskAttempt, ...]], ...]
    """Every task with the leases that ended without success; the last lease stands in the task."""
    incidents: Sequence[Mapping[str, object]]
    user_tasks: Sequence[Mapping[str, object]]

    @property
    def current_nodes(self) -> Sequence[str]:
        """Where tokens stand; each node once."""
        return tuple(dict.fromkeys(token.node_id for token in self.tokens))


class MessageStatus(Enum):
    WAITING = "waiting"
    """Kept: nothing has waited for it yet, or what waited for it in time has not taken it yet."""
    CORRELATED = "correlated"
    """It has reached an instance, or started one."""
    EXPIRED_OR_UNKNOWN = "expired-or-unknown"
    """Nothing waited for it in time, it was correlated and is forgotten, or it was never published."""


@attrs.frozen(kw_only=True)
class MessageView:
    message_id: str
    status: MessageStatus
    name: str | None = None
    """None, as the others, where the message is not known (any more)."""
    key: str | None = None
    published_at_ms: InstantMs | None = None
    expires_at_ms: InstantMs | None = None
    is_awaited: bool = False
    """It is about to be correlated, or the instance that waits for it cannot take it."""
    instance_id: str | None = None
    """The only one that it can reach, if there is one."""


def message_view(message_id: str, kept: KeptMessage | None, now_ms: InstantMs) -> MessageView:
    """:param now_ms: lease clock."""
    if kept is None:
        return MessageView(message_id=message_id, status=MessageStatus.EXPIRED_OR_UNKNOWN)
    if kept.is_correlated:
        status = MessageStatus.CORRELATED
    else:
        is_kept = kept.expires_at_ms > now_ms or kept.is_awaited
        status = MessageStatus.WAITING if is_kept else MessageStatus.EXPIRED_OR_UNKNOWN
    return MessageView(
        message_id=message_id,
        status=status,
        name=kept.name,
        key=kept.key,
        published_at_ms=kept.published_at_ms,
        expires_at_ms=kept.expires_at_ms,
        is_awaited=status is MessageStatus.WAITING and kept.is_awaited,
        instance_id=kept.instance_id,
    )


async def outcome_of(store: Store, instance_id: str) -> InstanceOutcome:
    """:raises NotFound: there is no such instance."""
    summary, stored = await _load(store, instance_id)
    return InstanceOutcome(
        summary=summary,
        variables=state_of(stored).variables,
        reason=await _reason_of_end(store, instance_id, stored),
        incidents=await store.incidents(instance_id, limit=_ROWS_MAX),
    )


async def view_of(store: Store, instance_id: str, *, with_history: bool = True) -> InstanceView:
    """:raises NotFound: there is no such instance."""
    summary, stored = await _load(store, instance_id)
    state = state_of(stored)
    return InstanceView(
        summary=summary,
        tokens=tuple(state.tokens.values()),
        waits=open_waits(state),
        variables=state.variables,
        reason=await _reason_of_end(store, instance_id, stored),
        steps=await recorded_steps(store, instance_id) if with_history else None,
        tasks=await tasks_of(store, instance_id),
        incidents=await store.incidents(instance_id, limit=_ROWS_MAX),
        user_tasks=await store.user_tasks(instance_id, limit=_ROWS_MAX),
    )


async def tasks_of(store: Store, instance_id: str) -> tuple[tuple[ExternalTask, tuple[TaskAttempt, ...]], ...]:
    """Every task of an instance, with the leases that ended without success."""
    tasks = await store.tasks(TaskQuery(instance_id=instance_id), limit=_ROWS_MAX)
    return tuple([(task, tuple(await store.attempts(task.task_id))) for task in tasks])


async def _load(store: Store, instance_id: str) -> tuple[InstanceSummary, StoredInstance]:
    summary = await store.instance(instance_id)
    stored = await store.load_instance(instance_id)
    if summary is None or stored is None:
        raise NotFound(f"there is no instance {instance_id}")
    return summary, stored


async def _reason_of_end(store: Store, instance_id: str, stored: StoredInstance) -> str | None:
    if stored.status not in (InstanceStatus.FAILED.value, InstanceStatus.CANCELLED.value):
        return None
    # No step is left to fold if a snapshot was made at that very last one.
    steps = stored.steps or await store.history(instance_id, after=stored.version - 1)
    for fact in reversed([fact for step in steps[-1:] for fact in step.facts]):
        match fact:
            case InstanceFailed(code, message):
                return f"{code}: {message}"
            case InstanceCancelled(reason):
                return reason
            case _:
                pass
    return None


def state_of(stored: StoredInstance) -> InstanceState:
    """Fold what the store kept: how an actor comes back, and what people are shown."""
    snapshot = decode_state(stored.snapshot) if stored.snapshot is not None else None
    return fold(snapshot, [fact for step in stored.steps for fact in step.facts])


class EndWaiters:
    """Who waits for an instance to end, to meet an incident, or to go on at all."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Waiter]] = {}

    def changed(self, instance_id: str) -> None:
        for waiter in self._waiting.get(instance_id, ()):
            waiter.event.set()

    def stepped(self, instance_id: str) -> None:
        """It went on, which most do not wait for."""
        for waiter in self._waiting.get(instance_id, ()):
            if waiter.for_each_step:
                waiter.event.set()

    def changed_all(self) -> None:
        """Any of them may have."""
        for instance_id in self._waiting:
            self.changed(instance_id)

    @contextmanager
    def watching(self, instance_id: str, *, for_each_step: bool = False) -> Iterator[Waiter]:
        """Changes from here on are seen: look at the store after entering, then wait, then look again."""
        waiter = Waiter(for_each_step)
        waiters = self._waiting.setdefault(instance_id, [])
        waiters.append(waiter)
        try:
            yield waiter
        finally:
            waiters.remove(waiter)
            if not waiters:
                self._waiting.pop(instance_id, None)


class Waiter:
    """Of one who watches an instance."""

    def __init__(self, for_each_step: bool) -> None:
        self.for_each_step = for_each_step
        self.event = trio.Event()

    async def wait(self) -> None:
        await self.event.wait()
        self.event = trio.Event()
