"""A test completes what is open by the ids of the elements; what is not open is told with what is."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from stellwerk.core.external_task import TaskState
from stellwerk.errors import Conflict, InvalidInput, NotFound, StellwerkError
from stellwerk.testing import ProcessTest


async def test_a_task_is_completed_by_its_element(process_test: ProcessTest, one_task: bytes) -> None:
    await process_test.deploy(("one.bpmn", one_task))
    instance = await process_test.start("p", {"amount": 3}, business_key="A-1")
    [task] = instance.tasks()
    assert (task.element_id, task.topic, task.variables) == ("work", "work", {"amount": 3})
    assert (instance.business_key, instance.definition_id, instance.status) == ("A-1", "p:1", "RUNNING")
    await instance.complete("work", {"receipt": 7})
    instance.assert_ended()
    assert instance.variables == {"amount": 3, "receipt": 7}
    assert instance.visited == ("start", "work", "done")


async def test_a_task_that_is_not_open_is_told_with_what_is(process_test: ProcessTest, fork: bytes) -> None:
    await process_test.deploy(("fork.bpmn", fork))
    instance = await process_test.start("p", {"n": 1})
    await instance.complete("left")
    with pytest.raises(AssertionError) as raised:
        await instance.complete("left")
    assert str(raised.value).splitlines() == [
        'no external task is open at "left"',
        f"instance {instance.id} of p:1 is RUNNING",
        '  external task at "right" of topic "right" with {"n":1}',
    ]


async def test_an_element_that_does_not_exist_is_told_with_the_nearest(
    process_test: ProcessTest, one_task: bytes
) -> None:
    await process_test.deploy(("one.bpmn", one_task))
    instance = await process_test.start("p")
    with pytest.raises(AssertionError, match=r'process "p" has no element "wrok", did you mean "work"\?'):
        await instance.complete("wrok")
    with pytest.raises(AssertionError, match=r'"Do it" is a name: the id of that element is "work"'):
        await instance.complete("Do it")
    with pytest.raises(AssertionError, match=r'has no element "xyz": it has start, work, done'):
        instance.assert_visited("xyz")


async def test_several_tasks_of_one_element(process_test: ProcessTest, many: bytes) -> None:
    await process_test.deploy(("many.bpmn", many))
    instance = await process_test.start("p")
    assert instance.waiting_at == ("pick", "pick", "pick")
    instance.assert_waiting_at("pick", "pick", "pick")
    with pytest.raises(AssertionError, match=r'3 external tasks are open at "pick": hand in the one that is meant'):
        await instance.complete("pick")
    first = instance.tasks("pick")[0]
    await instance.complete(first, {"first": True})
    assert first not in instance.tasks("pick")
    assert await instance.complete_all("pick", lambda task: {task.task_id: True}) == 2
    instance.assert_ended()
    assert len(instance.variables) == 3
    with pytest.raises(AssertionError, match='no external task is open at "pick"'):
        await instance.complete_all("pick")


async def test_a_bpmn_error_takes_its_boundary_event(process_test: ProcessTest, risky: bytes) -> None:
    await process_test.deploy(("risky.bpmn", risky))
    instance = await process_test.start("p")
    await instance.throw_error("pay", "REFUSED", "no money", {"balance": 0})
    instance.assert_path("start", "pay", "refused", "unpaid")
    instance.assert_ended()


async def test_a_failure_waits_for_its_next_attempt_and_becomes_an_incident(
    process_test: ProcessTest, risky: bytes
) -> None:
    await process_test.deploy(("risky.bpmn", risky))
    instance = await process_test.start("p")
    await instance.fail("pay", "timeout", retry_after=timedelta(minutes=5))
    with pytest.raises(Conflict, match='the next attempt at "pay" is due in 300 s: advance the time first'):
        await instance.complete("pay")
    await process_test.advance(minutes=5)
    await instance.fail("pay", "timeout again", retries=0)
    instance.assert_incident_at("pay", kind="retries_exhausted", message="again")
    instance.assert_waiting_at("pay")
    with pytest.raises(AssertionError, match='no external task is open at "pay"'):
        await instance.complete("pay")
    await instance.resolve_incident("pay")
    instance.assert_no_incident()
    await instance.complete("pay")
    instance.assert_ended()
    with pytest.raises(AssertionError, match='no incident is open at "pay"'):
        await instance.resolve_incident("pay")


async def test_a_result_that_is_no_json_is_refused_and_the_task_stays_open(
    process_test: ProcessTest, one_task: bytes
) -> None:
    await process_test.deploy(("one.bpmn", one_task))
    instance = await process_test.start("p")
    with pytest.raises(InvalidInput, match=re.escape("set is no JSON value @ $.variables.names")):
        await instance.complete("work", {"names": {1, 2}})
    with pytest.raises(StellwerkError, match=r"bytes, at most 1048576 are allowed|more than 1048576 bytes"):
        await instance.complete("work", {"text": "x" * 2_000_000})
    [(task, _)] = (await process_test.engine.instance(instance.id)).tasks
    assert task.state is TaskState.READY
    await instance.complete("work", {"names": [1, 2]})
    instance.assert_ended()


async def test_after_a_repair_the_task_has_the_repaired_variables(process_test: ProcessTest, risky: bytes) -> None:
    await process_test.deploy(("risky.bpmn", risky))
    instance = await process_test.start("p", {"amount": "three"})
    await instance.fail("pay", "no number", retries=0)
    await instance.set_variables({"amount": 3})
    await instance.resolve_incident("pay")
    [task] = instance.tasks("pay")
    assert task.variables == {"amount": 3}


async def test_tokens_inside_a_subprocess_stand_there_and_not_at_it(process_test: ProcessTest, bpmn) -> None:  # type: ignore[no-untyped-def]
    body = """<startEvent id="start"/><endEvent id="done"/>
      <subProcess id="sub"><startEvent id="in"/><userTask id="inner"/><endEvent id="out"/>
        <sequenceFlow id="i1" sourceRef="in" targetRef="inner"/>
        <sequenceFlow id="i2" sourceRef="inner" targetRef="out"/></subProcess>"""
    await process_test.deploy(("sub.bpmn", bpmn(body, "start sub done")))
    instance = await process_test.start("p")
    assert instance.waiting_at == ("inner",)
    await instance.complete_user_task("inner")
    instance.assert_path("start", "sub", "in", "inner", "out", "done")
    assert not instance.waiting_at


async def test_a_user_task_is_completed_by_its_element(process_test: ProcessTest, bpmn) -> None:  # type: ignore[no-untyped-def]
    body = '<startEvent id="start"/><userTask id="approve" name="Approve"/><endEvent id="done"/>'
    await process_test.deploy(("user.bpmn", bpmn(body, "start approve done")))
    instance = await process_test.start("p", {"amount": 3})
    [task] = instance.user_tasks()
    assert (task.element_id, task.name, task.variables["amount"]) == ("approve", "Approve", 3)
    with pytest.raises(AssertionError, match=r'no external task is open at "approve"(.|\n)*user task at "approve"'):
        await instance.complete("approve")
    await instance.complete_user_task("approve", {"approved": True})
    instance.assert_variables({"approved": True}, amount=3)
    with pytest.raises(AssertionError, match='no user task is open at "approve"'):
        await instance.complete_user_task("approve")


async def test_messages_start_instances_and_reach_those_that_wait(process_test: ProcessTest, bpmn) -> None:  # type: ignore[no-untyped-def]
    body = """<startEvent id="ordered"><messageEventDefinition messageRef="paid"/></startEvent>
      <receiveTask id="wait" messageRef="paid"/><endEvent id="done"/>"""
    await process_test.deploy(("message.bpmn", bpmn(body, "ordered wait done")))
    assert await process_test.publish("paid", "A-17", {"euros": 5})
    [instance] = process_test.instances("p")
    assert process_test.instances("other") == []
    instance.assert_waiting_at("wait")
    assert 'waits for message "paid" with key "A-17"' in instance.described()
    assert not await process_test.publish("cancelled", "A-17")
    assert await process_test.publish("paid", "A-17", {"euros": 9})
    assert process_test.instance(instance.id).status == "COMPLETED"
    instance.assert_variables(euros=9)
    with pytest.raises(NotFound, match="there is no instance nobody"):
        process_test.instance("nobody")


async def test_cancelling_and_setting_variables(process_test: ProcessTest, one_task: bytes) -> None:
    await process_test.deploy(("one.bpmn", one_task))
    instance = await process_test.start("p")
    await instance.set_variables({"n": 2})
    instance.assert_variables(n=2)
    await instance.cancel("enough")
    instance.assert_ended("CANCELLED")
    assert "is CANCELLED (enough)" in instance.described()
    assert instance.tasks() == []


async def test_what_is_done_on_the_engine_itself_is_seen_after_settling(
    process_test: ProcessTest, one_task: bytes
) -> None:
    await process_test.deploy(("one.bpmn", one_task))
    instance_id = await process_test.engine.start("p")
    await process_test.settle()
    process_test.instance(instance_id).assert_waiting_at("work")


async def test_a_file_that_is_nowhere_is_told_with_the_places(process_test: ProcessTest) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no .*testing/nothing\.bpmn and no nothing\.bpmn"):
        await process_test.deploy("nothing.bpmn")
