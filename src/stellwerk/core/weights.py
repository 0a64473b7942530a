"""How much a step is going to write, estimated while it is worked out."""

from __future__ import annotations

import attrs

from stellwerk.core import facts as f
from stellwerk.core.instance import InstanceState
from stellwerk.errors import BpmnFault
from stellwerk.json_values import JsonValue

__all__ = ["Scale"]

_CONTAINERS = (list, dict)


@attrs.define(eq=False)
class Scale:
    """Weighs what one step writes. An object that occurs many times is looked into once, and no further than needed."""

    bytes_max: int
    facts_weighed: int = 0
    bytes_written: int = 0
    _known: dict[int, tuple[JsonValue, int]] = attrs.field(factory=dict)
    """By `id`, with the object itself: while it is here, no other object gets its id."""

    def weigh_facts(self, facts: list[f.Fact], state: InstanceState) -> None:
        """Go on from where it stopped the last time.

        :raises BpmnFault: when the facts of this step are heavier than one step may be.
        """
        for fact in facts[self.facts_weighed :]:
            self.bytes_written += sum(map(self.weight, _contents(fact, state)))
        self.facts_weighed = len(facts)
        self.check(self.bytes_written)

    def check(self, bytes_written: int) -> None:
        if bytes_written > self.bytes_max:
            limit = f"{self.bytes_max / 2**20:.3g} MiB"
            raise BpmnFault(f"one step would write more than {limit}: large variables in a loop without a wait state?")

    def weight(self, value: JsonValue) -> int:
        """About as many bytes as the value has as JSON; something above the bound as soon as that is clear."""
        if isinstance(value, dict):
            return sum(len(name) + self._weight_inside(item) for name, item in value.items())
        return self._weight_inside(value)

    def _weight_inside(self, value: JsonValue) -> int:
        if isinstance(value, str):
            return len(value)
        if not isinstance(value, _CONTAINERS):
            return 1
        known = self._known.get(id(value))
        if known is None:
            known = self._known[id(value)] = value, _walked(value, self.bytes_max)
        return known[1]


def _walked(value: JsonValue, weight_max: int) -> int:
    """No recursion, and no end to wait for where a value holds another many times over."""
    weight, level = 0, [value]
    while level and weight <= weight_max:
        weight += len(level)
        inner: list[JsonValue] = []
        for item in level:
            if isinstance(item, str):
                weight += len(item)
            elif isinstance(item, list):
                inner += item
            elif isinstance(item, dict):
                weight += sum(map(len, item)) + len(item)
                inner += item.values()
            if len(inner) > weight_max:
                break
        level = inner
    return weight


def _contents(fact: f.Fact, state: InstanceState) -> tuple[JsonValue, ...]:
    """What may be large in a fact: everything else of it is an id, a number or a name of bounded length.

    A token that splits off another carries the same payload, in the state if not in the fact.
    """
    match fact:
        case f.TokenEntered():
            token = state.tokens.get(fact.token_id) if fact.from_token is not None else None
            return () if token is None else (token.payload,)
        case f.VariablesSet() | f.ScopeOpened() | f.TaskRequeued():
            return (fact.variables,)
        case f.TaskCreated():
            return fact.variables, fact.headers
        case f.ActivityCompleted():
            return (fact.compensation_variables,)
        case f.PayloadSet():
            return (fact.payload,)
        case f.UserTaskCreated():
            names: list[JsonValue] = [*fact.candidate_users, *fact.candidate_groups]
            return fact.variables, fact.name, fact.assignee, fact.form, fact.due_at, names
        case f.UserTaskAssigned():
            return (fact.assignee,)
        case f.ErrorRaised() | f.ActivityFailed() | f.ScopeFailing() | f.InstanceFailed():
            return fact.code, fact.message
        case f.IncidentOpened():
            return (fact.message,)
        case _:
            return ()
