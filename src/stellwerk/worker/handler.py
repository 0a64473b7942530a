"""A handler as the user wrote it: how it is called, and where it runs."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Awaitable, Callable
from enum import Enum

from stellwerk.errors import InvalidInput
from stellwerk.json_values import canonical
from stellwerk.values import frozen
from stellwerk.worker.task import CancelSignal, Task

__all__ = ["Handler", "HandlerMode", "make_handler"]

LOCK_SECONDS_MIN = 1.0
LOCK_SECONDS_MAX = 24 * 3_600.0
"""What engines allow, unless they are set up otherwise."""
TOPIC_CHARS_MAX = 200

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class HandlerMode(Enum):
    THREAD = "thread"
    """A plain function: a thread for each task."""
    TRIO = "trio"
    """A coroutine function, cancelled by scope."""
    ASYNCIO = "asyncio"
    """A coroutine function written for asyncio, run through trio-asyncio."""


class _Argument(Enum):
    PAYLOAD = "payload"
    TASK = "task"
    SIGNAL = "signal"


@frozen(kw_only=True)
class Handler:
    topic: str
    function: Callable[..., object]
    mode: HandlerMode
    arguments: tuple[_Argument, ...]
    payload_type: object
    """The annotation of the payload; None: there is none."""
    max_tasks: int
    lock_duration_ms: int
    filter: str | None
    variables: tuple[str, ...] | None

    def bind(self, payload: object, task: Task) -> Callable[[], object]:
        """The call, ready to be made."""
        values = {_Argument.PAYLOAD: payload, _Argument.TASK: task, _Argument.SIGNAL: task.signal}
        given = [values[argument] for argument in self.arguments]
        return lambda: self.function(*given)


def make_handler(
    topic: str,
    function: Callable[..., object],
    *,
    max_tasks: int,
    lock_duration: float,
    payload_filter: str | re.Pattern[str] | None,
    variables: typing.Iterable[str] | None,
    asyncio: bool,
) -> Handler:
    """Inspect the function.

    :raises InvalidInput: when it cannot be called with a payload, a task and a signal, or an option makes no sense.
    """
    _check_topic(topic)
    _check_options(topic, max_tasks, lock_duration)
    arguments, payload_type = _arguments(topic, function)
    return Handler(
        topic=topic,
        function=function,
        mode=_mode(topic, function, asyncio=asyncio),
        arguments=arguments,
        payload_type=payload_type,
        max_tasks=max_tasks,
        lock_duration_ms=round(lock_duration * 1000),
        filter=_filter_text(topic, payload_filter),
        variables=_variable_names(topic, variables),
    )


def _check_topic(topic: object) -> None:
    """What the engine would close the session for."""
    if not isinstance(topic, str) or not 1 <= len(topic) <= TOPIC_CHARS_MAX:
        raise InvalidInput(f"a topic must be a non-empty text of at most {TOPIC_CHARS_MAX} characters, not {topic!r}")
    canonical(topic, f"topic {topic!r}")


def _variable_names(topic: str, variables: typing.Iterable[str] | None) -> tuple[str, ...] | None:
    if variables is None:
        return None
    names = tuple(variables)
    for name in names:
        if not isinstance(name, str):
            raise InvalidInput(f"topic {topic!r}: the name of a variable must be a text, not {name!r}")
        canonical(name, f"topic {topic!r}, variable {name!r}")
    return names


def _check_options(topic: str, max_tasks: object, lock_duration: object) -> None:
    if isinstance(max_tasks, bool) or not isinstance(max_tasks, int) or max_tasks < 1:
        raise InvalidInput(f"topic {topic!r}: max_tasks must be a positive integer, not {max_tasks!r}")
    is_number = isinstance(lock_duration, int | float) and not isinstance(lock_duration, bool)
    if not is_number or not LOCK_SECONDS_MIN <= lock_duration <= LOCK_SECONDS_MAX:  # type: ignore[operator]
        limits = f"{LOCK_SECONDS_MIN:g} to {LOCK_SECONDS_MAX:g} seconds"
        raise InvalidInput(f"topic {topic!r}: lock_duration must be {limits}, not {lock_duration!r}")


def _filter_text(topic: str, payload_filter: str | re.Pattern[str] | None) -> str | None:
    if payload_filter is None:
        return None
    if isinstance(payload_filter, re.Pattern):
        return _flags_text(topic, payload_filter) + payload_filter.pattern
    try:
        return re.compile(payload_filter).pattern
    except re.error as error:
        raise InvalidInput(f"topic {topic!r}: the filter is no regular expression: {error}") from None


def _flags_text(topic: str, pattern: re.Pattern[str]) -> str:
    """The pattern's flags as text: ``(?i)``, say. Only the text travels to the engine."""
    if pattern.flags & re.VERBOSE:
        raise InvalidInput(f"topic {topic!r}: the filter cannot use re.VERBOSE")
    known = (("i", re.IGNORECASE), ("m", re.MULTILINE), ("s", re.DOTALL), ("a", re.ASCII))
    letters = [letter for letter, flag in known if pattern.flags & flag]
    return f"(?{''.join(letters)})" if letters else ""


def _mode(topic: str, function: Callable[..., object], *, asyncio: bool) -> HandlerMode:
    is_coroutine = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 — an object with an async __call__ is a handler too
    )
    if not is_coroutine:
        if asyncio:
            raise InvalidInput(f"topic {topic!r}: asyncio=True asks for an async function")
        return HandlerMode.THREAD
    return HandlerMode.ASYNCIO if asyncio else HandlerMode.TRIO


def _arguments(topic: str, function: Callable[..., object]) -> tuple[tuple[_Argument, ...], object]:
    """What each positional parameter gets: by annotation where it names `Task` or `CancelSignal`, else by place."""
    parameters = list(inspect.signature(function).parameters.values())
    required = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
    positional = [p for p in parameters if p.kind in _POSITIONAL and p.default is p.empty]
    if any(p.kind is p.KEYWORD_ONLY for p in required) or len(positional) > len(_Argument):
        raise InvalidInput(f"topic {topic!r}: a handler takes (payload), (payload, task) or (payload, task, signal)")
    hints = _hints(function)
    known: dict[type, _Argument] = {Task: _Argument.TASK, CancelSignal: _Argument.SIGNAL}
    by_annotation = {
        p.name: argument for p in positional for cls, argument in known.items() if hints.get(p.name) is cls
    }
    rest = iter(argument for argument in _Argument if argument not in by_annotation.values())
    arguments = tuple(by_annotation[p.name] if p.name in by_annotation else next(rest) for p in positional)
    return arguments, _payload_hint(positional, arguments, hints)


def _payload_hint(
    positional: list[inspect.Parameter], arguments: tuple[_Argument, ...], hints: dict[str, object]
) -> object:
    for parameter, argument in zip(positional, arguments, strict=True):
        if argument is _Argument.PAYLOAD:
            return hints.get(parameter.name)
    return None


def _hints(function: Callable[..., object]) -> dict[str, object]:
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        return typing.get_type_hints(target)
    except NameError as error:
        raise InvalidInput(f"an annotation of handler {function!r} cannot be resolved: {error}") from None


async def run_trio(call: Callable[[], object]) -> object:
    return await typing.cast("Awaitable[object]", call())


async def run_asyncio(call: Callable[[], object]) -> object:
    """Inside ``trio_asyncio.open_loop()``. Cancelling the surrounding scope cancels the asyncio task."""
    import trio_asyncio

    ends_loop: BaseException | None = None

    async def in_asyncio() -> object:
        nonlocal ends_loop
        try:
            return await typing.cast("Awaitable[object]", call())
        except (KeyboardInterrupt, SystemExit) as error:
            # asyncio hands these past the task to its loop, which is that of all handlers.
            ends_loop = error
            return None

    result: object = await trio_asyncio.aio_as_trio(in_asyncio)()
    if ends_loop is not None:
        raise ends_loop
    return result
