"""What workers say, hear and believe, seen from outside: names in the SDK's modules are wrapped while a run lasts.

A tap changes nothing that the SDK does. Where a task runs (`PLACE`) says which worker it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from traceback import format_exception_only
from typing import Any, Protocol, TypeAlias
from unittest.mock import patch

from simulations.kernel.scheduling import PLACE
from simulations.kernel.simulation import Simulation
from simulations.world.hosts import HostClock
from stellwerk.wire import codec
from stellwerk.wire.codec import UnknownMessage
from stellwerk.wire.messages import EngineMessage, WorkerMessage
from stellwerk.worker import failures as sdk_failures
from stellwerk.worker import session as sdk_session
from stellwerk.worker.leases import Lease, LeaseKey, LeaseTable
from stellwerk.worker.task import Task

__all__ = ["WorkerObserver", "tapped_workers"]


class WorkerObserver(Protocol):
    """`place` is host and incarnation of the worker (``worker-1#2``)."""

    def sent(self, place: str, message: WorkerMessage) -> None:
        """About to go out, in the order of going out; whether it arrives is another matter."""

    def received(self, place: str, message: EngineMessage) -> None:
        """Read, and about to be obeyed."""

    def believes(self, place: str, task_id: str, fence: int, until: float) -> None:
        """The worker takes the lease for its own until then, in true seconds. Later calls replace earlier ones."""

    def let_go(self, place: str, task_id: str, fence: int) -> None:
        """The worker does not take the lease for its own any more, though its end may not have come."""

    def handler_began(self, place: str, task: Task) -> None: ...

    def handler_ended(self, place: str, task: Task, outcome: str) -> None:
        """`outcome`: ``completed``, ``failed``, ``bpmn_error``, or ``aborted`` (told to give up)."""


_Heard: TypeAlias = Callable[[], Sequence[WorkerObserver]]
_Tap: TypeAlias = tuple[Any, str, object]


@contextmanager
def tapped_workers(
    simulation: Simulation, observers: Sequence[WorkerObserver], clock_of: Callable[[str], HostClock]
) -> Iterator[None]:
    """For the run within. What happens while it is taken down is not told. Workers report failures without the paths
    and lines of this checkout: what is on the way has its length, and a plan must run the same way everywhere.

    :param clock_of: of a host, by its name.
    """

    def listening() -> Sequence[WorkerObserver]:
        return () if simulation.is_over else observers

    with ExitStack() as taps:
        bare = (sdk_failures, "formatted_traceback", _without_frames)
        for target, name, replacement in (*_messages(listening), *_leases(listening, clock_of), bare):
            taps.enter_context(patch.object(target, name, replacement))
        yield


def _without_frames(error: BaseException, chars_max: int) -> str:
    return "".join(format_exception_only(error))[-chars_max:]


# --- messages ------------------------------------------------------------------------------------------------------


def _messages(observers: _Heard) -> list[_Tap]:
    def encode_message(message: WorkerMessage) -> bytes:
        _tell_sent(observers, [message])
        return codec.encode_message(message)

    def pack_frames(messages: Sequence[WorkerMessage], frame_bytes_max: int) -> object:
        _tell_sent(observers, messages)
        return codec.pack_frames(messages, frame_bytes_max)

    def decode_engine_frame(frame: str | bytes, frame_bytes_max: int) -> list[EngineMessage | UnknownMessage]:
        messages = codec.decode_engine_frame(frame, frame_bytes_max)
        place = PLACE.get()
        for message in messages:
            if not isinstance(message, UnknownMessage):
                for observer in observers():
                    observer.received(place, message)
        return messages

    return [
        (sdk_session, "encode_message", encode_message),
        (sdk_session, "pack_frames", pack_frames),
        (sdk_session, "decode_engine_frame", decode_engine_frame),
    ]


def _tell_sent(observers: _Heard, messages: Sequence[WorkerMessage]) -> None:
    place = PLACE.get()
    for message in messages:
        for observer in observers():
            observer.sent(place, message)


# --- leases --------------------------------------------------------------------------------------------------------


def _leases(observers: _Heard, clock_of: Callable[[str], HostClock]) -> list[_Tap]:
    set_deadline, drop, revoke = LeaseTable._set_deadline, LeaseTable.drop, LeaseTable.revoke

    def tapped_set_deadline(self: LeaseTable, lease: Lease, deadline_ms: float) -> None:
        set_deadline(self, lease, deadline_ms)
        place = PLACE.get()
        until = clock_of(place.partition("#")[0]).true_time_of(deadline_ms / 1000)
        for observer in observers():
            observer.believes(place, *lease.key, until)

    def let_go(key: LeaseKey) -> None:
        place = PLACE.get()
        for observer in observers():
            observer.let_go(place, *key)

    def tapped_drop(self: LeaseTable, lease: Lease) -> None:
        was_held = self.is_held(lease)
        drop(self, lease)
        if was_held:
            let_go(lease.key)

    def tapped_revoke(self: LeaseTable, key: LeaseKey, reason: str) -> Lease | None:
        """The lease is marked before it is dropped, so that `tapped_drop` does not tell it again."""
        lease = revoke(self, key, reason)
        if lease is not None:
            let_go(key)
        return lease

    return [
        (LeaseTable, "_set_deadline", tapped_set_deadline),
        (LeaseTable, "drop", tapped_drop),
        (LeaseTable, "revoke", tapped_revoke),
    ]
