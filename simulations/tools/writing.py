"""Files that tools write, whole or not at all, and marked parts of pages of documentation."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from stellwerk.cli.mistakes import Mistake

__all__ = ["plain", "write_file", "write_part"]


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


def write_part(page: Path, mark: str, text: str) -> None:
    """Replace what stands between the lines ``<!-- mark -->`` and ``<!-- end -->``. A page that is not there is
    made, with nothing but this part.

    :raises Mistake: the page has no such part, or more than one; or it cannot be read or written.
    """
    begin, end = f"<!-- {mark} -->\n", "<!-- end -->"
    part = f"{begin}\n{text.strip()}\n\n"
    try:
        before = page.read_text(encoding="utf-8")
    except FileNotFoundError:
        write_file(page, f"{part}{end}\n")
        return
    except (OSError, UnicodeDecodeError) as error:
        raise Mistake(f"{page}: cannot be read: {error}") from None
    parts = re.findall(f"{re.escape(begin)}.*?(?={re.escape(end)})", before, re.DOTALL)
    if len(parts) != 1:
        raise Mistake(f"{page}: has {len(parts)} parts between {begin.strip()} and {end}, not one")
    write_file(page, before.replace(parts[0], part))


_RULE = re.compile(r" \((?:\w+: )?(?:rules?|consistency\.md) \d+(?: and \d+)?\)")


def plain(text: str) -> str:
    """A sentence of the code for a cell of a table: without the numbers of the design's rules, which users do not
    have."""
    return _RULE.sub("", " ".join(text.split())).replace("|", "\\|")
