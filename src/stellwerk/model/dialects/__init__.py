"""The vendors' extensions, each read by its own module, all into one form (`stellwerk.model.extensions`).

Extensions of every vendor are read in every file: the file's dialect decides the expression language, not what counts.
Our own (``stellwerk:``) come last and win.
"""

from __future__ import annotations

from stellwerk.model.dialects import camunda, processcube, stellwerk, zeebe
from stellwerk.model.extensions import Extensions, Reading, keep_as_header
from stellwerk.model.process import Dialect
from stellwerk.model.vocabulary import CAMUNDA_LIKE, STELLWERK, ZEEBE, extension_elements
from stellwerk.model.xml import Element

__all__ = ["read_extensions"]


def read_extensions(element: Element, reading: Reading) -> Extensions:
    """All that extension elements and foreign attributes say about one BPMN element."""
    found = Extensions(priority=reading.default_priority)
    for extension in extension_elements(element):
        _read_extension(extension, found, reading)
    camunda.read_attributes(element, found, reading)
    if reading.dialect is Dialect.PROCESSCUBE:
        processcube.read_properties(element, found, reading)
    stellwerk.read_attributes(element, found, reading)
    return found


def _read_extension(extension: Element, found: Extensions, reading: Reading) -> None:
    if extension.namespace in CAMUNDA_LIKE:
        camunda.read_extension(extension, found, reading)
    elif extension.namespace == ZEEBE:
        zeebe.read_extension(extension, found, reading)
    elif extension.namespace == STELLWERK:
        stellwerk.read_extension(extension, found, reading)
    else:
        keep_as_header(extension, found.headers)
