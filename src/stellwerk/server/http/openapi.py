"""The native API for programs: an OpenAPI 3.1 document, made from the tables of endpoints and the classes they name.

``python -m stellwerk.server.http.documents docs`` writes it to ``_static/openapi.json`` in the folder ``docs``; an engine
serves it at ``/api/v1/openapi.json``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from stellwerk.json_values import JsonObject
from stellwerk.ports import Scope
from stellwerk.server.http.about import About
from stellwerk.server.http.answers import PROBLEM_TYPE
from stellwerk.server.http.codes import CODES
from stellwerk.server.http.context import Endpoint
from stellwerk.server.http.schemas import Schemas
from stellwerk.server.http.shapes import Problem

__all__ = ["openapi_document"]

_COMPONENTS = "#/components/schemas/"
_PATH_PARAMETER = re.compile(r"{(\w+)(?::path)?}")
_EVERYWHERE = ("invalid", "internal", "unavailable", "overloaded")
_DESCRIPTION = """\
Start and look at process instances, work on external tasks, operate an engine. Durations (`…_ms`) are milliseconds, instants
RFC 3339 text in UTC. Unknown fields and parameters are refused. Answers may get more fields. As long as an engine has no API
key and no issuer of tokens, it needs no credential, and can be reached from its own machine only."""
_SECURITY: Mapping[str, JsonObject] = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key or a JSON Web Token."},
    "api_key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    "basic": {"type": "http", "scheme": "basic", "description": "The password is an API key; any name."},
}
_ERROR_HEADERS: Mapping[int, Mapping[str, str]] = {
    401: {"WWW-Authenticate": "What kind of credential is wanted."},
    503: {"Retry-After": "Seconds."},
}
_IDEMPOTENCY_KEY: JsonObject = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "The same request again, and only that one, is not done a second time. With or without quotes.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
}


def openapi_document(endpoints: Mapping[str, Sequence[Endpoint]]) -> JsonObject:
    """:param endpoints: by prefix of their paths. Those that say nothing about themselves are left out."""
    schemas = Schemas(_COMPONENTS)
    problem = schemas.answer(Problem)
    paths: dict[str, dict[str, object]] = {}
    names: set[object] = set()
    for path, endpoint, about in _described(endpoints):
        operation = _operation(endpoint, about, schemas, problem)
        if operation["operationId"] in names:
            operation["operationId"] = f"{operation['operationId']}_{endpoint.method.lower()}"
        names.add(operation["operationId"])
        paths.setdefault(path, {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "stellwerk",
            "version": "1.0.0",
            "description": _DESCRIPTION.replace("\n", " "),
            "license": {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
        },
        "servers": [{"url": "/", "description": "The engine that serves this document."}],
        "paths": paths,
        "components": {"schemas": schemas.components, "securitySchemes": dict(_SECURITY)},
    }


def _described(endpoints: Mapping[str, Sequence[Endpoint]]) -> Iterator[tuple[str, Endpoint, About]]:
    for prefix, table in endpoints.items():
        for endpoint in table:
            if endpoint.about is not None:
                yield prefix + _PATH_PARAMETER.sub(r"{\1}", endpoint.path), endpoint, endpoint.about


def _operation(endpoint: Endpoint, about: About, schemas: Schemas, problem: JsonObject) -> JsonObject:
    parameters = [*_path_parameters(endpoint), *schemas.parameters(about.query)]
    if about.has_idempotency_key:
        parameters.append(_IDEMPOTENCY_KEY)
    operation: JsonObject = {"operationId": endpoint.run.__name__, "summary": about.summary}
    if endpoint.scope is not None:
        operation["description"] = f"Needs the scope `{endpoint.scope}`."
    operation["security"] = _security(endpoint.scope)
    if parameters:
        operation["parameters"] = parameters
    if about.body is not None:
        is_required = bool(schemas.request(about.body)) and _has_required(schemas, about.body)
        content = {"application/json": {"schema": schemas.request(about.body)}}
        operation["requestBody"] = {"required": is_required, "content": content}
    operation["responses"] = {**_answers(about, schemas), **_problems(endpoint, about, problem)}
    return operation


def _path_parameters(endpoint: Endpoint) -> Iterator[JsonObject]:
    for name in _PATH_PARAMETER.findall(endpoint.path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _has_required(schemas: Schemas, body: type) -> bool:
    """No body at all counts as an empty object."""
    schema = schemas.components[body.__name__]
    return isinstance(schema, dict) and "required" in schema


def _security(scope: Scope | None) -> list[JsonObject]:
    """Any one of them."""
    return [] if scope is None else [{"bearer": [scope.value]}, {"api_key": [scope.value]}, {"basic": [scope.value]}]


# --- answers -------------------------------------------------------------------------------------------------------


def _answers(about: About, schemas: Schemas) -> JsonObject:
    if about.answer is not None:
        schema = schemas.answer(about.answer)
    elif about.content_type.startswith("text/"):
        schema = {"type": "string"}
    else:
        schema = {}
    answer: JsonObject = {"description": "Done." if about.status == 200 else "Made, and durable."}
    if about.headers:
        answer["headers"] = _headers(about.headers)
    answer["content"] = {about.content_type: {"schema": schema}}
    return {str(about.status): answer}


def _headers(texts: Mapping[str, str]) -> JsonObject:
    return {name: {"description": text, "schema": {"type": "string"}} for name, text in texts.items()}


def _problems(endpoint: Endpoint, about: About, problem: JsonObject) -> JsonObject:
    if about.plain_errors:
        content = {about.content_type: {"schema": {"type": "string"}}}
        return {str(status): {"description": text, "content": content} for status, text in about.plain_errors.items()}
    codes = sorted(set(_codes_of(endpoint, about)), key=_status_of)
    return {str(status): _problem(status, list(group), problem) for status, group in groupby(codes, key=_status_of)}


def _codes_of(endpoint: Endpoint, about: About) -> Iterable[str]:
    yield from _EVERYWHERE
    yield from about.codes
    if endpoint.scope is not None:
        yield from ("unauthenticated", "forbidden")
    if "{" in endpoint.path:
        yield "not_found"
    if about.body is not None:
        yield "too_large"


def _status_of(code: str) -> int:
    return CODES[code].status


def _problem(status: int, codes: Sequence[str], problem: JsonObject) -> JsonObject:
    named = sorted(codes)
    schema: JsonObject = {"allOf": [problem, {"properties": {"code": {"enum": named}}}]}
    answer: JsonObject = {"description": "; ".join(f"`{code}`: {CODES[code].text}" for code in named) + "."}
    if status in _ERROR_HEADERS:
        answer["headers"] = _headers(_ERROR_HEADERS[status])
    return {**answer, "content": {PROBLEM_TYPE: {"schema": schema}}}
