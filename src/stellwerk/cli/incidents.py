"""``stellwerk incidents``, ``resolve`` and ``retry``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from cyclopts import Parameter, Token

from stellwerk.cli.client import Client, segment
from stellwerk.cli.connection import HERE, Engine
from stellwerk.cli.ids import INCIDENTS, find_id, find_row
from stellwerk.cli.lists import ROWS_DEFAULT, list_page
from stellwerk.cli.mistakes import ENDED_BADLY, Mistake
from stellwerk.cli.options import After, AsJson, Limit, OfInstance, flag, read_object
from stellwerk.cli.output import counted, incident_lines, print_json, say, warn
from stellwerk.cli.progress import progress
from stellwerk.cli.tasks import warn_of_unattended
from stellwerk.cli.times import now
from stellwerk.cli.unknown import warn_of_unknown_kind, warn_of_unknown_process, warn_of_unknown_topic

__all__ = ["KINDS", "incidents", "resolve", "retry"]

KINDS = (
    "retries_exhausted",
    "bpmn_error",
    "lock_expired",
    "lock_expiries_exhausted",
    "undeliverable",
    "model_fault",
    "compensation_failed",
)
"""All there are; docs/operations says what they mean. Here by hand, for the engine is not loaded to show help."""

_AT_ONCE_MAX = 1000
"""As many incidents as one request may name."""


def _kind(_type: object, tokens: Sequence[Token]) -> str:
    return tokens[0].value.lower().replace("-", "_")


_Process = Annotated[str | None, Parameter(help="Only those in instances of this process.")]
_Kind = Annotated[str | None, Parameter(help=f"Only those of this kind: {', '.join(KINDS)}.", converter=_kind)]


def incidents(
    *,
    instance: OfInstance = None,
    process: _Process = None,
    kind: _Kind = None,
    limit: Limit = ROWS_DEFAULT,
    after: After = None,
    engine: Engine = HERE,
    json: AsJson = False,
) -> int:
    """List open incidents: tokens that wait for you.

    For example:

        stellwerk incidents
        stellwerk incidents --process order --kind retries_exhausted
    """

    def if_none(client: Client) -> None:
        _warn_of_unknown(client, process=process, kind=kind)

    return list_page(
        engine,
        INCIDENTS,
        "Incidents",
        incident_lines,
        json,
        instance=instance,
        if_none=if_none,
        process=process,
        kind=kind,
        limit=limit,
        after=after,
    )


def _warn_of_unknown(client: Client, *, process: str | None, kind: str | None, topic: str | None = None) -> None:
    """Nothing was found: perhaps because there is no such thing."""
    if process is not None:
        warn_of_unknown_process(client, process)
    if kind is not None:
        warn_of_unknown_kind(kind, KINDS)
    if topic is not None:
        warn_of_unknown_topic(client, topic)


def resolve(
    incident: Annotated[str, Parameter(help="Id of the incident, or its unique beginning.")],
    /,
    *,
    retries: Annotated[
        int | None, Parameter(help="How many attempts the task gets; as many as its model says without it.")
    ] = None,
    variables: Annotated[
        str | None, Parameter(help="Set these variables of the process first: a JSON object, or @FILE.")
    ] = None,
    engine: Engine = HERE,
) -> int:
    """Resolve an incident: the instance tries again from where it stands.

    For example:

        stellwerk resolve 0199f2a4-...
        stellwerk resolve 0199f2a4-... --retries 1
        stellwerk resolve 0199f2a4-... --variables '{"amount": 12.5}'
    """
    given = None if variables is None else read_object(variables)
    with engine.open() as client:
        incident_id = find_id(client, incident, INCIDENTS)
        if given is not None:
            found = find_row(client, incident_id, INCIDENTS)
            client.post(f"/process-instances/{segment(str(found['instance_id']))}/variables", {"variables": given})
        client.post(f"/incidents/{segment(incident_id)}/resolve", {"retries": retries})
    say(f"resolved {incident_id}")
    return 0


def retry(
    *ids: Annotated[str, Parameter(name="INCIDENT", help="Ids of incidents, or their unique beginnings.")],
    process: _Process = None,
    element: Annotated[str | None, Parameter(help="Only those at this element of the model.")] = None,
    kind: _Kind = None,
    topic: Annotated[str | None, Parameter(help="Only those at tasks of this topic.")] = None,
    all: Annotated[bool, flag(help="Every open incident.")] = False,  # noqa: A002 - the option's name
    retries: Annotated[
        int | None, Parameter(help="How many attempts each task gets; as many as its model says without it.")
    ] = None,
    engine: Engine = HERE,
    json: AsJson = False,
) -> int:
    """Try many incidents again: those that are named, or all that fit the options together.

    Re-queued is not solved: the same may go wrong again and open a new incident, which is not tried again here. Topics
    that nobody is connected for are named: their tasks wait until somebody is.

    Exit code 1 when one of them could not be tried again.

    For example:

        stellwerk retry --topic charge-card
        stellwerk retry --process order --element charge --kind retries_exhausted
        stellwerk retry --all
        stellwerk retry 0199f2a4-... 0199f2a5-...
    """
    filters = {"process": process, "element_id": element, "kind": kind, "topic": topic}
    if not ids and not all and not any(filters.values()):
        raise Mistake("which incidents? Name them, or --process, --element, --kind or --topic, or --all")
    with engine.open() as client:
        named = [find_id(client, given, INCIDENTS) for given in ids]
        body = {**filters, "all": True if all else None, "retries": retries}
        answer = _retry(client, body, named)
        if not ids and not answer["requeued"] and not answer["refused"]:
            _warn_of_unknown(client, process=process, kind=kind, topic=topic)
    print_json(answer) if json else _say_retried(answer)
    tried = {*answer["requeued"], *(refused["incident_id"] for refused in answer["refused"])}
    gone = [incident_id for incident_id in named if incident_id not in tried]
    if gone:
        raise Mistake("\n".join(f"there is no open incident {incident_id} that fits" for incident_id in gone))
    return ENDED_BADLY if answer["refused"] else 0


def _retry(client: Client, body: Mapping[str, object], named: Sequence[str]) -> dict[str, list[Any]]:
    requeued: list[str] = []
    refused: list[Mapping[str, Any]] = []
    unattended: set[str] = set()
    with progress("Trying again") as report:
        for answer in _answers(client, body, named):
            requeued += answer["requeued"]
            refused += answer["refused"]
            unattended.update(answer["unattended_topics"])
            report(len(requeued), None)
    return {"requeued": requeued, "refused": refused, "unattended_topics": sorted(unattended)}


def _answers(client: Client, body: Mapping[str, object], named: Sequence[str]) -> Iterator[dict[str, Any]]:
    for start in range(0, len(named), _AT_ONCE_MAX):
        yield client.post("/incidents/retry", {**body, "incident_ids": named[start : start + _AT_ONCE_MAX]})
    began = now()
    further: dict[str, object] | None = None if named else {}
    while further is not None:
        answer = client.post("/incidents/retry", {**body, **further})
        yield answer
        # What has failed again meanwhile is left alone: this has to end.
        further = {"after": answer["last"], "opened_before": began} if answer["more"] else None


def _say_retried(answer: Mapping[str, Any]) -> None:
    say(f"re-queued {counted(len(answer['requeued']), 'incident')}")
    for refused in answer["refused"]:
        warn(f"{refused['incident_id']}: {refused['message']}")
    warn_of_unattended(answer["unattended_topics"])
