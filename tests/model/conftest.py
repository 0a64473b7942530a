"""Small BPMN files for the reader, and where the public ones lie."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stellwerk.model.checks import check_executable
from stellwerk.model.process import Process, Severity
from stellwerk.model.reader import ReadResult, read_definitions

NAMESPACES = (
    'xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" '
    'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" '
    'targetNamespace="http://example.com/bpmn"'
)


@pytest.fixture
def file_with() -> Callable[..., bytes]:
    """A file from what stands in ``definitions``; ``attributes`` are added to the root."""

    def make(body: str, attributes: str = "") -> bytes:
        return f"<definitions {NAMESPACES} {attributes}>\n{body}\n</definitions>".encode()

    return make


@pytest.fixture
def read(file_with: Callable[..., bytes]) -> Callable[..., ReadResult]:
    """Reads a file from what stands in ``definitions``."""

    def reader(body: str, attributes: str = "", *, adopt_java: bool = False) -> ReadResult:
        return read_definitions(file_with(body, attributes), adopt_java=adopt_java)

    return reader


@pytest.fixture
def process_with(read: Callable[..., ReadResult]) -> Callable[..., Process]:
    """The process of a file from what stands in its only ``process``, which must have no errors."""

    def make(body: str, attributes: str = "", *, roots: str = "", adopt_java: bool = False) -> Process:
        result = read(f'<process id="p" isExecutable="true">{body}</process>{roots}', attributes, adopt_java=adopt_java)
        assert not result.is_refused, "\n".join(map(str, result.findings))
        (process,) = result.processes
        return process

    return make


@pytest.fixture
def errors_of(read: Callable[..., ReadResult]) -> Callable[..., list[str]]:
    """The texts of all errors in a file, the reader's and those of the checks."""

    def errors(body: str, attributes: str = "", *, roots: str = "", adopt_java: bool = False) -> list[str]:
        result = read(f'<process id="p" isExecutable="true">{body}</process>{roots}', attributes, adopt_java=adopt_java)
        findings = [*result.findings, *(f for process in result.processes for f in check_executable(process))]
        return [
            f'{finding.element} "{finding.element_id}": {finding.what}'
            for finding in findings
            if finding.severity is Severity.ERROR
        ]

    return errors


@pytest.fixture(scope="session")
def public_files() -> list[Path]:
    """All public BPMN files, in a fixed order."""
    folder = Path(__file__).parents[2].parent / "shared" / "data" / "bpmn"
    if not folder.is_dir():
        pytest.skip("the public BPMN files are not here")
    return sorted(path for path in folder.glob("*/*") if path.suffix in (".bpmn", ".xml", ".bpmn2"))
