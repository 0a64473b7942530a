"""``stellwerk deploy`` and ``definitions``."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from stellwerk.cli.client import Refused
from stellwerk.cli.connection import HERE, Engine
from stellwerk.cli.findings import finding_line
from stellwerk.cli.mistakes import CommandFailed, Mistake
from stellwerk.cli.options import AdoptJava, AsJson, read_file
from stellwerk.cli.output import print_json, print_table, say, short_instant, warn
from stellwerk.cli.progress import progress

__all__ = ["definitions", "deploy"]

_FILE_BYTES_MAX = 64 * 1024 * 1024
"""More than any engine takes."""


def deploy(
    *files: Annotated[Path, Parameter(name="FILE", help="BPMN 2.0 files: all of them are deployed, or none.")],
    failure_policy: Annotated[
        Literal["incident", "compensate"] | None, Parameter(help="What follows when a task fails for good.")
    ] = None,
    adopt_java: AdoptJava = False,
    engine: Engine = HERE,
    json: AsJson = False,
) -> int:
    """Deploy BPMN files. What is wrong in them is printed as FILE:LINE:COLUMN: WHAT, everything at once.

    Exit code 1 when something in them cannot run, as with stellwerk check; nothing is deployed then.

    For example:

        stellwerk deploy order.bpmn
        stellwerk deploy *.bpmn --failure-policy compensate
    """
    if not files:
        raise Mistake("which file? As in: stellwerk deploy order.bpmn")
    body = {"failure_policy": failure_policy, "adopt_java": adopt_java}
    with engine.open() as client, progress("Deploying") as report:
        uploaded = []
        for file in files:
            uploaded.append(_uploaded(file))
            report(len(uploaded), len(files))
        try:
            answer = client.post("/process-definitions", {"files": uploaded, **body})
        except Refused as refused:
            raise _with_findings(refused, uploaded) from None
    for finding in answer["warnings"]:
        warn(finding_line(finding))
    print_json(answer) if json else _say_deployed(answer)
    return 0


def _say_deployed(answer: dict[str, Any]) -> None:
    for definition in answer["definitions"]:
        state = "unchanged" if definition["key"] in answer["unchanged"] else "deployed"
        say(f"{state} {definition['key']} version {definition['version']}")


def definitions(*, engine: Engine = HERE, json: AsJson = False) -> int:
    """List the deployed processes, every version.

    For example:

        stellwerk definitions
        stellwerk definitions --db orders.db --json
    """
    with engine.open() as client:
        rows = client.get("/process-definitions")["definitions"]
    if json:
        print_json(rows)
        return 0
    cells = [(row["key"], row["version"], row["name"], short_instant(row["deployed_at"])) for row in rows]
    print_table("Definitions", ("process", "version", "name", "deployed (UTC)"), cells)
    return 0


def _uploaded(file: Path) -> dict[str, str]:
    # A file's name is bytes; those that are no UTF-8 cannot go into JSON as they are.
    name = os.fsencode(file).decode(errors="backslashreplace")
    return {"name": name, "xml_base64": base64.b64encode(read_file(file, _FILE_BYTES_MAX)).decode()}


def _with_findings(refused: Refused, uploaded: Sequence[Mapping[str, str]]) -> CommandFailed:
    findings = refused.answer.get("findings")
    if not isinstance(findings, list) or not findings:
        # One that is too large is told like that, and cannot run; everything else is a mistake in the request.
        is_of_a_file = any(str(refused).startswith(f"{file['name']}: ") for file in uploaded)
        return (CommandFailed if is_of_a_file else Mistake)(f"{refused}; nothing was deployed")
    return CommandFailed("\n".join([*(finding_line(finding) for finding in findings), "nothing was deployed"]))
