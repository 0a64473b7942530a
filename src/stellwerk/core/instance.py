"""The state of a process instance: what folding its facts gives (`evolve`).

The containers belong to one `InstanceState` and change in place while a step is worked out; the values in them are
frozen, so that `fork` needs to copy the containers only. A variables dict is never changed once it is in a scope.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

import attrs

from stellwerk.instants import InstantMs
from stellwerk.json_values import JsonObject, JsonValue
from stellwerk.values import frozen

__all__ = [
    "ActivityInstance",
    "Compensation",
    "CompletedActivity",
    "External",
    "Incident",
    "InstanceState",
    "InstanceStatus",
    "OpenTask",
    "Scope",
    "ScopeFailure",
    "Subscription",
    "Timer",
    "Token",
    "TokenStatus",
]


class InstanceStatus(Enum):
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class TokenStatus(Enum):
    ACTIVE = "ACTIVE"
    FAILED = "FAILED"
    """Stands still: an incident waits at it, or its scope is failing."""


@frozen
class External:
    """The execution mode of a token whose node is worked on outside the engine (requirement E2)."""

    task_type: str
    retries: int
    timeout_ms: int | None


@frozen
class Token:
    id: str
    node_id: str
    scope_id: str
    via: str | None
    """The sequence flow that it took to the node."""
    activity_id: str | None
    external: External | None
    """The execution mode; None is inline, inside the engine."""
    status: TokenStatus
    leaving: bool
    """The node is done, only the way out of it is to be taken."""
    payload: JsonValue
    """ProcessCube's ``token.current``."""
    compensation_id: str | None = None
    """Set on the token of a compensation handler."""


@frozen
class ScopeFailure:
    code: str
    message: str
    node_id: str


@frozen
class Scope:
    id: str
    node_id: str | None
    parent_id: str | None
    activity_id: str | None
    variables: JsonObject
    local: bool
    failure: ScopeFailure | None = None


@frozen
class ActivityInstance:
    """A run of an activity (or of an event that works like one). Its external or user task carries its id."""

    id: str
    node_id: str
    token_id: str
    scope_id: str
    compensates: str | None
    inner_scope_id: str | None = None
    """Its local variables, or the body of a subprocess."""


@frozen
class CompletedActivity:
    """A completed activity that can be compensated."""

    id: str
    node_id: str
    scope_id: str
    body_scope_id: str | None
    """Of a subprocess: where its own completed activities ran."""
    variables: JsonObject


@frozen
class OpenTask:
    activity_id: str
    draining: bool = False
    failed: bool = False
    """An incident waits at it."""


@frozen
class Timer:
    id: str
    node_id: str
    due_at_ms: InstantMs
    token_id: str | None
    activity_id: str | None
    repeats_left: int | None


@frozen
class Subscription:
    id: str
    node_id: str
    name: str
    key: str
    token_id: str | None
    activity_id: str | None


@frozen
class Incident:
    id: str
    kind: str
    node_id: str
    token_id: str | None
    task_id: str | None


@frozen
class Compensation:
    """Handlers that run one after the other."""

    id: str
    scope_id: str
    thrower_id: str | None
    """The token that waits for the end; None: the scope is failing."""
    pending: tuple[CompletedActivity, ...]
    """In the order in which their handlers run; the first one is running when `handler_id` is set."""
    handler_id: str | None = None


@attrs.define
class InstanceState:
    instance_id: str
    definition_id: str
    business_key: str | None
    root_scope_id: str
    status: InstanceStatus = InstanceStatus.RUNNING
    tokens: dict[str, Token] = attrs.field(factory=dict)
    token_counts: dict[str, int] = attrs.field(factory=dict)
    """How many tokens live directly in each scope (an index over `tokens`)."""
    node_counts: dict[str, int] = attrs.field(factory=dict)
    """How many tokens stand at each node, in all scopes (an index too: a wide join need not look at all of them)."""
    scopes: dict[str, Scope] = attrs.field(factory=dict)
    activities: dict[str, ActivityInstance] = attrs.field(factory=dict)
    tasks: dict[str, OpenTask] = attrs.field(factory=dict)
    user_tasks: dict[str, str] = attrs.field(factory=dict)
    """Open user tasks and their activities."""
    assignees: dict[str, str] = attrs.field(factory=dict)
    """Who has them, by task; those that nobody has are left out."""
    timers: dict[str, Timer] = attrs.field(factory=dict)
    subscriptions: dict[str, Subscription] = attrs.field(factory=dict)
    incidents: dict[str, Incident] = attrs.field(factory=dict)
    completed: dict[str, CompletedActivity] = attrs.field(factory=dict)
    """In order of completion."""
    compensations: dict[str, Compensation] = attrs.field(factory=dict)
    results: dict[str, JsonValue] = attrs.field(factory=dict)
    """ProcessCube's ``token.history``: the last result of each node."""

    def fork(self) -> InstanceState:
        """A state of its own that shares the frozen values."""
        # By position, which is a third quicker: in the order of the fields.
        return InstanceState(
            self.instance_id,
            self.definition_id,
            self.business_key,
            self.root_scope_id,
            self.status,
            self.tokens.copy(),
            self.token_counts.copy(),
            self.node_counts.copy(),
            self.scopes.copy(),
            self.activities.copy(),
            self.tasks.copy(),
            self.user_tasks.copy(),
            self.assignees.copy(),
            self.timers.copy(),
            self.subscriptions.copy(),
            self.incidents.copy(),
            self.completed.copy(),
            self.compensations.copy(),
            self.results.copy(),
        )

    @property
    def ended(self) -> bool:
        return self.status is not InstanceStatus.RUNNING

    @property
    def variables(self) -> JsonObject:
        """The process's own variables; they stay when the instance has ended."""
        return self.scopes[self.root_scope_id].variables

    def outwards(self, scope_id: str | None) -> Iterator[Scope]:
        """The scope and those around it, innermost first."""
        while scope_id is not None:
            scope = self.scopes[scope_id]
            yield scope
            scope_id = scope.parent_id

    def visible_variables(self, scope_id: str) -> JsonObject:
        """What can be seen from a scope, the inner one wins. Not to be changed."""
        scope = self.scopes[scope_id]
        if scope.parent_id is None:
            return scope.variables
        return {**self.visible_variables(scope.parent_id), **scope.variables}

    def body_scopes(self, scope_id: str) -> list[str]:
        """The scope and all scopes inside it, in which tokens live, outer ones first."""
        found = {scope_id: None}
        for scope in self.scopes.values():  # a scope is opened after the one around it
            if scope.parent_id in found and not scope.local:
                found[scope.id] = None
        return list(found)
