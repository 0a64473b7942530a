"""Deployed process definitions, parsed once and kept."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import attrs

from stellwerk.actors.committer import Committer
from stellwerk.errors import Conflict, InvalidInput, InvariantBroken, LimitExceeded, NotFound, StellwerkError
from stellwerk.ids import process_key_of
from stellwerk.limits import Limits
from stellwerk.model.checks import check_executable
from stellwerk.model.findings import capped
from stellwerk.model.process import (
    Event,
    EventPosition,
    FailurePolicy,
    Finding,
    MessageDefinition,
    Position,
    Process,
    Severity,
)
from stellwerk.model.reader import ReadResult, read_definitions
from stellwerk.ports import DefinitionRow, DeployDefinitions, Deployed, Ports

__all__ = [
    "DefinitionDeleted",
    "Definitions",
    "DeployRefused",
    "DeployedProcess",
    "Deployment",
    "Found",
    "NewerVersion",
    "read_runnable",
    "start_messages",
]

_PARSED_MAX = 1_000
"""Parsed definitions kept in memory; a rarely used one is read again."""


Found = tuple[str, Finding]
"""File name and what was found in it."""


class DeployRefused(InvalidInput):
    """At least one file cannot run; nothing was deployed. All findings of all files are in `findings`."""

    code = "deploy_refused"

    def __init__(self, findings: Sequence[Found]) -> None:
        self.findings = tuple(findings)
        errors = [found for found in findings if found[1].severity is Severity.ERROR]
        first_file, first = errors[0]
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        super().__init__(f"{first_file}: {first}{more}")


class NewerVersion(Conflict):
    """The newest version of a process was asked for, and another node deployed a newer one (consistency.md 7)."""


class DefinitionDeleted(NotFound):
    """A version was to be started that was just deleted."""


@attrs.frozen
class Deployment:
    definitions: tuple[DefinitionRow, ...]
    unchanged: tuple[str, ...]
    """Keys whose newest version already had the same text."""
    warnings: tuple[Found, ...]


@attrs.frozen
class DeployedProcess:
    row: DefinitionRow
    process: Process


class Definitions:
    """Deploys files and finds definitions by id or by key."""

    def __init__(self, ports: Ports, committer: Committer, limits: Limits) -> None:
        self._ports = ports
        self._committer = committer
        self._limits = limits
        self._parsed: OrderedDict[str, DeployedProcess] = OrderedDict()
        self._latest: dict[str, int] = {}
        """The newest version by key. Where other nodes deploy too it is a guess that the starting step judges."""

    async def deploy(
        self, files: Sequence[tuple[str, bytes]], failure_policy: FailurePolicy | None, adopt_java: bool
    ) -> Deployment:
        """Deploy all executable processes of all files, or nothing.

        :raises DeployRefused: with every finding; LimitExceeded for a file over ``definition_bytes_max``.
        """
        reading = partial(self._read, files, failure_policy, adopt_java)
        rows, findings = await self._ports.background.run_sync(reading)
        if any(finding.severity is Severity.ERROR for _, finding in findings):
            raise DeployRefused(findings)
        try:
            outcome = await self._committer.submit(DeployDefinitions(tuple(rows)))
        except StellwerkError:
            # What became of the commit is not known: read the newest versions again.
            self.forget_latest(row.key for row in rows)
            raise
        assert isinstance(outcome, Deployed)
        for row in outcome.definitions:
            self._deployed(row)
        return Deployment(outcome.definitions, outcome.unchanged, tuple(findings))

    def forget_latest(self, keys: Iterable[str]) -> None:
        """Other nodes may have deployed newer versions."""
        for key in keys:
            self._latest.pop(key, None)

    def forget_all_latest(self) -> None:
        self._latest.clear()

    def forget(self, definition_id: str) -> None:
        """It may have been deleted."""
        self._parsed.pop(definition_id, None)
        self.forget_latest([process_key_of(definition_id)])

    def _deployed(self, row: DefinitionRow) -> None:
        """Two deployments at the same moment may hear of their commits in any order: the newer one counts."""
        if row.version > self._latest.get(row.key, 0):
            self._latest[row.key] = row.version

    def _read(
        self, files: Sequence[tuple[str, bytes]], failure_policy: FailurePolicy | None, adopt_java: bool
    ) -> tuple[list[DefinitionRow], list[Found]]:
        rows: list[DefinitionRow] = []
        findings: list[Found] = []
        seen: dict[str, str] = {}
        for name, xml in files:
            if len(xml) > self._limits.definition_bytes_max:
                raise LimitExceeded(
                    f"{name}: {len(xml)} bytes, at most {self._limits.definition_bytes_max} are allowed"
                )
            result = read_runnable(xml, self._limits, adopt_java)
            found = list(result.findings)
            runnable = [process for process in result.processes if process.executable]
            for process in runnable:
                if process.key in seen:
                    what = f"process key is used twice, also in {seen[process.key]}"
                    found.append(Finding(Severity.ERROR, process.position, process.key, "process", what))
                seen[process.key] = name
                rows.append(self._row(process, xml, failure_policy, adopt_java))
            findings += [(name, finding) for finding in capped(found)]
        return rows, findings

    def _row(
        self, process: Process, xml: bytes, failure_policy: FailurePolicy | None, adopt_java: bool
    ) -> DefinitionRow:
        policy = failure_policy.value if failure_policy is not None else None
        options = f"{policy} {adopt_java}".encode()
        return DefinitionRow(
            key=process.key,
            name=process.name,
            digest=hashlib.sha256(xml + b"\x00" + options).hexdigest(),
            xml=xml,
            deployed_at_ms=self._ports.clock.wall_ms(),
            start_messages=tuple(start_messages(process)),
            failure_policy=policy,
            adopt_java=adopt_java,
        )

    async def get(self, definition_id: str) -> DeployedProcess:
        """:raises NotFound: no such definition."""
        found = self._parsed.get(definition_id)
        if found is not None:
            self._parsed.move_to_end(definition_id)
            return found
        row = await self._ports.store.definition(definition_id)
        if row is None:
            raise NotFound(f'no definition "{definition_id}" is deployed')
        found = DeployedProcess(row, await self._ports.background.run_sync(partial(self._parse, row)))
        self._parsed[definition_id] = found
        if len(self._parsed) > _PARSED_MAX:
            self._parsed.popitem(last=False)
        return found

    async def latest(self, key: str, version: int | None = None) -> DeployedProcess:
        """The newest version of process `key`, or the one that is asked for. :raises NotFound: there is none."""
        if version is not None:
            return await self.get(f"{key}:{version}")
        try:
            return await self.get(f"{key}:{await self._newest(key)}")
        except NotFound:  # another node may have deleted the one that was the newest
            self.forget_latest([key])
            return await self.get(f"{key}:{await self._newest(key)}")

    async def _newest(self, key: str) -> int:
        known = self._latest.get(key)
        if known is not None:
            return known
        row = await self._ports.store.latest_definition(key)
        if row is None:
            raise NotFound(f'no process "{key}" is deployed')
        self._deployed(row)
        return self._latest[key]

    def _parse(self, row: DefinitionRow) -> Process:
        result = read_definitions(row.xml, limits=self._limits, adopt_java=row.adopt_java)
        for process in result.processes:
            if process.key == row.key:
                return process
        raise InvariantBroken(f'the stored definition "{row.definition_id}" cannot be read any more')


def read_runnable(xml: bytes, limits: Limits, adopt_java: bool) -> ReadResult:
    """A file as a deployment looks at it: with an error for everything that keeps its processes from running."""
    result = read_definitions(xml, limits=limits, adopt_java=adopt_java)
    found = list(result.findings)
    runnable = [process for process in result.processes if process.executable]
    for process in runnable:
        found += (*check_executable(process), *_start_findings(process))
    if not runnable and not result.is_refused:
        found.append(_file_finding("has no executable process"))
    return ReadResult(result.processes, capped(found))


def _file_finding(what: str) -> Finding:
    return Finding(Severity.ERROR, Position(1, 1), None, "definitions", what)


def start_messages(process: Process) -> dict[str, str]:
    """Message names (constant: there are no variables yet) and the ids of the process's start events for them."""
    names = ((_start_message(event), event.id) for event in _message_starts(process))
    return {name: event_id for name, event_id in names if name is not None}


def _message_starts(process: Process) -> Iterator[Event]:
    for node_id in process.children:
        node = process.nodes[node_id]
        if not isinstance(node, Event) or node.where is not EventPosition.START:
            continue
        if isinstance(node.definition, MessageDefinition):
            yield node


def _start_message(event: Event) -> str | None:
    assert isinstance(event.definition, MessageDefinition), event.id
    name = event.definition.name.literal_value
    return name if isinstance(name, str) and name else None


def _start_findings(process: Process) -> Iterator[Finding]:
    """Start events that no message, or none of their own, could ever reach."""
    seen: dict[str, str] = {}
    for event in _message_starts(process):
        name = _start_message(event)
        if name is None:
            what = "the message's name must be a constant: no variables exist before the start"
        elif name in seen:
            what = f'message "{name}" starts the process at "{seen[name]}" already'
        else:
            seen[name] = event.id
            continue
        yield Finding(Severity.ERROR, event.position, event.id, "startEvent", what)
