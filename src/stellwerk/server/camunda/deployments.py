"""Deploying, and what is deployed: ``/deployment/create`` and ``/process-definition``."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Sequence
from functools import partial

import attrs
from starlette.requests import Request
from starlette.responses import Response

from stellwerk.errors import InvalidInput, NotServed
from stellwerk.ids import derived_id
from stellwerk.ports import DefinitionRow, Scope
from stellwerk.server.camunda.forms import FormPart, read_form
from stellwerk.server.camunda.reading import ROWS_MAX, kept, list_query, payload, sliced
from stellwerk.server.camunda.shapes import ProcessDefinitionsQuery, StartRequest
from stellwerk.server.camunda.typed_values import date_text, typed_variables
from stellwerk.server.camunda.views import definition_view, instance_view, self_link
from stellwerk.server.http.answers import answer
from stellwerk.server.http.context import ApiContext, Endpoint, check_lengths
from stellwerk.server.http.endpoints.definitions import split_definition_id
from stellwerk.server.http.foreign_texts import check_name
from stellwerk.server.http.naming import named
from stellwerk.server.http.permissions import check_definition, check_process, may_see_definition
from stellwerk.server.http.visibility import check_files

__all__ = ["DeploymentEndpoints"]

_FORM_BYTES_MAX = 64 * 1024
"""What a form may hold beside its files."""
_MODELS = (".bpmn", ".bpmn20.xml")
_BY_ID = "/process-definition/{definition_id}"
_BY_KEY = "/process-definition/key/{key}"
_DECLARED_ENCODING = re.compile(rb"""<\?xml[^>]{0,200}?\sencoding\s*=\s*["']([A-Za-z0-9._-]{1,40})["']""")
_MARKS_OF_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_SORTABLE = {"id": "id", "key": "key", "name": "name", "version": "version"}


class DeploymentEndpoints:
    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._node = context.node

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        return (
            Endpoint("POST", "/deployment/create", self.deploy, Scope.OPERATOR),
            Endpoint("GET", "/process-definition", self.definitions, Scope.CLIENT),
            Endpoint("GET", "/process-definition/count", self.count, Scope.CLIENT),
            Endpoint("GET", _BY_ID, self.definition, Scope.CLIENT),
            Endpoint("GET", _BY_KEY, self.definition, Scope.CLIENT),
            Endpoint("GET", f"{_BY_ID}/xml", self.xml, Scope.CLIENT),
            Endpoint("GET", f"{_BY_KEY}/xml", self.xml, Scope.CLIENT),
            Endpoint("POST", f"{_BY_ID}/start", self.start, Scope.CLIENT),
            Endpoint("POST", f"{_BY_KEY}/start", self.start, Scope.CLIENT),
            Endpoint("DELETE", _BY_ID, self.delete, Scope.OPERATOR),
        )

    # --- deploying ---------------------------------------------------------------------------------------------------

    async def deploy(self, request: Request) -> Response:
        """All files or none. What has not changed is not deployed again, whether the client asks for that or not."""
        body = await self._context.raw_body(request, self._context.deployment_bytes_max + _FORM_BYTES_MAX)
        read = partial(read_form, body, request.headers.get("content-type"))
        form = _form_of(await self._node.ports.background.run_sync(read))
        await check_files(request, self._node, form.models)
        deployment = await self._node.deploy(form.models)
        left_out = deployment.unchanged if form.only_changes else ()
        return answer(self._deployment_view(form, [row for row in deployment.definitions if row.key not in left_out]))

    def _deployment_view(self, form: _DeploymentForm, definitions: Sequence[DefinitionRow]) -> dict[str, object]:
        deployment_id = derived_id("deployment", *[row.definition_id for row in definitions])
        deployed = {row.definition_id: {**definition_view(row), "deploymentId": deployment_id} for row in definitions}
        return {
            "links": [self_link("GET", f"/deployment/{deployment_id}")],
            "id": deployment_id,
            "name": form.name,
            "source": form.source,
            "deploymentTime": date_text(self._node.ports.clock.wall_ms()),
            "tenantId": None,
            "deployedProcessDefinitions": deployed or None,
            "deployedCaseDefinitions": None,
            "deployedDecisionDefinitions": None,
            "deployedDecisionRequirementsDefinitions": None,
        }

    # --- what is deployed --------------------------------------------------------------------------------------------

    async def definitions(self, request: Request) -> Response:
        query = list_query(request, ProcessDefinitionsQuery)
        rows = [definition_view(row) for row in await self._found(request, query)]
        return answer(sliced(rows, query, _SORTABLE)[:ROWS_MAX])

    async def count(self, request: Request) -> Response:
        return answer({"count": len(await self._found(request, list_query(request, ProcessDefinitionsQuery)))})

    async def _found(self, request: Request, query: ProcessDefinitionsQuery) -> Sequence[DefinitionRow]:
        rows = [
            row
            for row in await self._node.definitions()
            if may_see_definition(request, row.definition_id) and not query.suspended
        ]
        newest = {row.key: row.version for row in sorted(rows, key=lambda row: row.version)}
        return [
            row for row in rows if _fits(row, query) and (not query.latest_version or newest[row.key] == row.version)
        ]

    async def definition(self, request: Request) -> Response:
        return answer(definition_view(await self._asked(request)))

    async def xml(self, request: Request) -> Response:
        row = await self._asked(request)
        return answer({"id": row.definition_id, "bpmn20Xml": _text_of(row.xml)})

    async def _asked(self, request: Request) -> DefinitionRow:
        """The one that the path names: a version by its id, or the newest by its key."""
        key, version = _named(request)
        check_process(request, key)
        return await self._node.definition(key, version)

    async def delete(self, request: Request) -> Response:
        definition_id = request.path_params["definition_id"]
        check_definition(request, definition_id)
        await self._node.delete_definition(definition_id)
        return Response(status_code=204)

    # --- starting ----------------------------------------------------------------------------------------------------

    async def start(self, request: Request) -> Response:
        body = await payload(self._context, request, StartRequest)
        if body.start_instructions:
            raise NotServed("instances start at their start event: leave this out @ $.startInstructions")
        if body.case_instance_id is not None:
            raise NotServed("there are no cases here: put such an id into businessKey @ $.caseInstanceId")
        check_lengths(businessKey=body.business_key)
        key, version = _named(request)
        check_process(request, key)
        variables = await kept(self._context, body.variables, "$.variables")
        with named(business_key="$.businessKey", process="path.key"):
            instance_id = await self._node.start_instance(
                key, variables, business_key=body.business_key, version=version
            )
        return answer(await self._started_view(instance_id, with_variables=body.with_variables_in_return))

    async def _started_view(self, instance_id: str, *, with_variables: bool) -> dict[str, object]:
        summary = await self._node.wait_for_end(instance_id, timeout_seconds=0)
        view = {"links": [self_link("GET", f"/process-instance/{instance_id}")], **instance_view(summary)}
        if with_variables:
            outcome = await self._node.outcome(instance_id)
            view["variables"] = typed_variables(outcome.variables, deserialized=False)
        return view


@attrs.frozen
class _DeploymentForm:
    name: str | None
    source: str | None
    only_changes: bool
    """Processes that are not changed are left out of the answer as well."""
    models: Sequence[tuple[str, bytes]]


def _form_of(parts: Iterable[FormPart]) -> _DeploymentForm:
    """:raises InvalidInput: there is no file; NotServed: a file that is no BPMN, or a tenant."""
    texts = {part.name: part.text for part in parts if part.file_name is None}
    models = [(part.file_name or part.name, part.content) for part in parts if part.file_name is not None]
    for name, text in texts.items():
        check_name(name, "the form")
        check_name(text, name)
    for name, _ in models:
        check_name(name, "a file name of the form")
    if texts.get("tenant-id"):
        raise NotServed("there are no tenants here: leave this out @ tenant-id")
    if not models:
        raise InvalidInput("No deployment resources contained in the form upload.")
    for name, _ in models:
        if not name.lower().endswith(_MODELS):
            raise NotServed(f"only BPMN files can be deployed ({' or '.join(_MODELS)}): leave {name[:100]} out")
    only_changes = (texts.get("enable-duplicate-filtering"), texts.get("deploy-changed-only"))
    return _DeploymentForm(
        name=texts.get("deployment-name"),
        source=texts.get("deployment-source"),
        only_changes="true" in only_changes,
        models=models,
    )


def _text_of(xml: bytes) -> str:
    """In the encoding that its beginning tells: a mark or the declaration."""
    declared = _DECLARED_ENCODING.match(xml)
    encoding = "utf-16" if xml.startswith(_MARKS_OF_UTF16) else "utf-8" if declared is None else declared[1].decode()
    try:
        return xml.decode(encoding)
    except (LookupError, UnicodeDecodeError):
        return xml.decode(errors="replace")


def _named(request: Request) -> tuple[str, int | None]:
    """Key and version; without a version, the newest."""
    if "key" in request.path_params:
        return request.path_params["key"], None
    return split_definition_id(request.path_params["definition_id"])


def _fits(row: DefinitionRow, query: ProcessDefinitionsQuery) -> bool:
    return (
        query.process_definition_id in (None, row.definition_id)
        and (query.process_definition_id_in is None or row.definition_id in query.process_definition_id_in)
        and query.key in (None, row.key)
        and (query.keys_in is None or row.key in query.keys_in)
        and query.name in (None, row.name)
        and query.version in (None, row.version)
    )
