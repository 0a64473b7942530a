"""The plugin in real pytest runs, as users have them: no configuration, and only what pip installed."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., str]

_TEST = """
    async def test_it(process_test):
        await process_test.deploy("one.bpmn")
        instance = await process_test.start("p")
        await instance.complete("work")
        instance.assert_ended()
"""


@pytest.fixture
def run_pytest(pytester: pytest.Pytester) -> Run:
    """Write a test module beside the BPMN files and run it, in a process of its own if asked. → what pytest printed"""

    def run(code: str, *options: str, exit_code: int = 0, alone: bool = False) -> str:
        pytester.makepyfile(test_users=code)
        pytester.makeini("[pytest]\naddopts = --strict-markers\nfilterwarnings = error\n")
        start = pytester.runpytest_subprocess if alone else pytester.runpytest_inprocess
        done = start("-p", "no:cacheprovider", *options)
        output = done.stdout.str() + done.stderr.str()
        assert done.ret == exit_code, output
        return output

    return run


@pytest.fixture(autouse=True)
def _files(pytester: pytest.Pytester, one_task: bytes, risky: bytes, saga: bytes) -> None:
    (pytester.path / "one.bpmn").write_bytes(one_task)
    (pytester.path / "risky.bpmn").write_bytes(risky.replace(b'id="p"', b'id="risky"'))
    (pytester.path / "saga.bpmn").write_bytes(saga.replace(b'id="p"', b'id="saga"'))


def test_a_test_runs_without_any_configuration(run_pytest: Run) -> None:
    assert "1 passed" in run_pytest(_TEST, alone=True)


def test_fixtures_of_users_build_on_it_in_trio_mode(run_pytest: Run) -> None:
    code = """
    import pytest

    @pytest.fixture
    async def deployed(process_test):
        await process_test.deploy("one.bpmn")
        return process_test

    @pytest.mark.parametrize("amount", [1, 2])
    async def test_it(deployed, process_test, nursery, amount):
        assert deployed is process_test
        nursery.start_soon(process_test.settle)
        instance = await deployed.start("p", {"amount": amount})
        instance.assert_waiting_at("work")

    async def test_without_it(nursery):
        assert nursery

    def test_plain():
        pass
    """
    assert "4 passed" in run_pytest(code, "-o", "trio_mode=true")


def test_the_engine_may_have_a_file_and_a_policy(run_pytest: Run) -> None:
    code = """
    import pytest

    pytestmark = pytest.mark.stellwerk(store="sqlite", failure_policy="incident")

    async def fail_to_pay(process_test):
        await process_test.deploy("saga.bpmn")
        instance = await process_test.start("saga")
        await instance.complete("reserve")
        await instance.fail("pay", "broken", retries=0)
        return instance

    async def test_in_a_file(process_test, tmp_path):
        (await fail_to_pay(process_test)).assert_incident_at("pay")
        assert (tmp_path / "engine.db").stat().st_size > 0

    @pytest.mark.stellwerk(store="memory", failure_policy="compensate")
    async def test_in_memory(process_test, tmp_path):
        (await fail_to_pay(process_test)).assert_waiting_at("cancel")
        assert not (tmp_path / "engine.db").exists()

    @pytest.mark.stellwerk(store="paper")
    async def test_on_paper(process_test):
        pass
    """
    output = run_pytest(code, exit_code=1)
    assert "2 passed" in output
    assert "the marker stellwerk(store=…) knows memory and sqlite, not 'paper'" in output


def test_a_claim_that_fails_shows_how_the_instance_is(run_pytest: Run) -> None:
    code = _TEST.replace('await instance.complete("work")', "pass")
    output = run_pytest(code, exit_code=1)
    assert "AssertionError: the status is RUNNING, not COMPLETED; the path was start → work" in output
    assert 'external task at "work" of topic "work" with {}' in output
    assert "ExceptionGroup" not in output


def test_a_plain_function_is_told_to_be_async(run_pytest: Run) -> None:
    output = run_pytest("def test_it(process_test): pass", exit_code=1)
    assert "process_test is for async tests: write async def test_it(…)" in output


def test_without_pytest_trio_it_says_what_to_install(run_pytest: Run) -> None:
    output = run_pytest(_TEST, "-p", "no:trio", exit_code=1)
    assert "process_test needs pytest-trio: install stellwerk with its extra testing" in output


def test_the_kit_itself_needs_no_pytest() -> None:
    names = "Coverage, ProcessTest, draw_process, open_process_test, run_in_virtual_time"
    code = f"import sys; sys.modules['pytest'] = None; from stellwerk.testing import {names}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_coverage_is_summed_up_over_the_session(run_pytest: Run, pytester: pytest.Pytester) -> None:
    code = """
    import pytest

    @pytest.mark.parametrize("amount", [1, 2])
    async def test_paid(process_test, amount):
        await process_test.deploy("one.bpmn", "risky.bpmn")
        await process_test.start("p")
        risky = await process_test.start("risky")
        await risky.complete("pay")

    async def test_broken(process_test):
        await process_test.deploy("one.bpmn")
        instance = await process_test.start("p")
        await instance.complete("work")
        raise AssertionError("what was visited counts all the same")
    """
    output = run_pytest(code, "--bpmn-coverage-svg", "drawn", exit_code=1)
    report = output[output.index("BPMN coverage") :].splitlines()[1:7]
    assert report == [
        "process  flow nodes  sequence flows  visited",
        "p               3/3             2/2    100 %",
        "risky           3/5             2/3     62 %",
        "risky: flow nodes not visited: refused, unpaid",
        "risky: sequence flows not visited: refused-unpaid (refused → unpaid)",
        f"drawn: {Path('drawn/p.svg')}",
    ]
    classes = {
        group.get("data-element"): group.get("class")
        for group in ET.parse(pytester.path / "drawn/risky.svg").iter("{http://www.w3.org/2000/svg}g")
        if group.get("data-element")
    }
    assert classes["pay"] == "node visited"
    assert classes["refused"] == "node missed"
    assert classes["start-pay"] == "visited"
    assert classes["refused-unpaid"] == "missed"


def test_coverage_of_nothing_says_so(run_pytest: Run) -> None:
    output = run_pytest("def test_it(): pass", "--bpmn-coverage")
    assert "no process was deployed by a test with process_test" in output


def test_runs_without_the_fixture_load_nothing_of_the_engine(run_pytest: Run) -> None:
    code = """
    import sys

    def test_it():
        loaded = {name for name in sys.modules if name.split(".")[0] == "stellwerk"}
        assert loaded == {"stellwerk", "stellwerk.testing", "stellwerk.testing.pytest_plugin"}
    """
    assert "1 passed" in run_pytest(code, alone=True)


def test_a_test_that_another_plugin_runs_is_told_so(run_pytest: Run) -> None:
    code = "import pytest\n@pytest.mark.asyncio\nasync def test_it(process_test): pass"
    output = run_pytest(code, "-o", "markers=asyncio", exit_code=1)
    assert "process_test runs on trio, but pytest-asyncio took this test: use its strict mode" in output
