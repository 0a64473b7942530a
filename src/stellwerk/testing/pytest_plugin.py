"""The pytest plugin: the fixture ``process_test``, and the coverage of processes over a test session.

Every pytest run of whoever has installed stellwerk loads this module: it imports nothing of the engine until a test
asks for the fixture.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from stellwerk.testing.coverage import Coverage
    from stellwerk.testing.process_test import ProcessTest

_FIXTURE = "process_test"
_MARKER = "stellwerk"
_OUTPUT = "stellwerk_coverage"
_MARKER_HELP = (
    "stellwerk(store='memory', failure_policy=None): how the engine of process_test is opened; "
    "store is memory or sqlite, failure_policy is incident or compensate"
)
_coverage = pytest.StashKey["Coverage"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("stellwerk", "tests of BPMN processes")
    group.addoption(
        "--bpmn-coverage",
        action="store_true",
        help="show which flow nodes and sequence flows of the deployed processes were visited",
    )
    group.addoption(
        "--bpmn-coverage-svg",
        metavar="DIR",
        type=Path,
        help="write an SVG of each process, coloured by what was visited, into this folder",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER_HELP)


# --- running ----------------------------------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Async tests with the fixture run in virtual time; pytest-trio runs them whatever its mode."""
    if not config.pluginmanager.has_plugin("trio"):
        return
    mark = pytest.mark.trio(run=_run)
    for item in items:
        if _wants_fixture(item) and inspect.iscoroutinefunction(getattr(item, "obj", None)):
            item.add_marker(mark, append=False)


def _wants_fixture(item: pytest.Item) -> bool:
    return _FIXTURE in getattr(item, "fixturenames", ())


def _run(function: Callable[..., Any], **options: Any) -> object:
    """A test that fails shows its own error, without pytest-trio's nurseries around it."""
    __tracebackhide__ = True
    from stellwerk.testing.virtual_time import run_in_virtual_time

    try:
        return run_in_virtual_time(function, **options)
    except BaseExceptionGroup as group:
        alone = _only_leaf(group)
        if alone is None:
            raise
    raise alone  # out here, so that what it was raised from stays its context


def _only_leaf(error: BaseException) -> BaseException | None:
    while isinstance(error, BaseExceptionGroup):
        if len(error.exceptions) > 1:
            return None
        error = error.exceptions[0]
    return error


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if not _wants_fixture(item):
        return
    if not item.config.pluginmanager.has_plugin("trio"):
        pytest.fail(f"{_FIXTURE} needs pytest-trio: install stellwerk with its extra testing", pytrace=False)
    if not inspect.iscoroutinefunction(getattr(item, "obj", None)):
        pytest.fail(f"{_FIXTURE} is for async tests: write async def {item.name}(…)", pytrace=False)
    if item.get_closest_marker("asyncio") is not None:
        pytest.fail(f"{_FIXTURE} runs on trio, but pytest-asyncio took this test: use its strict mode", pytrace=False)


@pytest.fixture
async def process_test(request: pytest.FixtureRequest) -> AsyncIterator[ProcessTest]:
    """An engine in virtual time, in memory or (marker ``stellwerk(store="sqlite")``) in a file: see docs/testing."""
    from stellwerk.testing.process_test import open_process_test

    options = _options(request)
    store = options.pop("store", "memory")
    if store not in ("memory", "sqlite"):
        raise pytest.UsageError(f"the marker stellwerk(store=…) knows memory and sqlite, not {store!r}")
    db = ":memory:" if store == "memory" else str(request.getfixturevalue("tmp_path") / "engine.db")
    coverage = _coverage_of(request.config)
    async with open_process_test(db, coverage=coverage, folders=[request.path.parent], **options) as test:
        yield test


def _options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Those of the nearest marker win."""
    options: dict[str, Any] = {}
    for marker in request.node.iter_markers(_MARKER):
        options = {**marker.kwargs, **options}
    return options


# --- coverage ---------------------------------------------------------------------------------------------------------


def _is_measured(config: pytest.Config) -> bool:
    return bool(config.getoption("--bpmn-coverage") or config.getoption("--bpmn-coverage-svg"))


def _coverage_of(config: pytest.Config) -> Coverage | None:
    """What is measured in this session; None where nobody asked for it."""
    if not _is_measured(config):
        return None
    found = config.stash.get(_coverage, None)
    if found is None:
        from stellwerk.testing.coverage import Coverage

        found = config.stash[_coverage] = Coverage()
    return found


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process of pytest-xdist hands what it measured to the one that reports."""
    output: dict[str, object] | None = getattr(session.config, "workeroutput", None)
    coverage = session.config.stash.get(_coverage, None)
    if output is not None and coverage is not None:
        output[_OUTPUT] = coverage.exported()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A process of pytest-xdist has ended."""
    coverage = _coverage_of(node.config)
    measured = getattr(node, "workeroutput", {}).get(_OUTPUT)
    if coverage is not None and measured is not None:
        coverage.add_exported(measured)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if not _is_measured(config):
        return
    coverage = config.stash.get(_coverage, None)
    terminalreporter.section("BPMN coverage")
    if coverage is None or not len(coverage):
        terminalreporter.write_line(f"no process was deployed by a test with {_FIXTURE}")
        return
    terminalreporter.write_line(coverage.text())
    folder: Path | None = config.getoption("--bpmn-coverage-svg")
    if folder is not None:
        for path in coverage.write_svgs(folder):
            terminalreporter.write_line(f"drawn: {path}")
