"""One direction of a connection, as strict as TCP: in order, bounded, cut into pieces, held back, lost, reset.

Nothing is moved about: each piece carries the instant at which it arrives, and whoever reads sleeps until the first
one's. So what is sent costs one wake-up, and a host that stands still finds what came meanwhile.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum, auto

import attrs
import trio

from simulations.kernel.clock import Alarm
from simulations.kernel.draws import Draws

__all__ = ["WINDOW_BYTES", "Attachment", "Chunk", "Fate", "Kind", "Link", "Pipe"]

WINDOW_BYTES = 64 * 1024
"""What one direction holds, on its way and unread; who sends more waits for the reader."""

_HEAVY_TAIL_SECONDS = (0.05, 0.45)
"""On top of the latency, for the few pieces that meet a queue or are sent again."""
_PIECES_MAX = 4
_GAP_SECONDS = (0.00005, 0.002)
"""Between the pieces into which data were cut."""
_BACKOFF_SECONDS_MAX = 30.0
"""After a silence at least half as long, unacknowledged data are sent again."""


class Kind(Enum):
    DATA = auto()
    END = auto()
    """FIN: nothing more follows."""
    RESET = auto()
    """RST."""


class Fate(Enum):
    """What becomes of what is sent."""

    READ = auto()
    REFUSED = auto()
    """Nobody knows the connection there any more: the answer is RST."""
    UNANSWERED = auto()
    """The host has no power; when it has, it refuses."""
    LOST = auto()
    """Something between has forgotten the connection."""


@attrs.define(eq=False)
class Attachment:
    """A host as the network sees it."""

    name: str
    starts: int = 0
    is_dark: bool = False
    """It has no power: nothing answers, not even by RST."""
    is_stopped: bool = False
    """Its program ended, but its kernel lives."""
    refuses: bool = False
    dark_since: float = 0.0


class Link:
    """One direction between two hosts."""

    def __init__(
        self,
        source: Attachment,
        target: Attachment,
        *,
        latency: tuple[float, float],
        slow: float,
        fragment: float,
        draws: Callable[..., Draws],
        note: Callable[[str], None],
    ) -> None:
        """:param slow: chance of a heavy tail. fragment: chance that what is sent at once arrives in pieces.
        draws: makes a stream of draws for a key. note: told what happened, for the sometimes-properties."""
        self.source = source
        self.target = target
        self.note = note
        self.is_cut = False
        self.extra_seconds = 0.0
        self.changed = trio.lowlevel.ParkingLot()
        """Healed, or one of the hosts has power again."""
        self._latency = latency
        self._slow = slow
        self._fragment = fragment
        self._delays = draws("network", "latency", source.name, target.name)
        self._fragments = draws("network", "fragments", source.name, target.name)

    @property
    def is_open(self) -> bool:
        return not (self.is_cut or self.source.is_dark or self.target.is_dark)

    def latency(self) -> float:
        seconds = self._delays.between(*self._latency) + self.extra_seconds
        if self._slow and self._delays.chance(self._slow):
            self.note("network: a piece was late")
            seconds += self._delays.between(*_HEAVY_TAIL_SECONDS)
        return seconds

    def pieces(self, data: bytes) -> Iterator[tuple[bytes, float]]:
        """→ each with its distance in seconds from the one before."""
        if not self._fragment or len(data) < 2 or not self._fragments.chance(self._fragment):
            yield data, 0.0
            return
        self.note("network: data arrived in pieces")
        cuts = sorted({1 + self._fragments.integer(len(data) - 1) for _ in range(_PIECES_MAX - 1)})
        for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            yield data[start:end], self._fragments.between(*_GAP_SECONDS) if start else 0.0

    def backoff(self, silent_seconds: float) -> float:
        """How long it takes until the next retransmission of what nobody acknowledged."""
        return self._delays.between(0.0, min(silent_seconds, _BACKOFF_SECONDS_MAX))


class Chunk:
    __slots__ = ("data", "kind", "ready_at")

    def __init__(self, kind: Kind, data: bytes, ready_at: float) -> None:
        self.kind = kind
        self.data = data
        self.ready_at = ready_at
        """Infinite: held back by a cut."""


class Pipe:
    """What is on its way from one end of a connection to the other, or waits there to be read."""

    opposite: Pipe
    """The other direction of the same connection."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.fate = Fate.READ
        self.reader = Alarm()
        self.writer = Alarm()
        self.is_orphan = False
        """The sending host lost its power: what a cut holds back is not sent again."""
        self._chunks: deque[Chunk] = deque()
        self._reset: Chunk | None = None
        self._last_ready = 0.0
        self._bytes = 0
        self._unacknowledged = 0
        """Of these bytes: read, but the acknowledgement met a cut."""
        self._is_owed = False
        """Something was sent that a host without power did not acknowledge."""

    # --- the sending end -------------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many bytes may be sent now."""
        return WINDOW_BYTES - self._bytes

    def put(self, data: bytes) -> None:
        self._bytes += len(data)
        for piece, gap in self.link.pieces(data):
            self._append(Kind.DATA, piece, gap=gap)

    def end(self) -> None:
        """Nothing more will be sent."""
        self._append(Kind.END, b"")

    def put_reset(self, sent_at: float = 0.0) -> None:
        """RST; it follows what was sent before."""
        if self._reset is None:
            self._append(Kind.RESET, b"", sent_at=sent_at)

    def reset_at(self) -> float:
        """When RST arrives."""
        return math.inf if self._reset is None else self._reset.ready_at

    def _append(self, kind: Kind, data: bytes, *, gap: float = 0.0, sent_at: float = 0.0) -> None:
        """:param gap: seconds behind the piece before; else it takes a latency of its own."""
        if self.fate in (Fate.UNANSWERED, Fate.LOST):
            self._is_owed = True
            self.link.note("network: something was sent into a half-open connection")
            return
        chunk = Chunk(kind, data, math.inf)
        self._chunks.append(chunk)
        if kind is Kind.RESET:
            self._reset = chunk
        if not self.link.is_cut:
            self._send(chunk, self._last_ready + gap if gap else self._arrival(sent_at))

    def _arrival(self, sent_at: float = 0.0) -> float:
        return round(max(trio.current_time(), sent_at) + self.link.latency(), 6)

    def _send(self, chunk: Chunk, arrival: float) -> None:
        chunk.ready_at = self._last_ready = max(self._last_ready, arrival)
        self._tell(chunk)

    def _tell(self, chunk: Chunk) -> None:
        """Who is concerned by a piece now knows when it arrives."""
        if self.fate is Fate.REFUSED and chunk.kind is Kind.DATA:
            self.opposite.put_reset(chunk.ready_at)
        if chunk is self._chunks[0]:
            self.reader.wake_at(chunk.ready_at)
        if chunk is self._reset:
            self.opposite.writer.wake_at(chunk.ready_at)

    # --- the receiving end -----------------------------------------------------------------------------------------

    def ready_at(self) -> float:
        """When the first piece arrives or has arrived; infinite when that is not known."""
        return self._chunks[0].ready_at if self._chunks else math.inf

    def take(self, bytes_max: int) -> bytes:
        """What has arrived; empty at the end. To be called when something has.

        :raises trio.BrokenResourceError: the connection was reset.
        """
        match self._chunks[0].kind:
            case Kind.END:
                return b""
            case Kind.RESET:
                raise trio.BrokenResourceError("the connection was reset by the peer")
            case Kind.DATA:
                pass
        data = self._collect(bytes_max)
        self._acknowledge(len(data))
        return data

    def _collect(self, bytes_max: int) -> bytes:
        now = trio.current_time()
        taken: list[bytes] = []
        while bytes_max and self._chunks and self._chunks[0].kind is Kind.DATA and self._chunks[0].ready_at <= now:
            first = self._chunks[0]
            taken.append(first.data[:bytes_max])
            first.data = first.data[bytes_max:]
            bytes_max -= len(taken[-1])
            if not first.data:
                self._chunks.popleft()
        return taken[0] if len(taken) == 1 else b"".join(taken)

    def _acknowledge(self, count: int) -> None:
        if self.opposite.link.is_cut:
            self._unacknowledged += count
            return
        self._bytes -= count
        self.writer.wake()

    def refuse(self) -> bool:
        """The reader is gone; its host's kernel is not. → whether something had arrived that nobody read."""
        now = trio.current_time()
        unread = any(chunk.kind is Kind.DATA and chunk.ready_at <= now for chunk in self._chunks)
        self._keep(lambda chunk: chunk.ready_at > now)
        if self.fate is Fate.READ:
            self.fate = Fate.REFUSED
            self._refuse_what_is_under_way()
        return unread

    def _refuse_what_is_under_way(self) -> None:
        under_way = [chunk.ready_at for chunk in self._chunks if chunk.kind is Kind.DATA and chunk.ready_at < math.inf]
        if under_way:
            self.opposite.put_reset(under_way[0])

    # --- what befalls it -------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """The link was cut: what is under way will have to be sent again."""
        now = trio.current_time()
        if self.is_orphan:
            self._keep(lambda chunk: chunk.ready_at <= now)
        for chunk in self._chunks:
            if chunk.ready_at > now:
                chunk.ready_at = math.inf
        self._last_ready = now
        self._rearm()

    def release(self) -> None:
        """The link was healed."""
        for chunk in list(self._chunks):
            if chunk.ready_at == math.inf:
                self.link.note("network: what a cut held back arrived after it was healed")
                self._send(chunk, self._arrival())
        self.opposite.acknowledge_late()

    def acknowledge_late(self) -> None:
        """The way back was healed."""
        self._bytes -= self._unacknowledged
        self._unacknowledged = 0
        self.writer.wake()

    def break_off(self) -> None:
        """Something between the hosts sends RST, at once; what is under way is lost."""
        now = trio.current_time()
        self._keep(lambda chunk: chunk.ready_at <= now)
        self._reset = Chunk(Kind.RESET, b"", now)
        self._chunks.append(self._reset)
        self._rearm()

    def lose(self) -> None:
        """Something between the hosts has forgotten the connection."""
        now = trio.current_time()
        self._keep(lambda chunk: chunk.ready_at <= now)
        self.fate = Fate.LOST
        self._rearm()

    def lose_reader(self) -> None:
        """The receiving host lost its power."""
        now = trio.current_time()
        self._is_owed = any(chunk.ready_at > now for chunk in self._chunks)
        self._keep(lambda _: False)
        if self.fate is not Fate.LOST:
            self.fate = Fate.UNANSWERED

    def lose_writer(self) -> None:
        """The sending host lost its power."""
        self.is_orphan = True
        self._keep(lambda chunk: chunk.ready_at < math.inf)

    def find_reader_restarted(self, silent_seconds: float) -> None:
        """The receiving host has power again, and knows nothing of the connection."""
        if self.fate is not Fate.UNANSWERED:
            return
        self.fate = Fate.REFUSED
        self.opposite.is_orphan = False
        if self._is_owed:
            self.link.note("network: a restarted host refused what was sent again")
            self.opposite.put_reset(trio.current_time() + self.link.backoff(silent_seconds) + self.link.latency())

    def _keep(self, wanted: Callable[[Chunk], bool]) -> None:
        self._chunks = deque(filter(wanted, self._chunks))
        if self._reset is not None and self._reset not in self._chunks:
            self._reset = None

    def _rearm(self) -> None:
        self.reader.wake_at(self.ready_at())
        self.opposite.writer.wake_at(self.reset_at())
