"""Reading the facts of an instance for a trace: where its tokens were, and what they waited for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import attrs

from stellwerk.core import facts as f
from stellwerk.core.replay import RecordedStep
from stellwerk.core.trace_values import Moment, StayEnd, StayTrace, TokenOrigin, TokenTrace, WaitEnd, WaitKind, WaitSpan

__all__ = ["Reading"]


@attrs.define
class _Stay:
    node_id: str
    via: str | None
    entered: Moment
    moved_in: int
    """The last step in which the token itself did something here."""
    activity_id: str | None = None
    left: Moment | None = None
    end: StayEnd | None = None
    cut: StayEnd | None = None
    """How the activity was cut short, if it was."""
    waits: dict[str, WaitSpan] = attrs.field(factory=dict)

    def frozen(self) -> StayTrace:
        return StayTrace(
            node_id=self.node_id,
            via=self.via,
            activity_id=self.activity_id,
            entered=self.entered,
            left=self.left,
            end=self.end,
            waits=tuple(self.waits.values()),
        )


@attrs.define
class _Token:
    token_id: str
    scope_id: str
    origin: TokenOrigin
    parent_id: str | None
    merged_into: str | None = None
    stays: list[_Stay] = attrs.field(factory=list)

    @property
    def stay(self) -> _Stay:
        return self.stays[-1]

    def frozen(self) -> TokenTrace:
        return TokenTrace(
            token_id=self.token_id,
            scope_id=self.scope_id,
            origin=self.origin,
            parent_id=self.parent_id,
            merged_into=self.merged_into,
            stays=tuple(stay.frozen() for stay in self.stays),
        )


_Reader: TypeAlias = Callable[..., None]
"""(reading, fact of the kind under which it stands in the table)"""


@attrs.define
class Reading:
    """What the facts have told so far."""

    now: Moment = attrs.field(factory=lambda: Moment(0, 0))
    facts: Sequence[f.Fact] = ()
    """Of the step that is being read; `position` is the fact."""
    position: int = 0
    merge: tuple[int, str | None] = (0, None)
    """Up to which position tokens end at the same node together, and the one that they become, if any."""
    tokens: dict[str, _Token] = attrs.field(factory=dict)
    runners: dict[str, str] = attrs.field(factory=dict)
    """Activities and their tokens."""
    waiting: dict[str, _Stay] = attrs.field(factory=dict)
    """Open waits and the stays that they belong to."""
    throwers: dict[str, str] = attrs.field(factory=dict)
    """Compensations and the tokens that wait for their end."""
    failing: dict[str, None] = attrs.field(factory=dict)
    """Scopes that are failing."""
    requeued: dict[str, list[Moment]] = attrs.field(factory=dict)

    def read(self, step: RecordedStep) -> None:
        self.now = Moment(step.version, step.at_ms)
        self.facts = step.facts
        self.merge = (0, None)
        for self.position, fact in enumerate(step.facts):
            reader = _READERS.get(type(fact))
            if reader is not None:
                reader(self, fact)

    def runner(self, activity_id: str) -> _Token:
        return self.tokens[self.runners[activity_id]]

    def leave(self, token: _Token, end: StayEnd) -> None:
        token.stay.left = self.now
        token.stay.end = end

    def open_wait(self, stay: _Stay, kind: WaitKind, wait_id: str, node_id: str, **told: object) -> None:
        name, key, assignee, due_at_ms = (told.get(field) for field in ("name", "key", "assignee", "due_at_ms"))
        stay.waits[wait_id] = WaitSpan(
            kind=kind,
            wait_id=wait_id,
            node_id=node_id,
            name=name if isinstance(name, str) else None,
            key=key if isinstance(key, str) else None,
            due_at_ms=due_at_ms if isinstance(due_at_ms, int) else None,
            assignee=assignee if isinstance(assignee, str) else None,
            since=self.now,
            until=None,
            end=None,
        )
        self.waiting[wait_id] = stay

    def assign(self, wait_id: str, assignee: str | None) -> None:
        stay = self.waiting[wait_id]
        stay.waits[wait_id] = attrs.evolve(stay.waits[wait_id], assignee=assignee)

    def close_wait(self, wait_id: str, end: WaitEnd) -> None:
        stay = self.waiting.pop(wait_id)
        stay.waits[wait_id] = attrs.evolve(stay.waits[wait_id], until=self.now, end=end)

    def owner(self, token_id: str | None, activity_id: str | None) -> _Stay:
        """The stay of the token that waits, itself or with its activity."""
        return self.tokens[token_id].stay if token_id is not None else self.runner(activity_id or "").stay


def _token_entered(reading: Reading, fact: f.TokenEntered) -> None:
    token = reading.tokens.get(fact.token_id)
    if token is None:
        token = _Token(fact.token_id, fact.scope_id, _origin(reading, fact), fact.from_token)
        reading.tokens[token.token_id] = token
    else:
        reading.leave(token, _way_on(token.stay))
    token.stays.append(_Stay(fact.node_id, fact.via, reading.now, reading.now.version))


def _origin(reading: Reading, fact: f.TokenEntered) -> TokenOrigin:
    if fact.from_token is None:
        following = reading.facts[reading.position + 1 : reading.position + 2]
        is_handler = bool(following) and isinstance(following[0], f.CompensationHandlerStarted)
        return TokenOrigin.COMPENSATION if is_handler else TokenOrigin.START
    if fact.via is not None:
        return TokenOrigin.SPLIT
    is_inside = fact.scope_id != reading.tokens[fact.from_token].scope_id
    return TokenOrigin.SUBPROCESS if is_inside else TokenOrigin.EVENT


def _way_on(stay: _Stay) -> StayEnd:
    if stay.cut is StayEnd.CANCELLED:
        return StayEnd.INTERRUPTED
    return stay.cut or StayEnd.LEFT


def _token_ended(reading: Reading, fact: f.TokenEnded) -> None:
    token = reading.tokens[fact.token_id]
    stay = token.stay
    if stay.cut is not None:
        reading.leave(token, stay.cut)
        return
    token.merged_into = _merged_into(reading, token)
    if token.merged_into is not None:
        reading.leave(token, StayEnd.MERGED)
    elif stay.moved_in == reading.now.version:
        reading.leave(token, StayEnd.ENDED)
    else:
        reading.leave(token, StayEnd.CANCELLED)


def _merged_into(reading: Reading, token: _Token) -> str | None:
    """A join ends all tokens at it but one, which then moves on or splits; nothing else happens in between."""
    end, into = reading.merge
    if reading.position >= end:
        reading.merge = end, into = _tokens_that_end_with(reading, token)
    return into


def _tokens_that_end_with(reading: Reading, token: _Token) -> tuple[int, str | None]:
    end = reading.position + 1
    while end < len(reading.facts):
        fact = reading.facts[end]
        if not (isinstance(fact, f.TokenEnded) and _stands_with(reading, token, fact.token_id)):
            mover_id = (fact.from_token or fact.token_id) if isinstance(fact, f.TokenEntered) else None
            return end, mover_id if mover_id is not None and _stands_with(reading, token, mover_id) else None
        end += 1
    return end, None


def _stands_with(reading: Reading, token: _Token, other_id: str) -> bool:
    other = reading.tokens.get(other_id)
    return other is not None and other.scope_id == token.scope_id and other.stay.node_id == token.stay.node_id


def _token_revived(reading: Reading, fact: f.TokenRevived) -> None:
    reading.tokens[fact.token_id].stay.moved_in = reading.now.version


def _activity_started(reading: Reading, fact: f.ActivityStarted) -> None:
    reading.runners[fact.activity_id] = fact.token_id
    stay = reading.tokens[fact.token_id].stay
    stay.activity_id = fact.activity_id
    stay.cut = None


def _activity_completed(reading: Reading, fact: f.ActivityCompleted) -> None:
    reading.runner(fact.activity_id).stay.moved_in = reading.now.version


def _activity_cancelled(reading: Reading, fact: f.ActivityCancelled) -> None:
    reading.runner(fact.activity_id).stay.cut = StayEnd.CANCELLED


def _activity_failed(reading: Reading, fact: f.ActivityFailed) -> None:
    reading.runner(fact.activity_id).stay.cut = StayEnd.FAILED


def _task_requeued(reading: Reading, fact: f.TaskRequeued) -> None:
    reading.requeued.setdefault(fact.task_id, []).append(reading.now)


def _user_task_created(reading: Reading, fact: f.UserTaskCreated) -> None:
    stay = reading.runner(fact.activity_id).stay
    told = {"name": fact.name, "assignee": fact.assignee}
    reading.open_wait(stay, WaitKind.USER_TASK, fact.user_task_id, stay.node_id, **told)


def _user_task_assigned(reading: Reading, fact: f.UserTaskAssigned) -> None:
    reading.assign(fact.user_task_id, fact.assignee)


def _user_task_completed(reading: Reading, fact: f.UserTaskCompleted) -> None:
    reading.close_wait(fact.user_task_id, WaitEnd.COMPLETED)


def _user_task_cancelled(reading: Reading, fact: f.UserTaskCancelled) -> None:
    reading.close_wait(fact.user_task_id, WaitEnd.CANCELLED)


def _timer_armed(reading: Reading, fact: f.TimerArmed) -> None:
    stay = reading.owner(fact.token_id, fact.activity_id)
    reading.open_wait(stay, WaitKind.TIMER, fact.timer_id, fact.node_id, due_at_ms=fact.due_at_ms)


def _timer_fired(reading: Reading, fact: f.TimerFired) -> None:
    reading.close_wait(fact.timer_id, WaitEnd.FIRED)


def _timer_disarmed(reading: Reading, fact: f.TimerDisarmed) -> None:
    reading.close_wait(fact.timer_id, WaitEnd.CANCELLED)


def _subscription_opened(reading: Reading, fact: f.SubscriptionOpened) -> None:
    stay = reading.owner(fact.token_id, fact.activity_id)
    reading.open_wait(stay, WaitKind.MESSAGE, fact.subscription_id, fact.node_id, name=fact.name, key=fact.key)


def _message_correlated(reading: Reading, fact: f.MessageCorrelated) -> None:
    if fact.closes:
        reading.close_wait(fact.subscription_id, WaitEnd.CORRELATED)


def _subscription_closed(reading: Reading, fact: f.SubscriptionClosed) -> None:
    reading.close_wait(fact.subscription_id, WaitEnd.CANCELLED)


def _incident_opened(reading: Reading, fact: f.IncidentOpened) -> None:
    if fact.token_id is not None:
        stay = reading.tokens[fact.token_id].stay
        reading.open_wait(stay, WaitKind.INCIDENT, fact.incident_id, fact.node_id, name=fact.message)


def _incident_resolved(reading: Reading, fact: f.IncidentResolved) -> None:
    if fact.incident_id in reading.waiting:
        reading.close_wait(fact.incident_id, WaitEnd.CANCELLED if fact.cancelled else WaitEnd.RESOLVED)


def _compensation_started(reading: Reading, fact: f.CompensationStarted) -> None:
    if fact.token_id is not None:
        reading.throwers[fact.compensation_id] = fact.token_id


def _compensation_ended(reading: Reading, fact: f.CompensationEnded) -> None:
    thrower_id = reading.throwers.pop(fact.compensation_id, None)
    if thrower_id is None or fact.cancelled:
        return
    thrower = reading.tokens[thrower_id]
    if thrower.scope_id not in reading.failing:
        thrower.stay.moved_in = reading.now.version


def _scope_failing(reading: Reading, fact: f.ScopeFailing) -> None:
    reading.failing[fact.scope_id] = None


_READERS: Mapping[type, _Reader] = {
    f.TokenEntered: _token_entered,
    f.TokenEnded: _token_ended,
    f.TokenRevived: _token_revived,
    f.ActivityStarted: _activity_started,
    f.ActivityCompleted: _activity_completed,
    f.ActivityCancelled: _activity_cancelled,
    f.ActivityFailed: _activity_failed,
    f.TaskRequeued: _task_requeued,
    f.UserTaskCreated: _user_task_created,
    f.UserTaskAssigned: _user_task_assigned,
    f.UserTaskCompleted: _user_task_completed,
    f.UserTaskCancelled: _user_task_cancelled,
    f.TimerArmed: _timer_armed,
    f.TimerFired: _timer_fired,
    f.TimerDisarmed: _timer_disarmed,
    f.SubscriptionOpened: _subscription_opened,
    f.MessageCorrelated: _message_correlated,
    f.SubscriptionClosed: _subscription_closed,
    f.IncidentOpened: _incident_opened,
    f.IncidentResolved: _incident_resolved,
    f.CompensationStarted: _compensation_started,
    f.CompensationEnded: _compensation_ended,
    f.ScopeFailing: _scope_failing,
}
