"""The adapters to the real world, or to virtual time, that an engine gets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from stellwerk.app.config import MEMORY, AppConfig
from stellwerk.ports import Clock, Ports, Store, ThreadRunner
from stellwerk.stores.memory import MemoryStore
from stellwerk.stores.sqlite.store import SqliteStore
from stellwerk.system.clock import SystemClock, VirtualClock, is_virtual_time
from stellwerk.system.entropy import SystemEntropy
from stellwerk.system.file_lock import FileLock
from stellwerk.system.logging import open_log
from stellwerk.system.threads import InlineRunner, OneThread

__all__ = ["open_ports"]


@contextmanager
def open_ports(config: AppConfig) -> Iterator[Ports]:
    """Within a trio run: its clock decides whether threads may be used. The store is not opened yet."""
    clock = config.clock or (VirtualClock() if is_virtual_time() else SystemClock())
    with _runner("stellwerk-background") as background, _store(config, clock) as store:
        yield Ports(
            clock=clock,
            entropy=SystemEntropy(),
            store=store,
            background=background,
            log=open_log(config.log_level, config.log_format),
            pause_point=_no_pause,
        )


@contextmanager
def _store(config: AppConfig, clock: Clock) -> Iterator[Store]:
    """The threads that it works in end with the context."""
    if config.db == MEMORY:
        yield MemoryStore(clock)
        return
    with _runner("stellwerk-sqlite") as runner, _runner("stellwerk-backup") as copier:
        yield SqliteStore(
            config.db,
            runner=runner,
            copier=copier,
            clock=clock,
            lock=FileLock(config.db),
            synchronous=config.synchronous,
        )


@contextmanager
def _runner(name: str) -> Iterator[ThreadRunner]:
    if is_virtual_time():
        yield InlineRunner()
        return
    thread = OneThread(name)
    try:
        yield thread
    finally:
        thread.close()


async def _no_pause(name: str) -> None:
    return
