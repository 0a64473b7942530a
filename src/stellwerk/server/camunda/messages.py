"""``/message``: correlating. Camunda answers when the message has reached somebody, and refuses it when it cannot."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from stellwerk.errors import Conflict, InvalidInput, NotServed
from stellwerk.ports import Scope
from stellwerk.server.camunda.reading import payload
from stellwerk.server.camunda.shapes import MessageRequest
from stellwerk.server.camunda.typed_values import kept_value, kept_variables, typed_variables
from stellwerk.server.camunda.views import execution_view, instance_view, self_link
from stellwerk.server.http.answers import answer
from stellwerk.server.http.context import ApiContext, Endpoint, check_lengths
from stellwerk.server.http.correlation import Correlation, Receiver
from stellwerk.server.http.naming import named
from stellwerk.server.http.permissions import check_process, check_unrestricted

__all__ = ["MessageEndpoints"]

_KEY_PLACES = {False: "$.businessKey", True: "$.correlationKeys"}
"""By whether there are correlation keys."""


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
            check_lengths(processInstanceId=body.process_instance_id)
            summary = await self._node.wait_for_end(body.process_instance_id, timeout_seconds=0)
            check_process(request, summary.process_key)
        else:
            check_unrestricted(request, "a message to whoever waits for it")
        key = _key_of(body)
        variables = kept_variables(body.process_variables, "$.processVariables")
        key_place = _KEY_PLACES[bool(body.correlation_keys)]
        with Correlation(self._node, body.message_name, key) as correlation:
            with named(name="$.messageName", key=key_place, variables="$.processVariables"):
                message_id = await self._node.publish_message(
                    body.message_name, key, variables, ttl_ms=0, instance_id=body.process_instance_id
                )
            if not await correlation.is_taken(message_id):
                raise Conflict(f"Cannot correlate message '{body.message_name}': nothing waits for it with key '{key}'")
            if not body.result_enabled:
                return Response(status_code=204)
            receiver = await correlation.receiver(message_id, body.process_instance_id)
        return answer([await self._result(receiver, with_variables=body.variables_in_result_enabled)])

    async def _result(self, receiver: Receiver | None, *, with_variables: bool) -> dict[str, object]:
        instance_id = None if receiver is None else receiver.instance_id
        result: dict[str, object]
        if receiver is not None and receiver.has_started:
            summary = await self._node.wait_for_end(receiver.instance_id, timeout_seconds=0)
            links = [self_link("GET", f"/process-instance/{receiver.instance_id}")]
            instance = {"links": links, **instance_view(summary)}
            result = {"resultType": "ProcessDefinition", "execution": None, "processInstance": instance}
        else:
            result = {"resultType": "Execution", "execution": execution_view(instance_id), "processInstance": None}
        if with_variables and instance_id is not None:
            outcome = await self._node.outcome(instance_id)
            result["variables"] = typed_variables(outcome.variables, deserialized=False)
        return result


def _check_served(body: MessageRequest) -> None:
    """:raises NotServed: something is asked for that would find other executions than here."""
    if body.all:
        raise NotServed("a message is for one instance here: send one to each processInstanceId @ $.all")
    if body.tenant_id is not None:
        raise NotServed("there are no tenants here: leave this out @ $.tenantId")
    if body.local_correlation_keys:
        raise NotServed(
            "there are no local correlation keys here: name the businessKey or one of correlationKeys "
            "@ $.localCorrelationKeys"
        )
    if body.process_variables_local:
        raise NotServed("a message sets variables of the instance: send processVariables @ $.processVariablesLocal")


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
