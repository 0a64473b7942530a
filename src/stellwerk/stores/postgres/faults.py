"""What an error of the database means for who asked: whose fault it is, and what became of the work.

The codes are those of PostgreSQL's appendix A.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import asyncpg

from stellwerk.errors import StellwerkError, StoreUnavailable
from stellwerk.stores.tables import ROW_FAULTS

__all__ = ["DATABASE_ERRORS", "Fault", "fault_of", "is_read_only", "may_heal", "unavailable"]

DATABASE_ERRORS: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)
"""All that asyncpg raises."""


class Fault(Enum):
    DATA = "data"
    """One operation of the batch is at fault; nothing was committed."""
    AGAIN = "again"
    """Others were in the way; nothing was committed, and doing it again helps."""
    BLOCKED = "blocked"
    """Another session has kept a row or a table locked for too long; nothing was committed."""
    LOST = "lost"
    """No answer: what was sent may have happened (consistency.md 3)."""
    REFUSED = "refused"
    """The server answered that it cannot now; nothing was committed."""
    MISTAKE = "mistake"
    """No error of the database: of ours."""


_CLASSES = {
    "08": Fault.LOST,
    "21": Fault.DATA,  # more than one row where one is expected
    "22": Fault.DATA,
    "23": Fault.DATA,
    "54": Fault.DATA,  # too large for an index, for one
    "P0": Fault.DATA,  # raised by a function over what it was given
}
_CODES = {
    "0A000": Fault.AGAIN,  # a cached plan does not fit the schema any more: another node has migrated
    "25P03": Fault.LOST,  # a transaction stood idle: its connection was closed
    "40001": Fault.AGAIN,
    "40003": Fault.LOST,
    "40P01": Fault.AGAIN,
    "55P03": Fault.BLOCKED,
    # The server closes the connection. Between the commit and its answer too, where it has happened.
    "57P01": Fault.LOST,
    "57P02": Fault.LOST,
    "57P04": Fault.LOST,
    "57P05": Fault.LOST,
}
_READ_ONLY = "25006"
_NO_DATABASE = "3D000"
_NEVER_HEALING = ("0A", "22", "28", "3D", "42")
"""Of what comes instead of a connection: who asks again a second later gets the same answer."""

_UNPOOLED_START = "unsupported startup parameter"  # pgbouncer's own words
_POOLED = "this is a pooler: where it is in transaction mode, say so (--listen-db DSN; in programs listen_db=)"
_WAYS_OUT = {
    "25006": "a standby or set to read-only: nothing can be written before it is promoted or set to read-write",
    "28000": "check user, password and pg_hba.conf",
    # asyncpg sends an empty one where it has none, so that the server cannot tell.
    "28P01": "check user and password; where none was given: PGPASSWORD, ~/.pgpass, or in the DSN",
    "42501": "the user must own the schema stellwerk and all in it, or be a member of the role that does "
    "(GRANT owner TO user; the owner: SELECT nspowner::regrole FROM pg_namespace WHERE nspname = 'stellwerk'); "
    "where there is no such schema yet: GRANT CREATE ON DATABASE",
    "53100": "its disk is full: free some space there",
    "53200": "it is out of memory",
    "53300": "raise its max_connections, or go through a pooler such as pgbouncer",
    "55P03": "another session keeps a row or a table locked: look into pg_locks",
    "57014": "it takes longer than command_seconds_max allows",
    "57P03": "it is starting or stopping",
}


def fault_of(error: BaseException) -> Fault:
    match error:
        case asyncpg.PostgresError():
            code = _code(error)
            return _CODES.get(code) or _CLASSES.get(code[:2], Fault.REFUSED)
        case asyncpg.OutdatedSchemaCacheError():
            return Fault.AGAIN
        case asyncpg.TargetServerAttributeNotMatched() | StoreUnavailable():
            return Fault.REFUSED
        case asyncpg.DataError():
            return Fault.DATA
        case asyncpg.InterfaceError() if "closed" in str(error) or "closing" in str(error):
            return Fault.LOST
        case asyncpg.InternalClientError() | OSError() | TimeoutError():
            return Fault.LOST
        case StellwerkError():
            return Fault.MISTAKE
        case _:
            return Fault.DATA if isinstance(error, ROW_FAULTS) else Fault.MISTAKE


def is_read_only(error: BaseException) -> bool:
    """The server has become a standby, or was set to read-only: another one may be the primary now."""
    return _code(error) == _READ_ONLY


def may_heal(error: BaseException) -> bool:
    """Of an error in place of a connection: trying again soon may help."""
    if isinstance(error, asyncpg.InterfaceError) or _UNPOOLED_START in str(error):
        return False
    return not _code(error).startswith(_NEVER_HEALING)


def unavailable(error: BaseException, where: object) -> StoreUnavailable:
    """:param where: names the database for people."""
    if isinstance(error, StoreUnavailable):
        return error
    return StoreUnavailable(f"{where}: {_reason(error)}")


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "does not answer in time"
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return "none of its servers can be written to: a primary is needed"
    if isinstance(error, OSError):
        return f"cannot be reached: {_first_line(error)}; check host and port, and that it runs"
    if isinstance(error, asyncpg.InternalClientError) or (
        isinstance(error, asyncpg.InterfaceError) and fault_of(error) is Fault.LOST
    ):
        return "the connection was lost"  # in asyncpg's words: what it was at
    if _code(error) == _NO_DATABASE:
        return "does not exist: create it with createdb, or name another (postgresql://user@host/database)"
    way_out = _POOLED if _UNPOOLED_START in str(error) else _WAYS_OUT.get(_code(error))
    return _first_line(error) + (f" ({way_out})" if way_out else "")


def _first_line(error: BaseException) -> str:
    """What follows may quote rows."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _code(error: BaseException) -> str:
    return getattr(error, "sqlstate", None) or "" if isinstance(error, asyncpg.PostgresError) else ""
