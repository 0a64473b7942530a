"""What an instance's facts are to those who asked to be notified."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs

from stellwerk.core import facts as f
from stellwerk.json_values import JsonValue
from stellwerk.model.process import Activity, Event, EventPosition, FlowNode, Gateway, Process, Task, TaskKind
from stellwerk.ports import HistoryStep
from stellwerk.server.processcube.flow_node_reading import place_id
from stellwerk.server.processcube.flow_node_views import error_view
from stellwerk.server.processcube.node_types import event_type_of, flow_node_type_of
from stellwerk.server.processcube.views import OWNER, correlation_of, given

__all__ = ["InstanceReading", "Notification"]

_FOR_PEOPLE: Mapping[TaskKind, tuple[str, ...]] = {
    TaskKind.USER: ("user_task",),
    TaskKind.MANUAL: ("manual_task",),
    TaskKind.UNDEFINED: ("untyped_task", "empty_activity"),
}


@attrs.frozen
class Notification:
    name: str
    """As on the socket."""
    process_key: str
    message: Mapping[str, object]


@attrs.define
class _Place:
    """Where a token is, and what it carries."""

    node_id: str
    flow_node_instance_id: str
    token: JsonValue


class InstanceReading:
    """Of one instance, step by step from the first one on."""

    def __init__(self, instance_id: str, definition_id: str, business_key: str | None, process: Process) -> None:
        self.version = 0
        """Of the last step that was read."""
        self._process = process
        self._about: Mapping[str, object] = given(
            correlationId=correlation_of(business_key, instance_id),
            processDefinitionId=definition_id,
            processModelId=process.key,
            processModelName=process.name,
            processModelVersion=process.version_tag,
            processInstanceId=instance_id,
            ownerId=OWNER,
        )
        self._variables: JsonValue = None
        self._places: dict[str, _Place] = {}
        """By token."""
        self._stays: dict[str, int] = {}
        """How many each token had."""
        self._tokens: dict[str, str] = {}
        """Of each activity that runs."""
        self._subscriptions: dict[str, tuple[str, str]] = {}
        """Name and node of each message that is waited for."""
        self.has_ended = False

    def read(self, step: HistoryStep) -> Sequence[Notification]:
        self.version = step.version
        return [found for index, fact in enumerate(step.facts) for found in self._read(fact, step.facts[index:])]

    def _read(self, fact: f.Fact, following: Sequence[f.Fact]) -> Iterator[Notification]:
        match fact:
            case f.InstanceStarted():
                self._variables = fact.variables
                yield self._of_instance("OnProcessStarting")
                yield self._of_instance("OnProcessStarted")
            case f.InstanceCompleted():
                yield self._end("OnProcessFinished")
            case f.InstanceCancelled():
                yield self._end("OnProcessTerminated")
            case f.InstanceFailed():
                yield self._end("OnProcessError", error=error_view(fact.message, fact.code))
            case f.IncidentOpened():
                yield from self._incident(fact)
            case f.TokenEntered():
                yield from self._enter(fact)
            case f.TokenEnded():
                yield from self._leave(fact.token_id)
                self._places.pop(fact.token_id, None)
                self._stays.pop(fact.token_id, None)
            case f.PayloadSet():
                self._places[fact.token_id].token = fact.payload
            case _:
                yield from self._read_activity(fact, following)

    def _read_activity(self, fact: f.Fact, following: Sequence[f.Fact]) -> Iterator[Notification]:
        match fact:
            case f.ActivityStarted():
                self._tokens[fact.activity_id] = fact.token_id
                self._places[fact.token_id].flow_node_instance_id = fact.activity_id
                yield from self._of_activity(fact.activity_id, "activity_reached", "intermediate_catch_event_reached")
            case f.ActivityCompleted():
                yield from self._of_activity(fact.activity_id, "activity_finished", "intermediate_catch_event_finished")
                self._tokens.pop(fact.activity_id, None)
            case f.ActivityCancelled():
                yield from self._of_activity(fact.activity_id, "activity_canceled", None)
                self._tokens.pop(fact.activity_id, None)
            case f.ActivityFailed():
                self._tokens.pop(fact.activity_id, None)
            case f.TaskCreated():
                told = {"externalTaskId": fact.task_id, "topic": fact.topic, "isSingleTry": fact.single_try}
                yield self._at(self._tokens[fact.activity_id], "external_task_created", **told)
            case f.SubscriptionOpened():
                self._subscriptions[fact.subscription_id] = fact.name, fact.node_id
            case f.MessageCorrelated():
                yield from self._message(fact)
            case _:
                yield from self._read_user_task(fact, following)

    def _read_user_task(self, fact: f.Fact, following: Sequence[f.Fact]) -> Iterator[Notification]:
        match fact:
            case f.UserTaskCreated():
                yield from self._for_people(fact.user_task_id, "waiting")
            case f.UserTaskCompleted():
                yield from self._for_people(fact.user_task_id, "finished", userTaskResult=_result_in(following))
            case f.UserTaskAssigned():
                what = "reserved" if fact.assignee is not None else "reservation_canceled"
                yield from self._for_people(fact.user_task_id, what, actualOwnerId=fact.assignee)
            case _:
                return

    # --- tokens

    def _enter(self, fact: f.TokenEntered) -> Iterator[Notification]:
        parent = self._places.get(fact.from_token or fact.token_id)
        yield from self._leave(fact.token_id)
        index = self._stays.get(fact.token_id, 0)
        self._stays[fact.token_id] = index + 1
        token = self._variables if parent is None else parent.token
        self._places[fact.token_id] = _Place(fact.node_id, place_id(fact.token_id, index), token)
        match self._process.nodes[fact.node_id]:
            case Gateway():
                yield self._at(fact.token_id, "OnGatewayReached")
            case Event(where=EventPosition.THROW):
                yield self._at(fact.token_id, "intermediate_throw_event_triggered")
            case Event(where=EventPosition.BOUNDARY):
                yield self._at(fact.token_id, "boundary_event_triggered")
            case _:
                return

    def _leave(self, token_id: str) -> Iterator[Notification]:
        place = self._places.get(token_id)
        if place is None:
            return
        match self._process.nodes[place.node_id]:
            case Gateway():
                yield self._at(token_id, "OnGatewayFinished")
            case Event(where=EventPosition.START):
                yield self._at(token_id, "start_event_finished")
            case Event(where=EventPosition.END):
                yield self._at(token_id, "end_event_finished")
            case Event(where=EventPosition.BOUNDARY):
                yield self._at(token_id, "boundary_event_finished")
            case _:
                return

    # --- what is told

    def _incident(self, fact: f.IncidentOpened) -> Iterator[Notification]:
        error = error_view(fact.message, fact.kind)
        if fact.token_id is not None and fact.token_id in self._places:
            yield self._at(fact.token_id, "OnActivityError", error=error)
        yield self._of_instance("OnProcessError", error=error)

    def _of_activity(self, activity_id: str, activity_name: str, event_name: str | None) -> Iterator[Notification]:
        token_id = self._tokens.get(activity_id)
        if token_id is None:
            return
        match self._process.nodes[self._places[token_id].node_id]:
            case Activity():
                yield self._at(token_id, activity_name)
            case Event(where=EventPosition.CATCH) if event_name is not None:
                yield self._at(token_id, event_name)
            case _:
                return

    def _for_people(self, activity_id: str, what: str, **told: object) -> Iterator[Notification]:
        token_id = self._tokens[activity_id]
        node = self._process.nodes[self._places[token_id].node_id]
        kinds = _FOR_PEOPLE.get(node.kind, ()) if isinstance(node, Task) else ()
        for kind in kinds:
            yield self._at(token_id, f"{kind}_{what}", **told)

    def _message(self, fact: f.MessageCorrelated) -> Iterator[Notification]:
        name, node_id = self._subscriptions[fact.subscription_id]
        node = self._process.nodes[node_id]
        yield self._of_instance("message_triggered", eventName=name, messageReference=name, **_about_node(node))

    def _at(self, token_id: str, name: str, **told: object) -> Notification:
        place = self._places[token_id]
        where = _about_node(self._process.nodes[place.node_id])
        where["flowNodeInstanceId"] = place.flow_node_instance_id
        return self._notification(name, currentToken=place.token, **where, **told)

    def _of_instance(self, name: str, **told: object) -> Notification:
        return self._notification(name, currentToken=self._variables, **told)

    def _end(self, name: str, **told: object) -> Notification:
        self.has_ended = True
        return self._of_instance(name, **told)

    def _notification(self, name: str, **told: object) -> Notification:
        return Notification(name, self._process.key, {**self._about, **given(**told)})


def _about_node(node: FlowNode) -> dict[str, object]:
    return given(
        flowNodeId=node.id,
        flowNodeName=node.name or "",
        flowNodeType=flow_node_type_of(node),
        eventType=event_type_of(node),
    )


def _result_in(facts: Sequence[f.Fact]) -> JsonValue:
    """What a person brought stands right behind the completion."""
    for fact in facts[1:2]:
        if isinstance(fact, f.PayloadSet):
            return fact.payload
        if isinstance(fact, f.VariablesSet | f.ScopeOpened):
            return fact.variables
    return {}
