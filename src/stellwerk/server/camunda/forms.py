"""Forms with files (``multipart/form-data``, RFC 7578), as deployments come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from stellwerk.errors import InvalidInput, LimitExceeded

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

__all__ = ["FormPart", "read_form"]

_PARTS_MAX = 1_000


@attrs.frozen
class FormPart:
    name: str
    file_name: str | None
    """None: it is no file."""
    content: bytes

    @property
    def text(self) -> str:
        try:
            return self.content.decode()
        except UnicodeDecodeError:
            raise InvalidInput(f"not UTF-8 @ {self.name}") from None


def read_form(body: bytes, content_type: str | None) -> Sequence[FormPart]:
    """:raises InvalidInput: it is no such form; LimitExceeded: it has too many parts."""
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise InvalidInput("a form is expected: multipart/form-data with a boundary @ content-type")
    collector = _Collector()
    try:
        parser = MultipartParser(boundary, collector.callbacks)
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise InvalidInput(f"not a form: {error}") from None
    if not collector.ended:
        raise InvalidInput("the form ends before its last boundary")
    return collector.parts


class _Collector:
    def __init__(self) -> None:
        self.parts: list[FormPart] = []
        self.ended = False
        self._headers: dict[bytes, bytes] = {}
        self._header_name = b""
        self._header_value = b""
        self._content = bytearray()

    @property
    def callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self._part_begins,
            "on_header_field": self._header_name_goes_on,
            "on_header_value": self._header_value_goes_on,
            "on_header_end": self._header_ends,
            "on_part_data": self._content_goes_on,
            "on_part_end": self._part_ends,
            "on_end": self._form_ends,
        }

    def _part_begins(self) -> None:
        if len(self.parts) == _PARTS_MAX:
            raise LimitExceeded(f"a form has at most {_PARTS_MAX} parts")
        self._headers, self._content = {}, bytearray()

    def _header_name_goes_on(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _header_value_goes_on(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _header_ends(self) -> None:
        self._headers[self._header_name.lower()] = self._header_value
        self._header_name = self._header_value = b""

    def _content_goes_on(self, data: bytes, start: int, end: int) -> None:
        self._content += data[start:end]

    def _part_ends(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition"))
        name = options.get(b"name")
        if name is None:
            raise InvalidInput("a part of the form has no name")
        file_name = options.get(b"filename")
        self.parts.append(
            FormPart(_decoded(name), None if file_name is None else _decoded(file_name), bytes(self._content))
        )

    def _form_ends(self) -> None:
        self.ended = True


def _decoded(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise InvalidInput("a part's name is not UTF-8") from None
