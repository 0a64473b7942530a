"""Incidents: what waits for an operator, and trying again, one by one or many at once."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from stellwerk.actors.incidents import IncidentFilter, RetriedIncidents
from stellwerk.errors import InvalidInput, LimitExceeded
from stellwerk.ports import Scope
from stellwerk.server.http import requests, shapes, views
from stellwerk.server.http.about import about
from stellwerk.server.http.answers import answer
from stellwerk.server.http.codes import STATE_CODES
from stellwerk.server.http.context import ApiContext, Endpoint, check_limit
from stellwerk.server.http.permissions import check_process, check_unrestricted
from stellwerk.server.http.visibility import check_incident, visible_rows

__all__ = ["IncidentEndpoints"]

_IDS_MAX = 1000


class IncidentEndpoints:
    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._node = context.node

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        return (
            Endpoint("GET", "/incidents", self.incidents, Scope.CLIENT),
            Endpoint("POST", "/incidents/retry", self.retry, Scope.OPERATOR),
            Endpoint("POST", "/incidents/{incident_id}/resolve", self.resolve, Scope.OPERATOR),
        )

    @about("Open incidents", shapes.Incidents, query=requests.IncidentsQuery)
    async def incidents(self, request: Request) -> Response:
        query = self._context.page_query(request, requests.IncidentsQuery)
        found = await self._node.incidents(
            query.instance_id, process_key=query.process, kind=query.kind, limit=query.limit + 1, after=query.after
        )
        seen = await visible_rows(request, self._node, found[: query.limit])
        more = len(found) > query.limit
        return await self._context.answer_rows("incidents", seen, views.mapping_view, more=more)

    @about("Try again", shapes.Done, body=requests.ResolveRequest, codes=STATE_CODES)
    async def resolve(self, request: Request) -> Response:
        body = await self._context.payload(request, requests.ResolveRequest)
        _check_retries(body.retries)
        incident_id = request.path_params["incident_id"]
        await check_incident(request, self._node, incident_id)
        await self._node.resolve_incident(incident_id, body.retries)
        return answer({})

    @about("Resolve many", shapes.RetriedIncidents, body=requests.RetryRequest)
    async def retry(self, request: Request) -> Response:
        """The answer says what is re-queued, not solved: whether it goes well this time is seen later (fault 87)."""
        body = await self._context.payload(request, requests.RetryRequest)
        _check_retries(body.retries)
        check_limit(body.limit, "$.limit")
        wanted = _filter_of(body)
        if body.process is None:
            check_unrestricted(request, "incidents of all processes: name a process")
        else:
            check_process(request, body.process)
        retried = await self._node.retry_incidents(wanted, retries=body.retries, limit=body.limit, after=body.after)
        return answer(await self._retried_view(retried))

    async def _retried_view(self, retried: RetriedIncidents) -> dict[str, object]:
        return {
            "requeued": retried.requeued,
            "refused": [
                {"incident_id": refused.incident_id, "code": refused.error.code, "message": refused.error.message}
                for refused in retried.refused
            ],
            "unattended_topics": await self._node.unattended(retried.topics),
            "last": retried.last,
            "more": retried.more,
        }


def _check_retries(retries: int | None) -> None:
    if retries is not None and retries < 1:
        raise InvalidInput("at least 1 @ $.retries")


def _filter_of(body: requests.RetryRequest) -> IncidentFilter:
    """:raises InvalidInput: what is to be retried is not said, or said twice; LimitExceeded: too many ids."""
    if body.incident_ids is not None and len(body.incident_ids) > _IDS_MAX:
        raise LimitExceeded(f"{len(body.incident_ids)} ids, at most {_IDS_MAX} are allowed @ $.incident_ids")
    conditions = (body.incident_ids, body.instance_id, body.process, body.element_id, body.kind, body.topic)
    is_filtered = any(condition is not None for condition in (*conditions, body.opened_before))
    if not is_filtered and not body.all:
        raise InvalidInput("say which: a condition such as process or kind, or all @ $")
    return IncidentFilter(
        incident_ids=body.incident_ids,
        instance_id=body.instance_id,
        process_key=body.process,
        element_id=body.element_id,
        kind=body.kind,
        topic=body.topic,
        opened_before_ms=body.opened_before,
    )
