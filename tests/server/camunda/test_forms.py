"""Deployments come as forms: every file with its name, whatever is in it, and a clear answer to what is no form."""

from __future__ import annotations

import pytest

from stellwerk.errors import InvalidInput, LimitExceeded
from stellwerk.server.camunda.forms import read_form

KIND = "multipart/form-data; boundary=frontier"


def form(*parts: bytes) -> bytes:
    return b"".join(b"--frontier\r\n" + part + b"\r\n" for part in parts) + b"--frontier--\r\n"


def field(name: str, content: bytes, more: str = "") -> bytes:
    return f'Content-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + content


def test_fields_and_files_are_told_apart() -> None:
    parts = read_form(form(field("deployment-name", b"mine"), field("data", b"<a/>", '; filename="a.bpmn"')), KIND)
    assert [(part.name, part.file_name, part.content) for part in parts] == [
        ("deployment-name", None, b"mine"),
        ("data", "a.bpmn", b"<a/>"),
    ]


def test_a_file_may_hold_any_bytes_also_ends_of_lines_and_what_looks_like_a_boundary() -> None:
    content = bytes(range(256)) + b"\r\n--fronti\r\n\r\n--"
    (part,) = read_form(form(field("data", content, '; filename="a.bpmn"')), KIND)
    assert part.content == content


def test_two_files_with_one_field_name_are_two_files() -> None:
    parts = read_form(form(*[field("data", b"x", f'; filename="{name}"') for name in ("a.bpmn", "ü.bpmn")]), KIND)
    assert [part.file_name for part in parts] == ["a.bpmn", "ü.bpmn"]


@pytest.mark.parametrize(
    ("body", "kind", "complaint"),
    [
        (b"{}", "application/json", "multipart/form-data with a boundary"),
        (b"{}", None, "multipart/form-data with a boundary"),
        (form(field("a", b"b")), "multipart/form-data", "multipart/form-data with a boundary"),
        (b"", KIND, "ends before its last boundary"),
        (b"not a form", KIND, "not a form"),
        (form(field("a", b"b"))[:-8], KIND, "ends before its last boundary"),
        (form(b"Content-Type: text/plain\r\n\r\nb"), KIND, "has no name"),
        (form(b'Content-Disposition: form-data; name="\xff"\r\n\r\nb'), KIND, "not UTF-8"),
        (form(b"X: " + b"y" * 100_000 + b"\r\n\r\nb"), KIND, "not a form"),
    ],
)
def test_what_is_no_form_is_refused_with_the_reason(body: bytes, kind: str | None, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        read_form(body, kind)


def test_a_form_of_endless_parts_is_refused() -> None:
    with pytest.raises(LimitExceeded, match="at most 1000 parts"):
        read_form(form(*[field("a", b"")] * 1001), KIND)


def test_a_field_that_is_no_text_is_refused_when_it_is_read_as_one() -> None:
    (part,) = read_form(form(field("deployment-name", b"\xff")), KIND)
    with pytest.raises(InvalidInput, match="not UTF-8 @ deployment-name"):
        _ = part.text
