"""Very many instances in a database in little time: copies of the rows that the store wrote for one of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from stellwerk.testing.databases import PostgresAccess

__all__ = ["copy_instance"]

Report = Callable[[str], None]

_AT_ONCE = 50_000
_SCHEMA = "stellwerk"
_INSTANCE_COLUMNS = ("instance_id", "process_instance")
_ID_TIMESTAMP = re.compile(r"\b([0-9a-f]{8})-([0-9a-f]{4})-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\b")
"""UUIDs of version 7 begin with 48 bits of time."""
_INSTANT = re.compile(r"\b1[0-9]{12}\b")
_COLUMNS = """
    SELECT table_name, column_name, data_type FROM information_schema.columns
    WHERE table_schema = $1 AND is_identity = 'NO' ORDER BY table_name, ordinal_position"""


def copy_instance(access: PostgresAccess, dsn: str, process_key: str, copies: int, report: Report) -> None:
    """Add so many copies of the only instance of a process.

    Copy number n is what the store would hold if all had happened n milliseconds earlier: the time within each id and
    each instant are so much less.

    :raises ValueError: the process has none, or several.
    """
    found = access.query(f"SELECT instance_id FROM {_SCHEMA}.instances WHERE process_key = $1", process_key, dsn=dsn)
    if len(found) != 1:
        raise ValueError(f"{process_key} has {len(found)} instances: a single one is copied")
    instance_id: str = found[0]["instance_id"]
    tables = [table for table in _tables(access, dsn) if table.is_used(access, dsn, instance_id)]
    shift = _shift(access, dsn, tables, instance_id)
    for last in range(copies, 0, -_AT_ONCE):
        first = max(1, last - _AT_ONCE + 1)
        for table in tables:
            access.query(table.copying(shift), instance_id, first, last, dsn=dsn)
        report(f"{process_key}: {copies - first + 1:,} of {copies:,} copies")


@attrs.frozen
class _Table:
    name: str
    columns: Mapping[str, str]
    """Types by name."""

    @property
    def instance_column(self) -> str:
        return next(name for name in _INSTANCE_COLUMNS if name in self.columns)

    def rows(self, access: PostgresAccess, dsn: str, instance_id: str) -> Sequence[Mapping[str, Any]]:
        return access.query(
            f"SELECT * FROM {_SCHEMA}.{self.name} WHERE {self.instance_column} = $1", instance_id, dsn=dsn
        )

    def is_used(self, access: PostgresAccess, dsn: str, instance_id: str) -> bool:
        return bool(self.rows(access, dsn, instance_id))

    def copying(self, shift: Callable[[str], str]) -> str:
        names, values = ", ".join(self.columns), ", ".join(self._value(name, shift) for name in self.columns)
        return (
            f"INSERT INTO {_SCHEMA}.{self.name} ({names}) SELECT {values} "
            f"FROM {_SCHEMA}.{self.name}, generate_series($2::bigint, $3::bigint) AS copy(n) "
            f"WHERE {self.instance_column} = $1 ORDER BY copy.n DESC"
        )

    def _value(self, name: str, shift: Callable[[str], str]) -> str:
        match self.columns[name]:
            case "text":
                return shift(name)
            case "json":
                return f"{shift(f'{name}::text')}::json"
            case "bytea":
                text = shift(f"convert_from({name}, 'UTF8')")
                return f"convert_to({text}, 'UTF8')"
            case "bigint" if name.endswith(("_at", "_at_ms", "_since")):
                return f"{name} - copy.n"
            case _:
                return name


def _tables(access: PostgresAccess, dsn: str) -> Sequence[_Table]:
    columns: dict[str, dict[str, str]] = {}
    for row in access.query(_COLUMNS, _SCHEMA, dsn=dsn):
        columns.setdefault(row["table_name"], {})[row["column_name"]] = row["data_type"]
    tables = [_Table(name, types) for name, types in columns.items()]
    return [table for table in tables if any(name in table.columns for name in _INSTANCE_COLUMNS)]


def _shift(access: PostgresAccess, dsn: str, tables: Sequence[_Table], instance_id: str) -> Callable[[str], str]:
    """→ what makes an SQL expression for a text of copy ``copy.n`` out of the expression for the text itself.

    In ascending order nothing that is put in is taken for what comes next.
    """
    texts = [_text(value) for table in tables for row in table.rows(access, dsn, instance_id) for value in row.values()]
    times = sorted({"".join(found) for text in texts for found in _ID_TIMESTAMP.findall(text)})
    instants = sorted({found for text in texts for found in _INSTANT.findall(text)})
    replaced = [(f"'{_dashed(time)}-7'", _id_start(int(time, 16))) for time in times]
    replaced += [(f"'{instant}'", f"({instant} - copy.n)::text") for instant in instants]

    def shift(expression: str) -> str:
        for old, new in replaced:
            expression = f"replace({expression}, {old}, {new})"
        return expression

    return shift


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _dashed(time: str) -> str:
    return f"{time[:8]}-{time[8:]}"


def _id_start(time_ms: int) -> str:
    digits = f"lpad(to_hex({time_ms} - copy.n), 12, '0')"
    return f"left({digits}, 8) || '-' || right({digits}, 4) || '-7'"
