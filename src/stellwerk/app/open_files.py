"""How many connections fit into the files that this process may have open.

Without this, clients that only connect could take every file there is, and the engine could open none of its own: no
connection to its database, no backup, no issuer's keys.
"""

from __future__ import annotations

import attrs

from stellwerk.server.http.limits import HttpLimits
from stellwerk.system.machine import allow_open_files, open_files_max

__all__ = ["make_room", "within_open_files"]

_BESIDE_MAX = 256
"""Files that are no client's: database, backups, connections to others."""
_BESIDE_SHARE = 4
"""Or such a part of all, where there are few."""


def make_room(limits: HttpLimits) -> None:
    """For a process that is an engine and nothing else: raise what it may open, as far as the system lets it."""
    allow_open_files(limits.connections_max + _BESIDE_MAX)


def within_open_files(limits: HttpLimits) -> HttpLimits:
    """The same with as many connections as fit."""
    files = open_files_max()
    fitting = max(1, files - min(_BESIDE_MAX, files // _BESIDE_SHARE))
    return attrs.evolve(limits, connections_max=min(limits.connections_max, fitting))
