"""What keeps the store small and safe: pruning and backups."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stellwerk.actors.backups import BackupCopy, Backups
from stellwerk.actors.committer import Committer
from stellwerk.actors.instances import Instances
from stellwerk.errors import InvalidInput
from stellwerk.instants import InstantMs
from stellwerk.ports import Ports, Pruned, PruneInstances

__all__ = ["PRUNED_AT_ONCE", "NodeMaintenance"]

PRUNED_AT_ONCE = 100
"""Instances in one operation: other operations wait for it."""
_PRUNE_EVERY_SECONDS = 60.0


class NodeMaintenance:
    """A part of `Node`."""

    ports: Ports
    committer: Committer
    _backups: Backups
    _instances: Instances
    _pruned_in_slices = 0
    """By whoever asks for slices, and not told yet."""

    async def prune(self, older_than_ms: int, progress: Callable[[int], None] = lambda _done: None) -> int:
        """Delete the instances that ended longer ago than that, in small pieces with other work between.

        :param progress: told how many are deleted so far.
        :return: how many.
        """
        ended_before_ms = self._ended_before(older_than_ms)
        deleted = 0
        while slice_size := (await self._prune(ended_before_ms, PRUNED_AT_ONCE)).instances:
            deleted += slice_size
            progress(deleted)
        self._tell_pruned(deleted)
        return deleted

    async def prune_slice(self, older_than_ms: int, limit: int = PRUNED_AT_ONCE) -> int:
        """Delete at most `limit` of them. :return: how many; 0: there are no more."""
        slice_size = (await self._prune(self._ended_before(older_than_ms), limit)).instances
        self._pruned_in_slices += slice_size
        if slice_size < limit:  # whoever asks for one slice after the other has come to the end
            self._tell_pruned(self._pruned_in_slices)
            self._pruned_in_slices = 0
        return slice_size

    def _tell_pruned(self, instances: int) -> None:
        if instances:
            self.ports.log.info("pruned", instances=instances)

    async def prune_for_ever(self, older_than_ms: int) -> None:
        """Once a minute delete what has become that old. Several nodes may do so at once."""
        while True:
            await self.prune(older_than_ms)
            await self.ports.clock.sleep(_PRUNE_EVERY_SECONDS)

    def _ended_before(self, older_than_ms: int) -> InstantMs:
        if older_than_ms < 0:
            raise InvalidInput("at least 0 @ $.older_than_ms")
        return self.ports.clock.wall_ms() - older_than_ms

    async def _prune(self, ended_before_ms: InstantMs, limit: int) -> Pruned:
        pruned = await self.committer.submit(PruneInstances(ended_before_ms, limit))
        assert isinstance(pruned, Pruned)
        if pruned.instances:
            self._instances.forget_ended()
        return pruned

    async def backup(self, target: Path, progress: Callable[[float], None] = lambda _done: None) -> None:
        """Write a consistent copy of everything to a new file while work goes on.

        :param progress: told how much is done, in [0, 1].
        :raises Conflict: everything is in memory, or `target` exists; StoreUnavailable: it cannot be written.
        """
        await self._backups.write(target, progress)

    def backup_copy(self) -> BackupCopy:
        """A copy beside the store's file, not written yet: to be sent somewhere. One at a time.

        :raises Conflict: everything is in memory, or another copy is being sent.
        """
        return self._backups.new_copy()
