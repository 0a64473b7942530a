"""Small files that could mean much work, and files with very many mistakes."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from stellwerk.limits import Limits
from stellwerk.model.checks import check_executable
from stellwerk.model.findings import FINDINGS_MAX, capped
from stellwerk.model.process import Finding, Position, Severity
from stellwerk.model.reader import ReadResult, read_definitions

Read = Callable[..., ReadResult]


def _finding(severity: Severity, line: int) -> Finding:
    return Finding(severity, Position(line, 1), None, "task", "something")


def test_of_many_findings_the_first_are_told_and_how_many_more_there_are(read: Read) -> None:
    result = read('<process id="p">' + '<task id="t"/>' * (FINDINGS_MAX + 51) + "</process>")
    assert len(result.findings) == FINDINGS_MAX + 1
    assert (result.findings[-1].what, result.findings[-1].severity) == ("and 50 more", Severity.ERROR)
    (process,) = result.processes
    checked = check_executable(process)
    assert (len(checked), checked[-1].severity) == (FINDINGS_MAX + 1, Severity.WARNING)


def test_an_error_behind_very_many_warnings_is_kept() -> None:
    findings = [_finding(Severity.WARNING, line) for line in range(1, 2_000)] + [_finding(Severity.ERROR, 2_000)]
    first, again = capped(findings), capped([*capped(findings), *findings[:5]])
    assert [finding.severity for finding in first].count(Severity.ERROR) == 1
    assert first[-1].what == "and 1000 more"
    assert (len(again), again[-1].what) == (FINDINGS_MAX + 1, "and 1005 more")
    assert capped(findings[:FINDINGS_MAX]) == tuple(findings[:FINDINGS_MAX])


def test_a_finding_is_never_longer_than_a_page(read: Read) -> None:
    result = read(f'<process id="p"><task id="t" default="{"x" * 100_000}"/></process>')
    assert max(len(finding.what) for finding in result.findings) <= 1_000


_MANY = 20_000
_EXTENSIONS = "<extensionElements>" + '<note y="1"/>' * _MANY + "</extensionElements>"


@pytest.mark.parametrize(
    "body",
    [
        '<process id="p">' + '<task id="t"/>' * _MANY + "</process>",
        "".join(f'<process id="p{number}"/>' for number in range(_MANY)),
        "".join(f'<process id="p{number}"/>' for number in range(_MANY // 2))
        + '<collaboration id="c">'
        + '<association id="a" sourceRef="x" targetRef="y"/>' * (_MANY // 2)
        + "</collaboration>",
        f'<message id="m" name="M">{_EXTENSIONS}</message><process id="p">'
        + "".join(f'<receiveTask id="t{number}" messageRef="m"/>' for number in range(_MANY))
        + "</process>",
        f'<message id="m" name="{"= x " * 200_000}"/><process id="p">'
        + "".join(f'<receiveTask id="t{number}" messageRef="m"/>' for number in range(_MANY))
        + "</process>",
        f'<messageEventDefinition id="m">{_EXTENSIONS}</messageEventDefinition><process id="p">'
        + "".join(f'<endEvent id="t{n}"><eventDefinitionRef>m</eventDefinitionRef></endEvent>' for n in range(_MANY))
        + "</process>",
    ],
    ids=["equal ids", "processes", "associations", "one message", "one long name", "one definition"],
)
def test_reading_takes_time_in_proportion_to_the_file(read: Read, body: str) -> None:
    """Each of these took minutes or hours when something was looked at once for each of the others."""
    assert len(read(body).findings) <= FINDINGS_MAX + 1


def test_what_is_referred_to_counts_each_time(file_with: Callable[..., bytes]) -> None:
    limits = attrs.evolve(Limits(), definition_elements_max=100)
    definition = '<timerEventDefinition id="m"><timeDuration>PT1S</timeDuration></timerEventDefinition>'
    event = '<intermediateCatchEvent id="t{}"><eventDefinitionRef>m</eventDefinitionRef></intermediateCatchEvent>'
    few, many = ("".join(event.format(n) for n in range(count)) for count in (10, 45))
    assert read_definitions(file_with(f'{definition}<process id="p">{few}</process>'), limits=limits).findings == ()
    small = attrs.evolve(limits, definition_elements_max=99)
    result = read_definitions(file_with(f'{definition}<process id="p">{many}</process>'), limits=small)
    assert not result.is_refused, "45 times two elements are less than 99"
    padded = definition.replace("</timer", "<documentation/><documentation/></timer")
    result = read_definitions(file_with(f'{padded}<process id="p">{many}</process>'), limits=small)
    assert result.is_refused
