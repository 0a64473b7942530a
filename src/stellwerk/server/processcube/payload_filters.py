"""ProcessCube's ``payloadFilter``: a JavaScript regular expression as text, ``/pattern/flags``."""

from __future__ import annotations

import re

from stellwerk.errors import InvalidInput

__all__ = ["translated_filter"]

_LITERAL = re.compile(r"/(.*)/([a-z]*)", re.DOTALL)
_KEPT = "ims"
_WITHOUT_MEANING = "dguv"
"""For a search that only asks whether something is found."""


def translated_filter(text: str | None) -> str | None:
    """The same pattern as the engine's filters have it. Text without slashes is a pattern without flags.

    :raises InvalidInput: a flag that no filter can have.
    """
    if text is None or text == "":
        return None
    literal = _LITERAL.fullmatch(text)
    if literal is None:
        return _ascii(text, "")
    pattern, flags = literal[1], literal[2]
    unknown = sorted(set(flags) - set(_KEPT + _WITHOUT_MEANING))
    if unknown:
        raise InvalidInput(f"a filter cannot have the flag {', '.join(unknown)} @ $.payloadFilter")
    return _ascii(pattern, "".join(flag for flag in _KEPT if flag in flags))


def _ascii(pattern: str, flags: str) -> str:
    r"""``\d`` and ``\w`` mean ASCII in JavaScript."""
    return f"(?a{flags}){pattern}"
