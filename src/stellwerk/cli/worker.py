"""``stellwerk worker``."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from stellwerk.cli.connection import TOKEN_VARIABLE, credential
from stellwerk.cli.mistakes import CommandFailed, Mistake, traceback_if_wanted
from stellwerk.cli.output import warn
from stellwerk.cli.streams import as_it_is

if TYPE_CHECKING:
    from stellwerk.worker import Worker
    from stellwerk.worker.options import Transport

__all__ = ["worker"]

_WORKER_ID_CHARS_MAX = 255
_PACKAGE = Path(__file__).parents[1]


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
    token: Annotated[
        str | None,
        Parameter(
            name="--token",
            help=f"API key or token, if not the one that the Worker says. Default: {TOKEN_VARIABLE}, which others "
            "cannot see.",
        ),
    ] = None,
    worker_id: Annotated[
        str | None,
        Parameter(
            name="--worker-id",
            help="Its name, if not the one that the Worker says: an API key may be for some names only. Default: drawn "
            "when it starts. No two that run may have the same.",
        ),
    ] = None,
    transport: Annotated[
        Literal["websocket", "http"] | None,
        Parameter(
            name="--transport",
            help="How tasks come, if not as the Worker says: pushed over a WebSocket, or polled over HTTP, for "
            "networks that let no WebSocket through.",
        ),
    ] = None,
) -> int:
    """Run a worker that a Python module defines, until it is told to stop.

    The module is sought from the current directory on. SIGTERM or Ctrl-C: it takes no new tasks and finishes what it
    has. Its log goes to standard error. With STELLWERK_DEBUG=1 an error in the module is shown with its traceback.

    For example:

        stellwerk worker shop.workers:worker
        stellwerk worker payment.py --url http://engine.example:10560
        stellwerk worker payment.py --transport http
        stellwerk worker payment.py --worker-id billing-1
    """
    with as_it_is():
        return _run(target, url, credential(token), transport, worker_id)


def _run(target: str, url: str | None, token: str | None, transport: Transport | None, worker_id: str | None) -> int:
    from stellwerk.errors import StellwerkError
    from stellwerk.worker import WorkerGaveUp

    if worker_id is not None and not 1 <= len(worker_id) <= _WORKER_ID_CHARS_MAX:
        raise Mistake(f"--worker-id: 1 to {_WORKER_ID_CHARS_MAX} characters")
    found = _load(target)
    try:
        found.connect_to(url, transport=transport, token=token, worker_id=worker_id)
        found.run()
    except WorkerGaveUp as error:
        raise CommandFailed(str(error)) from None
    except StellwerkError as error:
        raise Mistake(error.message) from None
    return 0


def _load(target: str) -> Worker:
    from stellwerk.worker import load_worker

    try:
        return load_worker(target)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the module does when it is imported
        shown = traceback_if_wanted(error)
        if shown is not None:
            warn(shown)
        raise Mistake(_as_line(target, error)) from None


def _as_line(target: str, error: Exception | SystemExit) -> str:
    """``shop.py:7: TypeError: …``, as compilers print it."""
    from stellwerk.errors import StellwerkError

    what = f"{type(error).__name__}: {error}"
    if isinstance(error, StellwerkError):
        what = error.message
    elif isinstance(error, SyntaxError) and error.filename is not None:
        return f"{_short(error.filename)}:{error.lineno}: {type(error).__name__}: {error.msg}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    if frames:
        return f"{_short(frames[-1].filename)}:{frames[-1].lineno}: {what}"
    return what if isinstance(error, StellwerkError) else f"{target}: {what}"


def _is_users(filename: str) -> bool:
    """Neither Python's own, nor installed, nor ours: there the mistake is, wherever it was noticed."""
    path = Path(filename)
    foreign = (_PACKAGE, Path(sys.prefix), Path(sys.base_prefix, "lib"))
    return path.is_absolute() and not any(path.is_relative_to(directory) for directory in foreign)


def _short(filename: str) -> str:
    path, here = Path(filename), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else filename
