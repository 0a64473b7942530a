"""Process instances: starting, waiting for an end event, finding, ending, retrying."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import trio
from starlette.requests import Request
from starlette.responses import Response

from stellwerk.actors.end_events import end_events
from stellwerk.actors.incidents import IncidentFilter
from stellwerk.core import facts as f
from stellwerk.errors import Conflict, InvalidInput, NotFound, NotServed, StellwerkError, StoreUnavailable
from stellwerk.instants import to_rfc3339
from stellwerk.model.process import Dialect
from stellwerk.ports import HistoryStep, InstanceSummary, Scope
from stellwerk.server.http.answers import answer, encoded
from stellwerk.server.http.context import ApiContext, Endpoint, check_lengths, identity_of
from stellwerk.server.http.endpoints.definitions import split_definition_id
from stellwerk.server.http.naming import named
from stellwerk.server.http.permissions import check_definition, check_process
from stellwerk.server.processcube import shapes
from stellwerk.server.processcube.catalogue import Catalogue
from stellwerk.server.processcube.errors import InstanceNotFinished, answer_error
from stellwerk.server.processcube.flow_node_reading import start_variables
from stellwerk.server.processcube.flow_node_views import error_view
from stellwerk.server.processcube.instance_search import InstanceSearch
from stellwerk.server.processcube.requests import body_of, no_content, object_of, page_of, query_of, skip_body
from stellwerk.server.processcube.views import OWNER, correlation_of, given

__all__ = ["InstanceEndpoints"]

_PATH = "/process_instances"
_ON_CREATED, _ON_FIRST_END_EVENT, _ON_END_EVENT = 1, 2, 3
_WAIT_SECONDS_MAX = 24 * 3_600.0
"""The clients wait for ever; whoever is still there then has to ask again."""
_DETAILED_MAX = 20
"""So many instances in one answer are shown with their tokens, for which their histories are read."""


class InstanceEndpoints:
    def __init__(self, context: ApiContext, catalogue: Catalogue, search: InstanceSearch) -> None:
        self._context = context
        self._node = context.node
        self._catalogue = catalogue
        self._search = search

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        return (
            Endpoint("POST", "/process_models/{model_id}/start", self.start, Scope.CLIENT),
            Endpoint("GET", _PATH + "/query", self.query, Scope.CLIENT),
            Endpoint("PUT", _PATH + "/{instance_id}/terminate", self.terminate, Scope.OPERATOR),
            Endpoint("PUT", _PATH + "/{instance_id}/retry", self.retry, Scope.OPERATOR),
        )

    # --- starting

    async def start(self, request: Request) -> Response:
        """Clients that wait for an end event post to the literal path ``:process_model_id``."""
        body = await body_of(self._context, request, shapes.StartRequest)
        model_id = body.process_model_id or request.path_params["model_id"]
        return_on = body.return_on or _ON_CREATED
        if return_on not in (_ON_CREATED, _ON_FIRST_END_EVENT, _ON_END_EVENT):
            raise InvalidInput("expected 1, 2 or 3 @ $.returnOn")
        if return_on == _ON_END_EVENT and not body.end_event_id:
            raise InvalidInput("endEventId is missing: returnOn 3 waits for that one @ $")
        check_lengths(correlationId=body.correlation_id)
        check_definition(request, model_id)
        process_key, version = split_definition_id(model_id)
        if return_on == _ON_END_EVENT:
            # Before anything starts: nobody could ever reach another one.
            end_events((await self._node.definition_cache.latest(process_key, version)).process, body.end_event_id)
        token = object_of(body.initial_token, "$.initialToken")
        with named(process="$.processModelId", business_key="$.correlationId"):
            instance_id = await self._node.start_instance(
                process_key,
                token,
                business_key=body.correlation_id,
                start_event_id=body.start_event_id,
                version=version,
            )
        started: dict[str, object] = {
            "processInstanceId": instance_id,
            "correlationId": correlation_of(body.correlation_id, instance_id),
        }
        if return_on == _ON_CREATED:
            return answer(started)
        end_event_id = body.end_event_id if return_on == _ON_END_EVENT else None
        try:
            return answer(started | await self._end_event(request, instance_id, end_event_id))
        except InstanceNotFinished as error:
            return answer_error(error, request)

    async def _end_event(self, request: Request, instance_id: str, end_event_id: str | None) -> dict[str, object]:
        """:raises InstanceNotFinished: it ended otherwise, or stands at an incident."""
        waiting = partial(self._reached, instance_id, end_event_id)
        reached = await self._context.unless_gone(request, waiting)
        if reached is None:
            raise StoreUnavailable("the engine is about to stop; the instance goes on")
        return reached

    async def _reached(self, instance_id: str, end_event_id: str | None) -> dict[str, object]:
        """An open incident ends the wait too: in this dialect the instance is in error then."""
        errors: list[StellwerkError] = []

        async def wait_for(event: Callable[[], Awaitable[object]]) -> None:
            try:
                await event()
            except StellwerkError as error:
                errors.append(error)
            nursery.cancel_scope.cancel()

        end_event = partial(self._node.wait_for_end_event, instance_id, end_event_id)
        trouble = partial(self._node.wait_for_end, instance_id, or_incident=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for, partial(end_event, timeout_seconds=_WAIT_SECONDS_MAX))
            nursery.start_soon(wait_for, partial(trouble, timeout_seconds=_WAIT_SECONDS_MAX))
        if errors:
            raise errors[0]
        reached = await self._end_so_far(instance_id, end_event_id)
        if reached is None:
            raise await self._why_not(instance_id, end_event_id)
        return reached

    async def _end_so_far(self, instance_id: str, end_event_id: str | None = None) -> dict[str, object] | None:
        reached = await self._node.wait_for_end_event(instance_id, end_event_id, timeout_seconds=0)
        if reached is None or reached.element_id is None:
            return None
        process = (await self._catalogue.deployed(reached.summary.definition_id)).process
        token = reached.payload if process.dialect is Dialect.PROCESSCUBE else reached.variables
        return {"endEventId": reached.element_id, "tokenPayload": token}

    async def _why_not(self, instance_id: str, end_event_id: str | None) -> StellwerkError:
        outcome = await self._node.outcome(instance_id)
        reasons = [str(row["message"]) for row in outcome.incidents]
        why = outcome.reason or "; ".join(reasons) or outcome.summary.status
        wanted = "an end event" if end_event_id is None else f'end event "{end_event_id}"'
        return InstanceNotFinished(f"instance {instance_id} did not reach {wanted}: {why}")

    # --- finding

    async def query(self, request: Request) -> Response:
        query = query_of(request, shapes.InstancesQuery)
        rows = await self._search.find(request, query)
        offset, limit = page_of(query)
        page = rows[offset : offset + limit]
        states = await self._search.states(page)
        found = [await self._view(row, states[row.instance_id], is_detailed=len(page) <= _DETAILED_MAX) for row in page]
        text = partial(encoded, {"processInstances": found, "totalCount": len(rows)})
        return await self._context.answer_long(text, len(found))

    async def _view(self, row: InstanceSummary, state: str, *, is_detailed: bool) -> dict[str, object]:
        deployed = await self._catalogue.deployed(row.definition_id)
        steps = await self._node.ports.store.history(row.instance_id, limit=1) if is_detailed else ()
        ended = await self._end_so_far(row.instance_id) if is_detailed and row.status == "COMPLETED" else None
        return given(
            correlationId=correlation_of(row.business_key, row.instance_id),
            processInstanceId=row.instance_id,
            processDefinitionId=row.definition_id,
            processModelId=row.process_key,
            processModelName=deployed.process.name,
            processModelVersion=deployed.process.version_tag,
            hash=deployed.row.digest,
            state=state,
            error=await self._error(row) if state == "error" else None,
            ownerId=OWNER,
            startedByRootAccessToken=False,
            createdAt=to_rfc3339(row.started_at_ms),
            finishedAt=None if row.ended_at_ms is None else to_rfc3339(row.ended_at_ms),
            durationInMilliseconds=None if row.ended_at_ms is None else row.ended_at_ms - row.started_at_ms,
            startEventId=_start_event(steps),
            startToken=start_variables(steps),
            metadata={},
            endEventId=None if ended is None else ended["endEventId"],
            endToken=None if ended is None else ended["tokenPayload"],
        )

    async def _error(self, row: InstanceSummary) -> dict[str, object]:
        if row.status == "RUNNING":
            for incident in await self._node.incidents(row.instance_id, limit=1):
                return error_view(str(incident["message"]), str(incident["kind"]))
        outcome = await self._node.outcome(row.instance_id)
        return error_view(outcome.reason or "failed")

    # --- operating

    async def terminate(self, request: Request) -> Response:
        await skip_body(self._context, request)
        await self._summary(request)
        reason = f"terminated by {identity_of(request).name}"
        await self._node.cancel_instance(request.path_params["instance_id"], reason)
        return no_content()

    async def retry(self, request: Request) -> Response:
        """Every open incident of the instance is resolved: each goes on from where it stands."""
        query = query_of(request, shapes.RetryQuery)
        await skip_body(self._context, request)
        row = await self._summary(request)
        if query.flow_node_instance_id is not None or query.update_process_model:
            raise NotServed("an instance is retried where it stands, in the version of its model that it has")
        retried = await self._node.retry_incidents(IncidentFilter(instance_id=row.instance_id))
        if not retried.requeued:
            raise Conflict(f"instance {row.instance_id} has nothing to retry: it is {row.status}, without an incident")
        return no_content()

    async def _summary(self, request: Request) -> InstanceSummary:
        """:raises NotFound: there is no such instance; Forbidden: it is of another's process."""
        instance_id = request.path_params["instance_id"]
        row = await self._node.ports.store.instance(instance_id)
        if row is None:
            raise NotFound(f"there is no instance {instance_id}")
        check_process(request, row.process_key)
        return row


def _start_event(steps: Sequence[HistoryStep]) -> str | None:
    for fact in steps[0].facts if steps else ():
        if isinstance(fact, f.InstanceStarted):
            return fact.start_event_id
    return None
