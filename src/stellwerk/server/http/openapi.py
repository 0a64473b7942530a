"""The native API for programs: an OpenAPI 3.1 document, made from the tables of endpoints and the classes they name.

``python -m stellwerk.server.http.documents docs`` writes it to ``_static/openapi.json`` in the folder ``docs``; an
engine serves it at ``/api/v1/openapi.json``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from stellwerk.json_values import JsonObject
from stellwerk.ports import Scope
from stellwerk.server.http.about import About, about_of
from stellwerk.server.http.answers import PROBLEM_TYPE
from stellwerk.server.http.codes import CODES
from stellwerk.server.http.context import Endpoint
from stellwerk.server.http.schemas import Schemas
from stellwerk.server.http.shapes import Problem

__all__ = ["openapi_document"]

_PATH_PARAMETER = re.compile(r"{(\w+)(?::path)?}")
_EVERYWHERE = ("invalid", "internal", "unavailable", "overloaded")
_DESCRIPTION = (
    "Start and look at process instances, work on external tasks, operate an engine. Durations (`…_ms`) are "
    "milliseconds, instants RFC 3339 text in UTC. Integers have no decimal point, texts no NUL character. Unknown "
    "fields and parameters are refused. Answers may get more fields. As long as an engine has no API key and no issuer "
    "of tokens, it needs no credential, and only its own machine can connect."
)
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
    return _Document(endpoints).whole


class _Document:
    def __init__(self, endpoints: Mapping[str, Sequence[Endpoint]]) -> None:
        self._schemas = Schemas("#/components/schemas/")
        self._responses: JsonObject = {}
        self._paths: dict[str, JsonObject] = {}
        self._names: set[str] = set()
        for prefix, table in endpoints.items():
            for endpoint in table:
                about = about_of(endpoint.run)
                if about is not None:
                    path = prefix + _PATH_PARAMETER.sub(r"{\1}", endpoint.path)
                    self._paths.setdefault(path, {})[endpoint.method.lower()] = self._operation(endpoint, about)

    @property
    def whole(self) -> JsonObject:
        return {
            "openapi": "3.1.0",
            "info": {
                "title": "stellwerk",
                "version": "1.0.0",
                "description": _DESCRIPTION,
                "license": {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
            },
            "servers": [{"url": "/", "description": "The engine that serves this document."}],
            "paths": dict(self._paths),
            "components": {
                "schemas": self._schemas.components,
                "responses": dict(sorted(self._responses.items())),
                "securitySchemes": dict(_SECURITY),
            },
        }

    def _operation(self, endpoint: Endpoint, about: About) -> JsonObject:
        operation: JsonObject = {"operationId": self._name(endpoint), "summary": about.summary}
        if endpoint.scope is not None:
            operation["description"] = f"Needs the scope `{endpoint.scope}`."
        operation["security"] = _security(endpoint.scope)
        parameters = [*_path_parameters(endpoint), *self._schemas.parameters(about.query)]
        if about.has_idempotency_key:
            parameters.append(_IDEMPOTENCY_KEY)
        if parameters:
            operation["parameters"] = parameters
        if about.body is not None:
            content = {"application/json": {"schema": self._schemas.request(about.body)}}
            # No body at all counts as an empty object.
            operation["requestBody"] = {"required": self._schemas.has_required(about.body), "content": content}
        operation["responses"] = {**self._answers(about), **self._errors(endpoint, about)}
        return operation

    def _name(self, endpoint: Endpoint) -> str:
        name = endpoint.run.__name__
        if name in self._names:
            name = f"{name}_by_{endpoint.method.lower()}"
        self._names.add(name)
        return name

    def _answers(self, about: About) -> JsonObject:
        schema: JsonObject = {"type": "string"} if about.content_type.startswith("text/") else {}
        if about.answer is not None:
            schema = self._schemas.answer(about.answer)
        answer: JsonObject = {"description": "Done." if about.status == 200 else "Made, and durable."}
        if about.headers:
            answer["headers"] = _headers(about.headers)
        return {str(about.status): {**answer, "content": {about.content_type: {"schema": schema}}}}

    def _errors(self, endpoint: Endpoint, about: About) -> JsonObject:
        if about.plain_errors:
            content = {about.content_type: {"schema": {"type": "string"}}}
            return {
                str(status): {"description": text, "content": content} for status, text in about.plain_errors.items()
            }
        codes = sorted({*_codes_of(endpoint, about)}, key=_status_of)
        return {str(status): self._error(status, sorted(group)) for status, group in groupby(codes, key=_status_of)}

    def _error(self, status: int, codes: Sequence[str]) -> JsonObject:
        name = f"{status}_{'_or_'.join(codes)}"
        if name not in self._responses:
            code: JsonObject = {"properties": {"code": {"enum": list(codes)}}}
            schema: JsonObject = {"allOf": [self._schemas.answer(Problem), code]}
            answer: JsonObject = {"description": "; ".join(f"`{code}`: {CODES[code].text}" for code in codes) + "."}
            if status in _ERROR_HEADERS:
                answer["headers"] = _headers(_ERROR_HEADERS[status])
            self._responses[name] = {**answer, "content": {PROBLEM_TYPE: {"schema": schema}}}
        return {"$ref": f"#/components/responses/{name}"}


def _path_parameters(endpoint: Endpoint) -> Iterator[JsonObject]:
    for name in _PATH_PARAMETER.findall(endpoint.path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _security(scope: Scope | None) -> list[JsonObject]:
    """Any one of them."""
    return [] if scope is None else [{scheme: [scope.value]} for scheme in _SECURITY]


def _headers(texts: Mapping[str, str]) -> JsonObject:
    return {name: {"description": text, "schema": {"type": "string"}} for name, text in texts.items()}


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
