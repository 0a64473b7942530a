"""``GET /flow_node_instances``, with whatever conditions the clients can send."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
async def busy(cube: Any, models: Any) -> Any:
    """Two instances that wait, one that has ended, and one at work (newest)."""
    await cube.deploy(models["first"], models["second"], models["begin-a"])
    ended = await cube.start("first", correlationId="done")
    await cube.ask("POST", f"/messages/paid/trigger?process_instance_id={ended}", {})
    await cube.variables(ended)
    await cube.start("first", correlationId="order-1")
    await cube.start("second", correlationId="order-2")
    await cube.ask("POST", "/messages/begun/trigger", {})
    return cube


async def nodes(cube: Any, query: str) -> list[tuple[str, str, str]]:
    found = (await cube.flow_nodes(query))["flowNodeInstances"]
    return [(row["processModelId"], row["flowNodeId"], row["state"]) for row in found]


async def test_without_any_condition_all_are_found_the_newest_instances_first(busy: Any) -> None:
    reply = await busy.flow_nodes("limit=1&includeCount=true")
    assert (len(reply["flowNodeInstances"]), reply["totalCount"]) == (1, 9)
    assert [row["processModelId"] for row in reply["flowNodeInstances"]] == ["begin-a"]
    found = await nodes(busy, "")
    assert [key for key, _, _ in found] == ["begin-a"] * 2 + ["second"] * 2 + ["first"] * 5
    assert await nodes(busy, "offset=8") == found[8:]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("flowNodeId=work", [("begin-a", "work", "suspended")]),
        ("flowNodeName=Work&limit=1", [("begin-a", "work", "suspended")]),
        ("flowNodeType=bpmn:ServiceTask", [("begin-a", "work", "suspended")]),
        ("eventType=messageEvent&state=suspended", [("second", "wait", "suspended"), ("first", "wait", "suspended")]),
        ("flowNodeId=wait&state=finished", [("first", "wait", "finished")]),
        ("flowNodeId=wait&correlationId=order-2", [("second", "wait", "suspended")]),
        ("processModelId=first&flowNodeId=end", [("first", "end", "finished")]),
        ("processDefinitionId=second:1&flowNodeId=wait", [("second", "wait", "suspended")]),
        ("processModelName=Started&flowNodeType=bpmn:StartEvent", [("begin-a", "begin", "finished")]),
        ("ownerId=stellwerk&flowNodeId=work", [("begin-a", "work", "suspended")]),
        ("ownerId=ann", []),
        ("flowNodeLane=office", []),
        ("embeddedProcessModelId=x", []),
        ("parentProcessInstanceId=x", []),
        ("triggeredByFlowNodeInstance=x", []),
        ("flowNodeId=nobody", []),
        ("state=error", []),
        ("previousFlowNodeInstanceId=x", []),
        ("flowNodeType=bpmn:UserTask&processModelName=Started", []),
    ],
)
async def test_what_is_asked_for_is_found_in_all_instances(busy: Any, query: str, expected: list[Any]) -> None:
    assert await nodes(busy, query) == expected


async def test_what_came_behind_another_is_found_by_that(busy: Any) -> None:
    (work,) = (await busy.flow_nodes("flowNodeId=work"))["flowNodeInstances"]
    behind = f"previousFlowNodeInstanceId={work['previousFlowNodeInstanceId']}"
    assert await nodes(busy, behind) == [("begin-a", "work", "suspended")]


async def test_one_of_any_kind_is_found_by_its_own_id(busy: Any) -> None:
    every = (await busy.flow_nodes(""))["flowNodeInstances"]
    for row in every:
        (found,) = (await busy.flow_nodes(f"flowNodeInstanceId={row['flowNodeInstanceId']}"))["flowNodeInstances"]
        assert found == row
    some = ",".join(row["flowNodeInstanceId"] for row in every[1:4])
    assert (await busy.flow_nodes(f"flowNodeInstanceId={some}"))["totalCount"] == 3
    assert (await busy.flow_nodes("flowNodeInstanceId=nobody"))["totalCount"] == 0


async def test_what_waits_is_found_behind_many_instances_that_have_ended(cube: Any, models: Any) -> None:
    """Only instances that run are gone through for it, however many newer ones have ended."""
    await cube.deploy(models["first"])
    old = await cube.start("first")
    for _ in range(101):
        instance_id = await cube.start("first")
        await cube.ask("POST", f"/messages/paid/trigger?process_instance_id={instance_id}", {})
    for row in await cube.instances("state=running"):
        if row["processInstanceId"] != old:
            await cube.variables(row["processInstanceId"])
    (found,) = (await cube.flow_nodes("flowNodeId=wait&state=suspended"))["flowNodeInstances"]
    assert found["processInstanceId"] == old
