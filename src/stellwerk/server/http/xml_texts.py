"""BPMN files as texts in JSON: the encoding that the XML declares holds for its bytes."""

from __future__ import annotations

import re

from stellwerk.errors import InvalidInput

__all__ = ["decoded_as_declared", "encoded_as_declared"]

_DECLARED_ENCODING = re.compile(r"""^\ufeff?<\?xml[^>]{0,200}?\sencoding\s*=\s*["']([A-Za-z0-9._-]{1,40})["']""")
_HEAD_BYTES = 300


def encoded_as_declared(text: str, where: str) -> bytes:
    """The reader obeys the encoding that the XML declares, so the text must be in it.

    :param where: its place in the request.
    :raises InvalidInput: it cannot be.
    """
    encoding = _declared_in(text)
    try:
        return text.encode(encoding)
    except (LookupError, UnicodeError):
        raise InvalidInput(f"the text cannot be encoded as the {encoding} that it declares @ {where}") from None


def decoded_as_declared(xml: bytes) -> str:
    """Of a file that could be read when it was deployed; what cannot be decoded is shown as such."""
    if xml.startswith((b"\xff\xfe", b"\xfe\xff")):
        return xml.decode("utf-16", errors="replace")
    try:
        return xml.decode(_declared_in(xml[:_HEAD_BYTES].decode("latin-1")), errors="replace")
    except LookupError:
        return xml.decode(errors="replace")


def _declared_in(text: str) -> str:
    declared = _DECLARED_ENCODING.match(text)
    return "utf-8" if declared is None else declared[1]
