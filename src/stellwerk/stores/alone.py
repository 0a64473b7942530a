"""What a store that belongs to one engine answers to all that is about other nodes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import trio

from stellwerk.instants import InstantMs
from stellwerk.ports import (
    Changeset,
    Committed,
    DueTimer,
    Hint,
    NodeReport,
    NodeRow,
    Operation,
    Outcome,
    RefusedChangeset,
    StoredInstance,
)

__all__ = ["AloneStore"]


class AloneStore:
    """A part of the embedded stores: there is one node, and nobody else to hear from."""

    is_shared = False
    _node: NodeReport | None = None

    def trouble(self) -> str | None:
        """Whoever asks gets the error at once, and no other node could do better."""
        return None

    async def transact(self, operations: Sequence[Operation]) -> Sequence[Outcome]:
        raise NotImplementedError

    async def load_instance(self, instance_id: str) -> StoredInstance | None:
        raise NotImplementedError

    async def due_timers(self, now_ms: InstantMs, limit: int) -> tuple[Sequence[DueTimer], InstantMs | None]:
        raise NotImplementedError

    async def step_locked(
        self, instance_id: str, decide: Callable[[StoredInstance | None], Changeset | None]
    ) -> Committed | RefusedChangeset | None:
        changeset = decide(await self.load_instance(instance_id))
        if changeset is None:
            return None
        outcome = (await self.transact([changeset]))[0]
        if isinstance(outcome, Exception):
            raise outcome
        assert isinstance(outcome, Committed | RefusedChangeset)
        return outcome

    async def claim_timers(self, now_ms: InstantMs, limit: int) -> tuple[Sequence[DueTimer], InstantMs | None]:
        return await self.due_timers(now_ms, limit)

    async def standing_leases(self, leases: Sequence[tuple[str, int]]) -> Collection[tuple[str, int]]:
        """Nobody but this node's own requests ends a lease, and it hears of each."""
        return leases

    def tell(self, hint: Hint) -> None:
        return

    async def hints(self) -> Hint:
        await trio.sleep_forever()
        raise AssertionError("never")

    async def report_node(self, report: NodeReport) -> None:
        self._node = report

    async def nodes(self) -> Sequence[NodeRow]:
        return [] if self._node is None else [NodeRow(report=self._node, seen_ms_ago=0)]

    async def forget_node(self, node_id: str) -> None:
        self._node = None
