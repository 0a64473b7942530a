"""An engine inside a trio program."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Literal

import trio

from stellwerk.actors.node import NodeConfig
from stellwerk.app.config import MEMORY, AppConfig, TlsConfig
from stellwerk.app.databases import database_of
from stellwerk.app.engine import Engine
from stellwerk.app.groups import without_group
from stellwerk.app.in_process import InProcessWorkers
from stellwerk.app.life import EngineLife
from stellwerk.app.options import PolicyOption, member_of, policy_of, port_of, synchronous_of
from stellwerk.app.serving import serve_engine
from stellwerk.errors import Conflict
from stellwerk.limits import Limits
from stellwerk.ports import Clock
from stellwerk.server.auth.jwt import JwtConfig
from stellwerk.stores.sqlite.connection import Synchronous
from stellwerk.system.logging import LogFormat, LogLevel

__all__ = ["open_engine"]


@asynccontextmanager
async def open_engine(
    db: str | os.PathLike[str] = MEMORY,
    *,
    listen_db: str | None = None,
    port: int | None = None,
    host: str = "127.0.0.1",
    jwt: JwtConfig | None = None,
    tls: TlsConfig | None = None,
    origins: Sequence[str] = (),
    failure_policy: PolicyOption | None = None,
    synchronous: Synchronous = "FULL",
    limits: Limits | None = None,
    log_level: LogLevel | Literal["debug", "info", "warning", "error"] = LogLevel.WARNING,
    log_format: LogFormat | Literal["text", "json"] = LogFormat.TEXT,
    clock: Clock | None = None,
) -> AsyncIterator[Engine]:
    """Run an engine for as long as the block lasts.

    ::

        async with stellwerk.open_engine("orders.db") as engine:
            await engine.deploy("order.bpmn")
            instance_id = await engine.start("order", {"amount": 12.5})
            ended = await engine.wait_for_end(instance_id)

    ``db`` is the SQLite file, made if it is missing; ``:memory:`` keeps nothing; ``postgresql://user@host/database`` is
    shared with other engines (``pip install 'stellwerk[postgres]'``), with ``listen_db`` as a direct way to it
    where ``db`` leads through a pooler. ``port``: None for none at all (workers of `Engine.worker` need no socket), 0
    for a free one (`Engine.url`). ``host``: others than loopback addresses need a credential, an API key in the
    database or ``jwt``; ``tls`` and ``origins`` (CORS) are for the port, too. ``failure_policy`` is for models that say
    nothing of their own (None: as fits the dialect). ``synchronous="NORMAL"``, for SQLite, is faster, but a power
    failure may take the last commits. The log goes to stderr.

    Under a virtual clock (``trio.testing.MockClock``) nothing runs in threads, and wall time starts at
    2026-01-01T00:00:00Z where trio's clock shows 0; ``clock`` replaces that, or the machine's clock.

    When the block ends, workers of `Engine.start_worker` are stopped first: handlers are told to give up, and what they
    have not finished goes back to the engine without using up a retry (`Engine.drain` gives them time before). When it
    ends by an error or is cancelled everything ends at once, and leases run until their time is up. What was
    acknowledged is in the file in either case; who still waits for an answer in another task gets `StoreUnavailable`.
    A single error keeps its type, with no `ExceptionGroup` around it.

    :raises StoreUnavailable: the database cannot be opened; another engine has the file, say. Conflict: this is no trio
        run, or one in virtual time, which PostgreSQL cannot follow.
    :raises CannotListen: the port cannot be had, others could use it without a credential, or time is virtual.
    :raises InvalidInput: an option has no such value.
    """
    config = AppConfig(
        db=database_of(os.fspath(db), listen_db),
        synchronous=synchronous_of(synchronous),
        host=host,
        port=port_of(port),
        jwt=jwt,
        tls=tls,
        origins=tuple(origins),
        node=NodeConfig(limits=limits or Limits(), failure_policy=policy_of(failure_policy)),
        log_level=member_of("log_level", log_level, LogLevel),
        log_format=member_of("log_format", log_format, LogFormat),
        clock=clock,
    )
    if not trio.lowlevel.in_trio_run():
        raise Conflict("an engine lives in trio: open it in a function that trio.run runs")
    with without_group() as body:
        async with serve_engine(config) as served, trio.open_nursery() as nursery:
            workers, life = InProcessWorkers(served.in_process, nursery), EngineLife()
            try:
                with body.running():
                    yield Engine(served, workers, life)
                await workers.stop(grace=0)
                await served.settle()
            finally:
                life.end()
            nursery.cancel_scope.cancel()
