"""``/engine-rest/external-task``: what a worker gets and reports, and what it is told when it is too late."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked


async def test_a_task_comes_with_all_that_camunda_says_about_it(camunda: Any) -> None:
    instance_id = await camunda.start("shipping", businessKey="B-1", variables={"weight": {"value": 3}})
    task = await camunda.fetch_one("pack", includeExtensionProperties=True)
    assert all(task.pop(name) for name in ("id", "executionId", "activityInstanceId"))
    assert task.pop("lockExpirationTime").endswith("+0000")
    assert task.pop("createTime").endswith("+0000")
    assert task == {
        "topicName": "pack",
        "workerId": "w-1",
        "processInstanceId": instance_id,
        "activityId": "pack",
        "processDefinitionId": "shipping:1",
        "processDefinitionKey": "shipping",
        "processDefinitionVersionTag": None,
        "tenantId": None,
        "retries": None,
        "errorMessage": None,
        "errorDetails": None,
        "suspended": False,
        "priority": 0,
        "businessKey": "B-1",
        "variables": {"weight": {"type": "Integer", "value": 3, "valueInfo": {}}},
        "extensionProperties": {"box": "small"},
    }


async def test_extension_properties_come_only_where_they_are_asked_for(camunda: Any) -> None:
    await camunda.start("shipping")
    assert "extensionProperties" not in await camunda.fetch_one("pack")


async def test_completing_merges_variables_of_all_types(camunda: Any) -> None:
    instance_id = await camunda.start("shipping", variables={"weight": {"value": 3, "type": "Integer"}})
    task = await camunda.fetch_one("pack")
    variables = {
        "parcel": {"value": '{"number":"P-7","stamps":[1,2]}', "type": "Json"},
        "sent": {"value": "2026-01-31T12:00:00.000+0200", "type": "Date"},
        "price": {"value": 4.5, "type": "Double"},
        "fragile": {"value": False, "type": "boolean"},
        "note": {"value": None, "type": "Null"},
    }
    reply = await camunda.post(f"/external-task/{task['id']}/complete", {"workerId": "w-1", "variables": variables})
    assert (reply.status, reply.body) == (204, "")
    assert await camunda.status(instance_id) == "COMPLETED"
    assert await camunda.variables(instance_id) == {
        "weight": 3,
        "parcel": {"number": "P-7", "stamps": [1, 2]},
        "sent": "2026-01-31T12:00:00.000+0200",
        "price": 4.5,
        "fragile": False,
        "note": None,
    }


async def test_values_are_serialised_unless_deserialised_ones_are_asked_for(camunda: Any) -> None:
    await camunda.start("shipping", variables={"a": {"value": '{"b":1}', "type": "Json"}})
    task = await camunda.fetch_one("pack")
    assert task["variables"]["a"] == {"type": "Json", "value": '{"b":1}', "valueInfo": {}}
    await camunda.post(f"/external-task/{task['id']}/unlock")
    task = await camunda.fetch_one("pack", deserializeValues=True)
    assert task["variables"]["a"] == {"type": "Json", "value": {"b": 1}, "valueInfo": {}}


async def test_only_variables_that_are_named_come_and_none_for_an_empty_list(camunda: Any) -> None:
    await camunda.start("shipping", variables={"a": {"value": 1}, "b": {"value": 2}})
    task = await camunda.fetch_one("pack", variables=["b", "c"])
    assert list(task["variables"]) == ["b"]
    await camunda.post(f"/external-task/{task['id']}/unlock")
    assert (await camunda.fetch_one("pack", variables=[]))["variables"] == {}


async def test_fault_99_several_process_variables_are_all_demanded(camunda: Any) -> None:
    await camunda.start("shipping", variables={"a": {"value": 1}, "b": {"value": 2}})
    assert await camunda.fetch("pack", processVariables={"a": 1, "b": 3}) == []
    assert len(await camunda.fetch("pack", processVariables={"a": 1, "b": 2})) == 1


@pytest.mark.parametrize(
    ("condition", "other"),
    [
        ({"businessKey": "B-1"}, {"businessKey": "B-2"}),
        ({"processDefinitionKey": "shipping"}, {"processDefinitionKey": "other"}),
        ({"processDefinitionKeyIn": ["x", "shipping"]}, {"processDefinitionKeyIn": []}),
        ({"processDefinitionId": "shipping:1"}, {"processDefinitionId": "shipping:2"}),
        ({"processDefinitionIdIn": ["shipping:1"]}, {"processDefinitionIdIn": ["shipping:2"]}),
        ({"withoutTenantId": True}, {"processDefinitionKey": "ship*"}),
        ({"localVariables": True}, {"processDefinitionId": "shipping:1", "processDefinitionIdIn": ["shipping:2"]}),
    ],
)
async def test_conditions_of_a_topic_select(camunda: Any, condition: dict[str, Any], other: dict[str, Any]) -> None:
    await camunda.start("shipping", businessKey="B-1")
    assert await camunda.fetch("pack", **other) == []
    assert len(await camunda.fetch("pack", **condition)) == 1


async def test_conditions_that_nothing_here_could_fit_are_not_served(camunda: Any) -> None:
    for condition in ({"tenantIdIn": ["one"]}, {"processDefinitionVersionTag": "v1"}):
        topic = {"topicName": "pack", "lockDuration": 1000, **condition}
        body = {"workerId": "w", "maxTasks": 1, "topics": [topic]}
        reply = await camunda.post("/external-task/fetchAndLock", body)
        assert reply.status == 501, condition


async def test_fault_11_a_parked_poll_gets_a_task_as_soon_as_there_is_one(
    camunda: Any, connect_camunda: Callable[[], Awaitable[Any]]
) -> None:
    answers: list[Any] = []
    other = await connect_camunda()

    async def poll() -> None:
        topics = [{"topicName": "pack", "lockDuration": 20_000}]
        body = {"workerId": "w-1", "maxTasks": 1, "asyncResponseTimeout": 9_000, "topics": topics}
        answers.append(await other.post("/external-task/fetchAndLock", body))

    async with trio.open_nursery() as polling:
        polling.start_soon(poll)
        await wait_all_tasks_blocked(0.05)
        assert answers == []
        instance_id = await camunda.start("shipping")
    (reply,) = answers
    assert [task["processInstanceId"] for task in reply.body] == [instance_id]


async def test_a_poll_that_waits_answers_with_nothing_when_its_time_is_up(camunda: Any) -> None:
    topics = [{"topicName": "pack", "lockDuration": 20_000}]
    body = {"workerId": "w-1", "maxTasks": 1, "asyncResponseTimeout": 50, "topics": topics}
    reply = await camunda.post("/external-task/fetchAndLock", body)
    assert (reply.status, reply.body) == (200, [])


async def test_no_topics_and_no_tasks_wanted_find_nothing(camunda: Any) -> None:
    await camunda.start("shipping")
    assert await camunda.fetch() == []
    assert await camunda.fetch("pack", max_tasks=0) == []
    assert len(await camunda.fetch("pack")) == 1


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"asyncResponseTimeout": 1_800_001}, "cannot be set to a value greater than 1800000"),
        ({"workerId": None}, "$.workerId"),
        ({"topics": [{"lockDuration": 1000}]}, "topicName is missing @ $.topics[0]"),
        ({"topics": [{"topicName": "pack", "lockDuration": 0}]}, "a lock lasts"),
        ({"maxTasks": "ten"}, "$.maxTasks"),
    ],
)
async def test_a_wrong_fetch_is_refused_with_the_place(camunda: Any, change: dict[str, Any], complaint: str) -> None:
    body = {"workerId": "w", "maxTasks": 1, "topics": [{"topicName": "pack", "lockDuration": 1000}], **change}
    reply = await camunda.post("/external-task/fetchAndLock", body)
    assert reply.status == 400
    assert reply.body["type"] == "InvalidRequestException"
    assert complaint in reply.body["message"]


async def test_fault_85_a_failure_with_retries_is_obeyed_and_one_without_is_counted_by_the_engine(camunda: Any) -> None:
    await camunda.start("shipping")
    task = await camunda.fetch_one("pack")
    failure = {"workerId": "w-1", "errorMessage": "busy", "errorDetails": "line 1", "retries": 7, "retryTimeout": 0}
    assert (await camunda.post(f"/external-task/{task['id']}/failure", failure)).status == 204
    again = await camunda.fetch_one("pack")
    assert (again["id"], again["retries"]) == (task["id"], 7)
    assert (again["errorMessage"], again["errorDetails"]) == ("busy", "line 1")
    details = await camunda.get(f"/external-task/{task['id']}/errorDetails")
    assert (details.body, details.headers["content-type"]) == ("line 1", "text/plain; charset=utf-8")
    counted = {"workerId": "w-1", "errorMessage": "busy", "retryTimeout": 0}
    await camunda.post(f"/external-task/{task['id']}/failure", counted)
    assert (await camunda.fetch_one("pack"))["retries"] == 6


async def test_without_details_there_is_no_text(camunda: Any) -> None:
    await camunda.start("shipping")
    task = await camunda.fetch_one("pack")
    reply = await camunda.get(f"/external-task/{task['id']}/errorDetails")
    assert (reply.status, reply.body) == (204, "")


async def test_no_retries_left_is_an_incident_and_setting_them_begins_again(camunda: Any) -> None:
    instance_id = await camunda.start("shipping")
    task = await camunda.fetch_one("pack")
    await camunda.post(f"/external-task/{task['id']}/failure", {"workerId": "w-1", "errorMessage": "x", "retries": 0})
    assert await camunda.status(instance_id) == "RUNNING"
    assert await camunda.fetch("pack") == []
    assert (await camunda.get(f"/external-task/{task['id']}")).body["retries"] == 0
    reply = await camunda.put(f"/external-task/{task['id']}/retries", {"retries": 2})
    assert reply.status == 204, reply
    assert (await camunda.fetch_one("pack"))["processInstanceId"] == instance_id


async def test_a_failure_sets_no_variables(camunda: Any) -> None:
    await camunda.start("shipping")
    task = await camunda.fetch_one("pack")
    failure = {"workerId": "w-1", "retries": 1, "variables": {"a": {"value": 1}}}
    reply = await camunda.post(f"/external-task/{task['id']}/failure", failure)
    assert (reply.status, reply.body["type"]) == (501, "InvalidRequestException")


async def test_a_bpmn_error_is_caught_with_its_variables(camunda: Any) -> None:
    instance_id = await camunda.start("shipping")
    task = await camunda.fetch_one("pack")
    error = {"workerId": "w-1", "errorCode": "LOST", "errorMessage": "gone", "variables": {"where": {"value": "sea"}}}
    assert (await camunda.post(f"/external-task/{task['id']}/bpmnError", error)).status == 204
    assert await camunda.status(instance_id) == "COMPLETED"
    assert (await camunda.variables(instance_id))["where"] == "sea"


async def test_a_lock_is_extended_and_the_task_says_so(camunda: Any) -> None:
    await camunda.start("shipping")
    task = await camunda.fetch_one("pack")
    reply = await camunda.post(f"/external-task/{task['id']}/extendLock", {"workerId": "w-1", "newDuration": 3_600_000})
    assert reply.status == 204
    shown = (await camunda.get(f"/external-task/{task['id']}")).body
    assert shown["lockExpirationTime"] > task["lockExpirationTime"]
    assert shown["workerId"] == "w-1"


async def test_unlocking_lets_the_next_one_have_it_and_costs_no_retry(camunda: Any) -> None:
    await camunda.start("shipping")
    task = await camunda.fetch_one("pack")
    assert (await camunda.send("POST", f"/external-task/{task['id']}/unlock")).status == 204
    assert (await camunda.get(f"/external-task/{task['id']}")).body["workerId"] is None
    again = await camunda.fetch_one("pack", worker="w-2")
    assert (again["id"], again["retries"]) == (task["id"], None)
    assert (await camunda.post("/external-task/unknown/unlock")).status == 404


async def test_a_task_is_locked_by_its_id_by_one_worker_only(camunda: Any) -> None:
    await camunda.start("shipping")
    (row,) = (await camunda.get("/external-task")).body
    path = f"/external-task/{row['id']}/lock"
    assert (await camunda.post(path, {"workerId": "w-1", "lockDuration": 20_000})).status == 204
    assert await camunda.fetch("pack") == []
    assert (await camunda.post(path, {"workerId": "w-1", "lockDuration": 30_000})).status == 204
    reply = await camunda.post(path, {"workerId": "w-2", "lockDuration": 20_000})
    assert (reply.status, reply.body["type"]) == (400, "RestException")
    assert (await camunda.post(f"/external-task/{row['id']}/complete", {"workerId": "w-1"})).status == 204


# --- too late --------------------------------------------------------------------------------------------------------

REPORTS = [
    ("complete", {}),
    ("failure", {"errorMessage": "x", "retries": 1}),
    ("bpmnError", {"errorCode": "LOST"}),
    ("extendLock", {"newDuration": 20_000}),
]


@pytest.mark.parametrize(("verb", "body"), REPORTS)
async def test_who_does_not_hold_the_lock_gets_400(camunda: Any, verb: str, body: dict[str, Any]) -> None:
    await camunda.start("shipping")
    task = await camunda.fetch_one("pack")
    reply = await camunda.post(f"/external-task/{task['id']}/{verb}", {"workerId": "w-2", **body})
    assert (reply.status, reply.body["type"], reply.body["code"]) == (400, "RestException", None)
    assert (await camunda.post(f"/external-task/{task['id']}/complete", {"workerId": "w-1"})).status == 204


@pytest.mark.parametrize(("verb", "body"), REPORTS)
async def test_a_task_that_is_not_there_is_404(camunda: Any, verb: str, body: dict[str, Any]) -> None:
    reply = await camunda.post(f"/external-task/unknown/{verb}", {"workerId": "w-1", **body})
    assert (reply.status, reply.body["type"]) == (404, "RestException")


async def test_a_task_of_a_deleted_instance_is_404(camunda: Any) -> None:
    instance_id = await camunda.start("shipping")
    task = await camunda.fetch_one("pack")
    assert (await camunda.delete(f"/process-instance/{instance_id}")).status == 204
    reply = await camunda.post(f"/external-task/{task['id']}/complete", {"workerId": "w-1"})
    assert reply.status == 404


async def test_a_task_that_ended_another_way_is_404_and_the_same_report_again_is_answered_as_before(
    camunda: Any,
) -> None:
    await camunda.start("shipping")
    task = await camunda.fetch_one("pack")
    for _ in range(2):
        reply = await camunda.post(f"/external-task/{task['id']}/complete", {"workerId": "w-1"})
        assert reply.status == 204
    reply = await camunda.post(f"/external-task/{task['id']}/bpmnError", {"workerId": "w-1", "errorCode": "LOST"})
    assert reply.status == 404


async def test_values_that_do_not_fit_are_refused_and_the_task_stays_locked(camunda: Any) -> None:
    await camunda.start("shipping")
    task = await camunda.fetch_one("pack")
    body = {"workerId": "w-1", "variables": {"n": {"value": "many", "type": "Integer"}}}
    reply = await camunda.post(f"/external-task/{task['id']}/complete", body)
    assert (reply.status, reply.body["type"]) == (400, "InvalidRequestException")
    assert "$.variables.n.value" in reply.body["message"]
    assert (await camunda.post(f"/external-task/{task['id']}/complete", {"workerId": "w-1"})).status == 204


# --- order and operators ---------------------------------------------------------------------------------------------


async def test_fault_100_higher_priorities_come_first_then_older_tasks(camunda: Any) -> None:
    instances = [await camunda.start("shipping") for _ in range(3)]
    (first,) = (await camunda.get(f"/external-task?processInstanceId={instances[2]}")).body
    assert (await camunda.put(f"/external-task/{first['id']}/priority", {"priority": 9})).status == 204
    (last,) = (await camunda.get(f"/external-task?processInstanceId={instances[0]}")).body
    assert (await camunda.put(f"/external-task/{last['id']}/priority", {"priority": -5})).status == 204
    order = [task["processInstanceId"] for task in await camunda.fetch("pack")]
    assert order == [instances[2], instances[1], instances[0]]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("priority", {"priority": "high"}, 400),
        ("priority", {}, 400),
        ("retries", {}, 400),
        ("retries", {"retries": -1}, 400),
        ("retries", {"retries": 2**31}, 400),
    ],
)
async def test_what_cannot_be_set_is_refused(camunda: Any, path: str, body: dict[str, Any], status: int) -> None:
    await camunda.start("shipping")
    (row,) = (await camunda.get("/external-task")).body
    reply = await camunda.put(f"/external-task/{row['id']}/{path}", body)
    assert reply.status == status


async def test_topics_with_open_tasks_are_listed(camunda: Any) -> None:
    assert (await camunda.get("/external-task/topic-names")).body == []
    await camunda.start("shipping")
    assert (await camunda.get("/external-task/topic-names?withUnlockedTasks=true")).body == ["pack"]
    assert (await camunda.get("/external-task/topic-names?withLockedTasks=true")).body == []
    await camunda.fetch_one("pack")
    assert (await camunda.get("/external-task/topic-names?withLockedTasks=true")).body == ["pack"]
    assert (await camunda.get("/external-task/topic-names?withUnlockedTasks=true")).body == []
    assert (await camunda.get("/external-task/topic-names")).body == ["pack"]


# --- lists -----------------------------------------------------------------------------------------------------------


async def ids(camunda: Any, query: str) -> set[str]:
    reply = await camunda.get(f"/external-task{query}")
    assert reply.status == 200, reply
    count = await camunda.get(f"/external-task/count{query}")
    assert count.body == {"count": len(reply.body)}
    return {row["processInstanceId"] for row in reply.body}


async def test_lists_select_by_lock_and_retries_and_leave_out_what_is_finished(camunda: Any) -> None:
    done, failed, locked, ready = [await camunda.start("shipping", businessKey=f"B-{n}") for n in range(4)]
    tasks = {task["processInstanceId"]: task["id"] for task in await camunda.fetch("pack", max_tasks=3)}
    assert set(tasks) == {done, failed, locked}
    await camunda.post(f"/external-task/{tasks[done]}/complete", {"workerId": "w-1"})
    await camunda.post(f"/external-task/{tasks[failed]}/failure", {"workerId": "w-1", "retries": 0})
    await camunda.status(failed)
    assert await ids(camunda, "") == {failed, locked, ready}
    assert await ids(camunda, "?locked=true") == {locked}
    assert await ids(camunda, "?notLocked=true") == {failed, ready}
    assert await ids(camunda, "?workerId=w-1") == {locked}
    assert await ids(camunda, "?noRetriesLeft=true") == {failed}
    assert await ids(camunda, "?withRetriesLeft=true") == {locked, ready}
    assert await ids(camunda, f"?externalTaskIdIn={tasks[failed]},{tasks[locked]},x") == {failed, locked}
    assert await ids(camunda, f"?processInstanceId={ready}") == {ready}
    assert await ids(camunda, "?activityId=pack&topicName=pack&processDefinitionId=shipping:1") == {
        failed,
        locked,
        ready,
    }
    assert await ids(camunda, "?topicName=other") == set()
    assert await ids(camunda, "?suspended=true") == set()
    assert await ids(camunda, "?priorityHigherThanOrEquals=1") == set()


async def test_lists_are_cut_and_sorted(camunda: Any) -> None:
    for priority in range(4):
        instance_id = await camunda.start("shipping")
        (row,) = (await camunda.get(f"/external-task?processInstanceId={instance_id}")).body
        await camunda.put(f"/external-task/{row['id']}/priority", {"priority": priority})
    rows = (await camunda.get("/external-task?sortBy=taskPriority&sortOrder=desc&firstResult=1&maxResults=2")).body
    assert [row["priority"] for row in rows] == [2, 1]
    unknown = {"topicName": "pack", "sorting": [{"sortBy": "topicName"}]}
    assert (await camunda.post("/external-task", unknown)).status == 400
    body = {"priorityLowerThanOrEquals": 2, "sorting": [{"sortBy": "taskPriority", "sortOrder": "desc"}]}
    rows = (await camunda.post("/external-task?maxResults=1", body)).body
    assert [row["priority"] for row in rows] == [2]
    assert (await camunda.post("/external-task/count", body)).body == {"count": 3}
    assert len((await camunda.get("/external-task?sortBy=createTime&sortOrder=asc&maxResults=3")).body) == 3
    assert (await camunda.get("/external-task?sortBy=colour")).status == 400


async def test_a_condition_that_is_not_known_is_not_ignored(camunda: Any) -> None:
    for reply in (
        await camunda.get("/external-task?executionId=1"),
        await camunda.post("/external-task", {"executionId": "1"}),
    ):
        assert reply.status == 501
        assert "executionId" in reply.body["message"]


async def test_large_variables_come_whole(camunda: Any) -> None:
    text = "ä" * 200_000
    await camunda.start("shipping", variables={"text": {"value": text, "type": "String"}})
    assert (await camunda.fetch_one("pack"))["variables"]["text"]["value"] == text


@pytest.mark.parametrize(
    ("verb", "body", "place"),
    [
        ("failure", {"retries": 1, "retryTimeout": 2**50}, "@ $.retryTimeout"),
        ("failure", {"retries": 1, "errorMessage": "x" * 100_000}, "@ $.errorMessage"),
        ("bpmnError", {"errorCode": ""}, "@ $.errorCode"),
        ("complete", {"variables": {"a": {"value": "\u0000"}}}, "NUL character @ $.variables.a"),
    ],
)
async def test_complaints_name_the_fields_as_they_are_called_here(
    camunda: Any, verb: str, body: dict[str, Any], place: str
) -> None:
    await camunda.start("shipping")
    task = await camunda.fetch_one("pack")
    reply = await camunda.post(f"/external-task/{task['id']}/{verb}", {"workerId": "w-1", **body})
    assert reply.status in (400, 413)
    assert place in reply.body["message"]
    assert (await camunda.get(f"/external-task/{task['id']}")).body["workerId"] == "w-1"
