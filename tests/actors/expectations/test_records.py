"""Public BPMN models behave on a node as their records say: workers, people, messages and the clock.

The records lie beside the checkout; without them this is skipped. What is not in scope is skipped by name, and how many
that are is asserted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import trio

from stellwerk.actors.definitions import read_runnable
from stellwerk.limits import Limits
from stellwerk.model.process import Severity

DATA = Path(__file__).parents[3] / "../shared/data/bpmn"
DIFFERENT = {
    "A-ext-one: BPMN error nobody catches ends the path": "an uncaught BPMN error is an incident here, never silence",
    "A-ext-one: lock ran out but nobody else fetched: late completion is accepted": (
        "a lock that has run out gives no right to complete, whether or not somebody else has the task"
    ),
}
NOT_SAID = {
    "A-5m-external-errors": "the record does not say what its scripts give",
    "A-5m-xor-nested": "an instance starts with an object here, not with a single value",
}


def _cases() -> Iterator[Any]:
    for path in sorted((DATA / "expect").glob("A-*.json")):
        record = json.loads(path.read_text())
        for case in record["cases"]:
            yield pytest.param(record, case, id=f"{record['id']}: {case['name']}"[:90])


CASES = list(_cases())
ABSENT = pytest.mark.skip(reason="no public models beside the checkout")
NO_RECORD = pytest.param(None, marks=ABSENT)


@cache
def _refusal(xml: bytes) -> str | None:
    """Why the model cannot be deployed now."""
    findings = read_runnable(xml, Limits(), adopt_java=True).findings
    return next((f"not deployed: {finding}" for finding in findings if finding.severity is Severity.ERROR), None)


def _out_of_scope(record: Mapping[str, Any], case: Mapping[str, Any]) -> str | None:
    """Why a case is not played."""
    if (different := DIFFERENT.get(f"{record['id']}: {case['name']}")) is not None:
        return f"different: {different}"
    if record["id"] in NOT_SAID:
        return f"not to be played: {NOT_SAID[record['id']]}"
    refusals = (_refusal((DATA / name).read_bytes()) for name in record["files"])
    return next((refusal for refusal in refusals if refusal is not None), None)


@pytest.fixture
def case_in_scope(record: Mapping[str, Any], case: Mapping[str, Any]) -> None:
    if (reason := _out_of_scope(record, case)) is not None:
        pytest.skip(f"{record['id']}: {reason}")


@pytest.mark.usefixtures("case_in_scope")
@pytest.mark.parametrize("record, case", CASES or [pytest.param(None, None, marks=ABSENT)])
async def test_a_public_model_behaves_as_recorded(
    autojump_clock: object, nursery: trio.Nursery, player: Any, record: Mapping[str, Any], case: Mapping[str, Any]
) -> None:
    files = [(name, (DATA / name).read_bytes()) for name in record["files"]]
    played = await player(nursery, files, record)
    await played.play(case["steps"])
    nursery.cancel_scope.cancel()


# --- visits recorded by a simulator --------------------------------------------------------------------------------


def _simulations() -> Iterator[Any]:
    path = DATA / "expect/bulk/A-token-simulation.json"
    for record in json.loads(path.read_text()) if path.exists() else ():
        yield pytest.param(record, id=record["file"].rpartition("Simulator.")[2])


def _simulated(record: Mapping[str, Any]) -> bytes:
    """The simulator runs what says that it is not executable too."""
    xml = (DATA / str(record["file"])).read_bytes()
    return xml.replace(b'isExecutable="false"', b'isExecutable="true"')


SIMULATIONS = list(_simulations())
SIMULATED_OTHERWISE = {
    "message-flow-signal-active-participant.bpmn": "message flows are drawings: messages start the other pool",
    "process-implicit-start-none-event.bpmn": "where there is a start event, nodes without incoming flows do not start",
}


def _out_of_simulation(record: Mapping[str, Any]) -> str | None:
    name = record["file"].rpartition("Simulator.")[2]
    if name in SIMULATED_OTHERWISE:
        return f"different: {SIMULATED_OTHERWISE[name]}"
    return _refusal(_simulated(record))


@pytest.fixture
def simulation_in_scope(record: Mapping[str, Any]) -> None:
    if (reason := _out_of_simulation(record)) is not None:
        pytest.skip(f"{record['file']}: {reason}")


@pytest.mark.usefixtures("simulation_in_scope")
@pytest.mark.parametrize("record", SIMULATIONS or [NO_RECORD])
async def test_a_simulated_model_visits_the_same_nodes_as_often(
    autojump_clock: object, nursery: trio.Nursery, player: Any, record: Mapping[str, Any]
) -> None:
    ((_, start),) = [(action["do"], action["node"]) for action in record["actions"]]
    played = await player(nursery, [(record["file"], _simulated(record))])
    await played.start({"start_event": start})
    while opened := await played.open():
        await played.complete({"node": opened[0]})
        await played.settle()
    assert await played.entered() == record["visit_counts"]
    await played.expect_state("completed", {})
    nursery.cancel_scope.cancel()


# --- how many ------------------------------------------------------------------------------------------------------


def _kinds(reasons: Iterable[str | None]) -> Counter[str]:
    return Counter("played" if reason is None else reason.partition(":")[0] for reason in reasons)


@pytest.mark.skipif(not CASES, reason="no public models beside the checkout")
def test_no_more_records_are_skipped_than_are_known() -> None:
    reasons = [_out_of_scope(*case.values) for case in CASES]
    expected = {"played": 48, "not deployed": 32, "not to be played": 6, "different": 2}
    assert _kinds(reasons) == expected, sorted(reason for reason in reasons if reason)
    reasons = [_out_of_simulation(*case.values) for case in SIMULATIONS]
    expected = {"played": 6, "not deployed": 36, "different": 2}
    assert _kinds(reasons) == expected, sorted(reason for reason in reasons if reason)
