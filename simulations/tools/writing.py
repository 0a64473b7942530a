"""Files that tools write: whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from stellwerk.cli.mistakes import Mistake

__all__ = ["write_file"]


def write_file(path: Path, text: str) -> None:
    """Its directory is made too.

    :raises Mistake: it cannot be written.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        raise Mistake(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
