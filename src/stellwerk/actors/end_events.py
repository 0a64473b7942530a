"""Waiting until a token reaches an end event: found by folding the history from its beginning, then step by step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import attrs

from stellwerk.core import facts as f
from stellwerk.core.evolve import apply, started
from stellwerk.core.instance import InstanceState, Token, TokenStatus
from stellwerk.errors import InvariantBroken, NotFound
from stellwerk.json_values import JsonObject, JsonValue
from stellwerk.model.process import ErrorDefinition, Event, EventPosition, Process
from stellwerk.ports import HistoryStep, InstanceSummary, Store, ThreadRunner

__all__ = ["EndEventReached", "EndEventSearch", "end_events"]

_SLICE_STEPS = 25


@attrs.frozen(kw_only=True)
class EndEventReached:
    """A token came to an end event; or the instance ended or met an incident, and none did."""

    summary: InstanceSummary
    """As it is now: it may run on."""
    element_id: str | None
    """The end event; None: none was reached, and `summary` says why."""
    variables: JsonObject
    """What the token saw there; where there is none, the process's own."""
    payload: JsonValue = None
    """What the token carried, in ProcessCube's sense."""


def end_events(process: Process, end_event_id: str | None) -> frozenset[str]:
    """The one that is named; else those of the process itself that are not for errors: these fail it.

    :raises NotFound: it has no such end event.
    """
    found = {
        node.id: node for node in process.nodes.values() if isinstance(node, Event) and node.where is EventPosition.END
    }
    if end_event_id is None:
        own = (node for node in found.values() if node.parent is None)
        return frozenset(node.id for node in own if not isinstance(node.definition, ErrorDefinition))
    if end_event_id not in found:
        raise NotFound(f'process "{process.key}" has no end event "{end_event_id}"')
    return frozenset((end_event_id,))


class EndEventSearch:
    """Of one instance. It goes on where it stopped."""

    def __init__(self, store: Store, background: ThreadRunner, instance_id: str, wanted: frozenset[str]) -> None:
        self._store = store
        self._background = background
        self._instance_id = instance_id
        self._wanted = wanted
        self._version = 0
        self._state: InstanceState | None = None
        self._waited: set[str] = set()
        """Tokens that had to wait at an end event: such a one is left when that is over, or given up."""

    async def find(self, summary: InstanceSummary) -> EndEventReached | None:
        """Look at all steps that are new.

        :param summary: read before. Once it says that the instance has ended, that is an answer too.
        """
        while steps := await self._store.history(self._instance_id, after=self._version, limit=_SLICE_STEPS):
            token = await self._background.run_sync(partial(self._fold, steps))
            if token is not None:
                return self._reached(summary, token)
            self._version = steps[-1].version
        return None if summary.status == "RUNNING" else self.without(summary)

    def without(self, summary: InstanceSummary) -> EndEventReached:
        """What stands instead of an end event."""
        variables = {} if self._state is None else self._state.variables
        return EndEventReached(summary=summary, element_id=None, variables=variables)

    def _reached(self, summary: InstanceSummary, token: Token) -> EndEventReached:
        assert self._state is not None
        return EndEventReached(
            summary=summary,
            element_id=token.node_id,
            variables=self._state.visible_variables(token.scope_id),
            payload=token.payload,
        )

    def _fold(self, steps: Sequence[HistoryStep]) -> Token | None:
        """Up to the token that has reached one of the events, which has not ended yet in the state."""
        for step in steps:
            for fact in step.facts:
                if isinstance(fact, f.InstanceStarted):
                    self._state = started(fact)
                    continue
                if self._state is None:
                    raise InvariantBroken(f"a history begins with {type(fact).__name__}")
                token = self._arrived(self._state, fact)
                if token is not None:
                    return token
                apply(self._state, fact)
        return None

    def _arrived(self, state: InstanceState, fact: f.Fact) -> Token | None:
        match fact:
            case f.ActivityStarted(token_id=str(token_id)) | f.CompensationStarted(token_id=str(token_id)):
                self._waited.add(token_id)
            case f.TokenEntered(token_id=token_id):
                self._waited.discard(token_id)
            case f.TokenEnded(token_id=token_id):
                token = state.tokens[token_id]
                is_through = token.leaving or token_id not in self._waited
                if token.node_id in self._wanted and token.status is TokenStatus.ACTIVE and is_through:
                    return token
            case _:
                pass
        return None
