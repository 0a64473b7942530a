"""In which order work is handed out over HTTP and WebSocket (known faults 100 and 101): one queue, one order."""

from __future__ import annotations

from typing import Any

from stellwerk.app import ServedEngine

PRIORITIES = (0, 5, -3, 5, 0, 9)
ORDER = (5, 1, 3, 0, 4, 2)
"""Highest first; of the same, the oldest."""


async def start_all(client: Any) -> list[str]:
    """Instances whose tasks have these priorities. → in the order in which they are to be handed out."""
    started = []
    for priority in PRIORITIES:
        started.append(await client.start())
        listed = await client.get(f"/external-tasks?instance_id={started[-1]}")
        (task,) = listed.body["tasks"]
        reply = await client.post(f"/external-tasks/{task['task_id']}/priority", {"priority": priority})
        assert reply.status == 200, reply
    return [started[number] for number in ORDER]


async def fetch(client: Any, max_tasks: int) -> list[str]:
    poll = {"worker_id": "w", "task_types": ["charge"], "max_tasks": max_tasks}
    reply = await client.post("/external-tasks/fetch-and-lock", poll)
    return [task["process_instance_id"] for task in reply.body]


async def test_fault_100_a_fetch_gives_higher_priorities_first_then_older_tasks(deployed: Any) -> None:
    wanted = await start_all(deployed)
    assert await fetch(deployed, 3) == wanted[:3]
    assert [await fetch(deployed, 1) for _ in range(3)] == [[instance_id] for instance_id in wanted[3:]]


async def test_fault_101_fetched_and_pushed_tasks_come_from_one_queue_in_one_order(
    deployed: Any, engine: ServedEngine, connect_worker: Any
) -> None:
    wanted = await start_all(deployed)
    given = await fetch(deployed, 2)
    async with connect_worker(engine, "charge") as worker:
        task = await worker.task()
        given.append(task["process_instance_id"])
        given += await fetch(deployed, 2)
        await worker.say(type="complete", ref=1, task_id=task["task_id"], fence=task["fence"], variables={})
        given.append((await worker.task())["process_instance_id"])
    assert given == wanted
