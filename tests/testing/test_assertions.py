"""Claims about an instance fail with what was expected, the path, and all that is open."""

from __future__ import annotations

import re

import pytest

from stellwerk.testing import ProcessTest, StartedInstance


@pytest.fixture
async def instance(process_test: ProcessTest, risky: bytes) -> StartedInstance:
    """It stands at ``pay`` with an incident."""
    await process_test.deploy(("risky.bpmn", risky))
    instance = await process_test.start("p", {"amount": 3})
    await instance.fail("pay", "the bank is closed", retries=0)
    return instance


async def test_claims_that_hold_say_nothing(instance: StartedInstance) -> None:
    instance.assert_running()
    instance.assert_visited("pay", "start")
    instance.assert_visited_in_order("start", "pay")
    instance.assert_path("start", "pay")
    instance.assert_not_visited("paid", "refused")
    instance.assert_waiting_at("pay")
    instance.assert_variables({"amount": 3})
    instance.assert_incident_at("pay", kind="retries_exhausted", message="bank")
    assert instance.open_incidents == ("pay",)


async def test_claims_that_do_not_hold_say_why(instance: StartedInstance) -> None:
    def fails(text: str) -> pytest.RaisesExc[AssertionError]:
        return pytest.raises(AssertionError, match=re.escape(text))

    path = "the path was start → pay"
    with fails(f"never visited: paid, unpaid; {path}"):
        instance.assert_visited("start", "paid", "unpaid")
    with fails(f"visited, though never expected: pay (1×); {path}"):
        instance.assert_not_visited("paid", "pay")
    with fails(f"start was not visited after pay; {path}"):
        instance.assert_visited_in_order("pay", "start")
    with fails(f"pay was not visited after start → pay; {path}"):
        instance.assert_visited_in_order("start", "pay", "pay")
    with fails(f"the path is another than start; {path}"):
        instance.assert_path("start")
    with fails("not waiting at paid, but at pay"):
        instance.assert_waiting_at("paid")
    with fails("not waiting at pay, but at pay"):
        instance.assert_waiting_at("pay", "pay")
    with fails(f"the status is RUNNING, not COMPLETED; {path}"):
        instance.assert_ended()
    with fails("receipt is not set, not None; amount is 3, not 4 (variables: amount)"):
        instance.assert_variables({"receipt": None}, amount=4)
    with fails("no incident is open at paid, but at pay"):
        instance.assert_incident_at("paid")
    with fails("the incident at pay is retries_exhausted, not model_fault: the bank is closed"):
        instance.assert_incident_at("pay", kind="model_fault")
    with fails("the incident at pay does not say 'open', but 'the bank is closed'"):
        instance.assert_incident_at("pay", message="open")
    with fails("incidents are open at pay"):
        instance.assert_no_incident()
    with pytest.raises(ValueError, match="a status is one of RUNNING, COMPLETED, FAILED, CANCELLED, not 'ended'"):
        instance.assert_ended("ended")


async def test_every_claim_that_fails_shows_how_the_instance_is(instance: StartedInstance) -> None:
    with pytest.raises(AssertionError) as raised:
        instance.assert_ended()
    assert str(raised.value).splitlines()[1:] == [
        f"instance {instance.id} of p:1 is RUNNING",
        '  incident at "pay": retries_exhausted: the bank is closed',
    ]


@pytest.mark.parametrize(
    "claim",
    ["visited", "not_visited", "visited_in_order", "path", "waiting_at", "incident_at"],
)
async def test_a_claim_about_no_element_is_a_mistake(instance: StartedInstance, claim: str) -> None:
    with pytest.raises(AssertionError, match='process "p" has no element "payd", did you mean "pa'):
        getattr(instance, f"assert_{claim}")("payd")
