"""A BPMN 2.0 process as frozen values: what the reader makes of a file and what the core runs.

The whole element vocabulary of BPMN stands here, also what the core cannot run yet (`checks` refuses that at deploy).
Ids are unique within a file. Tuples are in document order.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeAlias

import attrs

from stellwerk.model.expressions import Expression, Language

__all__ = [
    "Activity",
    "CallActivity",
    "CancelDefinition",
    "CompensationDefinition",
    "ConditionalDefinition",
    "Dialect",
    "ErrorDefinition",
    "EscalationDefinition",
    "Event",
    "EventDefinition",
    "EventPosition",
    "ExternalWork",
    "FailurePolicy",
    "Finding",
    "FlowNode",
    "Gateway",
    "GatewayKind",
    "LinkDefinition",
    "LoopCharacteristics",
    "Mapped",
    "MessageDefinition",
    "Position",
    "Process",
    "Script",
    "SequenceFlow",
    "Severity",
    "SignalDefinition",
    "SubProcess",
    "SubProcessKind",
    "Task",
    "TaskKind",
    "TerminateDefinition",
    "TimerDefinition",
    "UserWork",
]


@attrs.frozen
class Position:
    """Where an element's start tag begins; both count from 1."""

    line: int
    column: int


class Severity(Enum):
    ERROR = "error"
    """The file or process cannot be deployed."""
    WARNING = "warning"
    """Deployed, but something is not as its author may think (a listener that is not run, say)."""


@attrs.frozen
class Finding:
    """One thing that the reader or the checks have to say about a file."""

    severity: Severity
    position: Position
    element_id: str | None
    element: str
    """The local name of the element, like ``serviceTask``."""
    what: str

    def __str__(self) -> str:
        name = f'{self.element} "{self.element_id}"' if self.element_id else self.element
        return f"line {self.position.line}, column {self.position.column}: {name}: {self.what}"


class Dialect(Enum):
    """Whose extensions a file uses. It decides the expression language and some defaults, for the whole file."""

    PLAIN = "plain"
    STELLWERK = "stellwerk"
    CAMUNDA = "camunda"
    ZEEBE = "zeebe"
    PROCESSCUBE = "processcube"


class FailurePolicy(Enum):
    """What follows when a task fails for good, a single-try lock expires or nobody catches a BPMN error."""

    INCIDENT = "incident"
    COMPENSATE = "compensate"


@attrs.frozen
class SequenceFlow:
    id: str
    """Where the file gives none (12 % of public files), the reader makes one up: ``source->target#n``."""
    name: str | None
    source: str
    target: str
    condition: Expression | None
    position: Position


@attrs.frozen
class Mapped:
    """One input or output mapping: evaluate ``source``, set variable ``target`` (a name, or a dotted path)."""

    target: str
    source: Expression
    position: Position


@attrs.frozen
class ExternalWork:
    """How a task is offered to workers."""

    topic: Expression
    """Usually a literal. Camunda and ProcessCube allow an expression."""
    retries: Expression | None = None
    """How many attempts in all may fail; None: the node's default (3)."""
    retry_backoffs_ms: tuple[int, ...] = ()
    """Waits before the first, second, … repetition; the last one repeats. Empty: the node's default back-off."""
    priority: Expression | None = None
    single_try: bool = False
    lock_duration_ms: int | None = None
    """Overrides what the worker asks for."""
    lock_expiries_max: int | None = None
    payload: Expression | None = None
    """ProcessCube's ``payload`` property: what the worker gets instead of the variables."""
    error_mappings: tuple[tuple[Expression, str | None], ...] = ()
    """Camunda's ``errorEventDefinition`` on an external task: (condition, error code)."""


@attrs.frozen
class UserWork:
    """What a user task says about who shall do it and with which form."""

    assignee: Expression | None = None
    candidate_users: Expression | None = None
    candidate_groups: Expression | None = None
    form: str | None = None
    due: Expression | None = None


@attrs.frozen
class Script:
    language: str | None
    text: str
    result_variable: str | None = None


@attrs.frozen
class LoopCharacteristics:
    """Standard loop (13.3.6) or multi-instance (13.3.7)."""

    multi_instance: bool
    sequential: bool
    position: Position
    cardinality: Expression | None = None
    input_collection: Expression | None = None
    input_element: str | None = None
    output_collection: str | None = None
    output_element: Expression | None = None
    completion_condition: Expression | None = None
    """Standard loop: the loopCondition."""
    test_before: bool = False
    loop_maximum: int | None = None


# --- event definitions -------------------------------------------------------------------------------------------


@attrs.frozen
class MessageDefinition:
    name: Expression
    """The message's name, usually a literal."""
    correlation_key: Expression | None = None
    """None: the instance's business key."""


@attrs.frozen
class TimerDefinition:
    """Exactly one of the three, each giving ISO 8601 text (cron also for cycle)."""

    date: Expression | None = None
    duration: Expression | None = None
    cycle: Expression | None = None


@attrs.frozen
class ErrorDefinition:
    code: Expression | None
    """None: catches every code. A throwing event always has one."""
    code_variable: str | None = None
    message_variable: str | None = None
    message: str | None = None


@attrs.frozen
class SignalDefinition:
    name: Expression


@attrs.frozen
class EscalationDefinition:
    code: Expression | None
    code_variable: str | None = None


@attrs.frozen
class ConditionalDefinition:
    condition: Expression


@attrs.frozen
class LinkDefinition:
    name: str


@attrs.frozen
class CompensationDefinition:
    activity_ref: str | None
    """Compensate only this activity; None: the whole scope."""
    wait_for_completion: bool = True


@attrs.frozen
class CancelDefinition:
    pass


@attrs.frozen
class TerminateDefinition:
    pass


EventDefinition: TypeAlias = (
    MessageDefinition
    | TimerDefinition
    | ErrorDefinition
    | SignalDefinition
    | EscalationDefinition
    | ConditionalDefinition
    | LinkDefinition
    | CompensationDefinition
    | CancelDefinition
    | TerminateDefinition
)


# --- flow nodes --------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class FlowNode:
    """What activities, gateways and events have in common."""

    id: str
    name: str | None = None
    position: Position
    parent: str | None = None
    """Id of the subprocess that contains the node; None: the process itself."""
    incoming: tuple[str, ...] = ()
    outgoing: tuple[str, ...] = ()
    """Ids of sequence flows."""
    default_flow: str | None = None
    inputs: tuple[Mapped, ...] = ()
    outputs: tuple[Mapped, ...] = ()
    headers: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    """Task headers, properties and unknown extension elements, handed to the worker."""


@attrs.frozen(kw_only=True)
class Activity(FlowNode):
    loop: LoopCharacteristics | None = None
    is_for_compensation: bool = False
    boundary_events: tuple[str, ...] = ()
    compensation_handler: str | None = None
    """Id of the activity that undoes this one (through its compensation boundary event and the association)."""


class TaskKind(Enum):
    SERVICE = "serviceTask"
    SEND = "sendTask"
    BUSINESS_RULE = "businessRuleTask"
    SCRIPT = "scriptTask"
    USER = "userTask"
    MANUAL = "manualTask"
    RECEIVE = "receiveTask"
    UNDEFINED = "task"


@attrs.frozen(kw_only=True)
class Task(Activity):
    kind: TaskKind
    work: ExternalWork | None = None
    """Set on service, send, business rule and script tasks that are offered to workers."""
    user: UserWork | None = None
    message: MessageDefinition | None = None
    """Receive task: what it waits for. Send task: what its operation names (not sent by the engine)."""
    script: Script | None = None
    decision: str | None = None
    """Business rule task: the DMN decision that the dialect names."""
    result_variable: str | None = None
    waits: bool = False
    """Undefined and manual tasks: True in the ProcessCube dialect, where they wait for somebody to finish them."""


class SubProcessKind(Enum):
    EMBEDDED = "subProcess"
    EVENT = "eventSubProcess"
    TRANSACTION = "transaction"
    AD_HOC = "adHocSubProcess"


@attrs.frozen(kw_only=True)
class SubProcess(Activity):
    kind: SubProcessKind
    children: tuple[str, ...] = ()
    """Ids of the flow nodes directly inside."""


@attrs.frozen(kw_only=True)
class CallActivity(Activity):
    called: Expression | None = None
    called_version: str | None = None
    pass_all_variables: bool = True


class GatewayKind(Enum):
    EXCLUSIVE = "exclusiveGateway"
    PARALLEL = "parallelGateway"
    INCLUSIVE = "inclusiveGateway"
    EVENT_BASED = "eventBasedGateway"
    COMPLEX = "complexGateway"


@attrs.frozen(kw_only=True)
class Gateway(FlowNode):
    kind: GatewayKind
    instantiate: bool = False
    activation_condition: Expression | None = None


class EventPosition(Enum):
    START = "startEvent"
    CATCH = "intermediateCatchEvent"
    THROW = "intermediateThrowEvent"
    BOUNDARY = "boundaryEvent"
    END = "endEvent"


@attrs.frozen(kw_only=True)
class Event(FlowNode):
    where: EventPosition
    definitions: tuple[EventDefinition, ...] = ()
    """Empty: a none event. More than one: a multiple event (13.5)."""
    attached_to: str | None = None
    interrupting: bool = True
    """Boundary events and the start events of event subprocesses."""
    parallel_multiple: bool = False
    work: ExternalWork | None = None
    """A throwing message event that the dialect gives to a worker."""

    @property
    def definition(self) -> EventDefinition | None:
        """The only definition, or None for a none event."""
        return self.definitions[0] if len(self.definitions) == 1 else None


@attrs.frozen(kw_only=True)
class Process:
    """One ``<process>`` of a file."""

    key: str
    """The process element's id: the name under which it is started."""
    name: str | None
    dialect: Dialect
    language: Language
    executable: bool
    """The isExecutable attribute; where a file omits it, True unless another process of the file has it."""
    version_tag: str | None = None
    failure_policy: FailurePolicy | None = None
    """As the model says; None: the deployment's or the dialect's default decides."""
    position: Position
    nodes: Mapping[str, FlowNode] = attrs.field(hash=False)
    flows: Mapping[str, SequenceFlow] = attrs.field(hash=False)
    children: tuple[str, ...] = ()
    """Ids of the nodes directly in the process."""

    def scope_children(self, scope: str | None) -> tuple[str, ...]:
        """Ids of the nodes directly in subprocess `scope`, or in the process (None)."""
        if scope is None:
            return self.children
        node = self.nodes[scope]
        assert isinstance(node, SubProcess), scope
        return node.children

    def effective_failure_policy(self, default: FailurePolicy | None = None) -> FailurePolicy:
        """The model's own, else `default`, else what fits the dialect (an outage must not unwind every order)."""
        if self.failure_policy is not None:
            return self.failure_policy
        if default is not None:
            return default
        plain = self.dialect in (Dialect.PLAIN, Dialect.STELLWERK)
        return FailurePolicy.COMPENSATE if plain else FailurePolicy.INCIDENT
