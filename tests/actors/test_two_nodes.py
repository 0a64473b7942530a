"""Two nodes on one store: workers are connected to either, and get and finish what was created on the other.

Every hint is only a hint: what happens at once with them happens a poll later without.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio

from stellwerk.ports import Hint, ReleaseLease, ReleaseLeases, RevokedHint
from stellwerk.wire.messages import Ack, Fail, Goaway, LeaseRef, Nack, Revoked, Subscribe, Tasks

AT_ONCE = 0.05
A_SECOND = 1.1
"""A poll, and the store's way."""
IN_TIME = pytest.mark.parametrize(("hints", "seconds"), [(True, AT_ONCE), (False, A_SECOND)])


@pytest.fixture
async def pair(nodes: Any) -> Any:
    """Two nodes that have found their rest."""

    async def start(hints: bool = True) -> Any:
        if not hints:
            nodes.lose_hints()
        a, b = await nodes.start(), await nodes.start()
        await trio.sleep(0.3)
        return a, b

    return start


async def move(peer: Any, world: Any, *topics: str) -> Any:
    """The worker process connects to another node, and says what it holds."""
    peer.world = world
    welcome = await peer.connect()
    for topic in topics:
        await peer.say(Subscribe(topic))
    return welcome


async def completed(world: Any, instance_id: str, seconds: float) -> bool:
    return str((await world.node.wait_for_end(instance_id, timeout_seconds=seconds)).status) == "COMPLETED"


# --- work goes where the workers are -------------------------------------------------------------------------------


@IN_TIME
async def test_E5_work_that_one_node_creates_is_done_by_a_worker_of_another(
    autojump_clock: object, pair: Any, one_task: Any, hints: bool, seconds: float
) -> None:
    a, b = await pair(hints)
    await a.deploy(one_task())
    peer = await b.connect("work")
    await trio.sleep(0.5)
    began = trio.current_time()
    instance_id = await a.start(n=1)
    offer = await peer.task()
    assert trio.current_time() - began < seconds
    assert isinstance(await peer.complete(offer, result=2), Ack)
    assert await completed(b, instance_id, 1)
    assert (await a.node.outcome(instance_id)).variables == {"n": 1, "result": 2}


@IN_TIME
async def test_rule_21_more_work_than_the_own_workers_take_is_told(
    autojump_clock: object, pair: Any, one_task: Any, hints: bool, seconds: float
) -> None:
    a, b = await pair(hints)
    await a.deploy(one_task())
    own = await a.connect("work", max_tasks=2)
    other = await b.connect("work", max_tasks=8)
    await trio.sleep(0.5)
    for _ in range(10):
        await a.start()
    await trio.sleep(seconds)
    assert (len(own.holding), len(other.holding)) == (2, 8)


async def test_what_a_worker_of_the_node_takes_at_once_is_told_to_nobody(
    autojump_clock: object, pair: Any, one_task: Any
) -> None:
    a, _ = await pair()
    await a.deploy(one_task())
    peer = await a.connect("work")
    await trio.sleep(0.1)
    a.store.told.clear()
    for _ in range(5):
        await a.start()
    await trio.sleep(0.1)
    assert len(peer.holding) == 5
    assert a.store.told == []


async def test_rule_21_a_busy_node_sees_older_tasks_of_others(autojump_clock: object, pair: Any, one_task: Any) -> None:
    """Its own workers are never without work, and no hint says that there is more."""
    a, b = await pair(hints=False)
    await a.deploy(one_task())
    peer = await b.connect("work", max_tasks=1)
    first = await b.start()
    old = await a.start()
    began = trio.current_time()
    done = set()
    await b.start()
    while old not in done:
        await b.start()
        offer = await peer.task()
        await trio.sleep(0.05)
        assert isinstance(await peer.complete(offer), Ack)
        done.add(offer.process_instance_id)
        assert trio.current_time() - began < 2 * A_SECOND
    assert first in done


@IN_TIME
async def test_fault_9_a_failed_attempt_is_offered_on_the_other_node(
    autojump_clock: object, pair: Any, one_task: Any, hints: bool, seconds: float
) -> None:
    a, b = await pair(hints)
    await a.deploy(one_task())
    failing = await a.connect("work", max_tasks=1)
    await a.start()
    offer = await failing.task()
    await failing.say(Subscribe("work", max_tasks=0))
    other = await b.connect("work")
    await trio.sleep(0.5)
    began = trio.current_time()
    await failing.say(Fail(failing.ref(), offer.task_id, offer.fence, "no", retry_after_ms=0))
    again = await other.task()
    assert trio.current_time() - began < seconds
    assert (again.task_id, again.attempt) == (offer.task_id, 2)


@IN_TIME
async def test_fault_10_an_expired_lock_is_offered_and_its_holder_told_wherever_they_are(
    autojump_clock: object, pair: Any, one_task: Any, hints: bool, seconds: float
) -> None:
    """Whichever node reclaims it."""
    a, b = await pair(hints)
    await a.deploy(one_task())
    silent = await a.connect(worker_id="silent", reports=False)
    await silent.say(Subscribe("work", max_tasks=1, lock_duration_ms=10_000))
    await a.start()
    offer = await silent.task()
    leased_at = trio.current_time()
    await trio.sleep(0.5)
    other = await b.connect("work")
    again = await other.task()
    assert again.fence > offer.fence
    assert 10 - AT_ONCE <= trio.current_time() - leased_at < 10 + seconds
    notice = await silent.next(Revoked) if not silent.session.closed else None
    assert notice is None or notice.leases[0].task_id == offer.task_id
    await trio.sleep(6)
    assert a.node.statistics()["leases_held"] == 0


async def test_fault_10_also_when_a_node_without_workers_reclaims_it(
    autojump_clock: object, nodes: Any, pair: Any, one_task: Any
) -> None:
    a, b = await pair()
    await a.deploy(one_task())
    silent = await a.connect(worker_id="silent", reports=False)
    await silent.say(Subscribe("work", max_tasks=1, lock_duration_ms=10_000))
    await a.start()
    await silent.task()
    leased_at = trio.current_time()
    await trio.sleep(0.5)
    other = await b.connect("work")
    a.store.seconds = b.store.seconds = 0.01
    nearest = await nodes.start()
    await other.task()
    assert nearest.node.statistics()["locks_reclaimed"] == 1
    assert trio.current_time() - leased_at < 10 + AT_ONCE


async def test_rule_21_tasks_that_many_nodes_know_of_are_done_once_each(
    autojump_clock: object, pair: Any, one_task: Any
) -> None:
    a, b = await pair()
    await a.deploy(one_task())
    started = [await (a, b)[number % 2].start() for number in range(300)]
    peers = [await world.connect("work", max_tasks=10) for world in (a, b, a, b)]
    done: list[str] = []

    async def work(peer: Any) -> None:
        while len(done) < len(started):
            frame = await peer.next(Tasks)
            for offer in frame.tasks:
                assert isinstance(await peer.complete(offer), Ack)
                done.append(offer.process_instance_id)

    async with trio.open_nursery() as nursery:
        for peer in peers:
            nursery.start_soon(work, peer)
        with trio.fail_after(10):
            while len(done) < len(started):
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    assert sorted(done) == sorted(started)
    by_node = [world.node.statistics()["topics"]["work"] for world in (a, b)]
    assert sum(figures["leased"] for figures in by_node) == 300
    assert min(figures["leased"] for figures in by_node) > 50, "both took part"
    assert sum(figures["refused"] for figures in by_node) < 300, "most of what they tried was still there"


@pytest.mark.parametrize("seconds", [0.2, 3])
async def test_rule_21_what_other_nodes_took_is_not_tried_task_by_task(
    autojump_clock: object, pair: Any, one_task: Any, seconds: float
) -> None:
    """A node without room knows of many tasks; when it has room again they are gone."""
    a, b = await pair(hints=False)
    await a.deploy(one_task())
    full = await b.connect("work", max_tasks=1)
    for _ in range(102):
        await a.start()
    held = await full.task()
    await trio.sleep(2 * A_SECOND)
    assert isinstance(await full.complete(held), Ack)
    held = await full.task()  # the others were seen a moment ago
    await a.connect("work", max_tasks=100)
    await trio.sleep(seconds)
    assert isinstance(await full.complete(held), Ack)
    last = await a.start()
    await trio.sleep(A_SECOND)
    assert full.offers[next(iter(full.holding))].process_instance_id == last
    assert b.node.statistics()["topics"]["work"]["refused"] <= 2


async def test_a_hint_that_comes_while_the_store_is_read_is_not_lost(
    autojump_clock: object, pair: Any, one_task: Any
) -> None:
    a, b = await pair()
    await a.deploy(one_task())
    b.store.scan_seconds = 0.1
    peer = await b.connect("work")
    await trio.sleep(0.05)
    began = trio.current_time()
    await a.start()  # what b reads now was read before
    await peer.task()
    assert trio.current_time() - began < 0.5


async def test_rule_10_nothing_is_leased_at_birth_while_it_is_not_known_what_others_left(
    autojump_clock: object, pair: Any, one_task: Any
) -> None:
    a, b = await pair(hints=False)
    await a.deploy(one_task())
    peer = await b.connect("work", max_tasks=1)
    await b.start()
    await peer.task()
    await trio.sleep(3)
    older = await a.start()
    b.store.scan_seconds = 0.3
    await peer.say(Subscribe("work", max_tasks=2))
    await b.start()
    assert (await peer.task()).process_instance_id == older


# --- completion elsewhere ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hints", [True, False])
async def test_completion_on_another_node_than_where_the_instance_lives(
    autojump_clock: object, pair: Any, flow: Any, hints: bool
) -> None:
    """Each node steps it from where the other left it: what a node remembers of it is always old."""
    a, b = await pair(hints)
    tasks = "".join(f'<serviceTask id="t{n}" stellwerk:topic="{"ab"[n % 2]}"/>' for n in range(8))
    path = " ".join(f"t{n}" for n in range(8))
    await a.deploy(f'<startEvent id="s"/>{tasks}<endEvent id="e"/>' + flow(f"s {path} e"))
    peers = [await a.connect("a"), await b.connect("b")]
    instance_id = await a.start()
    for number in range(8):
        offer = await peers[number % 2].task()
        answer = await peers[number % 2].complete(offer, **{f"v{number}": number})
        assert isinstance(answer, Ack), f"a valid lease, whatever its node knows of the instance: {answer}"
    assert await completed(a, instance_id, 1)
    assert (await b.node.outcome(instance_id)).variables == {f"v{n}": n for n in range(8)}


async def test_nothing_is_refused_for_what_a_node_does_not_know_yet(
    autojump_clock: object, pair: Any, flow: Any
) -> None:
    """A's actor is live and knows nothing of the second task, which B's step created."""
    a, b = await pair()
    await a.deploy(
        '<startEvent id="s"/><serviceTask id="one" stellwerk:topic="one"/><serviceTask id="two" stellwerk:topic="two"/>'
        '<userTask id="human"/><endEvent id="e"/>' + flow("s one two human e")
    )
    one, two = await b.connect("one"), await a.connect("two")
    instance_id = await a.start()
    await one.complete(await one.task())
    assert isinstance(await two.complete(await two.task()), Ack)
    (row,) = await b.node.user_tasks(instance_id)
    await b.node.complete_user_task(str(row["user_task_id"]), {})
    assert await completed(a, instance_id, 1)


async def test_rule_12_a_repeat_through_the_other_node_gets_the_same_answer(
    autojump_clock: object, pair: Any, one_task: Any
) -> None:
    a, b = await pair()
    await a.deploy(one_task())
    peer = await a.connect("work")
    await a.start()
    offer = await peer.task()
    assert isinstance(await peer.complete(offer, n=1), Ack)
    await move(peer, b)
    assert isinstance(await peer.complete(offer, n=1), Ack)
    assert isinstance(await peer.complete(offer, n=2), Nack)


# --- revocations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("hints", "seconds", "reason"), [(True, AT_ONCE, "cancelled"), (False, 5.1, "lost")])
async def test_rule_18_a_cancel_on_one_node_revokes_the_lease_held_through_another(
    autojump_clock: object, pair: Any, one_task: Any, hints: bool, seconds: float, reason: str
) -> None:
    a, b = await pair(hints)
    await a.deploy(one_task())
    peer = await b.connect("work", max_tasks=1, lock_duration_ms=600_000)
    instance_id = await a.start()
    offer = await peer.task()
    began = trio.current_time()
    await a.node.cancel_instance(instance_id, "enough")
    revoked = await peer.next(Revoked)
    assert trio.current_time() - began < seconds
    assert [(lease.task_id, lease.fence, lease.reason) for lease in revoked.leases] == [
        (offer.task_id, offer.fence, reason)
    ]
    peer.holding.clear()
    await a.start()
    await peer.task()  # there is room again


async def test_rule_16_a_lease_whose_completion_is_under_way_is_not_called_lost(
    autojump_clock: object, pair: Any, one_task: Any
) -> None:
    """The node's look at its leases falls between the commit and its answer."""
    a, b = await pair(hints=False)
    await a.deploy(one_task())
    peer = await b.connect("work", lock_duration_ms=600_000)
    await a.start()
    offer = await peer.task()
    b.store.seconds = 7
    assert isinstance(await peer.complete(offer), Ack)
    assert not [message for message in peer.messages if isinstance(message, Revoked)]


# --- workers that move ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hints", [True, False])
async def test_rule_17_a_worker_moves_with_its_leases_while_its_old_connection_is_half_open(
    autojump_clock: object, pair: Any, one_task: Any, hints: bool
) -> None:
    a, b = await pair(hints)
    await a.deploy(one_task())
    peer = await a.connect("work", max_tasks=10, lock_duration_ms=10_000)
    instances = [await a.start() for _ in range(4)]
    while len(peer.holding) < 4:
        await peer.next(Tasks)
    old = peer.session
    peer.scope.cancel()  # it hears nothing more; its node does not know that
    peer.messages.clear()
    welcome = await move(peer, b, "work")
    assert {lease.task_id: lease.fence for lease in welcome.kept} == peer.holding
    extra = await a.start()  # may be pushed into the dead connection first
    await trio.sleep(15)
    for offer in list(peer.offers.values()):
        assert isinstance(await peer.complete(offer), Ack)
    for instance_id in (*instances, extra):
        assert await completed(b, instance_id, 20)
    assert {task.attempt for task in await b.node.tasks()} <= {1, 2}
    assert [task.attempt for task in await b.node.tasks() if task.instance_id != extra] == [1] * 4
    await trio.sleep(60)
    assert old.closed
    assert a.node.statistics()["leases_held"] == 0


async def test_a_revocation_finds_the_node_that_a_lease_was_taken_to(
    autojump_clock: object, pair: Any, one_task: Any
) -> None:
    """The node that cancels still has the worker's old, half-open session and its lease in mind."""
    a, b = await pair()
    await a.deploy(one_task())
    peer = await a.connect("work")
    instance_id = await a.start()
    offer = await peer.task()
    peer.scope.cancel()
    await move(peer, b)
    began = trio.current_time()
    await a.node.cancel_instance(instance_id, "enough")
    revoked = await peer.next(Revoked)
    assert trio.current_time() - began < AT_ONCE
    assert (revoked.leases[0].task_id, revoked.leases[0].reason) == (offer.task_id, "cancelled")


async def test_a_lease_that_was_taken_to_another_node_is_forgotten_and_not_revoked(
    autojump_clock: object, pair: Any, one_task: Any
) -> None:
    a, b = await pair()
    await a.deploy(one_task())
    peer = await a.connect(worker_id="moves")
    await peer.say(Subscribe("work", lock_duration_ms=10_000))
    await a.start()
    offer = await peer.task()
    old_session_id = peer.session.session_id
    peer.scope.cancel()
    await move(peer, b)
    b.store.hear(Hint(revoked=(RevokedHint(old_session_id, offer.task_id, offer.fence, "expired"),)))
    await trio.sleep(60)  # it is renewed here
    assert [len(world.node.leases) for world in (a, b)] == [0, 1]
    assert not [message for message in peer.messages if isinstance(message, Revoked)]
    assert isinstance(await peer.complete(offer), Ack)


async def test_a_worker_that_moves_away_gives_back_what_it_never_got(
    autojump_clock: object, pair: Any, one_task: Any
) -> None:
    """Rule 10, beyond the node: what was pushed into the dead connection is released by its hello elsewhere."""
    a, b = await pair()
    await a.deploy(one_task())
    peer = await a.connect("work", max_tasks=1, lock_duration_ms=600_000)
    peer.scope.cancel()
    instance_id = await a.start()
    await trio.sleep(0.1)
    began = trio.current_time()
    await move(peer, b, "work")
    assert isinstance(await peer.complete(await peer.task()), Ack)
    assert trio.current_time() - began < AT_ONCE
    assert await completed(b, instance_id, 1)


async def test_a_holder_hears_that_its_task_went_back_before_anybody_gets_the_room(
    autojump_clock: object, pair: Any, nodes: Any, one_task: Any
) -> None:
    """Another node took the lease back and its hint was lost; here the task is leased again."""
    a, b = await pair()
    nodes.lose_hints()
    await a.deploy(one_task())
    former = await b.connect("work", max_tasks=1)
    await a.start()
    offer = await former.task()
    release = ReleaseLease(offer.task_id, offer.fence, None, started=True)
    await nodes.shared.rows.transact([ReleaseLeases((release,))])
    latter = await b.connect("work", max_tasks=1)
    await latter.task()
    with trio.fail_after(AT_ONCE):  # and not only when the node looks whether its leases still stand
        revoked = await former.next(Revoked)
    assert [(lease.task_id, lease.fence, lease.reason) for lease in revoked.leases] == [
        (offer.task_id, offer.fence, "lost")
    ]


@pytest.mark.parametrize("begun", [None, True, False])
async def test_rule_14_a_single_try_that_was_let_go_is_not_given_back_on_another_node_either(
    autojump_clock: object, pair: Any, one_task: Any, begun: bool | None
) -> None:
    """Nor later, when the node looks for leases that came after hello. Only what was never begun is offered again."""
    a, b = await pair()
    await a.deploy(one_task('stellwerk:singleTry="true"'), attributes='stellwerk:failurePolicy="incident"')
    peer = await a.connect("work", lock_duration_ms=30_000)
    instance_id = await a.start()
    offer = await peer.task()
    peer.drop()
    peer.holding.clear()
    peer.begun = None if begun is None else (LeaseRef(offer.task_id, offer.fence),) * begun
    await move(peer, b, "work")
    if begun is False:
        assert (await peer.task()).attempt == 2
        return
    await b.node.wait_for_end(instance_id, timeout_seconds=60, or_incident=True)
    assert 30 <= trio.current_time() < 32
    assert [incident["kind"] for incident in await b.node.incidents()] == ["lock_expired"]
    assert not peer.holding


async def test_E5_a_draining_node_sends_its_workers_away_and_they_go_on_elsewhere(
    autojump_clock: object, pair: Any, one_task: Any
) -> None:
    a, b = await pair()
    await a.deploy(one_task())
    peer = await a.connect("work", lock_duration_ms=10_000)
    instances = [await a.start(n=n) for n in range(3)]
    while len(peer.holding) < 3:
        await peer.next(Tasks)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(a.node.drain, 30)
        await peer.next(Goaway)
        peer.drop()
        welcome = await move(peer, b, "work")
        assert len(welcome.kept) == 3
        began = trio.current_time()
    assert trio.current_time() - began < AT_ONCE, "nothing keeps it any longer"
    instances.append(await a.start(n=3))  # it still takes requests, but gives no work out
    a.nursery.cancel_scope.cancel()
    await trio.sleep(AT_ONCE)
    assert len(peer.holding) == 4
    for offer in list(peer.offers.values()):
        assert isinstance(await peer.complete(offer), Ack)
    for instance_id in instances:
        assert await completed(b, instance_id, 1)
