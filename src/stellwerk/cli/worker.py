"""``stellwerk worker``."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from stellwerk.cli.mistakes import CommandFailed, Mistake

if TYPE_CHECKING:
    from stellwerk.worker import Worker

__all__ = ["worker"]


def worker(
    target: Annotated[
        str, Parameter(name="MODULE:OBJECT", help="Where the Worker is; its name is worker if not said.")
    ],
    /,
    *,
    url: Annotated[
        str | None,
        Parameter(name="--url", env_var="STELLWERK_URL", help="Where the engine is, if not where the Worker says."),
    ] = None,
) -> int:
    """Run a worker that a Python module defines, until it is told to stop.

    The module is sought from the current directory on. SIGTERM or Ctrl-C: it takes no new tasks and finishes what it
    has.

    For example:

        stellwerk worker shop.workers:worker
        stellwerk worker payment.py --url http://engine.example:10560
    """
    from stellwerk.errors import StellwerkError
    from stellwerk.worker import WorkerGaveUp

    found = _load(target)
    try:
        if url is not None:
            found.connect_to(url)
        found.run()
    except WorkerGaveUp as error:
        raise CommandFailed(str(error)) from None
    except StellwerkError as error:
        raise Mistake(error.message) from None
    return 0


def _load(target: str) -> Worker:
    from stellwerk.errors import StellwerkError
    from stellwerk.worker import load_worker

    try:
        return load_worker(target)
    except StellwerkError as error:
        raise Mistake(error.message) from None
    except Exception as error:  # noqa: BLE001 - whatever the module does when it is imported
        raise Mistake(f"{target}: {_where(error)}{type(error).__name__}: {error}") from None


def _where(error: Exception) -> str:
    if isinstance(error, SyntaxError):
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}: " if frames else ""
