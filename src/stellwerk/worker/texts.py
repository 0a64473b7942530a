"""Texts for people, made of whatever a handler raised. Nothing here raises, however broken the exception is."""

from __future__ import annotations

import traceback

__all__ = ["DETAILS_BYTES_MAX", "MESSAGE_BYTES_MAX", "described", "formatted_traceback", "text_for_json", "text_of"]

MESSAGE_BYTES_MAX = 8 * 1024
"""Of the message of a failure: well below what engines take."""
DETAILS_BYTES_MAX = 64 * 1024
"""Of the details of a failure, as JSON."""
_ELLIPSIS = "…"


def text_of(value: object) -> str:
    """``str(value)``, or what can be said of a value whose ``__str__`` raises."""
    try:
        return str.__str__(str(value))  # a subclass of str may come back, with methods of its own
    except BaseException as error:  # noqa: BLE001 — the value is somebody else's, and only a text is wanted of it
        return f"<{type(value).__name__}, whose text cannot be had: {type(error).__name__}>"


def described(error: BaseException) -> str:
    """As ``ValueError: no such card``; the class alone when there is no text."""
    text, name = text_of(error), type(error).__name__
    return f"{name}: {text}" if text else name


def text_for_json(text: str, bytes_max: int) -> str:
    """A text in a form that every store accepts: no NUL, no lone surrogates, no more UTF-8 than that."""
    encoded = text[: bytes_max + 1].replace("\x00", "\ufffd").encode("utf-8", "replace")
    if len(encoded) <= bytes_max:
        return encoded.decode()
    return encoded[: bytes_max - len(_ELLIPSIS.encode())].decode("utf-8", "ignore") + _ELLIPSIS


def formatted_traceback(error: BaseException, chars_max: int) -> str:
    """The end of it, where the handler's own lines stand."""
    try:
        text = "".join(traceback.format_exception(error))
    except Exception as unusable:  # noqa: BLE001 — an exception can override what the formatting looks at
        text = f"no traceback can be had: {type(unusable).__name__}"
    return text[-chars_max:]
