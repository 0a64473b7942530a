"""A live server does what the document says: requests made from it, right and wrong ones, are answered as described."""

from __future__ import annotations

from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from stellwerk.server.http.api import documented_endpoints
from stellwerk.server.http.openapi import openapi_document

EXAMPLES = 10
"""Of right and of wrong requests each, for each endpoint."""
EXAMPLES_OF_SLOW = {"POST /api/v1/messages/correlate": 3}
"""A message that nothing waits for is refused after a second."""
WAITS = {"wait_ms": 600_000, "timeout_ms": 600_000}
SHORT_WAIT_MS = 3
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
DOCUMENT = schemathesis.openapi.from_dict(openapi_document(documented_endpoints()))
DOCUMENT.config.checks.not_a_server_error.expected_statuses = ["2xx", "3xx", "4xx", "501", "503"]
DOCUMENT.config.checks.negative_data_rejection.expected_statuses = ["4xx"]
DOCUMENT.config.generation.update(with_security_parameters=False)
OPERATIONS = {found.ok().label: found.ok() for found in DOCUMENT.get_all_operations() if isinstance(found, Ok)}


def test_every_endpoint_is_asked() -> None:
    assert len(OPERATIONS) == sum(map(len, DOCUMENT.raw_schema["paths"].values()))


@pytest.mark.parametrize("label", list(OPERATIONS))
def test_a_request_as_the_document_describes_it_is_answered_as_it_says(live: Any, label: str) -> None:
    ask_many(live, OPERATIONS[label], GenerationMode.POSITIVE)


@pytest.mark.parametrize("label", [label for label, found in OPERATIONS.items() if found.body or found.query])
def test_a_request_that_the_document_does_not_allow_is_refused(live: Any, label: str) -> None:
    ask_many(live, OPERATIONS[label], GenerationMode.NEGATIVE)


def ask_many(live: Any, operation: Any, mode: GenerationMode) -> None:
    session = requests.Session()
    headers = {"Authorization": f"Bearer {live.token}"}
    cases = operation.as_strategy(generation_mode=mode)

    @given(case=cases, names=st.data())
    @settings(
        max_examples=EXAMPLES if mode is GenerationMode.NEGATIVE else EXAMPLES_OF_SLOW.get(operation.label, EXAMPLES),
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def ask(case: schemathesis.Case[Any], names: st.DataObject) -> None:
        name_what_exists(case, live.names, names)
        shorten_waits(case)
        if mode is GenerationMode.POSITIVE and isinstance(case.body, dict):
            case.body = without_points(case.body)
        response = case.call(base_url=live.url, session=session, headers=headers, timeout=20)
        case.validate_response(response, checks=CHECKS, headers=headers)

    with session:
        ask()


def name_what_exists(case: schemathesis.Case[Any], known: dict[str, list[str]], names: st.DataObject) -> None:
    """In two of three requests, for random ids name nothing."""
    for parameter in case.path_parameters:
        if names.draw(st.integers(0, 2)):
            case.path_parameters[parameter] = names.draw(st.sampled_from(known[parameter]))


def without_points(value: Any) -> Any:
    """JSON Schema counts 1.0 as an integer, the API does not."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [without_points(item) for item in value]
        case dict():
            return {name: without_points(item) for name, item in value.items()}
        case _:
            return value


def shorten_waits(case: schemathesis.Case[Any]) -> None:
    if case.path.endswith("/wait"):
        case.query.setdefault("timeout_ms", SHORT_WAIT_MS)
    for values in (case.body, case.query):
        if isinstance(values, dict):
            for name, most in WAITS.items():
                wanted = values.get(name)
                if type(wanted) is int and SHORT_WAIT_MS < wanted <= most:
                    values[name] = SHORT_WAIT_MS
