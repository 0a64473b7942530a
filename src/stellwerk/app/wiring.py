"""The adapters to the real world, or to virtual time, that an engine gets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stellwerk.app.config import MEMORY, AppConfig
from stellwerk.app.databases import extra_needed
from stellwerk.errors import Conflict
from stellwerk.ports import Clock, Entropy, Log, Ports, Store, ThreadRunner
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
    """Within a trio run: its clock decides whether threads may be used. The store is not opened yet.

    :raises Conflict: a database that others use, too, cannot follow a virtual clock.
    """
    clock = config.clock or (VirtualClock() if is_virtual_time() else SystemClock())
    entropy, log = SystemEntropy(), open_log(config.log_level, config.log_format)
    with _runner("stellwerk-background") as background, _store(config, clock, entropy, log) as (store, log):
        yield Ports(
            clock=clock,
            entropy=entropy,
            store=store,
            background=background,
            log=log,
            pause_point=_no_pause,
        )


@contextmanager
def _store(config: AppConfig, clock: Clock, entropy: Entropy, log: Any) -> Iterator[tuple[Store, Log]]:
    """And the log of all that works on it. The threads that it works in end with the context."""
    if config.db == MEMORY:
        yield MemoryStore(clock), log
    elif isinstance(config.db, Path):
        with _runner("stellwerk-sqlite") as runner, _runner("stellwerk-backup") as copier:
            store = SqliteStore(
                config.db,
                runner=runner,
                copier=copier,
                clock=clock,
                lock=FileLock(config.db),
                synchronous=config.synchronous,
            )
            yield store, log
    else:
        if is_virtual_time():
            raise Conflict("an engine in virtual time has no PostgreSQL: the database's clock goes on by itself")
        # Not before: who has a file needs none of its packages.
        with extra_needed():
            from stellwerk.stores.postgres.store import PostgresStore
        identity = config.node.identity
        shared = PostgresStore(
            config.db,
            clock=clock,
            entropy=entropy,
            log=log.bind(node=identity.name),  # several nodes' lines may end in one file
            node_id=identity.node_id,
            node_name=identity.name,
        )
        yield shared, shared.log


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
