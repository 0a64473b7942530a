"""The public face of the worker SDK."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Iterable
from typing import TypeVar

import trio

from stellwerk.errors import Conflict, InvalidInput, StellwerkError
from stellwerk.values import frozen
from stellwerk.worker.handler import Handler, HandlerMode, make_handler
from stellwerk.worker.options import Transport, check_grace, check_pause, check_polls, checked_transport
from stellwerk.worker.pull import PullRun
from stellwerk.worker.push import PushRun
from stellwerk.worker.reports import ErrorCallback, HeartbeatCallback, Logger, Reports
from stellwerk.worker.runtime import CRITICAL_ERRORS_MAX, Settings, TokenSource, WorkerRun
from stellwerk.worker.system import (
    Clock,
    Dial,
    Endpoint,
    Entropy,
    SystemEntropy,
    SystemThreads,
    Threads,
    TrioClock,
    can_receive_signals,
    hostname,
    network_dial,
    open_signals,
    refuse_virtual_time,
)

__all__ = ["Health", "Worker"]

F = TypeVar("F", bound=Callable[..., object])
E = TypeVar("E", bound=ErrorCallback)
H = TypeVar("H", bound=HeartbeatCallback)

DEFAULT_URL = "http://127.0.0.1:10560"


@frozen(kw_only=True)
class Health:
    is_polling_active: bool
    """There is a session with the engine, or it answered the last poll of every topic: tasks can arrive."""
    consecutive_critical_errors: int
    max_consecutive_critical_errors: int = CRITICAL_ERRORS_MAX
    """With so many in a row the worker stops."""
    active_task_count: int
    """Handlers that are under way."""
    identity_refresh_failed_critically: bool

    @property
    def is_connected(self) -> bool:
        return self.is_polling_active


class Worker:
    """Handlers for external tasks, and the connection over which the engine pushes the tasks to them.

    ::

        worker = Worker("http://127.0.0.1:10560")

        @worker.task("payment")
        def charge(payload: Order, task: Task) -> Receipt: ...

        worker.run()

    ``max_tasks`` and ``lock_duration`` (seconds) are the defaults of its topics. ``token`` is a credential or a
    function that fetches one, asked before each connection and when the engine wants a fresh one. Pauses between
    attempts to connect grow up to ``reconnect_seconds_max``.

    ``transport="http"``: for networks that let no WebSocket through. Then the worker asks for tasks, each topic for
    itself: the engine waits up to ``long_polling_timeout`` for one, and polls that bring nothing begin at least
    ``idle_timeout`` apart (seconds). Everything else is the same, but a cancelled task is noticed later: when its lock
    is extended, or its result handed in.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        worker_id: str | None = None,
        max_tasks: int = 10,
        lock_duration: float = 30.0,
        token: TokenSource = None,
        reconnect_seconds_max: float = 10.0,
        transport: Transport = "websocket",
        idle_timeout: float = 0.5,
        long_polling_timeout: float = 10.0,
        logger: Logger | None = None,
        ssl_context: ssl.SSLContext | None = None,
        dial: Dial | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        threads: Threads | None = None,
    ) -> None:
        """``dial``, ``clock``, ``entropy`` and ``threads`` replace the world outside, for simulations.

        :raises InvalidInput: when the URL or the transport is none, or a number of seconds makes no sense.
        """
        check_pause(reconnect_seconds_max)
        check_polls(idle_timeout, long_polling_timeout)
        self._transport = checked_transport(transport)
        self._idle_timeout = idle_timeout
        self._long_polling_timeout = long_polling_timeout
        self._endpoint = Endpoint.from_url(url)
        self._entropy = entropy or SystemEntropy()
        self.worker_id = worker_id or f"{hostname()}-{self._entropy.uuid()}"
        self._max_tasks = max_tasks
        self._lock_duration = lock_duration
        self._token = token
        self._reconnect_seconds_max = reconnect_seconds_max
        self._dial = dial or network_dial(ssl_context)
        self._clock = clock or TrioClock()
        self._threads = threads
        self._reports = Reports(logger)
        self._handlers: dict[str, Handler] = {}
        self._run: WorkerRun | None = None
        self._last_run: WorkerRun | None = None
        self._scope: trio.CancelScope | None = None
        self._stop_before_start = False
        self._obeys_signals = False
        self._disposed = False

    # --- what to do ----------------------------------------------------------------------------------------------

    def task(
        self,
        topic: str,
        *,
        max_tasks: int | None = None,
        lock_duration: float | None = None,
        filter: str | re.Pattern[str] | None = None,  # noqa: A002 — the protocol's word
        variables: Iterable[str] | None = None,
        asyncio: bool = False,
    ) -> Callable[[F], F]:
        """Decorator: this function handles the tasks of the topic. It stays callable as it is.

        A plain function runs in a thread of its own for each task; an ``async def`` as a trio coroutine, or with
        ``asyncio=True`` as one of asyncio (extra ``asyncio``). It takes ``(payload)``, ``(payload, task)`` or
        ``(payload, task, signal)``; the payload is made of the variables by the annotation (attrs class, dataclass,
        TypedDict, …), a dict where there is none. What it returns are the task's resulting variables.

        ``max_tasks``: how many at once. ``lock_duration``: 1 to 86,400 seconds, see `Worker`. ``filter``: a regular
        expression on the compact JSON of the variables. ``variables``: only these are sent.

        :raises InvalidInput: when the topic has a handler already, or the function cannot be one.
        """
        self._check_new(topic)

        def register(function: F) -> F:
            self._handlers[topic] = make_handler(
                topic,
                function,
                max_tasks=self._max_tasks if max_tasks is None else max_tasks,
                lock_duration=self._lock_duration if lock_duration is None else lock_duration,
                payload_filter=filter,
                variables=variables,
                asyncio=asyncio,
            )
            return function

        return register

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(self._handlers)

    def include(self, other: Worker) -> None:
        """Handle the topics of another worker too, as they are set up there; the other one stays as it is.

        :raises InvalidInput: when one of its topics has a handler already; Conflict: when this worker runs already.
        """
        for topic in other.topics:
            self._check_new(topic)
        self._handlers.update(other._handlers)

    def _check_new(self, topic: str) -> None:
        if topic in self._handlers:
            raise InvalidInput(f"topic {topic!r} has a handler already")
        if self._run is not None:
            raise Conflict("handlers are added before the worker runs")

    def connect_to(
        self,
        url: str | None = None,
        *,
        transport: Transport | None = None,
        token: TokenSource = None,
        worker_id: str | None = None,
    ) -> None:
        """Work for the engine at this URL, in this way, with this credential, under this name, instead of what was
        given before; None: as it was.

        :raises InvalidInput: when the URL or the transport is none; Conflict: when the worker runs already.
        """
        if self._run is not None:
            raise Conflict("the connection is changed before the worker runs")
        if transport is not None:
            self._transport = checked_transport(transport)
        if url is not None:
            self._endpoint = Endpoint.from_url(url)
        if token is not None:
            self._token = token
        if worker_id is not None:
            self.worker_id = worker_id

    def on_error(self, callback: E) -> E:
        """Decorator: called with ``(kind, error, task or None)`` in the worker's trio thread; it must not block."""
        self._reports.error_callbacks.append(callback)
        return callback

    def on_heartbeat(self, callback: H) -> H:
        """Decorator: called with ``(operation, task id or None)`` in the worker's trio thread; it must not block."""
        self._reports.heartbeat_callbacks.append(callback)
        return callback

    # --- life ----------------------------------------------------------------------------------------------------

    def run(self, *, grace: float = 10.0) -> None:
        """Work until SIGTERM or SIGINT (then running handlers have ``grace`` seconds) or `stop`. A second signal ends
        it at once. A program that has set up no logging (`logging`) sees the worker's on stderr.

        :raises WorkerGaveUp: after too many critical errors in a row.
        :raises InvalidInput: when ``grace`` is no number of seconds.
        """
        check_grace(grace)
        with self._reports.shown():
            trio.run(self._run_with_signals, grace)

    async def _run_with_signals(self, grace: float) -> None:
        if not can_receive_signals():
            await self.serve()
            return
        failure: StellwerkError | None = None
        async with trio.open_nursery() as nursery:
            await nursery.start(self._obey_signals, grace)
            try:
                await self.serve()
            except StellwerkError as error:
                failure = error  # raised outside, so that no group wraps it
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _obey_signals(self, grace: float, task_status: trio.TaskStatus[None]) -> None:
        with open_signals() as signals:
            self._obeys_signals = True
            task_status.started()
            stopping = False
            try:
                async for number in signals:
                    self._reports.log.info("signal %s: the worker %s", number, "ends" if stopping else "stops")
                    if stopping:
                        self._cancel()
                    else:
                        self.stop(grace=grace)
                    stopping = True
            finally:
                self._obeys_signals = False

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Work until `stop`, inside trio. Cancelling it leaves the leases to their deadlines; `stop` hands them back.

        ``task_status.started()`` is called when it runs, connected or not.

        :raises WorkerGaveUp: after too many critical errors in a row.
        :raises Conflict: when it runs already, has no handler, or was disposed of.
        """
        self._check_can_serve()
        if self._stop_before_start:
            self._stop_before_start = False
            task_status.started()
            return
        if any(handler.mode is HandlerMode.ASYNCIO for handler in self._handlers.values()):
            await self._serve_with_asyncio(task_status)
        else:
            await self._serve(task_status)

    def _check_can_serve(self) -> None:
        if self._disposed:
            raise Conflict("the worker was disposed of")
        if self._run is not None:
            raise Conflict("the worker runs already")
        if not self._handlers:
            raise Conflict("the worker has no handler: decorate a function with @worker.task(topic)")
        if self._threads is None and any(handler.mode is HandlerMode.THREAD for handler in self._handlers.values()):
            refuse_virtual_time()

    async def _serve_with_asyncio(self, task_status: trio.TaskStatus[None]) -> None:
        try:
            import trio_asyncio
        except ImportError:
            raise Conflict("asyncio=True needs trio-asyncio: install stellwerk with its extra asyncio") from None
        async with trio_asyncio.open_loop():
            await self._serve(task_status)

    async def _serve(self, task_status: trio.TaskStatus[None]) -> None:
        settings = Settings(
            endpoint=self._endpoint,
            worker_id=self.worker_id,
            token=self._token,
            reconnect_seconds_max=self._reconnect_seconds_max,
            dial=self._dial,
            clock=self._clock,
            entropy=self._entropy,
            threads=self._threads or SystemThreads(),
            ctrl_c_interrupts=can_receive_signals() and not self._obeys_signals,
            idle_timeout_s=self._idle_timeout,
            long_polling_timeout_s=self._long_polling_timeout,
        )
        with trio.CancelScope() as self._scope:
            self._run = self._new_run(settings)
            if self._stop_before_start:  # from another thread, a moment ago
                self.stop()
            try:
                await self._run.run(task_status)
            finally:
                self._last_run, self._run, self._scope = self._run, None, None
                self._reports.log.info("stopped")

    def _new_run(self, settings: Settings) -> WorkerRun:
        handlers = dict(self._handlers)
        if self._transport == "http":
            return PullRun(settings, handlers, self._reports)
        return PushRun(settings, handlers, self._reports)

    def stop(self, *, grace: float = 0.0) -> None:
        """Graceful end: no new tasks; running handlers may go on for ``grace`` seconds and are then told to give up;
        results are handed in; what is unfinished goes back to the engine without using up a retry. From any thread;
        returns at once, `run` and `serve` return when it is done.

        :raises InvalidInput: when ``grace`` is no number of seconds.
        """
        check_grace(grace)
        run = self._run
        if run is not None:
            run.request_stop(grace)
        elif self._last_run is None:
            self._stop_before_start = True

    def dispose(self) -> None:
        """`stop`, and the worker cannot be used again. From any thread."""
        self._disposed = True
        self.stop()

    def _cancel(self) -> None:
        if self._scope is not None:
            self._scope.cancel()

    # --- how it is -----------------------------------------------------------------------------------------------

    def health(self) -> Health:
        run = self._run or self._last_run
        return Health(
            is_polling_active=run is not None and run.is_connected,
            consecutive_critical_errors=0 if run is None else run.critical_errors,
            active_task_count=0 if run is None else run.active_task_count,
            identity_refresh_failed_critically=run is not None and run.identity_failed,
        )

    def is_healthy(self) -> bool:
        """Connected, fewer critical errors in a row than allowed, and no final trouble with the credential."""
        health = self.health()
        return (
            health.is_polling_active
            and health.consecutive_critical_errors < health.max_consecutive_critical_errors
            and not health.identity_refresh_failed_critically
        )

    def __repr__(self) -> str:
        state = "disposed" if self._disposed else "idle" if self._run is None else "running"
        return f"<Worker {self.worker_id!r} for {', '.join(self._handlers) or 'nothing'}, {state}>"
