"""Where the engine stands still: what opens an incident, who may resolve it, and what happens then."""

from __future__ import annotations

from typing import Any

import attrs
import msgspec
import pytest
import trio

from stellwerk.errors import Conflict, InvalidInput, NotFound, StellwerkError
from stellwerk.limits import Limits
from stellwerk.model.process import FailurePolicy
from stellwerk.ports import TaskQuery
from stellwerk.wire.messages import Ack, BpmnErrorReport, Fail, Nack, Revoked

TASK = '<startEvent id="s"/><serviceTask id="work" stellwerk:topic="work" {}/>{}<endEvent id="e"/>'
SAGA = """<startEvent id="s"/><serviceTask id="charge" stellwerk:topic="charge"/>
  <boundaryEvent id="undo" attachedToRef="charge"><compensateEventDefinition/></boundaryEvent>
  <serviceTask id="refund" stellwerk:topic="refund" isForCompensation="true"/>
  <association id="a" sourceRef="undo" targetRef="refund" associationDirection="One"/>
  <serviceTask id="work" stellwerk:topic="work"/><endEvent id="e"/>"""


@pytest.fixture
def task(flow: Any) -> Any:
    return lambda attributes="", more="": TASK.format(attributes, more) + flow("s work e")


@pytest.fixture
def saga(flow: Any) -> str:
    return SAGA + str(flow("s charge work e"))


async def fail(peer: Any, offer: Any, retries: int | None = None) -> object:
    ref = peer.ref()
    await peer.say(Fail(ref, offer.task_id, offer.fence, "it broke", retries=retries))
    return await peer.answer(offer, ref)


async def report(peer: Any, offer: Any, code: str = "no_money") -> Any:
    ref = peer.ref()
    raw = msgspec.Raw(b"{}")
    await peer.say(BpmnErrorReport(ref, offer.task_id, offer.fence, code, "no money", variables=raw, details=raw))
    return await peer.answer(offer, ref)


async def incident(world: Any, instance_id: str) -> dict[str, Any]:
    """The only one, as soon as it is open."""
    await world.node.wait_for_end(instance_id, timeout_seconds=600, or_incident=True)
    (found,) = await world.store.incidents(instance_id)
    return dict(found)


async def status(world: Any, instance_id: str, seconds: float = 1) -> str:
    return str((await world.node.wait_for_end(instance_id, timeout_seconds=seconds)).status)


async def states(world: Any, instance_id: str) -> dict[str, str]:
    return {task.element_id: task.state.value for task in await world.store.tasks(TaskQuery(instance_id=instance_id))}


# --- resolving -----------------------------------------------------------------------------------------------------


async def test_rule_9_a_resolved_task_is_offered_again_with_a_newer_fence(
    autojump_clock: object, site: Any, task: Any
) -> None:
    world = await site.start()
    await world.deploy(task('stellwerk:retries="1"'))
    peer = await world.connect("work")
    instance_id = await world.start()
    offer = await peer.task()
    assert isinstance(await fail(peer, offer), Ack)
    opened = await incident(world, instance_id)
    assert (opened["kind"], opened["element_id"], opened["task_id"]) == ("retries_exhausted", "work", offer.task_id)
    assert await states(world, instance_id) == {"work": "FAILED"}
    await trio.sleep(60)
    await world.node.resolve_incident(opened["incident_id"], retries=2)
    again = await peer.task()
    assert again.task_id == offer.task_id
    assert again.fence > offer.fence
    assert again.retries_left == 2
    stale = await peer.complete(attrs.evolve(again, fence=offer.fence))
    assert isinstance(stale, Nack)
    assert isinstance(await peer.complete(again), Ack)
    assert await status(world, instance_id) == "COMPLETED"


@pytest.mark.parametrize("together", [True, False])
async def test_rule_9_a_second_operator_is_told(autojump_clock: object, site: Any, task: Any, together: bool) -> None:
    world = await site.start()
    await world.deploy(task('stellwerk:retries="1"'))
    peer = await world.connect("work")
    instance_id = await world.start()
    await fail(peer, await peer.task())
    incident_id = (await incident(world, instance_id))["incident_id"]
    answers: list[str] = []

    async def resolve() -> None:
        try:
            await world.node.resolve_incident(incident_id)
        except (Conflict, NotFound) as refused:
            answers.append(refused.code)
        else:
            answers.append("done")

    if together:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(resolve)
            nursery.start_soon(resolve)
    else:
        await resolve()
        await resolve()
    assert min(answers) == "done"
    assert answers.count("done") == 1
    await peer.complete(await peer.task())
    assert await status(world, instance_id) == "COMPLETED"


@pytest.mark.parametrize("retries", [0, -1, 2**31, 2**70])
async def test_fault_86_a_number_of_retries_that_makes_no_sense_is_refused(
    autojump_clock: object, site: Any, task: Any, retries: int
) -> None:
    world = await site.start()
    await world.deploy(task('stellwerk:retries="1"'))
    peer = await world.connect("work")
    instance_id = await world.start()
    await fail(peer, await peer.task())
    incident_id = (await incident(world, instance_id))["incident_id"]
    with pytest.raises(InvalidInput):
        await world.node.resolve_incident(incident_id, retries=retries)
    await world.node.resolve_incident(incident_id)
    await fail(peer, await peer.task())
    (failed,) = await world.store.tasks(TaskQuery(instance_id=instance_id))
    assert failed.retries_left == 0


async def test_fault_87_resolving_queues_the_task_whether_or_not_a_worker_is_there(
    autojump_clock: object, site: Any, task: Any
) -> None:
    world = await site.start()
    await world.deploy(task('stellwerk:retries="1"'))
    peer = await world.connect("work")
    instance_id = await world.start()
    await fail(peer, await peer.task())
    peer.drop()
    await world.node.resolve_incident((await incident(world, instance_id))["incident_id"])
    assert await states(world, instance_id) == {"work": "READY"}
    assert await status(world, instance_id) == "RUNNING"
    assert not await world.node.incidents()


async def test_rule_9_a_single_try_that_expired_can_be_resolved(autojump_clock: object, site: Any, task: Any) -> None:
    world = await site.start()
    await world.deploy(task('stellwerk:singleTry="true"'))
    silent = await world.connect("work", lock_duration_ms=5_000, reports=False)
    instance_id = await world.start()
    offer = await silent.task()
    silent.drop()
    opened = await incident(world, instance_id)
    assert opened["kind"] == "lock_expired"
    assert 5 <= trio.current_time() < 5.2
    assert await states(world, instance_id) == {"work": "EXPIRED"}
    peer = await world.connect("work", worker_id=silent.worker_id)
    assert isinstance(await peer.complete(offer), Nack)
    await trio.sleep(60)
    assert await states(world, instance_id) == {"work": "EXPIRED"}, "never handed out again by itself"
    await world.node.resolve_incident(opened["incident_id"])
    again = await peer.task()
    assert again.fence > offer.fence
    assert isinstance(await peer.complete(again), Ack)
    assert await status(world, instance_id) == "COMPLETED"


async def test_an_incident_can_be_given_up_by_cancelling(autojump_clock: object, site: Any, task: Any) -> None:
    world = await site.start()
    await world.deploy(task('stellwerk:retries="1"'))
    peer = await world.connect("work")
    instance_id = await world.start()
    await fail(peer, await peer.task())
    incident_id = (await incident(world, instance_id))["incident_id"]
    await world.node.cancel_instance(instance_id, "no use")
    assert await states(world, instance_id) == {"work": "CANCELLED"}
    assert not await world.node.incidents()
    with pytest.raises((Conflict, NotFound)):
        await world.node.resolve_incident(incident_id)
    assert await status(world, instance_id) == "CANCELLED"


async def test_resolving_survives_a_refused_commit(autojump_clock: object, world: Any, task: Any) -> None:
    await world.deploy(task('stellwerk:retries="1"'))
    peer = await world.connect("work")
    instance_id = await world.start()
    await fail(peer, await peer.task())
    incident_id = (await incident(world, instance_id))["incident_id"]
    world.store.refuse_changesets = 1
    with pytest.raises(StellwerkError):
        await world.node.resolve_incident(incident_id)
    await world.node.resolve_incident(incident_id)
    assert isinstance(await peer.complete(await peer.task()), Ack)
    assert await status(world, instance_id) == "COMPLETED"


# --- which failures ------------------------------------------------------------------------------------------------


async def test_rule_8_the_row_stays_locked_until_the_instance_has_stepped(
    autojump_clock: object, world: Any, task: Any
) -> None:
    await world.deploy(task('stellwerk:singleTry="true"'))
    silent = await world.connect("work", lock_duration_ms=5_000, reports=False)
    instance_id = await world.start()
    await silent.task()
    world.store.refuse_changesets = 3
    await trio.sleep(5.02)
    assert world.store.refuse_changesets < 3
    assert await states(world, instance_id) == {"work": "LOCKED"}
    assert not await world.node.incidents()
    await incident(world, instance_id)
    assert await states(world, instance_id) == {"work": "EXPIRED"}


async def test_fault_59_more_expired_locks_than_one_look_takes_all_end(
    autojump_clock: object, world: Any, task: Any, monkeypatch: Any
) -> None:
    """Also while the steps of the first ones fail."""
    monkeypatch.setattr("stellwerk.actors.clockwork._BATCH", 3)
    await world.deploy(task('stellwerk:singleTry="true"'))
    silent = await world.connect("work", max_tasks=10, lock_duration_ms=5_000, reports=False)
    started = [await world.start() for _ in range(10)]
    await trio.sleep(1)
    silent.drop()
    world.store.refuse_changesets = 4
    await trio.sleep(10)
    assert len(await world.node.incidents()) == 10
    for instance_id in started:
        assert await states(world, instance_id) == {"work": "EXPIRED"}


async def test_rule_8_the_last_failure_is_nothing_until_the_instance_has_stepped(
    autojump_clock: object, world: Any, task: Any
) -> None:
    await world.deploy(task('stellwerk:retries="1"'))
    peer = await world.connect("work", lock_duration_ms=60_000)
    instance_id = await world.start()
    offer = await peer.task()
    world.store.refuse_changesets = 1
    assert isinstance(await fail(peer, offer), Nack)
    (row,) = await world.store.tasks(TaskQuery(instance_id=instance_id))
    assert (row.state.value, row.retries_left) == ("LOCKED", 1)
    peer.holding[offer.task_id] = offer.fence
    assert isinstance(await fail(peer, offer), Ack)
    assert (await incident(world, instance_id))["kind"] == "retries_exhausted"


async def test_fault_85_the_engine_counts_the_retries(autojump_clock: object, site: Any, task: Any) -> None:
    world = await site.start()
    await world.deploy(task('stellwerk:retries="3"'))
    peer = await world.connect("work")
    instance_id = await world.start()
    seen = []
    for _ in range(3):
        offer = await peer.task()
        seen.append(offer.retries_left)
        await fail(peer, offer)
    assert seen == [3, 2, 1]
    assert (await incident(world, instance_id))["kind"] == "retries_exhausted"


async def test_fault_85_a_worker_may_give_up(autojump_clock: object, site: Any, task: Any) -> None:
    """``retries`` 0 ends the task, whatever the row says."""
    world = await site.start()
    await world.deploy(task('stellwerk:retries="5"'))
    peer = await world.connect("work")
    instance_id = await world.start()
    offer = await peer.task()
    answer = await fail(peer, offer, retries=0)
    assert isinstance(answer, Ack)
    assert (await incident(world, instance_id))["kind"] == "retries_exhausted"
    assert await states(world, instance_id) == {"work": "FAILED"}
    assert isinstance(await fail(peer, offer, retries=0), Ack), "the same again gets the same answer"
    await world.node.resolve_incident((await incident(world, instance_id))["incident_id"])
    assert (await peer.task()).retries_left == 5, "as many attempts as the model gives"


async def test_fault_90_every_kind_of_incident_is_resolved_in_one_way(
    autojump_clock: object, start_node: Any, nursery: trio.Nursery, flow: Any
) -> None:
    """Also where the model is at fault, a frame is too small, or a condition finds no way."""
    world = await start_node(nursery, limits=Limits(frame_bytes_max=20_000))
    body = """<startEvent id="s"/><exclusiveGateway id="which"/><serviceTask id="work" stellwerk:topic="work"/>
      <endEvent id="e"/><sequenceFlow id="w" sourceRef="which" targetRef="work">
      <conditionExpression>=amount > 5</conditionExpression></sequenceFlow>"""
    await world.deploy(body + flow("s which", "work e"))
    peer = await world.connect("work")
    too_large = await world.start(amount=6, text="x" * 30_000)
    no_way = await world.start(amount=1)
    undeliverable = await incident(world, too_large)
    stuck = await incident(world, no_way)
    assert (undeliverable["kind"], stuck["kind"]) == ("undeliverable", "model_fault")
    await world.node.resolve_incident(stuck["incident_id"])
    again = await incident(world, no_way)
    assert again["incident_id"] != stuck["incident_id"]
    await world.node.resolve_incident(undeliverable["incident_id"])
    await trio.sleep(1)
    assert (await incident(world, too_large))["kind"] == "undeliverable"
    small = await world.start(amount=6)
    assert isinstance(await peer.complete(await peer.task()), Ack)
    assert await status(world, small) == "COMPLETED"
    nursery.cancel_scope.cancel()


async def test_fault_91_an_uncaught_bpmn_error_is_an_incident_and_uses_no_retry(
    autojump_clock: object, site: Any, task: Any
) -> None:
    world = await site.start()
    await world.deploy(task('stellwerk:retries="3"'), attributes='stellwerk:failurePolicy="incident"')
    peer = await world.connect("work")
    instance_id = await world.start()
    offer = await peer.task()
    assert isinstance(await report(peer, offer), Ack)
    opened = await incident(world, instance_id)
    assert opened["kind"] == "bpmn_error"
    (row,) = await world.store.tasks(TaskQuery(instance_id=instance_id))
    assert (row.state.value, row.retries_left) == ("FAILED", 3)
    await world.node.resolve_incident(opened["incident_id"])
    assert isinstance(await peer.complete(await peer.task()), Ack)
    assert await status(world, instance_id) == "COMPLETED"


CATCHERS = """<startEvent id="s"/>
  <subProcess id="sub"><startEvent id="is"/><serviceTask id="work" stellwerk:topic="work"/><endEvent id="ie"/>{inner}
  {inner_flows}</subProcess>{outer}
  <serviceTask id="outside" stellwerk:topic="outside"/><endEvent id="e"/>{outer_flows}"""


def catcher(event_id: str, host: str, code: str | None) -> str:
    reference = f' errorRef="{code}"' if code is not None else ""
    return (
        f"""<boundaryEvent id="{event_id}" attachedToRef="{host}"><errorEventDefinition{reference}/></boundaryEvent>"""
    )


@pytest.mark.parametrize(
    ("inner", "outer", "expected"),
    [
        ("A", "A", "inside"),
        (None, "A", "inside"),
        ("B", "A", "outside"),
        ("B", None, "outside"),
        ("B", "B", None),
    ],
)
async def test_fault_93_the_innermost_matching_event_catches(
    autojump_clock: object, world: Any, flow: Any, inner: str | None, outer: str | None, expected: str | None
) -> None:
    inside = catcher("in", "work", inner) + '<serviceTask id="inside" stellwerk:topic="inside"/><endEvent id="ie2"/>'
    body = CATCHERS.format(
        inner=inside,
        outer=catcher("out", "sub", outer),
        inner_flows=flow("is work ie", "in inside ie2").replace("flow.", "inner."),
        outer_flows=flow("s sub e", "out outside e"),
    )
    await world.deploy(body)
    peer = await world.connect("work", "inside", "outside")
    instance_id = await world.start()
    await report(peer, await peer.task(), "A")
    if expected is None:
        assert (await incident(world, instance_id))["kind"] == "bpmn_error"
        return
    offer = await peer.task()
    assert offer.element_id == expected
    await peer.complete(offer)
    assert await status(world, instance_id) == "COMPLETED"


async def test_fault_93_a_code_goes_before_catching_all(
    autojump_clock: object, world: Any, task: Any, flow: Any
) -> None:
    events = catcher("any", "work", None) + catcher("exact", "work", "A")
    more = '<serviceTask id="x" stellwerk:topic="x"/><serviceTask id="y" stellwerk:topic="y"/>'
    await world.deploy(task("", events + more + flow("any x e", "exact y e").replace("flow.", "more.")))
    peer = await world.connect("work", "x", "y")
    for code, expected in (("A", "y"), ("B", "x")):
        await world.start()
        await report(peer, await peer.task(), code)
        offer = await peer.task()
        assert offer.element_id == expected
        await peer.complete(offer)


# --- failure policies ----------------------------------------------------------------------------------------------


CAMUNDA = b"""<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" targetNamespace="t"
  xmlns:camunda="http://camunda.org/schema/1.0/bpmn"><process id="p" isExecutable="true"><startEvent id="s"/>
  <serviceTask id="charge" camunda:type="external" camunda:topic="charge"/>
  <boundaryEvent id="undo" attachedToRef="charge"><compensateEventDefinition/></boundaryEvent>
  <serviceTask id="refund" camunda:type="external" camunda:topic="refund" isForCompensation="true"/>
  <association id="a" sourceRef="undo" targetRef="refund" associationDirection="One"/>
  <serviceTask id="work" camunda:type="external" camunda:topic="work"/><endEvent id="e"/>
  <sequenceFlow id="f" sourceRef="s" targetRef="charge"/><sequenceFlow id="g" sourceRef="charge" targetRef="work"/>
  <sequenceFlow id="h" sourceRef="work" targetRef="e"/></process></definitions>"""


@pytest.mark.parametrize(
    ("dialect", "option", "attribute", "compensates"),
    [
        ("camunda", None, None, False),
        ("camunda", FailurePolicy.COMPENSATE, None, True),
        ("stellwerk", None, None, True),
        ("stellwerk", FailurePolicy.INCIDENT, None, False),
        ("stellwerk", FailurePolicy.INCIDENT, "compensate", True),
        ("stellwerk", None, "incident", False),
        ("stellwerk", FailurePolicy.COMPENSATE, "incident", False),
    ],
)
@pytest.mark.parametrize("how", ["failure", "error"])
async def test_failure_policies(
    autojump_clock: object,
    site: Any,
    saga: str,
    dialect: str,
    option: FailurePolicy | None,
    attribute: str | None,
    compensates: bool,
    how: str,
) -> None:
    """The model's own word, else the deployment's, else what fits the dialect; kept over a restart."""
    world = await site.start()
    policy = f'stellwerk:failurePolicy="{attribute}"' if attribute else ""
    text = CAMUNDA if dialect == "camunda" else stellwerk(saga, policy)
    await world.node.deploy([("p.bpmn", text)], failure_policy=option)
    world = await site.restart()
    peer = await world.connect("charge", "work", "refund")
    instance_id = await world.start()
    await peer.complete(await peer.task())
    work = await peer.task()
    assert isinstance(await (report(peer, work) if how == "error" else fail(peer, work, retries=0)), Ack)
    if compensates:
        refund = await peer.task()
        assert refund.element_id == "refund"
        await peer.complete(refund)
        assert await status(world, instance_id) == "FAILED"
        assert not await world.node.incidents()
    else:
        kind = "bpmn_error" if how == "error" else "retries_exhausted"
        assert (await incident(world, instance_id))["kind"] == kind
        assert await status(world, instance_id) == "RUNNING"


def stellwerk(body: str, attributes: str) -> bytes:
    return f"""<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" targetNamespace="t"
      xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn"
      ><process id="p" isExecutable="true" {attributes}>{body}</process></definitions>""".encode()


# --- cancelling ----------------------------------------------------------------------------------------------------


async def test_cancelling_succeeds_with_everything_open(autojump_clock: object, site: Any, flow: Any) -> None:
    """Leased, waiting, failed and draining work alike."""
    world = await site.start()
    branches = ("leased", "queued", "failed")
    tasks = "".join(f'<serviceTask id="{name}" stellwerk:topic="{name}" stellwerk:retries="1"/>' for name in branches)
    body = f"""<startEvent id="s"/><parallelGateway id="fork"/>{tasks}<userTask id="person"/>
      <intermediateCatchEvent id="timer"><timerEventDefinition><timeDuration>PT1H</timeDuration></timerEventDefinition>
      </intermediateCatchEvent><receiveTask id="message" messageRef="m"/><parallelGateway id="join"/>
      <endEvent id="e"/>"""
    flows = flow("s fork", *(f"fork {name} join" for name in (*branches, "person", "timer", "message")), "join e")
    await world.deploy(body + flows, attributes='stellwerk:failurePolicy="incident"')
    instance_id = await world.start()
    peer = await world.connect("leased", "failed")
    offers = [await peer.task(), await peer.task()]
    failed = next(offer for offer in offers if offer.element_id == "failed")
    await fail(peer, failed)
    await incident(world, instance_id)
    await world.node.cancel_instance(instance_id, "enough")
    assert set((await states(world, instance_id)).values()) == {"CANCELLED"}
    revoked = await peer.next(Revoked)
    assert [lease.task_id for lease in revoked.leases] == [
        offer.task_id for offer in offers if offer.element_id == "leased"
    ]
    assert not await world.node.incidents()
    assert not await world.node.user_tasks()
    assert await status(world, instance_id) == "CANCELLED"
    with pytest.raises(Conflict):
        await world.node.cancel_instance(instance_id, "again")


async def test_a_repaired_process_gives_the_worker_the_repaired_variables(
    autojump_clock: object, site: Any, flow: Any
) -> None:
    world = await site.start()
    body = """<startEvent id="s"/><endEvent id="e"/>
      <serviceTask id="work" stellwerk:topic="work" stellwerk:retries="1"><extensionElements>
        <stellwerk:input source="=amount ** 1000" target="power"/></extensionElements></serviceTask>"""
    await world.deploy(body + flow("s work e"), attributes='stellwerk:failurePolicy="incident"')
    peer = await world.connect("work")
    instance_id = await world.start(amount=1)
    offer = await peer.task()
    assert bytes(offer.variables) == b'{"amount":1,"power":1}'
    await peer.say(Fail(1, offer.task_id, offer.fence, "too small"))
    await peer.answer(offer, 1)
    await world.node.wait_for_end(instance_id, timeout_seconds=5, or_incident=True)
    (incident,) = await world.node.incidents()
    await world.node.set_variables(instance_id, {"amount": 10})
    with pytest.raises(Conflict, match="cannot be offered again"):
        await world.node.resolve_incident(str(incident["incident_id"]))
    await world.node.set_variables(instance_id, {"amount": 0})
    await world.node.resolve_incident(str(incident["incident_id"]))
    again = await peer.task()
    assert (again.task_id, bytes(again.variables)) == (offer.task_id, b'{"amount":0,"power":0}')
    assert isinstance(await peer.complete(again), Ack)
    assert (await world.node.wait_for_end(instance_id, timeout_seconds=5)).status == "COMPLETED"
