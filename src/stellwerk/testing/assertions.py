"""What a test may claim about an instance. Each claim that fails says what was expected, and how the instance is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from stellwerk.core.instance import InstanceStatus
from stellwerk.json_values import JsonObject
from stellwerk.testing.recording import InstanceRecord
from stellwerk.testing.work import OpenTimer, described, known_element, open_timers, waiting_at

__all__ = ["InstanceAssertions"]


class InstanceAssertions:
    """All of these look at what was durable when the test last awaited something of the kit; none of them waits."""

    record: InstanceRecord

    # --- what can be seen ------------------------------------------------------------------------------------------

    @property
    def status(self) -> str:
        """``RUNNING``, ``COMPLETED``, ``FAILED`` or ``CANCELLED``."""
        return self.record.state.status.value

    @property
    def variables(self) -> JsonObject:
        """Of the process's own scope."""
        return dict(self.record.variables)

    @property
    def visited(self) -> tuple[str, ...]:
        """Ids of the flow nodes that tokens came to, in order, each as often as one came."""
        return tuple(self.record.path)

    @property
    def waiting_at(self) -> tuple[str, ...]:
        """Ids of the flow nodes at which tokens stand now, each as often as there are tokens."""
        return tuple(waiting_at(self.record))

    @property
    def timers(self) -> tuple[OpenTimer, ...]:
        """Those that are armed, the next one first."""
        return tuple(open_timers(self.record))

    @property
    def open_incidents(self) -> tuple[str, ...]:
        """Ids of the flow nodes at which incidents are open."""
        return tuple(incident.node_id for incident in self.record.state.incidents.values())

    def described(self) -> str:
        """How the instance is and all that is open in it, for people."""
        return described(self.record)

    # --- where it was ----------------------------------------------------------------------------------------------

    def assert_visited(self, *element_ids: str) -> None:
        """Tokens came to each of these flow nodes; in any order, and maybe to others too."""
        __tracebackhide__ = True
        self._check_known(element_ids)
        missing = [element_id for element_id in element_ids if element_id not in self.record.path]
        if missing:
            self._fail(f"never visited: {', '.join(missing)}; {self._path()}")

    def assert_not_visited(self, *element_ids: str) -> None:
        """No token ever came to any of these."""
        __tracebackhide__ = True
        self._check_known(element_ids)
        counts = Counter(self.record.path)
        wrong = [f"{element_id} ({counts[element_id]}×)" for element_id in element_ids if counts[element_id]]
        if wrong:
            self._fail(f"visited, though never expected: {', '.join(wrong)}; {self._path()}")

    def assert_visited_in_order(self, *element_ids: str) -> None:
        """Tokens came to these flow nodes one after the other; others may lie between."""
        __tracebackhide__ = True
        self._check_known(element_ids)
        left = iter(self.record.path)
        for place, element_id in enumerate(element_ids):
            if element_id not in left:
                after = f" after {' → '.join(element_ids[:place])}" if place else ""
                self._fail(f"{element_id} was not visited{after}; {self._path()}")

    def assert_path(self, *element_ids: str) -> None:
        """Tokens came to exactly these flow nodes in exactly this order."""
        __tracebackhide__ = True
        self._check_known(element_ids)
        if tuple(self.record.path) != element_ids:
            self._fail(f"the path is another than {' → '.join(element_ids)}; {self._path()}")

    # --- how it is -------------------------------------------------------------------------------------------------

    def assert_waiting_at(self, *element_ids: str) -> None:
        """A token stands at each of these flow nodes; at an element named twice, two. Others may stand elsewhere."""
        __tracebackhide__ = True
        self._check_known(element_ids)
        standing = Counter(self.waiting_at)
        missing = Counter(element_ids) - standing
        if missing:
            self._fail(f"not waiting at {_counted(missing)}, but at {_counted(standing) or 'nothing'}")

    def assert_running(self) -> None:
        __tracebackhide__ = True
        self._assert_status(InstanceStatus.RUNNING.value)

    def assert_ended(self, status: str = InstanceStatus.COMPLETED.value) -> None:
        """The instance ended as ``COMPLETED``, ``FAILED`` or ``CANCELLED``."""
        __tracebackhide__ = True
        self._assert_status(status)

    def _assert_status(self, status: str) -> None:
        __tracebackhide__ = True
        known = [each.value for each in InstanceStatus]
        if status not in known:
            raise ValueError(f"a status is one of {', '.join(known)}, not {status!r}")
        if self.status != status:
            self._fail(f"the status is {self.status}, not {status}; {self._path()}")

    def assert_variables(self, variables: Mapping[str, object] | None = None, /, **more: object) -> None:
        """The process's variables of these names have these values; others may be there."""
        __tracebackhide__ = True
        wanted = {**(variables or {}), **more}
        seen = self.record.variables
        wrong = [
            f"{name} is {repr(seen[name]) if name in seen else 'not set'}, not {expected!r}"
            for name, expected in wanted.items()
            if name not in seen or seen[name] != expected
        ]
        if wrong:
            self._fail(f"{'; '.join(wrong)} (variables: {', '.join(sorted(seen)) or 'none'})")

    def assert_incident_at(self, element_id: str, *, kind: str | None = None, message: str | None = None) -> None:
        """An incident is open there, of this kind and with this text in its message."""
        __tracebackhide__ = True
        self._check_known([element_id])
        here = [incident for incident in self.record.state.incidents.values() if incident.node_id == element_id]
        if not here:
            self._fail(f"no incident is open at {element_id}, but at {', '.join(self.open_incidents) or 'nothing'}")
        found = [self.record.incidents[incident.id] for incident in here]
        if kind is not None and all(incident.kind != kind for incident in found):
            self._fail(f"the incident at {element_id} is {found[0].kind}, not {kind}: {found[0].message}")
        if message is not None and all(message not in incident.message for incident in found):
            self._fail(f"the incident at {element_id} does not say {message!r}, but {found[0].message!r}")

    def assert_no_incident(self) -> None:
        __tracebackhide__ = True
        if self.record.state.incidents:
            self._fail(f"incidents are open at {', '.join(self.open_incidents)}")

    # --- saying so -------------------------------------------------------------------------------------------------

    def _check_known(self, element_ids: Sequence[str]) -> None:
        """A claim about an element that is not there is a mistake in the test, whatever it claims."""
        __tracebackhide__ = True
        for element_id in element_ids:
            problem = known_element(self.record, element_id)
            if problem is not None:
                raise AssertionError(problem)

    def _path(self) -> str:
        return f"the path was {' → '.join(self.record.path) or 'empty'}"

    def _fail(self, what: str) -> None:
        __tracebackhide__ = True
        raise AssertionError(f"{what}\n{self.described()}")


def _counted(elements: Counter[str]) -> str:
    return ", ".join(
        element_id if number == 1 else f"{element_id} ({number}×)" for element_id, number in elements.items()
    )
