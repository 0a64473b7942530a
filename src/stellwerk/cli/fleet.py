"""``stellwerk serve --nodes N``: processes that share one listening socket, and who looks after them."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from subprocess import PIPE
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import attrs
import trio

from stellwerk.app import CannotListen, without_group
from stellwerk.cli.mistakes import Mistake
from stellwerk.cli.serving import ServeOptions, announce
from stellwerk.ports import Log
from stellwerk.system.logging import LogFormat, LogLevel, open_log
from stellwerk.system.machine import process_name
from stellwerk.system.signals import exit_at_once
from stellwerk.system.sockets import listening_port, open_listeners

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["DRAIN", "HAND_OVER", "READY", "serve_fleet"]

READY = "ready"
HAND_OVER = "hand over"
DRAIN = "drain"
"""What node and parent say to each other, a line each. A node whose parent is gone drains by itself."""

_READY_SECONDS_MAX = 60.0
"""For a node to be ready, beside its wait for a database that is away: imports, migrations that another node makes, a
database that is busy."""
_SLOW_SECONDS = 5.0
"""Once one node is ready, the others get so long before the engine says that it listens; they may come later, too."""
_STOP_SECONDS_MAX = 4.6
"""Together with what comes before and after it is less than 5 s."""
_LEFT_SECONDS_MAX = 3.0
"""A node that was replaced has this time before the next one is; it may go on for clients that are slow."""
_BACKOFF_SECONDS = 0.1
_BACKOFF_SECONDS_MAX = 10.0
_STEADY_SECONDS = 30.0
"""Who lived so long has not died at once."""
_LINE_BYTES_MAX = 64 * 1024


class NodeFailed(Exception):
    """A node ended before it was ready; the message says why."""


class _NodeProcess:
    """One node: a process of its own, with the code that is installed when it starts."""

    def __init__(self, process: trio.Process) -> None:
        self._process = process
        self.started_at = trio.current_time()

    @classmethod
    async def start(
        cls, options: ServeOptions, descriptors: Sequence[int], directory: str, number: int
    ) -> _NodeProcess:
        """:param number: which of the nodes it is, for people."""
        # -P: what lies in the working directory is none of ours. A group of its own: Ctrl-C is for the parent, who
        # stops them in order.
        command = [sys.executable, "-P", "-m", "stellwerk.cli.fleet_node", *f"stellwerk serve node {number}".split()]
        process = await trio.lowlevel.open_process(
            command, stdin=PIPE, stdout=PIPE, pass_fds=tuple(descriptors), process_group=0
        )
        node = cls(process)
        # Not among its arguments, where others could read the password.
        order = {"options": attrs.asdict(options), "descriptors": list(descriptors), "directory": directory}
        await node.tell(json.dumps(order))
        return node

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def name(self) -> str:
        """As it calls itself in its own lines of the log."""
        return process_name(self.pid)

    async def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            await self._process.stdin.send_all(line.encode() + b"\n")
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # it has ended; whoever waits for that hears of it

    async def wait_ready(self, seconds_max: float) -> None:
        """:raises NodeFailed: it never will be."""
        with trio.move_on_after(seconds_max):
            said = await self._line()
            if said == READY:
                return
            raise NodeFailed(_reason(said) or f"a node ended with exit code {await self._process.wait()}")
        raise NodeFailed(f"a node was not ready within {seconds_max:g} s")

    async def _line(self) -> str:
        assert self._process.stdout is not None
        said = b""
        while not said.endswith(b"\n") and len(said) < _LINE_BYTES_MAX:
            piece = await self._process.stdout.receive_some(_LINE_BYTES_MAX)
            if not piece:
                break
            said += piece
        return said.decode(errors="replace").rstrip("\n")

    async def wait(self) -> int:
        """→ its exit code; less than 0: minus the signal that ended it."""
        return await self._process.wait()

    def kill(self) -> None:
        self._process.kill()

    async def close(self) -> None:
        """Whatever it is at."""
        self.kill()
        with trio.CancelScope(shield=True):
            await self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    await pipe.aclose()


class _Place:
    """One of the N nodes, whichever process it is now."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.node: _NodeProcess | None = None
        """None: it died, and is not started again yet."""
        self.failures = 0

    def backoff_seconds(self) -> float:
        self.failures += 1
        return float(min(_BACKOFF_SECONDS_MAX, _BACKOFF_SECONDS * 2 ** (self.failures - 1)))


class _Fleet:
    def __init__(
        self,
        options: ServeOptions,
        number: int,
        listeners: Sequence[trio.SocketListener],
        log: Log,
        nursery: trio.Nursery,
    ) -> None:
        self._options = options
        self._places = [_Place(index + 1) for index in range(number)]
        self._descriptors = [listener.socket.fileno() for listener in listeners]
        host = f"[{options.host}]" if ":" in options.host else options.host
        self.url = f"{'http' if options.tls_cert is None else 'https'}://{host}:{listening_port(listeners)}"
        self._directory = TemporaryDirectory(prefix="stellwerk-")
        """For what the nodes ask each other; nobody else may look into it."""
        self._log = log
        self._nursery = nursery
        self._alive: set[_NodeProcess] = set()
        self._ended = trio.Condition()
        self._replacing = trio.Lock()
        self._replacements_wanted = 0
        self._stopping = trio.Event()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    # --- starting --------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Until one of them is ready, and a moment longer for the others. Who cannot now is tried again.

        :raises NodeFailed: none of them can.
        """
        failed: dict[_Place, NodeFailed] = {}
        unsettled = len(self._places)
        first, last = trio.Event(), trio.Event()

        async def fill(place: _Place) -> None:
            nonlocal unsettled
            try:
                await self._fill(place)
                first.set()
            except NodeFailed as failure:
                failed[place] = failure
                if last.is_set():
                    self._nursery.start_soon(self._try_later, place, failure)
            unsettled -= 1
            if not unsettled:
                first.set()
                last.set()

        for place in self._places:
            self._nursery.start_soon(fill, place)
        await first.wait()
        if len(failed) == len(self._places):
            raise next(iter(failed.values()))
        with trio.move_on_after(_SLOW_SECONDS):
            await last.wait()
        last.set()
        for place, failure in failed.items():
            self._nursery.start_soon(self._try_later, place, failure)

    async def _try_later(self, place: _Place, failure: NodeFailed) -> None:
        if not self._stopping.is_set():
            self._log.warning("node not started", reason=str(failure))
            await self._start_again(place)

    async def _fill(self, place: _Place) -> _NodeProcess:
        """:raises NodeFailed: whoever is there stays."""
        node = await self._new_node(place.number)
        place.node = node
        self._nursery.start_soon(self._watch, place, node)
        return node

    async def _new_node(self, number: int) -> _NodeProcess:
        """→ one that is ready. :raises NodeFailed: it never will be."""
        node = await _NodeProcess.start(self._options, self._descriptors, self._directory.name, number)
        self._alive.add(node)
        try:
            await node.wait_ready(_READY_SECONDS_MAX + self._options.wait_for_db_seconds)
        except BaseException:
            await node.close()
            await self._forget(node)
            raise
        return node

    async def _forget(self, node: _NodeProcess) -> None:
        with trio.CancelScope(shield=True):
            async with self._ended:
                self._alive.discard(node)
                self._ended.notify_all()

    # --- looking after them ----------------------------------------------------------------------------------------

    async def _watch(self, place: _Place, node: _NodeProcess) -> None:
        """Until it has ended; a new one takes its place unless that was meant."""
        try:
            code = await node.wait()
        finally:
            await node.close()
            await self._forget(node)
        if place.node is not node or self._stopping.is_set():
            self._log.info("node ended", node=node.name, pid=node.pid)
            return
        place.node = None
        self._log.warning("node died", node=node.name, pid=node.pid, exit_code=code)
        if trio.current_time() - node.started_at >= _STEADY_SECONDS:
            place.failures = 0
        await self._start_again(place)

    async def _start_again(self, place: _Place) -> None:
        while not self._stopping.is_set():
            await trio.sleep(place.backoff_seconds())
            async with self._replacing:
                if place.node is not None or self._stopping.is_set():
                    return
                try:
                    node = await self._fill(place)
                except NodeFailed as error:
                    self._log.warning("node not started", reason=str(error))
                else:
                    self._log.info("node started", node=node.name, pid=node.pid)
                    return

    # --- replacing them --------------------------------------------------------------------------------------------

    def want_replacements(self) -> None:
        """One after the other, each when the one before is ready. Wanted again meanwhile: once more from the start."""
        self._replacements_wanted += 1
        if self._replacements_wanted == 1:
            self._nursery.start_soon(self._replace_all)

    async def _replace_all(self) -> None:
        while self._replacements_wanted and not self._stopping.is_set():
            self._replacements_wanted = 1
            self._log.info("replacing nodes", nodes=len(self._places))
            try:
                for place in self._places:
                    await self._replace(place)
            except NodeFailed as error:
                # What runs goes on: a version that does not start must not take the engine with it.
                self._log.error("nodes not replaced: the new one does not start", reason=str(error))
            self._replacements_wanted -= 1

    async def _replace(self, place: _Place) -> None:
        async with self._replacing:
            if self._stopping.is_set():
                return
            old = place.node
            new = await self._fill(place)
        self._log.info("node replaced", node=new.name, pid=new.pid, former=None if old is None else old.pid)
        if old is not None:
            await old.tell(HAND_OVER)
            with trio.move_on_after(_LEFT_SECONDS_MAX):
                await self._wait_ended([old])

    # --- stopping --------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """All of them, those that were replaced and linger too; returns when they have ended."""
        self._stopping.set()
        with trio.move_on_after(_STOP_SECONDS_MAX):
            for node in list(self._alive):
                await node.tell(DRAIN)
            await self._wait_ended(list(self._alive))
        for node in self._alive:
            self._log.warning("node killed: it does not stop", node=node.name, pid=node.pid)
            node.kill()
        await self._wait_ended(list(self._alive))

    def kill(self) -> None:
        for node in self._alive:
            node.kill()

    def close(self) -> None:
        self._directory.cleanup()

    async def _wait_ended(self, nodes: Iterable[_NodeProcess]) -> None:
        async with self._ended:
            while self._alive & set(nodes):
                await self._ended.wait()


def serve_fleet(options: ServeOptions, number: int) -> None:
    """Until it is told to stop.

    :raises Mistake: the port cannot be had, or the nodes cannot start.
    """
    try:
        trio.run(_serve, options, number)
    except (CannotListen, NodeFailed) as error:
        raise Mistake(str(error)) from None


async def _serve(options: ServeOptions, number: int) -> None:
    log = open_log(LogLevel(options.log_level), LogFormat(options.log_format))
    listeners = await _listen(options.host, options.port)
    try:
        with without_group(), trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            async with trio.open_nursery() as nursery:
                fleet = _Fleet(options, number, listeners, log, nursery)
                with closing(fleet):
                    nursery.start_soon(_start, fleet, log, number)
                    await _obey(fleet, signals, nursery)
                nursery.cancel_scope.cancel()
    finally:
        for listener in listeners:
            await trio.aclose_forcefully(listener)


async def _start(fleet: _Fleet, log: Log, number: int) -> None:
    try:
        await fleet.start()
    except NodeFailed:
        if fleet.is_stopping:
            return
        raise
    if not fleet.is_stopping:
        log.info("nodes running", nodes=number, url=fleet.url)
        announce(fleet.url)


async def _obey(fleet: _Fleet, signals: AsyncIterator[int], nursery: trio.Nursery) -> None:
    async for number in signals:
        if number == signal.SIGHUP:
            fleet.want_replacements()
            continue
        nursery.start_soon(_exit_on_next, fleet, signals)
        await fleet.stop()
        return


async def _exit_on_next(fleet: _Fleet, signals: AsyncIterator[int]) -> None:
    async for number in signals:
        if number != signal.SIGHUP:
            fleet.kill()
            fleet.close()
            exit_at_once(number)


async def _listen(host: str, port: int) -> list[trio.SocketListener]:
    try:
        return await open_listeners(host, port)
    except OSError as error:
        raise CannotListen(f"cannot listen on {host} port {port}: {error.strerror or error}") from None


def _reason(said: str) -> str:
    """What a node says instead of being ready."""
    try:
        answer: Any = json.loads(said)
    except ValueError:
        return said
    return str(answer.get("failed", said)) if isinstance(answer, dict) else said
