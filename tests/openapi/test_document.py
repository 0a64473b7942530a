"""The OpenAPI document is valid, complete, up to date, and names the classes that the endpoints read."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from stellwerk.server.http.about import about_of
from stellwerk.server.http.api import documented_endpoints
from stellwerk.server.http.context import Endpoint
from stellwerk.server.http.documents import OPENAPI_FILE, openapi_text
from stellwerk.server.http.openapi import openapi_document
from stellwerk.server.http.requests import NoQuery

DOCS = Path(__file__).parents[2] / "docs"
DOCUMENT: Any = openapi_document(documented_endpoints())
ENDPOINTS = [endpoint for table in documented_endpoints().values() for endpoint in table]
_READ = re.compile(r"self\._context\.(?:body|payload|query|page_query)\(\s*request, (?:requests\.)?(\w+)")
_OWN = re.compile(r"self\.(_\w+)\(request")


def named(endpoint: Endpoint) -> str:
    return f"{endpoint.method} {endpoint.path}"


def test_the_committed_file_is_up_to_date() -> None:
    committed = (DOCS / OPENAPI_FILE).read_text(encoding="utf-8") if (DOCS / OPENAPI_FILE).exists() else None
    assert committed == openapi_text(), "made anew by: python -m stellwerk.server.http.documents docs"


def test_it_is_a_valid_openapi_document() -> None:
    assert list(OpenAPIV31SpecValidator(DOCUMENT).iter_errors()) == []


def test_every_endpoint_is_in_it() -> None:
    undescribed = [named(endpoint) for endpoint in ENDPOINTS if about_of(endpoint.run) is None]
    assert undescribed == ["GET /workers"], "the last is for WebSockets: AsyncAPI describes it"
    operations = [operation for path in DOCUMENT["paths"].values() for operation in path.values()]
    assert len(operations) == len(ENDPOINTS) - 1
    assert len({operation["operationId"] for operation in operations}) == len(operations)


def classes_read(handler: Callable[..., object]) -> Iterator[str]:
    source = inspect.getsource(handler)
    yield from _READ.findall(source)
    for name in _OWN.findall(source):
        yield from classes_read(getattr(getattr(handler, "__self__"), name))  # noqa: B009 — mypy knows no such member


@pytest.mark.parametrize("endpoint", [each for each in ENDPOINTS if about_of(each.run)], ids=named)
def test_it_names_the_classes_that_the_endpoint_reads(endpoint: Endpoint) -> None:
    about = about_of(endpoint.run)
    assert about is not None
    said = {about.query.__name__} if about.body is None else {about.body.__name__}
    read = {*classes_read(endpoint.run)}
    assert read == said or about.content_type.startswith("text/")  # what is for other programs takes any query
    assert about.body is None or about.query is NoQuery


def test_requests_are_described_field_by_field() -> None:
    body = DOCUMENT["components"]["schemas"]["StartRequest"]
    assert body["required"] == ["process_def_id"]
    assert body["additionalProperties"] is False
    assert body["properties"]["request_id"] == {
        "type": ["string", "null"],
        "maxLength": 255,
        "description": "The same one again gives the same instance.",
    }
    found = DOCUMENT["paths"]["/api/v1/process-instances"]["get"]["parameters"]
    parameters = {parameter["name"]: parameter for parameter in found}
    assert parameters["with_incident"]["schema"] == {"type": "boolean"}
    assert parameters["started_from"]["schema"] == {"type": "string", "format": "date-time"}
    assert parameters["limit"]["schema"]["maximum"] == 1000
