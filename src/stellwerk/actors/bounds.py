"""The bounds on what a worker says, beside those that the decoder knows."""

from __future__ import annotations

from collections.abc import Sequence

from stellwerk.errors import InvalidInput, LimitExceeded
from stellwerk.limits import Limits
from stellwerk.wire.messages import LeaseRef, Subscribe

__all__ = [
    "PRIORITY_MAX",
    "RETRIES_MAX",
    "check_error_code",
    "check_length",
    "check_lock_duration",
    "check_priority",
    "check_report",
    "check_retries",
    "check_subscription",
    "check_task_id",
    "check_topic",
    "check_variable_names",
    "shortened",
]

RETRIES_MAX = 2**31 - 1
"""As many as a model can ask for."""
PRIORITY_MAX = 2**31 - 1
"""And the negative of it is the least."""
_FENCE_MAX = 2**63 - 1


def check_length(name: str, text: str | None, bytes_max: int) -> None:
    """:raises LimitExceeded: the text is longer, in UTF-8."""
    if text is None or len(text) * 4 <= bytes_max:
        return
    size = len(text.encode(errors="surrogatepass"))
    if size > bytes_max:
        raise LimitExceeded(f"{size} bytes, at most {bytes_max} are allowed @ $.{name}")


def check_topic(topic: str, limits: Limits) -> None:
    """:raises InvalidInput: it has no characters, or too many."""
    if not topic or len(topic) > limits.topic_chars_max:
        raise InvalidInput(f"a topic has 1 to {limits.topic_chars_max} characters @ $.topic")


def check_lock_duration(duration_ms: int, limits: Limits) -> None:
    """:raises InvalidInput: outside the limits."""
    low, high = limits.lock_duration_ms_min, limits.lock_duration_ms_max
    if not low <= duration_ms <= high:
        raise InvalidInput(f"a lock lasts {low} to {high} ms, not {duration_ms} @ $.lock_duration_ms")


def check_retries(retries: int | None) -> None:
    """:raises InvalidInput: a task could not be tried so often."""
    if retries is not None and not 1 <= retries <= RETRIES_MAX:
        raise InvalidInput(f"retries must be 1 to {RETRIES_MAX} @ $.retries")


def check_priority(priority: int) -> None:
    """:raises InvalidInput: no model could say that."""
    if abs(priority) > PRIORITY_MAX:
        raise InvalidInput(f"a priority is {-PRIORITY_MAX} to {PRIORITY_MAX} @ $.priority")


def check_subscription(message: Subscribe, limits: Limits) -> None:
    """All but the filter.

    :raises InvalidInput: a field is outside its limits; LimitExceeded: the names of variables are too long together.
    """
    check_topic(message.topic, limits)
    if not 0 <= message.max_tasks <= limits.worker_max_tasks_max:
        raise InvalidInput(f"max_tasks is 0 to {limits.worker_max_tasks_max} @ $.max_tasks")
    check_lock_duration(message.lock_duration_ms, limits)
    check_variable_names(message.variables or (), limits)


def check_variable_names(names: Sequence[str], limits: Limits) -> None:
    """Of those that are to be sent.

    :raises InvalidInput: too many; LimitExceeded: they are too long together.
    """
    if len(names) > limits.variable_names_max:
        raise InvalidInput(f"at most {limits.variable_names_max} variables can be named @ $.variables")
    check_length("variables", "".join(names), limits.message_bytes_max)


def check_task_id(task_id: str, limits: Limits, where: str = "$") -> None:
    """:raises InvalidInput: no task has an id of so many characters."""
    if len(task_id) > limits.id_chars_max:
        raise InvalidInput(f"at most {limits.id_chars_max} characters are allowed @ {where}.task_id")


def check_error_code(code: str, limits: Limits) -> None:
    """:raises InvalidInput: it is empty; LimitExceeded: it has too many characters."""
    if not code:
        raise InvalidInput("an error code is not empty @ $.code")
    if len(code) > limits.error_code_chars_max:
        raise LimitExceeded(f"{len(code)} characters, at most {limits.error_code_chars_max} are allowed @ $.code")


def check_report(leases: Sequence[LeaseRef], limits: Limits, where: str) -> None:
    """What a worker says it holds.

    :raises LimitExceeded: more leases than it can have had; InvalidInput: an id or a fence that no lease has.
    """
    leases_max = 2 * limits.worker_max_tasks_max
    if len(leases) > leases_max:
        raise LimitExceeded(f"{len(leases)} leases, at most {leases_max} can be held @ {where}")
    for index, lease in enumerate(leases):
        check_task_id(lease.task_id, limits, f"{where}[{index}]")
        if not 0 <= lease.fence <= _FENCE_MAX:
            raise InvalidInput(f"a fence is 0 to {_FENCE_MAX} @ {where}[{index}].fence")


def shortened(text: str, chars_max: int) -> str:
    """For people: the beginning is enough. Without lone surrogates, which no frame can carry."""
    text = text if len(text) <= chars_max else text[: chars_max - 1] + "…"
    return text.encode("utf-8", "replace").decode()
