"""Pages of open things, each told in a few lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from stellwerk.cli.client import Client
from stellwerk.cli.connection import Engine
from stellwerk.cli.ids import INSTANCES, Listing, find_id
from stellwerk.cli.output import print_json, say, warn_of_more

__all__ = ["ROWS_DEFAULT", "Lines", "list_page"]

ROWS_DEFAULT = 100


class Lines(Protocol):
    def __call__(self, row: Mapping[str, Any], *, with_instance: bool) -> Iterable[str]: ...


def list_page(
    engine: Engine,
    listing: Listing,
    title: str,
    lines: Lines,
    json: bool,
    *,
    instance: str | None,
    if_none: Callable[[Client], None] = lambda _client: None,
    **query: object,
) -> int:
    """Ask for a page of `listing` and print it, as JSON or with a few lines for each row.

    :param if_none: called when the very first page has nothing.
    """
    with engine.open() as client:
        instance_id = None if instance is None else find_id(client, instance, INSTANCES)
        answer = client.get(listing.path, {"instance_id": instance_id, **query})
        rows = answer[listing.plural]
        if not rows and query.get("after") is None:
            if_none(client)
    if answer["more"]:
        warn_of_more(str(rows[-1][listing.id_field]))
    if json:
        print_json(rows)
        return 0
    if not rows:
        say(f"{title}: none")
    for row in rows:
        for line in lines(row, with_instance=True):
            say(line)
        say("")
    return 0
