"""``/task``: what waits for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from stellwerk.errors import InvalidInput, NotFound
from stellwerk.ids import process_key_of
from stellwerk.json_values import JsonValue
from stellwerk.ports import Identity, Scope, UserTaskFilter
from stellwerk.server.camunda.lists import ListEndpoints
from stellwerk.server.camunda.reading import Row, collected, list_query, payload
from stellwerk.server.camunda.shapes import AssigneeRequest, CompleteUserTaskRequest, UserTasksQuery, ValuesQuery
from stellwerk.server.camunda.typed_values import kept_variables, typed_variables
from stellwerk.server.camunda.views import user_task_view, variables_of
from stellwerk.server.http.answers import answer
from stellwerk.server.http.context import ApiContext, Endpoint, identity_of
from stellwerk.server.http.naming import named
from stellwerk.server.http.permissions import check_definition

__all__ = ["UserTaskEndpoints"]

_PATH = "/task"
_ONE = f"{_PATH}/{{task_id}}"
_SORTABLE = {
    "id": "id",
    "instanceId": "processInstanceId",
    "assignee": "assignee",
    "created": "created",
    "dueDate": "due",
    "name": "name",
}
_Found = tuple[Mapping[str, JsonValue], str]
"""A row, and the definition that it is of."""


class UserTaskEndpoints:
    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._node = context.node

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        return (
            *ListEndpoints(self._context, _PATH, UserTasksQuery, self._rows).endpoints,
            Endpoint("GET", _ONE, self.task, Scope.CLIENT),
            Endpoint("GET", f"{_ONE}/variables", self.variables, Scope.CLIENT),
            Endpoint("POST", f"{_ONE}/complete", self.complete, Scope.CLIENT),
            Endpoint("POST", f"{_ONE}/submit-form", self.complete, Scope.CLIENT),
            Endpoint("POST", f"{_ONE}/claim", self.claim, Scope.CLIENT),
            Endpoint("POST", f"{_ONE}/unclaim", self.unclaim, Scope.CLIENT),
            Endpoint("POST", f"{_ONE}/assignee", self.assign, Scope.CLIENT),
        )

    # --- lists -------------------------------------------------------------------------------------------------------

    async def _rows(self, request: Request, query: UserTasksQuery) -> list[Row]:
        if query.suspended:
            return []
        identity = identity_of(request)

        def view(found: _Found) -> Row | None:
            return user_task_view(*found) if _fits(*found, query, identity) else None

        return await collected(
            [partial(self._read, query.process_instance_id, _conditions(query))],
            lambda found: str(found[0]["user_task_id"]),
            view,
            query,
            _SORTABLE,
        )

    async def _read(
        self, instance_id: str | None, wanted: UserTaskFilter, limit: int, after: str | None
    ) -> Sequence[_Found]:
        rows = await self._node.user_tasks(instance_id, wanted=wanted, limit=limit, after=after)
        definitions: dict[str, str] = {}
        for row in rows:
            owner = str(row["instance_id"])
            if owner not in definitions:
                definitions[owner] = await self._definition_of(owner)
        return [(row, definitions[str(row["instance_id"])]) for row in rows]

    async def _definition_of(self, instance_id: str) -> str:
        return (await self._node.wait_for_end(instance_id, timeout_seconds=0)).definition_id

    # --- one ---------------------------------------------------------------------------------------------------------

    async def task(self, request: Request) -> Response:
        return answer(user_task_view(*await self._found(request)))

    async def variables(self, request: Request) -> Response:
        query = list_query(request, ValuesQuery)
        row, _ = await self._found(request)
        return answer(typed_variables(variables_of(row), deserialized=query.deserialize_values))

    async def complete(self, request: Request) -> Response:
        body = await payload(self._context, request, CompleteUserTaskRequest)
        variables = kept_variables(body.variables, "$.variables")
        row, _ = await self._found(request)
        await self._node.complete_user_task(str(row["user_task_id"]), variables)
        if not body.with_variables_in_return:
            return Response(status_code=204)
        outcome = await self._node.outcome(str(row["instance_id"]))
        return answer(typed_variables(outcome.variables, deserialized=False))

    async def claim(self, request: Request) -> Response:
        """Refused when somebody else has it."""
        body = await payload(self._context, request, AssigneeRequest)
        if not body.user_id:
            raise InvalidInput("userId is missing @ $.userId")
        return await self._assign(request, body.user_id, unless_assigned=True)

    async def unclaim(self, request: Request) -> Response:
        return await self._assign(request, None, unless_assigned=False)

    async def assign(self, request: Request) -> Response:
        body = await payload(self._context, request, AssigneeRequest)
        return await self._assign(request, body.user_id, unless_assigned=False)

    async def _assign(self, request: Request, assignee: str | None, *, unless_assigned: bool) -> Response:
        row, _ = await self._found(request)
        with named(assignee="$.userId"):
            await self._node.assign_user_task(str(row["user_task_id"]), assignee, unless_assigned=unless_assigned)
        return Response(status_code=204)

    async def _found(self, request: Request) -> _Found:
        """The open one that the path names. :raises NotFound: there is none; Forbidden: it is not for the caller."""
        task_id = request.path_params["task_id"]
        row = await self._node.ports.store.user_task(task_id)
        if row is None:
            raise NotFound(f"No matching task with id {task_id}")
        definition_id = await self._definition_of(str(row["instance_id"]))
        check_definition(request, definition_id)
        return row, definition_id


def _conditions(query: UserTasksQuery) -> UserTaskFilter:
    """As Camunda has it, who is a candidate sees what nobody has claimed."""
    is_for_candidates = query.candidate_group is not None or query.candidate_user is not None
    return UserTaskFilter(
        assignee=query.assignee,
        is_assigned=False if query.unassigned or is_for_candidates else True if query.assigned else None,
        candidate_user=query.candidate_user,
        candidate_group=query.candidate_group,
        process_keys=None if query.process_definition_key is None else (query.process_definition_key,),
    )


def _fits(row: Mapping[str, JsonValue], definition_id: str, query: UserTasksQuery, identity: Identity) -> bool:
    """The conditions that the store does not know."""
    return (
        identity.may_see(process_key_of(definition_id))
        and query.task_id in (None, row["user_task_id"])
        and query.process_definition_id in (None, definition_id)
        and query.task_definition_key in (None, row["element_id"])
        and query.name in (None, row["name"])
    )
