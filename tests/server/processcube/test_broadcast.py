"""A message that names nobody goes to everybody who waits for its name, and starts whatever it can start."""

from __future__ import annotations

from typing import Any

import pytest

from stellwerk.server.processcube import broadcast


async def test_a_message_that_names_nobody_reaches_every_instance_that_waits(cube: Any, models: Any) -> None:
    await cube.deploy(models["first"], models["second"])
    waiting = [
        await cube.start("first"),
        await cube.start("first", correlationId="order-1"),
        await cube.start("second", correlationId="order-2"),
    ]
    assert await cube.ask("POST", "/messages/paid/trigger", {"sum": 5}) == (204, None)
    assert [await cube.variables(instance_id) for instance_id in waiting] == [{"sum": 5}] * 3
    assert await cube.engine.node.waiting_messages() == [], "nothing is left for who comes later"


async def test_a_message_that_names_nobody_starts_every_process_that_it_can(cube: Any, models: Any) -> None:
    await cube.deploy(models["begin-a"], models["begin-b"])
    assert (await cube.ask("POST", "/process_models/begin-b/disable"))[0] == 204
    assert await cube.ask("POST", "/messages/begun/trigger", {"n": 1}) == (204, None)
    assert [row["processModelId"] for row in await cube.instances("")] == ["begin-a"]
    assert (await cube.ask("POST", "/process_models/begin-b/enable"))[0] == 204
    assert await cube.ask("POST", "/messages/begun/trigger", {"n": 2}) == (204, None)
    rows = await cube.instances("processModelId=begin-b")
    assert [(row["startEventId"], row["startToken"]) for row in rows] == [("begin", {"n": 2})]
    assert len(await cube.instances("processModelId=begin-a")) == 2


async def test_where_nobody_waits_one_message_is_kept_for_who_comes_first(cube: Any, models: Any) -> None:
    await cube.deploy(models["first"])
    assert await cube.ask("POST", "/messages/paid/trigger", {"sum": 7}) == (204, None)
    early, late = await cube.start("first"), await cube.start("first")
    assert await cube.variables(early) == {"sum": 7}
    assert [row["processInstanceId"] for row in await cube.instances("state=running")] == [late]


async def test_an_instance_or_a_correlation_that_is_named_is_the_only_one(cube: Any, models: Any) -> None:
    await cube.deploy(models["first"])
    by_id, by_correlation, others = (
        await cube.start("first"),
        await cube.start("first", correlationId="order-1"),
        [await cube.start("first"), await cube.start("first", correlationId="order-2")],
    )
    assert (await cube.ask("POST", f"/messages/paid/trigger?process_instance_id={by_id}", {}))[0] == 204
    assert (await cube.ask("POST", "/messages/paid/trigger?custom_correlation_id=order-1", {}))[0] == 204
    await cube.variables(by_id)
    await cube.variables(by_correlation)
    running = {row["processInstanceId"] for row in await cube.instances("state=running")}
    assert running == set(others)


async def test_an_instance_of_another_engines_model_waits_for_its_key(cube: Any, models: Any) -> None:
    """A payment of one order must not release all the others."""
    await cube.deploy(models["first"], models["other"])
    reached = [await cube.start("first", correlationId="order-1"), await cube.start("other")]
    keyed = await cube.start("other", correlationId="order-2")
    assert await cube.ask("POST", "/messages/paid/trigger", {}) == (204, None)
    for instance_id in reached:
        await cube.variables(instance_id)
    assert [row["processInstanceId"] for row in await cube.instances("state=running")] == [keyed]


async def test_too_many_receivers_are_refused_and_none_gets_it(
    cube: Any, models: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broadcast, "_RECEIVERS_MAX", 2)
    await cube.deploy(models["first"])
    for _ in range(3):
        await cube.start("first")
    status, error = await cube.ask("POST", "/messages/paid/trigger", {})
    assert (status, error["errorClassName"]) == (400, "BadRequestError")
    assert "more than 2 wait for this message: name a process_instance_id" in error["message"]
    assert len(await cube.instances("state=running")) == 3
    assert await cube.engine.node.waiting_messages() == []
