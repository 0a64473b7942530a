"""BPMN files are read once for all nodes and runs: reading is a function of the file, and all runs have the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from unittest.mock import patch

from stellwerk.actors import definitions
from stellwerk.limits import Limits
from stellwerk.model.reader import ReadResult, read_definitions

__all__ = ["files_read_once"]

_FILES_MAX = 256


@contextmanager
def files_read_once(*, anew: bool) -> Iterator[None]:
    """For the run within. What a node gets is immutable.

    :param anew: nothing is taken from earlier runs, nor kept for later ones: a deliberate bug may be in the reader.
    """
    read = lru_cache(_FILES_MAX)(_read) if anew else _read_before

    def read_once(xml: bytes, *, limits: Limits | None = None, adopt_java: bool = False) -> ReadResult:
        return read(xml, limits, adopt_java)

    with patch.object(definitions, "read_definitions", read_once):
        yield


def _read(xml: bytes, limits: Limits | None, adopt_java: bool) -> ReadResult:
    return read_definitions(xml, limits=limits, adopt_java=adopt_java)


_read_before = lru_cache(_FILES_MAX)(_read)
