"""Examples of all pages are at least what they claim to be; what can run is run by the tests of its page."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser

from stellwerk.cli.main import _COMMANDS
from stellwerk.model.checks import check_executable
from stellwerk.model.process import Severity
from stellwerk.model.reader import read_definitions

ROOT = Path(__file__).parents[2]


def is_python(example: Example) -> None:
    compile(example.parsed, f"{example.path}:{example.line}", "exec")


def is_json(example: Example) -> None:
    json.loads(example.parsed)


def can_be_deployed(example: Example) -> None:
    if "<definitions" not in example.parsed:
        return
    result = read_definitions(example.parsed.encode())
    assert [finding for finding in result.findings if finding.severity is Severity.ERROR] == []
    assert result.processes
    assert [check_executable(process) for process in result.processes] == [()] * len(result.processes)


def names_commands_that_exist(example: Example) -> None:
    known = {name for name, _, _ in _COMMANDS} | {"keys"}
    for line in example.parsed.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["stellwerk"]:
            assert words[1] in known | {"--version", "--help"}, line


PARSERS = [
    CodeBlockParser("python", is_python),
    CodeBlockParser("json", is_json),
    CodeBlockParser("xml", can_be_deployed),
    CodeBlockParser("sh", names_commands_that_exist),
]
EXAMPLES = [
    pytest.param(example, id=f"{page.name}:{example.line}")
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    for example in Sybil(PARSERS).parse(page).examples()
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_what_it_claims_to_be(example: Example) -> None:
    example.evaluate()


def test_all_pages_together_have_many_examples() -> None:
    assert len(EXAMPLES) > 30
