"""``stellwerk serve``."""

from __future__ import annotations

import contextlib
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from stellwerk.cli.mistakes import Mistake
from stellwerk.cli.output import say
from stellwerk.cli.streams import OutputFailed

if TYPE_CHECKING:
    from stellwerk.app import AppConfig

__all__ = ["serve"]

_DRAIN_SECONDS_MAX = 3.0
"""How long workers may finish what they have before the engine stops; their leases survive it anyway."""


def serve(
    *,
    db: Annotated[str, Parameter(help="SQLite file; :memory: keeps nothing.")] = "stellwerk.db",
    host: Annotated[str, Parameter(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Parameter(help="0 picks a free one.")] = 10560,
    synchronous: Annotated[
        Literal["full", "normal"],
        Parameter(help="normal is faster, and may lose the last commits when the power fails."),
    ] = "full",
    failure_policy: Annotated[
        Literal["incident", "compensate"] | None,
        Parameter(
            help="What follows when a task fails for good, for models that do not say. Default: as fits the file."
        ),
    ] = None,
    log_level: Literal["debug", "info", "warning", "error"] = "info",
    log_format: Literal["text", "json"] = "text",
) -> int:
    """Run an engine until it is told to stop.

    Prints "stellwerk VERSION listening on URL" when it is ready. SIGTERM or Ctrl-C: workers are told to finish, then
    the engine stops within 5 seconds; a second signal stops it at once. The log goes to standard error.

    For example:

        stellwerk serve
        stellwerk serve --db orders.db --port 8080
        stellwerk serve --db :memory: --port 0 --log-format json
    """
    if not 0 <= port <= 65535:
        raise Mistake(f"--port {port}: ports are 0 to 65535")
    from stellwerk.actors.node import NodeConfig
    from stellwerk.app import MEMORY, AppConfig
    from stellwerk.model.process import FailurePolicy
    from stellwerk.system.logging import LogFormat, LogLevel

    policy = None if failure_policy is None else FailurePolicy(failure_policy)
    return _run(
        AppConfig(
            db=MEMORY if db == MEMORY else _database_file(db),
            synchronous="FULL" if synchronous == "full" else "NORMAL",
            host=host,
            port=port,
            node=NodeConfig(failure_policy=policy),
            log_level=LogLevel(log_level),
            log_format=LogFormat(log_format),
        )
    )


def _database_file(name: str) -> Path:
    if not name:
        raise Mistake("--db: the name of a file, or :memory:")
    path = Path(name)
    try:
        if path.is_dir():
            raise Mistake(f"{name}: is a directory")
        if not path.absolute().parent.is_dir():
            raise Mistake(f"{name}: there is no directory {path.absolute().parent}")
    except OSError as error:
        raise Mistake(f"{name}: {error.strerror}") from None
    return path


def _run(config: AppConfig) -> int:
    import trio

    from stellwerk.app import CannotListen
    from stellwerk.errors import StoreUnavailable
    from stellwerk.system.memory import collect_seldom

    collect_seldom()
    try:
        trio.run(_serve_until_signal, config)
    except (CannotListen, StoreUnavailable) as error:
        raise Mistake(error.message) from None
    return 0


async def _serve_until_signal(config: AppConfig) -> None:
    import trio

    from stellwerk.app import serve_engine, without_group
    from stellwerk.system.signals import exit_at_once, open_stop_signals

    async def exit_on_second() -> None:
        exit_at_once(await anext(signals))

    with without_group(), open_stop_signals() as signals:
        async with trio.open_nursery() as nursery:
            async with serve_engine(config) as engine:
                _announce(engine.url)
                await anext(signals)
                nursery.start_soon(exit_on_second)
                await engine.drain(_DRAIN_SECONDS_MAX)
            nursery.cancel_scope.cancel()


def _announce(url: str) -> None:
    # Who closed our standard output does not want to know; the engine runs all the same.
    with contextlib.suppress(OutputFailed):
        say(f"stellwerk {version('stellwerk')} listening on {url}")
