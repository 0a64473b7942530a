"""What a handler raised, as the request that says so to the engine.

The exceptions are the user's: every number and text is checked here, because the engine closes a session that sends
what the protocol does not allow, and refuses what is out of its range.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import msgspec

from stellwerk.errors import InvalidInput, StellwerkError
from stellwerk.json_values import JsonValue, canonical
from stellwerk.wire.codec import decode_worker_frame, encode_message
from stellwerk.wire.messages import BpmnErrorReport, Complete, Fail, Release, SessionLimits
from stellwerk.worker.errors import BpmnError, TaskFailure
from stellwerk.worker.leases import FinalRequest
from stellwerk.worker.payloads import result_to_json
from stellwerk.worker.texts import (
    DETAILS_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    described,
    formatted_traceback,
    text_for_json,
    text_of,
)

__all__ = [
    "RETRIES_MAX",
    "RETRY_AFTER_S_MAX",
    "bpmn_error_report",
    "failure",
    "plain_failure",
    "problem_of",
    "simpler_failure",
    "unusable_numbers",
]

RETRIES_MAX = 2**31 - 1
RETRY_AFTER_S_MAX = 365 * 24 * 3_600
"""What engines take."""
ERROR_CODE_CHARS_MAX = 200
_TRACEBACK_CHARS_MAX = 16_000
_SHORT_BYTES_MAX = 1024
_ENVELOPE_BYTES = 4 * 1024
"""More than a `complete` has around its variables."""
_NOTHING = msgspec.Raw(b"null")

Refs = Callable[[], int]


def failure(ref: int, task_id: str, fence: int, error: BaseException, hint: str = "") -> Fail:
    """`error` as a failed attempt. Numbers that `unusable_numbers` complains about are left out."""
    message, details = _explained(error)
    retry_after_ms = retries = None
    if isinstance(error, TaskFailure):
        retry_after_ms = None if _retry_after_problem(error.retry_after) else _retry_after_ms(error.retry_after)
        retries = None if _retries_problem(error.retries) or error.retries is None else int(error.retries)
    return Fail(
        ref,
        task_id,
        fence,
        text_for_json(message + hint, MESSAGE_BYTES_MAX),
        _details_to_json(details),
        retry_after_ms,
        retries,
    )


def plain_failure(ref: int, task_id: str, fence: int, message: str) -> Fail:
    """Nothing in it that could be refused."""
    return Fail(ref, task_id, fence, text_for_json(message, _SHORT_BYTES_MAX))


def unusable_numbers(error: BaseException) -> InvalidInput | None:
    """What is wrong with a `TaskFailure`'s ``retry_after`` and ``retries``, if anything is."""
    if not isinstance(error, TaskFailure):
        return None
    problems = [
        problem for problem in (_retry_after_problem(error.retry_after), _retries_problem(error.retries)) if problem
    ]
    return InvalidInput("; ".join(problems)) if problems else None


def bpmn_error_report(ref: int, task_id: str, fence: int, error: BpmnError) -> BpmnErrorReport:
    """:raises InvalidInput: when the code is none, or the variables are no JSON."""
    return BpmnErrorReport(
        ref,
        task_id,
        fence,
        _error_code(error.code),
        None if error.message is None else text_for_json(text_of(error.message), MESSAGE_BYTES_MAX),
        _details_to_json(error.details),
        _variables_to_json(error.variables),
    )


def simpler_failure(request: FinalRequest, next_ref: Refs, reason: str) -> Fail | None:
    """What to say after the engine refused `request` for good; None: there is nothing simpler.

    A result becomes a failure. A failure loses its details first, and its numbers only then: ``retries=0`` keeps a
    handler from running again. Each step gives what the same step gives again, so there are at most two.
    """
    if not isinstance(request, Fail):
        return plain_failure(next_ref(), request.task_id, request.fence, reason)
    message = text_for_json(request.message, _SHORT_BYTES_MAX)
    without_details = attrs.evolve(request, message=message, details=_NOTHING)
    for simpler in (without_details, attrs.evolve(without_details, retry_after_ms=None, retries=None)):
        if simpler != request:
            return attrs.evolve(simpler, ref=next_ref())
    return None


def problem_of(request: FinalRequest, limits: SessionLimits) -> str | None:
    """Why the engine cannot take this; None: nothing speaks against it.

    Failures and BPMN errors are read back as the engine will read them. Results are not, because they are many and all
    that stands in them was made here; only their size is the user's.
    """
    size, bytes_max = _payload_bytes(request), limits.payload_bytes_max
    if size > bytes_max:
        return f"the result has {size} bytes, at most {bytes_max} are allowed"
    if isinstance(request, Complete | Release):
        is_too_large = size + _ENVELOPE_BYTES > limits.frame_bytes_max
        return f"a result of {size} bytes does not fit a frame of {limits.frame_bytes_max}" if is_too_large else None
    try:
        decode_worker_frame(encode_message(request), limits.frame_bytes_max)
    except (StellwerkError, ValueError, TypeError) as error:
        return f"what the handler raised cannot be sent: {text_of(error)}"
    return None


def _payload_bytes(request: FinalRequest) -> int:
    match request:
        case Complete():
            return len(bytes(request.variables))
        case Fail():
            return len(bytes(request.details))
        case BpmnErrorReport():
            return len(bytes(request.details)) + len(bytes(request.variables))
        case Release():
            return 0


def _explained(error: BaseException) -> tuple[str, JsonValue]:
    """→ the message, and the details: the handler's own, or the traceback."""
    if isinstance(error, TaskFailure):
        given: object = error.message  # None, say, whatever the annotation wants
        message = type(error).__name__ if given is None else text_of(given)
        return message, _traceback(error) if error.details is None else error.details
    if isinstance(error, StellwerkError):
        return text_of(error), None
    return described(error), _traceback(error)


def _traceback(error: BaseException) -> JsonValue:
    text = formatted_traceback(error, _TRACEBACK_CHARS_MAX)
    return {"type": type(error).__name__, "traceback": text_for_json(text, DETAILS_BYTES_MAX)}


def _retry_after_problem(seconds: object) -> str | None:
    """A little below zero is meant as 'now'; far from it is an instant in the place of a duration."""
    if seconds is None:
        return None
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if is_number and -RETRY_AFTER_S_MAX <= seconds <= RETRY_AFTER_S_MAX:  # type: ignore[operator]
        return None  # neither infinite nor NaN, which compares as false
    return f"retry_after is a number of seconds from 0 to {RETRY_AFTER_S_MAX} (365 days), not {_shown(seconds)}"


def _retry_after_ms(seconds: float | None) -> int | None:
    return None if seconds is None else max(0, round(float(seconds) * 1000))


def _retries_problem(retries: object) -> str | None:
    if retries is None:
        return None
    if isinstance(retries, int) and not isinstance(retries, bool) and 0 <= retries <= RETRIES_MAX:
        return None
    return f"retries is an integer from 0 to {RETRIES_MAX}, not {_shown(retries)}"


def _error_code(code: object) -> str:
    if isinstance(code, bool) or not isinstance(code, str | int):
        raise InvalidInput(f"the code of a BPMN error is a text, not {_shown(code)}")
    text = text_of(code)
    if not 1 <= len(text) <= ERROR_CODE_CHARS_MAX:
        raise InvalidInput(f"the code of a BPMN error has 1 to {ERROR_CODE_CHARS_MAX} characters, not {len(text)}")
    canonical(text, "$.code")
    return text


def _variables_to_json(variables: JsonValue) -> msgspec.Raw:
    try:
        encoded = result_to_json(variables)
    except StellwerkError:
        raise
    except Exception as error:
        raise InvalidInput(f"the variables of the BPMN error are no JSON: {described(error)}") from error
    if not bytes(encoded).startswith(b"{"):
        raise InvalidInput(f"the variables of a BPMN error are a mapping, not {type(variables).__name__}")
    return encoded


def _details_to_json(details: JsonValue) -> msgspec.Raw:
    """The details are for people, and never stand in the way of what they explain: at worst they become a text."""
    try:
        encoded = result_to_json(details)
        text = bytes(encoded).decode()
    except Exception:  # noqa: BLE001 — they are the user's own objects
        encoded, text = None, _representation(details)
    if encoded is not None and len(bytes(encoded)) <= DETAILS_BYTES_MAX:
        return encoded
    return _text_to_json(text)


def _text_to_json(text: str) -> msgspec.Raw:
    """Escaping makes a text up to six times as long."""
    for bytes_max in (DETAILS_BYTES_MAX - 2, DETAILS_BYTES_MAX // 2 - 2):
        encoded = result_to_json(text_for_json(text, bytes_max))
        if len(bytes(encoded)) <= DETAILS_BYTES_MAX:
            return encoded
    return result_to_json(text_for_json(text, DETAILS_BYTES_MAX // 6 - 2))


def _representation(value: object) -> str:
    try:
        return str.__str__(repr(value))
    except BaseException as error:  # noqa: BLE001 — see `text_of`
        return f"<{type(value).__name__}, whose representation cannot be had: {type(error).__name__}>"


def _shown(value: object) -> str:
    return text_for_json(_representation(value), 100)
