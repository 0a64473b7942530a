"""Deployments: all or nothing, versions by text, and what each instance runs on (consistency.md 7)."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from stellwerk.actors.definitions import DeployRefused
from stellwerk.errors import InvalidInput, NotFound, StoreUnavailable
from stellwerk.model.process import FailurePolicy, Severity
from stellwerk.wire.messages import Ack


async def versions(world: Any) -> list[str]:
    return [row.definition_id for row in await world.node.definitions()]


async def test_rule_7_the_same_text_is_the_same_version(autojump_clock: object, site: Any, task_of: Any) -> None:
    world = await site.start()
    for topic in ("a", "a", "b", "b", "a"):
        await world.deploy(task_of(topic))
    assert await versions(world) == ["p:1", "p:2", "p:3"]
    world = await site.restart()
    await world.deploy(task_of("a"))
    assert await versions(world) == ["p:1", "p:2", "p:3"]


async def test_rule_7_another_option_is_another_version(autojump_clock: object, site: Any, task_of: Any) -> None:
    world = await site.start()
    text = [("a.bpmn", _file(task_of("a")))]
    for policy in (None, FailurePolicy.INCIDENT, FailurePolicy.INCIDENT, None):
        await world.node.deploy(text, failure_policy=policy)
    assert await versions(world) == ["p:1", "p:2", "p:3"]


async def test_rule_7_running_instances_keep_their_version(autojump_clock: object, site: Any, task_of: Any) -> None:
    world = await site.start()
    await world.deploy(task_of("old"))
    before = await world.start()
    await world.deploy(task_of("new"))
    after = await world.start()
    world = await site.restart()
    again = await world.start()
    chosen = await world.node.start_instance("p", {}, version=1)
    rows = {row.instance_id: row.definition_id for row in await world.node.instances()}
    assert rows == {before: "p:1", after: "p:2", again: "p:2", chosen: "p:1"}
    peer = await world.connect("old", max_tasks=1)
    for _ in range(2):
        assert isinstance(await peer.complete(await peer.task()), Ack)
    for instance_id in (before, chosen):
        assert (await world.node.wait_for_end(instance_id, timeout_seconds=1)).status == "COMPLETED"


async def test_rule_7_deployments_at_one_moment_leave_the_newest_as_the_latest(
    autojump_clock: object, site: Any, task_of: Any
) -> None:
    """In whichever order they hear of their commits."""
    world = await site.start()
    for number in range(12):
        async with trio.open_nursery() as nursery:
            for side in ("left", "right", "middle"):
                nursery.start_soon(world.deploy, task_of(f"{side}-{number}"))
        instance_id = await world.start()
        newest = max(await versions(world), key=lambda definition_id: int(definition_id.rpartition(":")[2]))
        assert (await world.node.view(instance_id)).summary.definition_id == newest == f"p:{3 * number + 3}"


async def test_rule_7_a_deployment_whose_commit_failed_leaves_no_trace(
    autojump_clock: object, world: Any, task_of: Any
) -> None:
    await world.deploy(task_of("a"))
    world.store.unavailable = True
    with pytest.raises(StoreUnavailable):
        await world.deploy(task_of("b"))
    world.store.unavailable = False
    instance_id = await world.start()
    assert (await world.node.view(instance_id)).summary.definition_id == "p:1"
    await world.deploy(task_of("b"))
    assert await versions(world) == ["p:1", "p:2"]


async def test_rule_7_start_messages_switch_to_the_new_version(
    autojump_clock: object, site: Any, started_by: Any
) -> None:
    world = await site.start()
    await world.deploy(started_by("order"))
    await world.node.publish_message("order", "1", {})
    await trio.sleep(0.1)
    await world.deploy(started_by("order").replace('id="e"', 'id="e" name="other"'))
    await world.node.publish_message("order", "2", {})
    await trio.sleep(0.1)
    await world.deploy(started_by("purchase"))
    await world.node.publish_message("order", "3", {})
    await world.node.publish_message("purchase", "4", {})
    await trio.sleep(2)
    started = {row.business_key: row.definition_id for row in await world.node.instances()}
    assert started == {"1": "p:1", "2": "p:2", "4": "p:3"}


async def test_a_refused_deployment_leaves_no_trace_and_lists_everything(
    autojump_clock: object, site: Any, task_of: Any
) -> None:
    world = await site.start()
    await world.deploy(task_of("a"))
    each = '<serviceTask id="each"><standardLoopCharacteristics/></serviceTask>'
    bad = f'<startEvent id="s"/><callActivity id="call"/>{each}'
    files = [
        ("good.bpmn", _file(task_of("b"), "good")),
        ("changed.bpmn", _file(task_of("c"))),
        ("bad.bpmn", _file(bad, "bad")),
        ("broken.bpmn", b"<definitions"),
        ("empty.bpmn", b'<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL"/>'),
    ]
    with pytest.raises(DeployRefused) as refused:
        await world.node.deploy(files)
    errors = [(name, finding) for name, finding in refused.value.findings if finding.severity is Severity.ERROR]
    assert {name for name, _ in errors} == {"bad.bpmn", "broken.bpmn", "empty.bpmn"}
    assert {finding.element_id for name, finding in errors if name == "bad.bpmn"} >= {"call", "each"}
    assert all(finding.position.line >= 1 for _, finding in errors)
    assert await versions(world) == ["p:1"]
    with pytest.raises(NotFound):
        await world.start("good")


def _by_message(namespace: str, name: str, more: str = "") -> bytes:
    return f"""<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" targetNamespace="t" {namespace}>
      <message id="m" name="{name}"/><process id="z" isExecutable="true"><startEvent id="s"><messageEventDefinition
      messageRef="m"/></startEvent>{more}<sequenceFlow id="f" sourceRef="s" targetRef="e"/><endEvent id="e"/></process>
      </definitions>""".encode()


_ZEEBE = 'xmlns:zeebe="http://camunda.org/schema/zeebe/1.0"'
_CAMUNDA = 'xmlns:camunda="http://camunda.org/schema/1.0/bpmn"'


@pytest.mark.parametrize(
    ("namespace", "name"), [(_ZEEBE, "=order.name"), (_CAMUNDA, "${name}"), (_CAMUNDA, "a-${name}")]
)
async def test_a_start_message_whose_name_is_not_constant_is_refused(
    autojump_clock: object, world: Any, namespace: str, name: str
) -> None:
    with pytest.raises(DeployRefused, match="must be a constant"):
        await world.node.deploy([("z.bpmn", _by_message(namespace, name))])


async def test_two_start_events_for_one_message_are_refused(autojump_clock: object, world: Any) -> None:
    second = """<startEvent id="s2"><messageEventDefinition messageRef="m"/></startEvent>
      <sequenceFlow id="f2" sourceRef="s2" targetRef="e"/>"""
    with pytest.raises(DeployRefused, match='starts the process at "s" already'):
        await world.node.deploy([("z.bpmn", _by_message("", "m", second))])


async def test_a_constant_expression_names_a_start_message(autojump_clock: object, world: Any) -> None:
    await world.node.deploy([("z.bpmn", _by_message(_ZEEBE, "=&quot;order&quot;"))])
    await world.node.publish_message("order", "k", {})
    await trio.sleep(0.1)
    assert [row.business_key for row in await world.node.instances()] == ["k"]


async def test_two_processes_of_one_file_are_two_definitions(autojump_clock: object, site: Any, task_of: Any) -> None:
    world = await site.start()
    first, second = (
        _file(task_of("a"), "a").decode(),
        task_of("b").replace('id="', 'id="b-').replace('Ref="', 'Ref="b-'),
    )
    both = first.replace("</process>", f'</process><process id="b" isExecutable="true">{second}</process>')
    await world.node.deploy([("both.bpmn", both.encode())])
    assert await versions(world) == ["a:1", "b:1"]
    peer = await world.connect("a", "b")
    for key in ("a", "b"):
        instance_id = await world.start(key)
        offer = await peer.task()
        assert offer.process_instance_id == instance_id
        assert isinstance(await peer.complete(offer), Ack)
        assert (await world.node.wait_for_end(instance_id, timeout_seconds=1)).status == "COMPLETED"


async def test_one_key_twice_in_a_deployment_is_refused(autojump_clock: object, world: Any, task_of: Any) -> None:
    with pytest.raises(DeployRefused, match="used twice"):
        await world.node.deploy([("a.bpmn", _file(task_of("a"))), ("b.bpmn", _file(task_of("b")))])
    assert await versions(world) == []


async def test_unknown_processes_and_versions_are_not_found(autojump_clock: object, site: Any, task_of: Any) -> None:
    world = await site.start()
    await world.deploy(task_of("a"))
    with pytest.raises(NotFound):
        await world.start("q")
    for version in (2, 0, -1, 10**30):
        with pytest.raises(NotFound):
            await world.node.start_instance("p", {}, version=version)
    with pytest.raises((NotFound, InvalidInput)):
        await world.node.start_instance("p", {}, start_event_id="work")
    assert not await world.node.instances()


async def test_the_same_request_id_starts_one_instance(autojump_clock: object, site: Any, task_of: Any) -> None:
    """At one moment, later, after a new version and after a restart."""
    world = await site.start()
    await world.deploy(task_of("a"))
    ids: list[str] = []

    async def start(at: Any) -> None:
        ids.append(await at.node.start_instance("p", {}, request_id="r-1"))

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(start, world)
    await start(world)
    await world.deploy(task_of("b"))
    await start(world)
    world = await site.restart()
    await start(world)
    (one,) = await world.node.instances()
    assert set(ids) == {one.instance_id}


def _file(body: str, key: str = "p") -> bytes:
    return f"""<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" targetNamespace="t"
      xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn"
      ><process id="{key}" isExecutable="true">{body}</process></definitions>""".encode()


JAVA = b"""<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" targetNamespace="t"
    xmlns:camunda="http://camunda.org/schema/1.0/bpmn">
  <process id="p" isExecutable="true"><startEvent id="s"/>
    <serviceTask id="work" camunda:class="com.acme.Score"/><endEvent id="e"/>
    <sequenceFlow id="f1" sourceRef="s" targetRef="work"/><sequenceFlow id="f2" sourceRef="work" targetRef="e"/>
  </process></definitions>"""


async def test_adopted_java_classes_stay_work_after_a_restart(autojump_clock: object, site: Any) -> None:
    """The stored file is read again in the way in which it was deployed: work is never skipped without a word."""
    world = await site.start()
    with pytest.raises(DeployRefused, match=r"com\.acme\.Score"):
        await world.node.deploy([("java.bpmn", JAVA)])
    await world.node.deploy([("java.bpmn", JAVA)], adopt_java=True)
    world = await site.restart()
    instance_id = await world.start()
    peer = await world.connect("com.acme.Score")
    offer = await peer.task()
    assert offer.process_instance_id == instance_id
    assert isinstance(await peer.complete(offer), Ack)
    assert (await world.node.wait_for_end(instance_id, timeout_seconds=5)).status == "COMPLETED"
