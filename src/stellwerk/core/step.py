"""A step that is being worked out: the state that changes, the facts so far, and the tokens that still have to move."""

from __future__ import annotations

from collections import deque
from enum import Enum

import attrs

from stellwerk.core import facts as f
from stellwerk.core.evolve import APPLIERS
from stellwerk.core.instance import ActivityInstance, InstanceState, Token
from stellwerk.core.weights import Scale
from stellwerk.errors import BpmnFault, Conflict
from stellwerk.ids import FreshIds
from stellwerk.instants import InstantMs
from stellwerk.limits import Limits
from stellwerk.model.process import FailurePolicy, FlowNode, Process
from stellwerk.values import frozen

__all__ = ["Context", "NotOpen", "Step", "TaskFinal", "Work"]

_MOVES_UNWEIGHED = 4
"""Most steps are over by then: they pay nothing for the bound on what a step writes."""


class NotOpen(Conflict):
    """The task, timer, subscription, user task or incident is not open in this instance (any more)."""

    code = "not_open"


class Work(Enum):
    """What is done next with the thing of the given id."""

    MOVE = "move"
    """Go on with it from where it stands."""
    SCOPE = "empty"
    """No token lives in it any more."""
    HANDLER = "undone"
    """The compensation's running handler has ended."""


@frozen
class Context:
    """What a decision may look at beside state and command."""

    definition: Process
    definition_id: str
    now_ms: InstantMs
    """Wall clock."""
    ids: FreshIds
    failure_policy: FailurePolicy
    limits: Limits
    default_retries: int = 3
    lock_expiries_max: int = 10


@frozen
class TaskFinal:
    """What the row of a task becomes that this command ends (``COMPLETED``, ``FAILED``, ``EXPIRED``, ``CANCELLED``)."""

    task_id: str
    final_state: str


@attrs.define(eq=False)
class Step:
    state: InstanceState
    context: Context
    facts: list[f.Fact] = attrs.field(factory=list)
    endings: list[TaskFinal] = attrs.field(factory=list)
    queue: deque[tuple[Work, str]] = attrs.field(factory=deque)
    """What is still to be done; a queue instead of recursion, so that long runs without a wait state fit."""
    moves: int = 0
    nodes_entered: int = 0
    _scale: Scale | None = None
    tasks_created: dict[str, None] = attrs.field(factory=dict)
    """Tasks of this very step: no worker can have one of them."""

    @property
    def scale(self) -> Scale:
        if self._scale is None:
            self._scale = Scale(self.context.limits.step_bytes_max)
        return self._scale

    def emit(self, fact: f.Fact) -> None:
        self.facts.append(fact)
        APPLIERS[type(fact)](self.state, fact)

    def fresh_id(self) -> str:
        return self.context.ids.next()

    def node(self, node_id: str) -> FlowNode:
        return self.context.definition.nodes[node_id]

    def activity_of(self, token: Token) -> ActivityInstance | None:
        return self.state.activities[token.activity_id] if token.activity_id is not None else None

    def later(self, work: Work, subject_id: str) -> None:
        self.queue.append((work, subject_id))

    def check_room(self, tokens: int) -> None:
        """:raises BpmnFault: when so many more tokens are more than one instance may have."""
        if len(self.state.tokens) + tokens > self.context.limits.instance_tokens_max:
            raise BpmnFault(f"more than {self.context.limits.instance_tokens_max} tokens in one instance")

    def check_bytes(self) -> None:
        """Before a token moves on.

        :raises BpmnFault: when the step has already written as much as one step may.
        """
        self.moves += 1
        if self.moves > _MOVES_UNWEIGHED:
            self.scale.weigh_facts(self.facts, self.state)

    def end_token(self, token: Token) -> None:
        """The token is consumed; what waits for that is looked at next."""
        self.emit(f.TokenEnded(token.id))
        compensation = self.state.compensations.get(token.compensation_id) if token.compensation_id else None
        if compensation is not None and compensation.handler_id == token.id:
            self.later(Work.HANDLER, compensation.id)
        elif self.state.token_counts[token.scope_id] == 0:
            self.later(Work.SCOPE, token.scope_id)

    def finally_(self, task_id: str, final_state: str) -> None:
        self.endings.append(TaskFinal(task_id, final_state))
