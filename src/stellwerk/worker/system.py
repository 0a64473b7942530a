"""The worker's adapters to the real world. A simulation hands in its own."""

from __future__ import annotations

import random
import signal
import socket
import ssl
import threading
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

import trio

from stellwerk.errors import Conflict, InvalidInput
from stellwerk.values import frozen
from stellwerk.wire.messages import WORKERS_PATH
from stellwerk.worker.tls_troubles import unchecked_context

__all__ = [
    "Clock",
    "Dial",
    "Endpoint",
    "Entropy",
    "NetworkDial",
    "SystemEntropy",
    "SystemThreads",
    "ThreadEvent",
    "Threads",
    "TrioClock",
    "can_receive_signals",
    "hostname",
    "network_dial",
    "open_signals",
    "refuse_virtual_time",
]

T = TypeVar("T")

ThreadEvent = threading.Event

_PROBE_SECONDS_MAX = 3.0

_BAD_URL = "the engine's URL must look like http://127.0.0.1:10560, not {!r}"


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds, on trio's clock."""

    async def sleep(self, seconds: float) -> None: ...


class Entropy(Protocol):
    def fraction(self) -> float:
        """Uniform in [0, 1)."""

    def uuid(self) -> str: ...


class Threads(Protocol):
    async def run_sync(self, function: Callable[[], T]) -> T:
        """Run in a thread of its own. When cancelled the thread is left to itself and its result dropped."""


class TrioClock:
    def monotonic(self) -> float:
        return trio.current_time()

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)


class SystemEntropy:
    def __init__(self) -> None:
        self._random = random.SystemRandom()

    def fraction(self) -> float:
        return self._random.random()

    def uuid(self) -> str:
        return str(uuid.uuid4())


def refuse_virtual_time() -> None:
    """:raises Conflict: trio's clock is not the real one: it would move on while a thread works."""
    clock = type(trio.lowlevel.current_clock())
    # trio has no public name for its own clock; its class is the only one that lives in a private module of trio.
    if not clock.__module__.startswith("trio._"):
        raise Conflict(
            f"a plain function runs in a thread, and under {clock.__name__} the time would move on meanwhile: make the "
            "worker by engine.worker(), write the handler as async def, or hand in threads that use none"
        )


class SystemThreads:
    """A thread for each call. The engine's leases bound how many there are, so no limiter makes one wait."""

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(float("inf"))

    async def run_sync(self, function: Callable[[], T]) -> T:
        """:raises Conflict: trio's clock is not the real one."""
        refuse_virtual_time()
        return await trio.to_thread.run_sync(function, abandon_on_cancel=True, limiter=self._limiter)


@frozen
class Endpoint:
    """Where the engine is: its WebSocket for workers, and beside it the HTTP API."""

    host: str
    port: int
    path: str
    tls: bool

    @classmethod
    def from_url(cls, url: str) -> Endpoint:
        """``http``, ``https``, ``ws`` and ``wss`` are understood; a path before ``/workers`` is kept.

        :raises InvalidInput: when it is no such URL.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise InvalidInput(_BAD_URL.format(url)) from None
        if parts.scheme not in ("http", "https", "ws", "wss") or not parts.hostname:
            raise InvalidInput(_BAD_URL.format(url))
        tls = parts.scheme in ("https", "wss")
        path = parts.path.rstrip("/").removesuffix(WORKERS_PATH) + WORKERS_PATH
        return cls(parts.hostname, port or (443 if tls else 80), path, tls)

    def target(self, path: str) -> str:
        """Of an HTTP request to another path of the same engine."""
        return self.path.removesuffix(WORKERS_PATH) + path

    @property
    def http_url(self) -> str:
        """What people know the engine by."""
        return f"{'https' if self.tls else 'http'}://{self.host_header}{self.target('')}"

    @property
    def host_header(self) -> str:
        """As it stands in the HTTP header ``Host``."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{'wss' if self.tls else 'ws'}://{self.host}:{self.port}{self.path}"


class Dial(Protocol):
    async def __call__(self, endpoint: Endpoint) -> trio.abc.Stream:
        """Connect, TLS included. Raises OSError when nobody answers."""


class NetworkDial:
    """Over TCP, with TLS where the endpoint asks for it."""

    def __init__(self, ssl_context: ssl.SSLContext | None) -> None:
        self._ssl_context = ssl_context

    async def __call__(self, endpoint: Endpoint) -> trio.abc.Stream:
        stream = await trio.open_tcp_stream(endpoint.host, endpoint.port)
        if not endpoint.tls:
            return stream
        context = self._ssl_context or ssl.create_default_context()
        return trio.SSLStream(stream, context, server_hostname=endpoint.host, https_compatible=True)

    async def finds_tls(self, endpoint: Endpoint) -> bool:
        """Whether the port of this plain endpoint speaks TLS: it answers nothing else then."""
        with trio.move_on_after(_PROBE_SECONDS_MAX):
            try:
                stream = await trio.open_tcp_stream(endpoint.host, endpoint.port)
                secured = trio.SSLStream(stream, unchecked_context(), https_compatible=True)
                try:
                    await secured.do_handshake()
                finally:
                    await trio.aclose_forcefully(stream)
            except (OSError, trio.BrokenResourceError):
                return False
            return True
        return False


def network_dial(ssl_context: ssl.SSLContext | None = None) -> NetworkDial:
    return NetworkDial(ssl_context)


def hostname() -> str:
    return socket.gethostname()


def can_receive_signals() -> bool:
    """Only the main thread can."""
    return threading.current_thread() is threading.main_thread()


def open_signals() -> AbstractContextManager[AsyncIterator[int]]:
    """SIGTERM and SIGINT (Ctrl-C) as they come."""
    return trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT)
