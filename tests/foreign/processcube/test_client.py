"""ProcessCube's genuine JavaScript EngineClient: deploying, starting, finding, people, messages."""

from __future__ import annotations

from typing import Any

import pytest

_USER_TASK = '<bpmn:userTask id="approve" name="Approve"/>'


# --- definitions


def test_a_model_is_deployed_shown_disabled_and_deleted(
    genuine: Any, refused: Any, model: Any, service: Any, unique: str
) -> None:
    xml = model(unique, service(unique))
    genuine.call("processDefinitions.persistProcessDefinitions", xml)
    genuine.call("processDefinitions.persistProcessDefinitions", [xml.replace("Work", "More work")])

    shown = genuine.call("processDefinitions.getById", f"{unique}:2", {"includeXml": True})
    assert shown["processDefinitionId"] == f"{unique}:2"
    assert "More work" in shown["xml"]
    listed = genuine.call("processDefinitions.getAll")
    assert [one for one in listed["processDefinitions"] if one["processModels"][0]["processModelId"] == unique] == [
        {name: value for name, value in shown.items() if name != "xml"}
    ]
    found = genuine.call("processModels.getById", unique)
    assert [node["id"] for node in found["startEvents"]] == ["start"]
    assert {node["id"]: node["flowNodeType"] for node in found["flowNodes"]} == {
        "start": "bpmn:StartEvent",
        "work": "bpmn:ServiceTask",
        "end": "bpmn:EndEvent",
    }
    assert unique in [one["processModelId"] for one in genuine.call("processModels.getAll")["processModels"]]
    assert found["isExecutable"] is True

    genuine.call("processModels.disableProcessModel", unique)
    assert genuine.call("processModels.getById", unique)["isExecutable"] is False
    with pytest.raises(refused) as disabled:
        genuine.call("processModels.startProcessInstance", {"processModelId": unique})
    assert disabled.value.code == 409
    genuine.call("processModels.enableProcessModel", unique)
    genuine.call("processModels.startProcessInstance", {"processModelId": unique})

    with pytest.raises(refused) as used:
        genuine.call("processDefinitions.deleteById", f"{unique}:2")
    assert used.value.code == 409
    genuine.call("processDefinitions.deleteById", f"{unique}:1")
    with pytest.raises(refused) as gone:
        genuine.call("processDefinitions.getById", f"{unique}:1")
    assert (gone.value.name, gone.value.code) == ("NotFoundError", 404)


def test_overwriting_can_be_refused_and_a_broken_file_says_where(
    genuine: Any, refused: Any, model: Any, service: Any, unique: str
) -> None:
    genuine.call("processDefinitions.persistProcessDefinitions", model(unique, service(unique)))
    other, options = model(unique, service("other")), {"overwriteExisting": False}
    with pytest.raises(refused) as exists:
        genuine.call("processDefinitions.persistProcessDefinitions", other, options)
    assert exists.value.code == 409
    with pytest.raises(refused, match=r"line 5, column \d+: serviceTask") as broken:
        genuine.call("processDefinitions.persistProcessDefinitions", model(unique, '<bpmn:serviceTask id="nobody"/>'))
    assert broken.value.code == 400


# --- starting and finding


def test_starting_returns_at_once_at_the_first_end_or_at_the_one_that_is_named(
    genuine: Any, engine: Any, refused: Any, model: Any, service: Any, unique: str
) -> None:
    engine.deploy(model(unique, service(unique)))
    at_once = genuine.call("processModels.startProcessInstance", {"processModelId": unique, "startEventId": "start"})
    assert at_once["correlationId"] == at_once["processInstanceId"]
    assert engine.instance(at_once["processInstanceId"])["status"] == "RUNNING"

    options = {"processModelId": unique, "initialToken": {"n": 1}, "correlationId": unique}
    first = genuine.begin("processModels.startProcessInstanceAndAwaitEndEvent", options)
    named = genuine.begin("processDefinitions.startProcessInstanceAndAwaitSpecificEndEvent", options, "end")
    genuine.start_worker(f"worker-{unique}", unique)
    for number in (first, named):
        reached = genuine.answer_to(number)
        assert reached["correlationId"] == unique
        assert (reached["endEventId"], reached["tokenPayload"]) == ("end", {"seen": {"n": 1}})

    with pytest.raises(refused) as no_such_end:
        genuine.call("processModels.startProcessInstanceAndAwaitSpecificEndEvent", options, "nowhere")
    assert no_such_end.value.code == 404
    assert genuine.call("processInstances.query", {"processModelId": unique})["totalCount"] == 3
    with pytest.raises(refused) as no_such_model:
        genuine.call("processModels.startProcessInstance", {"processModelId": f"{unique}-unknown"})
    assert no_such_model.value.code == 404


def test_instances_are_found_by_what_is_known_of_them(
    genuine: Any, engine: Any, model: Any, service: Any, unique: str
) -> None:
    engine.deploy(model(unique, service(unique)))
    mine, other = (engine.start_instance(unique, {"n": n}, business_key=f"{unique}-{n}") for n in (1, 2))
    genuine.start_worker(f"worker-{unique}", unique)
    for instance_id in (mine, other):
        engine.end_of(instance_id)

    def found(query: object, **options: object) -> Any:
        return genuine.call("processInstances.query", query, options)

    (shown,) = found({"correlationId": f"{unique}-1"})["processInstances"]
    assert shown["processInstanceId"] == mine
    assert shown["state"] == "finished"
    assert (shown["startToken"], shown["endToken"]) == ({"n": 1}, {"seen": {"n": 1}})
    assert (shown["startEventId"], shown["endEventId"]) == ("start", "end")
    assert shown["createdAt"] <= shown["finishedAt"]
    assert found({"processInstanceId": [mine, other]})["totalCount"] == 2
    assert found({"processModelId": unique, "state": ["running", "error"]})["totalCount"] == 0
    page = found({"processModelId": unique}, offset=1, limit=1)
    assert page["totalCount"] == 2
    assert [one["processInstanceId"] for one in page["processInstances"]] == [mine]
    nodes = genuine.call("flowNodeInstances.query", {"processInstanceId": mine})["flowNodeInstances"]
    assert [(node["flowNodeId"], node["state"]) for node in nodes] == [
        ("start", "finished"),
        ("work", "finished"),
        ("end", "finished"),
    ]
    assert nodes[1]["externalTaskData"]["topic"] == unique
    assert nodes[1]["previousFlowNodeInstanceId"] == nodes[0]["flowNodeInstanceId"]
    assert (nodes[1]["startToken"], nodes[1]["endToken"]) == ({"n": 1}, {"seen": {"n": 1}})
    definition = genuine.call("processInstances.getProcessDefinition", mine)
    assert definition["processDefinitionId"] == f"{unique}:1"
    assert genuine.call("processInstances.getProcessModel", mine)["processModelId"] == unique


# --- people


def test_a_user_task_is_found_reserved_and_finished(
    genuine: Any, engine: Any, refused: Any, model: Any, unique: str
) -> None:
    engine.deploy(model(unique, _USER_TASK))
    instance_id = engine.start_instance(unique, {"amount": 7})

    def waiting(**query: object) -> list[Any]:
        tasks = genuine.call("userTasks.query", {"state": "suspended", **query})["userTasks"]
        return [task for task in tasks if task["processInstanceId"] == instance_id]

    (task,) = waiting()
    assert task["flowNodeType"] == "bpmn:UserTask"
    assert (task["flowNodeId"], task["flowNodeName"]) == ("approve", "Approve")
    assert task["startToken"] == {"amount": 7}
    assert task["userTaskConfig"]["formFields"] == []
    assert waiting(processModelId=unique) == waiting(correlationId=instance_id) == [task]
    assert waiting(processModelId="another") == waiting(flowNodeInstanceId="no-such-one") == []
    assert waiting(processInstanceId=instance_id) == waiting(flowNodeInstanceId=task["flowNodeInstanceId"]) == [task]

    genuine.call("userTasks.reserveUserTaskInstance", None, task["flowNodeInstanceId"], "ada")
    assert waiting()[0]["actualOwnerId"] == "ada"
    with pytest.raises(refused) as taken:
        genuine.call("userTasks.reserveUserTaskInstance", None, task["flowNodeInstanceId"], "grace")
    assert taken.value.code == 409
    genuine.call("userTasks.cancelUserTaskInstanceReservation", None, task["flowNodeInstanceId"])
    assert "actualOwnerId" not in waiting()[0]

    genuine.call("userTasks.finishUserTask", task["flowNodeInstanceId"], {"approved": True})
    assert engine.end_of(instance_id)["variables"] == {"amount": 7, "approved": True}
    (finished,) = genuine.call("userTasks.query", {"processInstanceId": instance_id})["userTasks"]
    assert (finished["state"], finished["endToken"]) == ("finished", {"approved": True})
    with pytest.raises(refused) as gone:
        genuine.call("userTasks.finishUserTask", task["flowNodeInstanceId"], {})
    assert gone.value.code == 404


def test_manual_and_untyped_tasks_wait_until_they_are_finished(
    genuine: Any, engine: Any, model: Any, unique: str
) -> None:
    engine.deploy(model(unique, '<bpmn:manualTask id="pack"/>', '<bpmn:task id="look"/>'))
    instance_id = engine.start_instance(unique)
    query = {"processInstanceId": instance_id, "state": "suspended"}

    (manual,) = genuine.call("manualTasks.query", query)["manualTasks"]
    assert genuine.call("untypedTasks.query", query)["totalCount"] == 0
    genuine.call("manualTasks.finishManualTask", manual["flowNodeInstanceId"])
    (untyped,) = genuine.call("untypedTasks.query", query)["tasks"]
    genuine.call("untypedTasks.finishTask", untyped["flowNodeInstanceId"])

    assert engine.end_of(instance_id)["status"] == "COMPLETED"


# --- events


def test_a_message_reaches_the_instance_or_the_correlation_that_is_named(
    genuine: Any, engine: Any, model: Any, refused: Any, unique: str
) -> None:
    catch = (
        '<bpmn:intermediateCatchEvent id="paid"><bpmn:messageEventDefinition messageRef="m"/>'
        "</bpmn:intermediateCatchEvent>"
    )
    engine.deploy(model(unique, catch, root=f'<bpmn:message id="m" name="{unique}"/>'))
    by_instance, untouched, by_correlation = (
        engine.start_instance(unique, business_key=f"{unique}-{name}") for name in ("a", "b", "c")
    )

    genuine.call("events.triggerMessageEvent", unique, {"processInstanceId": by_instance, "payload": {"sum": 1}})
    genuine.call("events.triggerMessageEvent", unique, {"customCorrelationId": f"{unique}-c", "payload": {"sum": 2}})

    assert engine.end_of(by_instance)["variables"] == {"sum": 1}
    assert engine.end_of(by_correlation)["variables"] == {"sum": 2}
    assert engine.instance(untouched)["status"] == "RUNNING"
    waiting = genuine.call("events.query", {"processInstanceId": untouched, "state": "suspended"})["events"]
    assert [(event["flowNodeId"], event["eventType"]) for event in waiting] == [("paid", "messageEvent")]
    with pytest.raises(refused) as ended:
        genuine.call("events.triggerMessageEvent", unique, {"processInstanceId": by_instance})
    assert ended.value.code == 409
    with pytest.raises(refused) as signal:
        genuine.call("events.triggerSignalEvent", "alarm")
    assert (signal.value.name, signal.value.code) == ("NotImplementedError", 501)


def test_a_message_that_names_nobody_reaches_everybody_and_what_waits_is_found_without_an_instance(
    genuine: Any, engine: Any, model: Any, unique: str
) -> None:
    catch = (
        '<bpmn:intermediateCatchEvent id="paid"><bpmn:messageEventDefinition messageRef="m"/>'
        "</bpmn:intermediateCatchEvent>"
    )
    engine.deploy(model(unique, catch, root=f'<bpmn:message id="m" name="{unique}"/>'))
    waiting = [engine.start_instance(unique), engine.start_instance(unique, business_key=f"{unique}-a")]
    first = genuine.call("flowNodeInstances.query", {}, {"limit": 1})
    assert (len(first["flowNodeInstances"]), first["totalCount"] >= 4) == (1, True)
    found = genuine.call("flowNodeInstances.query", {"flowNodeId": "paid", "state": "suspended"}, {"limit": 100})
    assert {*waiting} <= {node["processInstanceId"] for node in found["flowNodeInstances"]}
    genuine.call("events.triggerMessageEvent", unique, {"payload": {"sum": 3}})
    assert [engine.end_of(instance_id)["variables"] for instance_id in waiting] == [{"sum": 3}] * 2


# --- the whole of it


def test_every_path_that_the_client_knows_is_served_or_refused_by_name(genuine: Any, engine: Any) -> None:
    """501 says so; no path of theirs is simply not there."""
    served, refused = set(), set()
    for name, path in genuine.paths().items():
        if "/long_polling/" in path:
            continue  # these wait
        for method in ("GET", "POST", "PUT", "DELETE"):
            status, answer = engine.ask(method, f"/atlas_engine/api/v1{path}", {})
            if status == 501:
                refused.add(name)
            elif not (status == 404 and answer["message"].startswith(f"there is no {method} /")):
                served.add(name)
    assert served | refused == {name for name, path in genuine.paths().items() if "/long_polling/" not in path}
    assert "triggerSignalEvent" in refused
    assert {"fetchAndLockExternalTasks", "startProcessInstance", "getApplicationInfo"} <= served


def test_info_is_given_without_a_credential(genuine: Any) -> None:
    assert genuine.call("applicationInfo.getApplicationInfo")["name"] == "stellwerk"
    assert genuine.call("applicationInfo.getAuthorityAddress") == ""
