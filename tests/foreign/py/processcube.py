"""Programs with ProcessCube's genuine Python client. Each prints one JSON object a line."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def tell(event: str, **values: object) -> None:
    print(json.dumps({"event": event, **values}), flush=True)


def worker(url: str, topic: str) -> None:
    """A worker that asks for what its payload says."""
    from processcube_client.external_task import ExternalTaskClient, FunctionalError

    def handle(payload: dict[str, Any], task: dict[str, Any]) -> dict[str, Any]:
        tell("task", task=task, payload=payload)
        if payload.get("declined"):
            raise FunctionalError("Declined", "the card was declined", {"card": 1})
        return {"seen": payload}

    client = ExternalTaskClient(url, worker_id="python-worker")
    client.subscribe_to_external_task_topic(topic, handle, max_tasks=2)
    client.start()


def notifications(url: str) -> None:
    from processcube_client.notification.notification_client import NotificationClient

    client = NotificationClient(url)
    client.on_process_started(lambda message: tell("process_started", message=message))
    client.start()


def tour(url: str, process: str, file: str) -> None:
    """The synchronous client, from deploying to finishing a user task."""
    from processcube_client.core.api import (
        Client,
        FetchAndLockRequestPayload,
        FinishExternalTaskRequestPayload,
        FlowNodeInstancesQuery,
        ProcessInstanceQueryRequest,
        ProcessStartRequest,
        ReserveUserTaskRequest,
        StartCallbackType,
        UserTaskQuery,
    )

    client = Client(url)
    tell("info", name=client.info().name, authority=client.authority())
    deployed = client.deploy_bpmn_from_path(Path(file))
    tell("deployed", files=[result.deployed for result in deployed.deployed_files])
    request = ProcessStartRequest(
        process_model_id=process,
        return_on=StartCallbackType.CallbackOnProcessInstanceCreated,
        initial_token={"n": 1},
    )
    started = client.process_model_start(process, request)
    tell("started", instance=started.process_instance_id)
    fetch = FetchAndLockRequestPayload(worker_id="tour", topic_name=process, long_polling_timeout=5_000)
    (task,) = client.external_task_fetch_and_lock(fetch)
    tell("fetched", payload=task.payload)
    client.external_task_finish(task.id, FinishExternalTaskRequestPayload("tour", {"worked": True}))
    (waiting,) = client.user_task_query(UserTaskQuery(process_instance_id=started.process_instance_id))
    tell("waiting", flow_node_name=waiting.flow_node_name, fields=len(waiting.user_task_config.form_fields))
    client.user_task_reserve(waiting.user_task_instance_id, ReserveUserTaskRequest(actual_owner_id="ada"))
    client.user_task_cancel_reservation(waiting.user_task_instance_id)
    client.user_task_finish(waiting.user_task_instance_id, {"approved": True})
    query = ProcessInstanceQueryRequest(process_instance_id=started.process_instance_id)
    (shown,) = client.process_instance_query(query)
    tell("ended", state=shown.state, end_token=shown.end_token)
    nodes = client.flow_node_instance_query(FlowNodeInstancesQuery(process_instance_id=started.process_instance_id))
    tell("nodes", nodes=[node.flow_node_id for node in nodes])


def people(url: str, process: str) -> None:
    """The older clients, one for each area."""
    import asyncio

    from processcube_client.client_factory import ClientFactory

    factory = ClientFactory()
    started = factory.create_process_definition_client(url).start_process_instance(process)
    tell("started", instance=started["processInstanceId"])
    users = factory.create_user_task_client(url)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    mine = [
        task
        for task in loop.run_until_complete(users.get_user_tasks())
        if task["processInstanceId"] == started["processInstanceId"]
    ]
    tell("waiting", tasks=mine)
    loop.run_until_complete(users.finish_user_task(mine[0]["userTaskInstanceId"], {"approved": True}))
    factory.create_event_client(url).trigger_message(process, {"paid": 1}, started["processInstanceId"])
    definition = factory.create_process_definition_client(url).get_process_definition(process)
    tell("definition", id=definition["processDefinitionId"])


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    clients: dict[str, Callable[..., None]] = {
        "worker": worker,
        "notifications": notifications,
        "tour": tour,
        "people": people,
    }
    clients[sys.argv[1]](*sys.argv[2:])
