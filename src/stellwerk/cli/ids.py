"""Ids on the command line: whole, or as much of their beginning as is unique."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, TypeAlias

import attrs
from cyclopts import Parameter

from stellwerk.cli.client import Client
from stellwerk.cli.mistakes import Mistake

__all__ = ["INCIDENTS", "INSTANCES", "USER_TASKS", "InstanceId", "Listing", "find_id", "find_row"]

InstanceId: TypeAlias = Annotated[str, Parameter(help="Id of the instance, or its unique beginning.")]

_WHOLE_CHARS: Final = 36
"""Of a UUID."""
_BEGINNING_CHARS_MIN: Final = 6


@attrs.frozen
class Listing:
    """Where the engine lists the things that an id may be of."""

    path: str
    plural: str
    id_field: str
    is_by_id: bool = True

    def beginning_with(self, client: Client, text: str) -> list[Mapping[str, Any]]:
        """The things whose ids go on after `text`; a few of them, where they are many."""
        # In a list by id they are next to each other.
        query = {"after": text, "limit": _SIBLINGS_MAX} if self.is_by_id else {"limit": _NEWEST_MAX}
        rows = client.get(self.path, query)[self.plural]
        return [row for row in rows if str(row[self.id_field]).startswith(text)]


_SIBLINGS_MAX: Final = 20
"""More than there are hexadecimal digits: what differs from an id in the last one only is among them."""
_NEWEST_MAX: Final = 1000
_NAMED_MAX: Final = 5

INSTANCES = Listing("/process-instances", "instances", "instance_id", is_by_id=False)
"""Beginnings are sought among the newest of them."""
INCIDENTS = Listing("/incidents", "incidents", "incident_id")
USER_TASKS = Listing("/user-tasks", "user_tasks", "user_task_id")


def find_id(client: Client, given: str, listing: Listing) -> str:
    """The whole id. What is no known beginning stays as it is: the engine has a word for it.

    :raises Mistake: when several ids begin like that, or it is too short to be sought.
    """
    if 0 < len(given) < _BEGINNING_CHARS_MIN and given.isascii():
        raise Mistake(f"{given!r} is too short: give at least the first {_BEGINNING_CHARS_MIN} characters of the id")
    if not given or len(given) >= _WHOLE_CHARS:
        return given
    fitting = [str(row[listing.id_field]) for row in listing.beginning_with(client, given)]
    if len(fitting) > 1:
        raise Mistake(_ambiguous(given, listing.plural.replace("_", " "), fitting))
    return fitting[0] if fitting else given


def _ambiguous(given: str, what: str, fitting: Sequence[str]) -> str:
    named = ", ".join(fitting[:_NAMED_MAX]) + (", …" if len(fitting) > _NAMED_MAX else "")
    return f"{given!r} is the beginning of several {what}: {named}"


def find_row(client: Client, given: str, listing: Listing) -> Mapping[str, object]:
    """The thing itself.

    :raises Mistake: when there is none, or several begin like that.
    """
    whole = find_id(client, given, listing)
    for row in listing.beginning_with(client, whole[:-1]):
        if row[listing.id_field] == whole:
            return dict(row)
    raise Mistake(f"there is no open {listing.id_field.removesuffix('_id').replace('_', ' ')} {given}")
