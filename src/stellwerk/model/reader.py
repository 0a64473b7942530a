"""BPMN 2.0 XML to frozen processes: the entry to this package.

Nothing is raised for a bad file. All that is wrong with it comes back as findings, each with its line and column.
"""

from __future__ import annotations

import attrs

from stellwerk.limits import Limits
from stellwerk.model.detection import declared_language, dialect_of, notation_of
from stellwerk.model.dialects import read_extensions
from stellwerk.model.expressions import Language
from stellwerk.model.extensions import Reading
from stellwerk.model.findings import Findings
from stellwerk.model.identities import Identities
from stellwerk.model.namespaces import check_namespaces
from stellwerk.model.nodes import is_flow_node, is_subprocess, read_node
from stellwerk.model.process import (
    Dialect,
    FailurePolicy,
    Finding,
    Process,
    Severity,
    SubProcess,
)
from stellwerk.model.roots import Roots
from stellwerk.model.texts import Texts
from stellwerk.model.vocabulary import (
    BPMN,
    STELLWERK,
    ZEEBE,
    bpmn_children,
    extension_elements,
    is_bpmn,
    is_true,
    vendor_attribute,
)
from stellwerk.model.wiring import Parts, wire
from stellwerk.model.xml import Document, Element, XmlRefused, parse_xml

__all__ = ["ReadResult", "read_definitions"]

# Parts of a process that say nothing about how tokens move.
_WITHOUT_EFFECT = frozenset(
    (
        "artifact",
        "auditing",
        "category",
        "completionCondition",
        "correlationSubscription",
        "dataInputAssociation",
        "dataObject",
        "dataObjectReference",
        "dataOutputAssociation",
        "dataStore",
        "dataStoreReference",
        "documentation",
        "extensionElements",
        "group",
        "humanPerformer",
        "import",
        "incoming",
        "interfaceRef",
        "ioBinding",
        "ioSpecification",
        "laneSet",
        "monitoring",
        "multiInstanceLoopCharacteristics",
        "outgoing",
        "performer",
        "potentialOwner",
        "property",
        "resourceRole",
        "standardLoopCharacteristics",
        "supportedInterfaceRef",
        "supports",
        "textAnnotation",
    )
)


@attrs.frozen
class ReadResult:
    """What a file holds. With an ERROR among the findings, the processes are what could still be made of it."""

    processes: tuple[Process, ...]
    findings: tuple[Finding, ...]
    """In the order of the file, at most `FINDINGS_MAX` and one that counts the others."""

    @property
    def is_refused(self) -> bool:
        return any(finding.severity is Severity.ERROR for finding in self.findings)


def read_definitions(xml: bytes, *, limits: Limits | None = None, adopt_java: bool = False) -> ReadResult:
    """Read a BPMN file in any of the known dialects and encodings.

    ``adopt_java``: a Java class, delegate, bean expression, script or decision becomes work for workers, whose topic
    is the class, the bean or the element's id. Without it, `check_executable` refuses them.
    """
    limits = Limits() if limits is None else limits
    try:
        document = parse_xml(xml, limits)
    except XmlRefused as refused:
        return ReadResult((), (Finding(Severity.ERROR, refused.position, None, "xml", refused.what),))
    findings = Findings()
    processes = _read_document(document, findings, limits, adopt_java)
    return ReadResult(processes, findings.sorted())


def _read_document(document: Document, findings: Findings, limits: Limits, adopt_java: bool) -> tuple[Process, ...]:
    root = document.root
    if root.name != "definitions" or not is_bpmn(root):
        what = f'definitions of the namespace "{BPMN}", not {root.name} of "{root.namespace}"'
        findings.error(root, f"the root of a BPMN file is {what}")
        return ()
    check_namespaces(document, findings)
    dialect = dialect_of(document)
    if dialect is Dialect.STELLWERK and declared_language(root) is Language.JUEL:
        findings.warning(root, "the expressionLanguage is JUEL, but a file with stellwerk: in it is written in FEEL")
    reading = Reading(
        findings=findings,
        texts=Texts(notation_of(document, dialect), findings),
        roots=Roots(document),
        dialect=dialect,
        limits=limits,
        adopt_java=adopt_java,
    )
    identities = Identities(findings, limits)
    elements = list(bpmn_children(root, "process"))
    said_of_any = any(is_true(element.get("isExecutable")) for element in elements)
    processes = [
        _ProcessReader(element, _is_executable(element, said_of_any), identities, reading).read()
        for element in elements
    ]
    if not processes:
        findings.error(root, "the file holds no process")
    elif not any(process.executable for process in processes):
        findings.warning(root, "no process of the file is executable")
    return tuple(processes)


class _ProcessReader:
    """Reads one ``process`` element: first its nodes, scope by scope, then what connects them."""

    def __init__(
        self,
        element: Element,
        executable: bool,
        identities: Identities,
        reading: Reading,
    ) -> None:
        self._element = element
        self._executable = executable
        self._identities = identities
        self._reading = reading
        self._findings = reading.findings
        self._parts = Parts()
        self._children: dict[str | None, list[str]] = {}

    def read(self) -> Process:
        with self._findings.only_warnings(not self._executable):
            return self._read()

    def _read(self) -> Process:
        element = self._element
        key = self._identities.claim_key(element)
        found = read_extensions(element, self._reading)
        self._reading = attrs.evolve(self._reading, default_priority=found.priority)
        self._read_scope(element, None)
        wired = wire(self._parts, self._identities, self._reading)
        nodes = {
            node_id: attrs.evolve(node, children=tuple(self._children[node_id]))
            if isinstance(node, SubProcess)
            else node
            for node_id, node in wired.nodes.items()
        }
        return Process(
            key=key,
            name=element.get("name") or None,
            dialect=self._reading.dialect,
            language=self._reading.texts.language,
            executable=self._executable,
            version_tag=_version_tag(element),
            failure_policy=self._failure_policy(),
            position=element.position,
            nodes=nodes,
            flows=wired.flows,
            children=tuple(self._children[None]),
        )

    def _read_scope(self, scope: Element, scope_id: str | None) -> None:
        self._children[scope_id] = []
        for child in scope.children:
            if not is_bpmn(child):
                self._findings.warning(child, f"an element of {child.namespace} is not read")
            elif is_flow_node(child):
                self._read_node(child, scope_id)
            elif child.name == "sequenceFlow":
                self._parts.flows.append((child, scope_id))
            elif child.name == "association":
                self._parts.associations.append(child)
            elif child.name not in _WITHOUT_EFFECT:
                self._findings.error(child, "an element that is unknown here")

    def _read_node(self, element: Element, scope_id: str | None) -> None:
        node_id = self._identities.claim(element)
        self._parts.nodes[node_id] = read_node(element, node_id, scope_id, self._reading)
        self._parts.elements[node_id] = element
        self._children[scope_id].append(node_id)
        if is_subprocess(element):
            self._read_scope(element, node_id)

    def _failure_policy(self) -> FailurePolicy | None:
        text = self._element.get("failurePolicy", STELLWERK)
        if text is None:
            return None
        try:
            return FailurePolicy(text.strip())
        except ValueError:
            self._findings.error(self._element, f'the failure policy is incident or compensate, not "{text}"')
            return None


def _is_executable(element: Element, said_of_any: bool) -> bool:
    """`said_of_any`: whether the file says so of one of its processes; then those that say nothing are not."""
    given = element.get("isExecutable")
    return not said_of_any if given is None else is_true(given)


def _version_tag(element: Element) -> str | None:
    zeebe = (e.get("value") for e in extension_elements(element) if e.namespace == ZEEBE and e.name == "versionTag")
    return element.get("versionTag", STELLWERK) or vendor_attribute(element, "versionTag") or next(zeebe, None)
