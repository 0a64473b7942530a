"""``/message``: correlating. Camunda answers when the message has reached somebody, and refuses it when it cannot."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from stellwerk.actors.views import MessageStatus
from stellwerk.core.facts import MessageCorrelated
from stellwerk.errors import Conflict, InvalidInput, NotServed
from stellwerk.ids import derived_id
from stellwerk.ports import InstanceFilter, InstanceSummary, Scope
from stellwerk.server.camunda.reading import payload
from stellwerk.server.camunda.shapes import MessageRequest
from stellwerk.server.camunda.typed_values import kept_value, kept_variables, typed_variables
from stellwerk.server.camunda.views import execution_view, instance_view, self_link
from stellwerk.server.http.answers import answer
from stellwerk.server.http.context import ApiContext, Endpoint, check_lengths
from stellwerk.server.http.permissions import check_process, check_unrestricted

__all__ = ["MessageEndpoints"]

_LOOK_AGAIN_SECONDS = 0.01
_UNDER_WAY_SECONDS_MAX = 2.0
_INSTANCES_MAX = 100
"""Among so many with one business key the one is looked for that a message has reached."""
_RESULT_STEPS_MAX = 10


class MessageEndpoints:
    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._node = context.node

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        return (Endpoint("POST", "/message", self.correlate, Scope.CLIENT),)

    async def correlate(self, request: Request) -> Response:
        """The message is for who waits now. After a second at most it is known whether it has reached anybody."""
        body = await payload(self._context, request, MessageRequest)
        _check_served(body)
        check_lengths(messageName=body.message_name, businessKey=body.business_key)
        if body.process_instance_id is not None:
            summary = await self._node.wait_for_end(body.process_instance_id, timeout_seconds=0)
            check_process(request, summary.process_key)
        else:
            check_unrestricted(request, "a message to whoever waits for it")
        key = _key_of(body)
        variables = kept_variables(body.process_variables, "$.processVariables")
        message_id = await self._node.publish_message(
            body.message_name, key, variables, ttl_ms=0, instance_id=body.process_instance_id
        )
        if not await self._is_correlated(message_id):
            raise Conflict(f"Cannot correlate message '{body.message_name}': nothing waits for it with key '{key}'")
        if not body.result_enabled:
            return Response(status_code=204)
        return answer([await self._result(message_id, body, key)])

    async def _is_correlated(self, message_id: str) -> bool:
        """Until it has reached somebody, or cannot any more. Who was to get it when its time ended may be about to."""
        clock = self._node.ports.clock
        awaited_until = clock.monotonic()
        while (view := await self._node.message(message_id)).status is not MessageStatus.CORRELATED:
            now = clock.monotonic()
            if view.is_awaited:
                awaited_until = now + _UNDER_WAY_SECONDS_MAX
            if view.status is not MessageStatus.WAITING and now >= awaited_until:
                return False
            await clock.sleep(_LOOK_AGAIN_SECONDS)
        return True

    # --- whom it has reached -----------------------------------------------------------------------------------------

    async def _result(self, message_id: str, body: MessageRequest, key: str) -> dict[str, object]:
        started = await self._started_by(message_id, body.message_name)
        if started is not None:
            instance = {
                "links": [self_link("GET", f"/process-instance/{started.instance_id}")],
                **instance_view(started),
            }
            result: dict[str, object] = {
                "resultType": "ProcessDefinition",
                "execution": None,
                "processInstance": instance,
            }
            reached: str | None = started.instance_id
        else:
            reached = body.process_instance_id or await self._reached_by(message_id, key)
            result = {"resultType": "Execution", "execution": execution_view(reached), "processInstance": None}
        if body.variables_in_result_enabled and reached is not None:
            outcome = await self._node.outcome(reached)
            result["variables"] = typed_variables(outcome.variables, deserialized=False)
        return result

    async def _started_by(self, message_id: str, name: str) -> InstanceSummary | None:
        """The id of such an instance follows from the message's."""
        for row in await self._node.definitions():
            if name in row.start_messages:
                instance_id = derived_id("message", message_id, row.definition_id)
                summary = await self._node.ports.store.instance(instance_id)
                if summary is not None:
                    return summary
        return None

    async def _reached_by(self, message_id: str, key: str) -> str | None:
        """Where files have no correlation keys of their own, the key is the business key. None: it was another one."""
        found = await self._node.instances(InstanceFilter(business_key=key), limit=_INSTANCES_MAX)
        for summary in found:
            steps = await self._node.ports.store.history(
                summary.instance_id, after=max(0, summary.version - _RESULT_STEPS_MAX)
            )
            facts = (fact for step in steps for fact in step.facts)
            if any(isinstance(fact, MessageCorrelated) and fact.message_id == message_id for fact in facts):
                return summary.instance_id
        return None


def _check_served(body: MessageRequest) -> None:
    """:raises NotServed: something is asked for that would find other executions than here."""
    if body.all:
        raise NotServed("a message is for one instance here @ $.all")
    if body.tenant_id is not None:
        raise NotServed("there are no tenants here @ $.tenantId")
    if body.local_correlation_keys:
        raise NotServed("there are no local correlation keys here @ $.localCorrelationKeys")
    if body.process_variables_local:
        raise NotServed("a message sets variables of the instance @ $.processVariablesLocal")


def _key_of(body: MessageRequest) -> str:
    """What the message is correlated by: the business key, or the value of the only correlation key.

    :raises NotServed: there are several; InvalidInput: it is neither text nor number.
    """
    keys = body.correlation_keys or {}
    if not keys:
        return body.business_key or ""
    if len(keys) > 1 or body.business_key is not None:
        raise NotServed("a message has one key here: businessKey, or one of correlationKeys @ $.correlationKeys")
    ((name, typed),) = keys.items()
    value = kept_value(typed, f"$.correlationKeys.{name}")
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InvalidInput(f"a text or a whole number is expected @ $.correlationKeys.{name}")
    return str(value)
