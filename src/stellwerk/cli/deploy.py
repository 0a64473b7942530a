"""``stellwerk deploy`` and ``definitions``."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from stellwerk.cli.client import EngineClient, Refused
from stellwerk.cli.mistakes import Mistake
from stellwerk.cli.options import URL_DEFAULT, AsJson, Url, read_file
from stellwerk.cli.output import print_json, print_table, say, short_instant, warn

__all__ = ["definitions", "deploy"]

_FILE_BYTES_MAX = 64 * 1024 * 1024
"""More than any engine takes."""


def deploy(
    *files: Annotated[Path, Parameter(name="FILE", help="BPMN 2.0 files: all of them are deployed, or none.")],
    failure_policy: Annotated[
        Literal["incident", "compensate"] | None, Parameter(help="What follows when a task fails for good.")
    ] = None,
    adopt_java: Annotated[
        bool,
        Parameter(
            negative=(),
            help="Offer workers what a Java engine does itself: classes, beans, scripts, decisions.",
        ),
    ] = False,
    url: Url = URL_DEFAULT,
    json: AsJson = False,
) -> int:
    """Deploy BPMN files. What is wrong in them is printed as FILE:LINE:COLUMN: WHAT, everything at once.

    For example:

        stellwerk deploy order.bpmn
        stellwerk deploy *.bpmn --failure-policy compensate
    """
    if not files:
        raise Mistake("which file? As in: stellwerk deploy order.bpmn")
    body = {
        "files": [_uploaded(file) for file in files],
        "failure_policy": failure_policy,
        "adopt_java": adopt_java,
    }
    try:
        answer = EngineClient(url).post("/definitions", body)
    except Refused as refused:
        raise _with_findings(refused) from None
    for finding in answer["warnings"]:
        warn(_finding_line(finding))
    if json:
        print_json(answer)
        return 0
    for definition in answer["definitions"]:
        state = "unchanged" if definition["key"] in answer["unchanged"] else "deployed"
        say(f"{state} {definition['key']} version {definition['version']}")
    return 0


def definitions(*, url: Url = URL_DEFAULT, json: AsJson = False) -> int:
    """List the deployed processes, every version."""
    rows = EngineClient(url).get("/definitions")["definitions"]
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


def _with_findings(refused: Refused) -> Mistake:
    findings = refused.answer.get("findings")
    if not isinstance(findings, list) or not findings:
        return Mistake(f"{refused}; nothing was deployed")
    return Mistake("\n".join([*(_finding_line(finding) for finding in findings), "nothing was deployed"]))


def _finding_line(finding: Mapping[str, Any]) -> str:
    name = f'{finding["element"]} "{finding["element_id"]}"' if finding["element_id"] else finding["element"]
    severity = "" if finding["severity"] == "error" else f"{finding['severity']}: "
    return f"{finding['file']}:{finding['line']}:{finding['column']}: {severity}{name}: {finding['what']}"
