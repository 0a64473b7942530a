"""Variables as bpm-engine has them: every value is a text. One that is not would make its SDK refuse the whole answer,
and the tasks in it would wait for their locks to run out."""

from __future__ import annotations

import msgspec

from stellwerk.json_values import JsonValue, dumps

__all__ = ["text_of", "texts_of"]

_PAYLOAD_NAME = "payload"
"""Under which a payload stands that is no object (a ProcessCube model can make one)."""
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_text = msgspec.json.Decoder(str)


def texts_of(variables: bytes) -> dict[str, str]:
    """:param variables: compact JSON."""
    if not variables.startswith(b"{"):
        return {_PAYLOAD_NAME: _as_text(variables)}
    return {name: _as_text(bytes(value)) for name, value in _members.decode(variables).items()}


def text_of(value: JsonValue) -> str:
    """A text as it is, everything else as its compact JSON: ``12.5``, ``null``, ``{"a":[1]}``."""
    return value if isinstance(value, str) else dumps(value).decode()


def _as_text(value: bytes) -> str:
    # Numbers are never computed with on the way: they keep every digit.
    return _text.decode(value) if value.startswith(b'"') else value.decode()
