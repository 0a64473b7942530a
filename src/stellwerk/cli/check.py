"""``stellwerk check``: what would run, and what cannot, without an engine."""

from __future__ import annotations

import re
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from cyclopts import Parameter

from stellwerk.cli.findings import finding_line
from stellwerk.cli.mistakes import ENDED_BADLY, Mistake
from stellwerk.cli.options import AdoptJava, AsJson, read_file
from stellwerk.cli.output import counted, print_json, say
from stellwerk.cli.progress import progress

if TYPE_CHECKING:
    from stellwerk.cli.inventory import FileReport, ListedNode, ProcessReport
    from stellwerk.model.process import Finding

__all__ = ["check"]

_FILE_BYTES_MAX = 64 * 1024 * 1024
_SUFFIXES = (".bpmn", ".bpmn2", ".bpmn20.xml")
_KINDS = {
    "external_tasks": "external task",
    "user_tasks": "user task",
    "timers": "timer",
    "messages": "message",
}

_DIALECTS = {"camunda": "Camunda 7 family: Camunda, Activiti, Flowable, Operaton", "zeebe": "Zeebe, Camunda 8"}
_GENERATED = " (only the element's id)"
_REASONS_SHOWN = 12
_QUOTED = re.compile(r'"[^"]*"')
_EVENT_KIND = re.compile(r"an event of kind (\w+) cannot run yet")


def check(
    *files: Annotated[Path, Parameter(name="FILE", help="BPMN 2.0 files.")],
    dir: Annotated[  # noqa: A002 - the option's name
        Path | None,
        Parameter(help="Check every file in this directory and below it whose name ends in .bpmn or .bpmn20.xml."),
    ] = None,
    adopt_java: AdoptJava = False,
    json: AsJson = False,
) -> int:
    """Say what would run of BPMN files: which tasks become work for workers, and what cannot run and why.

    Needs no engine. For each process: its external tasks with topic and retries, user tasks, timers and messages. What
    cannot run is printed as FILE:LINE:COLUMN: WHAT, as compilers do, and is exactly what stellwerk deploy would refuse;
    in the end it is counted by reason. With --dir, files are named as seen from there, and one that cannot be read is
    one of those that cannot run.

    Exit code 1 when something cannot run.

    For example:

        stellwerk check order.bpmn
        stellwerk check --dir models --adopt-java
        stellwerk check *.bpmn --json | jq '.total.topics'
    """
    sources = [*map(_named, files), *(_found_in(dir) if dir is not None else ())]
    if not sources:
        nothing = f"{dir}: no BPMN files in it" if dir is not None else "which file? As in: stellwerk check order.bpmn"
        raise Mistake(nothing)
    reports = _reports(sources, adopt_java)
    if json:
        print_json({"files": [_file_view(report) for report in reports], "total": _total(reports)})
    else:
        for report in reports:
            _say_report(report)
        _say_total(_total(reports))
    return 0 if all(report.runs for report in reports) else ENDED_BADLY


class _Source(NamedTuple):
    path: Path
    shown: Path
    """How it is named in what is said."""
    is_named: bool
    """By whoever called: a mistake if it cannot be read."""


def _named(file: Path) -> _Source:
    if file.is_dir():
        raise Mistake(f"{file}: is a directory; to check what is in it: stellwerk check --dir {file}")
    return _Source(file, file, is_named=True)


def _found_in(directory: Path) -> list[_Source]:
    if not directory.is_dir():
        raise Mistake(f"{directory}: is no directory")
    named = (path for path in directory.rglob("*") if path.name.lower().endswith(_SUFFIXES))
    found = sorted(path for path in named if _may_be_file(path))
    return [_Source(path, path.relative_to(directory), is_named=False) for path in found]


def _may_be_file(path: Path) -> bool:
    """Also one that cannot be looked at (a link into nothing, say): not to be passed over in silence."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return True


def _reports(sources: Sequence[_Source], adopt_java: bool) -> list[FileReport]:
    reports: list[FileReport] = []
    first_with: dict[str, str] = {}
    once: dict[Path, _Source] = {}
    for source in sources:
        once.setdefault(source.path, source)
    with progress("Checking") as report_progress:
        for number, source in enumerate(once.values(), 1):
            reports.append(_with_repeated_keys(_report_on(source, adopt_java), first_with))
            report_progress(number, len(once))
    return reports


def _report_on(source: _Source, adopt_java: bool) -> FileReport:
    from stellwerk.cli.inventory import report_on, unreadable
    from stellwerk.limits import Limits

    try:
        xml = read_file(source.path, _FILE_BYTES_MAX)
    except Mistake as mistake:
        if source.is_named:
            raise
        return unreadable(source.shown, str(mistake).removeprefix(f"{source.path}: "))
    return report_on(source.shown, xml, limits=Limits(), adopt_java=adopt_java)


def _with_repeated_keys(report: FileReport, first_with: dict[str, str]) -> FileReport:
    """Each file can be deployed, but not both together."""
    for process in report.processes:
        other = first_with.setdefault(process.key, report.file) if process.executable else report.file
        if other != report.file:
            what = f"{other} has a process with this key too: the two cannot be deployed together"
            report = report.with_warning(process.line, process.key, what)
    return report


# --- for people ----------------------------------------------------------------------------------------------------


def _say_report(report: FileReport) -> None:
    say(f"{report.file}: {'runs' if report.runs else 'cannot run'}")
    for process in report.processes:
        _say_process(process)
    for finding in _finding_views(report):
        say(finding_line(finding))
    say("")


def _say_process(process: ProcessReport) -> None:
    name = f' "{_one_line(process.name)}"' if process.name else ""
    if not process.executable:
        say(f"  process {process.key}{name} is not executable")
        return
    dialect = _DIALECTS.get(process.dialect, process.dialect)
    say(f"  process {process.key}{name} ({dialect}; a task that fails for good: {process.failure_policy})")
    rows = [
        (kind, node.element_id, _details_text(node))
        for field, kind in _KINDS.items()
        for node in _nodes(process, field)
    ]
    width = max((len(element_id) for _, element_id, _ in rows), default=0)
    for kind, element_id, details in rows:
        say(f"    {kind:<14} {element_id:<{width}}  {details}".rstrip())


def _nodes(process: ProcessReport, field: str) -> tuple[ListedNode, ...]:
    nodes: tuple[ListedNode, ...] = getattr(process, field)
    return nodes


def _details_text(node: ListedNode) -> str:
    details = dict(node.details)
    parts = [node.element if node.element.endswith("Event") else ""]
    if "topic" in details:
        mark = _GENERATED if node.has_generated_topic else ""
        parts.append(f"topic {details.pop('topic')}{mark}, retries {details.pop('retries', '3 (default)')}")
    for name, value in details.items():
        parts.append(_detail_text(name, value))
    return _one_line(", ".join(part for part in parts if part))


def _detail_text(name: str, value: object) -> str:
    label = name.removesuffix("_ms").replace("_", " ")
    if value is True:
        return label
    if isinstance(value, list):
        return f"{label} {'/'.join(f'{item / 1000:g}' for item in value)} s"
    return f"{label} {value / 1000:g} s" if name.endswith("_ms") and isinstance(value, int) else f"{label} {value}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _say_total(total: Mapping[str, Any]) -> None:
    say(f"{total['running_files']} of {counted(total['files'], 'file')} can run")
    parts = [counted(total[name], kind) for name, kind in _KINDS.items()]
    say(f"{counted(total['processes'], 'process', 'processes')}, {', '.join(parts)}")
    if total["topics"]:
        named = [topic for topic in total["topics"] if topic not in total["generated_topics"]]
        if named:
            say(f"topics: {', '.join(named)}")
        if total["generated_topics"]:
            say(f"topics that are only ids of elements: {', '.join(total['generated_topics'])}")
    if total["reasons"]:
        say(f"cannot run: {_reasons_text(total['reasons'])}")


def _reasons_text(reasons: Mapping[str, int]) -> str:
    parts = [f"{reason} {number}" for reason, number in list(reasons.items())[:_REASONS_SHOWN]]
    others = sum(list(reasons.values())[_REASONS_SHOWN:])
    return ", ".join([*parts, *([f"others {others}"] if others else [])])


# --- for programs --------------------------------------------------------------------------------------------------


def _file_view(report: FileReport) -> dict[str, object]:
    return {
        "file": report.file,
        "runs": report.runs,
        "processes": [_process_view(process) for process in report.processes],
        "findings": list(_finding_views(report)),
    }


def _process_view(process: ProcessReport) -> dict[str, object]:
    return {
        "key": process.key,
        "name": process.name,
        "executable": process.executable,
        "dialect": process.dialect,
        "failure_policy": process.failure_policy,
        **{field: [_node_view(node) for node in _nodes(process, field)] for field in _KINDS},
    }


def _node_view(node: ListedNode) -> dict[str, object]:
    return {
        "element_id": node.element_id,
        "element": node.element,
        "name": node.name,
        "line": node.line,
        **node.details,
    }


def _finding_views(report: FileReport) -> Iterator[dict[str, object]]:
    from stellwerk.server.http.views import finding_view

    return (finding_view(report.file, finding) for finding in report.findings)


def _total(reports: Sequence[FileReport]) -> dict[str, Any]:
    """Of the processes that are meant to run, also in files of which something cannot run."""
    processes = [process for report in reports for process in report.processes if process.executable]
    tasks = [node for process in processes for node in process.external_tasks]
    severities = [finding.severity.value for report in reports for finding in report.findings]
    return {
        "files": len(reports),
        "running_files": sum(report.runs for report in reports),
        "processes": len(processes),
        **{field: sum(len(_nodes(process, field)) for process in processes) for field in _KINDS},
        "topics": sorted({str(node.details["topic"]) for node in tasks}),
        "generated_topics": sorted({node.element_id for node in tasks if node.has_generated_topic}),
        "errors": severities.count("error"),
        "warnings": severities.count("warning"),
        "reasons": dict(Counter(_reason(error) for report in reports for error in report.errors).most_common()),
    }


def _reason(error: Finding) -> str:
    """What many findings have in common: the element, the kind of event, or the words without what they name."""
    kind = _EVENT_KIND.fullmatch(error.what)
    if kind is not None:
        return f"{kind[1]} event"
    if error.what == "cannot run yet":
        return error.element
    return f"{error.element}: {_QUOTED.sub('…', error.what).partition(': ')[0].partition(', ')[0]}"
