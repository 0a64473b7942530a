"""The list of error codes is closed: what the code may answer, the documentation names, and nothing else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from stellwerk import errors
from stellwerk.actors.definitions import DeployRefused
from stellwerk.core.lease import LeaseAnswerKind
from stellwerk.core.step import NotOpen
from stellwerk.server.http.answers import status_of
from stellwerk.server.http.codes import CODES

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/stellwerk"
ELSEWHERE = {
    "app",  # tells it to the program that opens an engine
    "cli", "testing", "worker",  # on the other side of the API
    "server/camunda", "server/processcube",  # APIs with errors of their own
}  # fmt: skip
OF_CONNECTIONS = {("too_large", 431), ("invalid", 408)}
"""Before a request is one of the API."""
NEVER_ANSWERED = {"expression_failed"}
"""A fault of a model becomes an incident."""


def modules() -> Iterator[Path]:
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if not any(name.startswith(f"{folder}/") for folder in ELSEWHERE):
            yield path


def codes_in(module: ast.Module) -> Iterator[str]:
    """Those with which an error of ours is raised, ``Conflict("…", code="ended")``."""
    for node in ast.walk(module):
        match node:
            case ast.Call(func=ast.Name(id=name), keywords=keywords) if isinstance(getattr(errors, name, None), type):
                for keyword in keywords:
                    if keyword.arg == "code" and isinstance(keyword.value, ast.Constant):
                        yield str(keyword.value.value)
            case _:
                pass


def test_the_documentation_lists_exactly_the_codes_with_their_statuses() -> None:
    page = (ROOT / "docs/http-api.md").read_text(encoding="utf-8")
    section = page.partition("\n## Errors\n")[2].partition("\n## ")[0]
    listed = {
        (code, int(status))
        for statuses, codes in re.findall(r"^\| ([\d, ]+) \| (`[^|]+) \|", section, re.MULTILINE)
        for status, code in zip(repeated(statuses), re.findall(r"`(\w+)`", codes), strict=False)
    }
    assert listed - OF_CONNECTIONS == {(code, known.status) for code, known in CODES.items()}
    assert listed >= OF_CONNECTIONS


def repeated(statuses: str) -> list[str]:
    """One for all codes of a row, or one for each."""
    found = re.findall(r"\d+", statuses)
    return found if len(found) > 1 else found * len(CODES)


def test_every_code_that_the_engine_raises_is_on_the_list() -> None:
    raised = {code for path in modules() for code in codes_in(ast.parse(path.read_text(encoding="utf-8")))}
    assert raised - NEVER_ANSWERED <= set(CODES)
    assert raised >= {"ended", "disabled", "busy", "in_use", "ambiguous_start"}, "the search finds nothing any more"


def test_every_error_of_ours_has_a_code_of_its_status() -> None:
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.StellwerkError)
    ]
    answered = [kind("m") for kind in kinds if kind not in (errors.StellwerkError, errors.BpmnFault)]
    assert {error.code: status_of(error) for error in [*answered, NotOpen("m")]} == {
        error.code: CODES[error.code].status for error in [*answered, NotOpen("m")]
    }
    assert CODES[DeployRefused.code].status == 400


def test_what_a_lost_lease_is_called_is_on_the_list() -> None:
    told = {LeaseAnswerKind.LEASE_LOST, LeaseAnswerKind.ALREADY_FINISHED, LeaseAnswerKind.CANCELLED}
    assert {CODES[kind.value].status for kind in told} == {409}
