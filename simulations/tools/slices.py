"""The causal slice: of thousands of rows those that concern the task or instance that a violation is about."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set

import attrs

from simulations.kernel.trace import Row
from simulations.tools.rows import (
    HOST_KINDS,
    brief,
    changes_of,
    host_of,
    hosts_in,
    leases_in,
    strings_in,
    text_of,
    violation_row,
    with_undone,
)
from stellwerk.values import frozen

__all__ = ["ROWS_MAX", "Slice", "Subject", "slice_of", "subject_of"]

ROWS_MAX = 400
"""More are no explanation. The latest are kept: the others are counted."""
_TASKS_MAX = 6
_WITHOUT_SUBJECT_ROWS = 60
"""Of a violation that names no task and no instance: what came last before it."""
_WORD = re.compile(r"[\w][\w.:/-]*[\w]|\w")
_FAULT_KINDS = ("pause", *HOST_KINDS)


@frozen
class Subject:
    """What the violation is about; empty where it names nothing that the trace knows."""

    tasks: tuple[str, ...] = ()
    instances: tuple[str, ...] = ()
    names: Mapping[str, str] = attrs.field(factory=dict)
    """What the plan calls an instance, and the element of the model that a task belongs to."""

    @property
    def ids(self) -> tuple[str, ...]:
        return (*self.instances, *self.tasks)

    def __str__(self) -> str:
        return ", ".join(map(brief, self.ids)) or "the whole cluster"


@frozen
class Slice:
    subject: Subject
    rows: tuple[Row, ...]
    hosts: tuple[str, ...]
    """Who had a part in it."""
    since_us: int = 0
    """Of the first row that touches the subject."""
    dropped: int = 0
    """Earlier rows of it that are left out."""


def subject_of(rows: Sequence[Row]) -> Subject:
    """What the first violation names; without one, nothing."""
    violation = violation_row(rows)
    if violation is None:
        return Subject()
    known = _Known.of(rows)
    words = set(_WORD.findall(" ".join(strings_in(violation.data))))
    named = {known.instance_of_key.get(word, word) for word in words}
    tasks = [task for task in known.tasks if task in named]
    instances = [name for name in known.instances if name in named]
    if not tasks:
        tasks = [task for task in known.tasks if known.instance_of_task.get(task) in instances]
    instances += [known.instance_of_task[task] for task in tasks if task in known.instance_of_task]
    unique = tuple(dict.fromkeys(instances))
    shown = tuple(tasks[:_TASKS_MAX])
    names = {instance: key for key, instance in known.instance_of_key.items() if instance in unique}
    return Subject(shown, unique, names | {task: name for task, name in known.elements.items() if task in shown})


class _Known:
    """Every task and instance that the trace names, in order of appearance, and how they belong together."""

    def __init__(self) -> None:
        self.tasks: dict[str, None] = {}
        self.instances: dict[str, None] = {}
        self.instance_of_task: dict[str, str] = {}
        self.elements: dict[str, str] = {}
        self.instance_of_key: dict[str, str] = {}
        """By the key that the plan has for it."""

    @classmethod
    def of(cls, rows: Sequence[Row]) -> _Known:
        known = cls()
        for row in rows:
            known._learn_changes(row)
            known._learn_fields(row)
        return known

    def _learn_changes(self, row: Row) -> None:
        for change in changes_of(row):
            if change.table == "tasks":
                self._learn(change.key, change.instance)
            elif change.instance:
                self.instances[change.instance] = None
                if change.business_key:
                    self.instance_of_key[change.business_key] = change.instance

    def _learn_fields(self, row: Row) -> None:
        if row.kind == "violation":
            return
        task, instance, key = text_of(row, "task"), text_of(row, "instance"), text_of(row, "key")
        for leased, _ in leases_in(row):
            self._learn(leased, "")
        if task:
            self._learn(task, instance)
            if text_of(row, "element"):
                self.elements[task] = text_of(row, "element")
        elif instance:
            self.instances[instance] = None
            if key:
                self.instance_of_key[key] = instance

    def _learn(self, task: str, instance: str) -> None:
        self.tasks[task] = None
        if instance:
            self.instances[instance] = None
            self.instance_of_task[task] = instance


def slice_of(rows: Sequence[Row]) -> Slice:
    """Everything that touches the subject until the violation, and what befell the hosts that had a part in it."""
    until = _until_violation(with_undone(rows))
    subject = subject_of(until)
    touching = list(_touching(until, subject))
    hosts = _hosts(touching, {host_of(row.place) for row in rows if "#" in row.place})
    since_us = next((row.us for row in touching), 0)
    own = {row.number for row in touching}
    befell = list(_news(row for row in until if row.number not in own and _befalls(row, hosts)))
    context = {row.number for row in (*_background(befell, since_us), *(row for row in befell if row.us >= since_us))}
    kept = [row for row in until if row.number in own or row.number in context]
    return Slice(subject, tuple(kept[-ROWS_MAX:]), hosts, since_us, max(0, len(kept) - ROWS_MAX))


def _news(rows: Iterable[Row]) -> Iterator[Row]:
    """Without dials that are refused as the ones before."""
    refusals: dict[tuple[str, str], str] = {}
    for row in rows:
        link, reason = (row.place, text_of(row, "target")), text_of(row, "reason")
        if row.kind != "refused" or refusals.get(link) != reason:
            yield row
        if row.kind == "refused":
            refusals[link] = reason


def _background(rows: Sequence[Row], since_us: int) -> Iterator[Row]:
    """Of what came before the subject's time, what still held then: open faults, and how each host was."""
    earlier = [row for row in rows if row.us < since_us]
    ended = {text_of(row, "key") for row in earlier if row.kind == "fault" and text_of(row, "phase") == "end"}
    last = {host_of(row.place): row for row in earlier if row.kind in HOST_KINDS}
    for row in earlier:
        is_open = row.kind == "fault" and row.data.get("seconds") != 0 and text_of(row, "key") not in ended
        if is_open or last.get(host_of(row.place)) is row:
            yield row


def _until_violation(rows: Sequence[Row]) -> Sequence[Row]:
    last = violation_row(rows)
    return rows if last is None else [row for row in rows if row.number <= last.number]


def _touching(rows: Sequence[Row], subject: Subject) -> Iterator[Row]:
    if not subject.ids:
        yield from rows[-_WITHOUT_SUBJECT_ROWS:]
        return
    mentions = _mentions((*subject.ids, *(subject.names[name] for name in subject.instances if name in subject.names)))
    asked: set[tuple[str, str]] = set()
    for row in rows:
        request = row.place, text_of(row, "ref")
        if row.kind == "violation" or mentions(row) or (row.kind == "got" and request in asked):
            yield row
            if row.kind == "sent" and request[1]:
                asked.add(request)


def _mentions(ids: Sequence[str]) -> Callable[[Row], bool]:
    pattern = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, ids))})(?![\w-])")
    return lambda row: any(pattern.search(text) is not None for text in strings_in(row.data))


def _hosts(rows: Sequence[Row], known: Set[str]) -> tuple[str, ...]:
    """:param known: every host that ever ran."""
    counts: dict[str, int] = defaultdict(int)
    for row in rows:
        for host in hosts_in(row):
            counts[host] += 1
        for change in changes_of(row):
            if change.worker:
                counts[host_of(change.worker)] += 1
    return tuple(host for host in counts if host in known)


def _befalls(row: Row, hosts: Sequence[str]) -> bool:
    """Faults of the hosts that matter; the database matters to all."""
    match row.kind:
        case "fault":
            named = {text_of(row, "host"), text_of(row, "other")}
            return not named.isdisjoint(hosts) or text_of(row, "phase") == "heal" or named == {""}
        case "refused" if host_of(row.place).startswith("client"):
            return False  # it asks all the time, for all instances
        case "refused" | "reset":
            return set(hosts_in(row)) <= set(hosts)
        case _:
            return row.kind in _FAULT_KINDS and host_of(row.place) in hosts
