"""What a worker's credential allows on a live session, and how it ends (rule 12 of the protocol)."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from stellwerk.core.external_task import TaskState
from stellwerk.errors import Forbidden, StellwerkError
from stellwerk.ports import ANYBODY, ApiKeyRow, Identity, RevokeApiKey, Scope, StoreApiKey
from stellwerk.server.auth.gate import Gate
from stellwerk.server.auth.keys import digest_of, new_key
from stellwerk.wire.messages import (
    Ack,
    Authenticate,
    Complete,
    Hello,
    Holding,
    LeaseRef,
    ProtocolErrorMessage,
    Reauthenticate,
    Received,
    Renewed,
    Subscribe,
    Tasks,
    Welcome,
)

MINUTE_MS = 60_000
LOCK_MS = 20_000


class Keys:
    """API keys in the node's own store, and the gate that knows them."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.gate = Gate(world.store, world.clock)
        self.is_noticed_at_once = True

    async def make(self, *, seconds: float | None = None, **allowed: Any) -> str:
        text, key = new_key(self.world.node.ports.entropy)
        expires_at_ms = None if seconds is None else self.world.clock.wall_ms() + int(seconds * 1000)
        fields: dict[str, Any] = {
            "name": "billing",
            "scopes": (Scope.WORKER,),
            "expires_at_ms": expires_at_ms,
            **allowed,
        }
        row = ApiKeyRow(
            key_id=key.key_id,
            secret_digest=digest_of(key.secret),
            identity=Identity(**fields),
            created_at_ms=self.world.clock.wall_ms(),
        )
        await self.world.store.transact([StoreApiKey(row)])
        if self.is_noticed_at_once:
            await self.gate.look()
        return text

    async def revoke(self, text: str) -> None:
        await self.world.store.transact([RevokeApiKey(text.split("_")[1], self.world.clock.wall_ms())])


class Session:
    """A worker's end, which reports what it holds every second."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self.messages: list[tuple[float, Any]] = []
        self.holding: dict[str, int] = {}
        self.ended_at: float | None = None

    async def open(self, text: str | None, worker_id: str = "w-1") -> Session:
        world = self._keys.world
        identity = await self._keys.gate.identify(text)
        hello = Hello(worker_id, f"boot-{worker_id}", 1, "test/1")
        self.session = await world.node.open_session(hello, identity, self._keys.gate)
        world.nursery.start_soon(self._read)
        world.nursery.start_soon(self._report)
        return self

    async def _read(self) -> None:
        while (messages := await self.session.outgoing()) is not None:
            for message in messages:
                self.messages.append((trio.current_time(), message))
                if isinstance(message, Tasks):
                    self.holding |= {offer.task_id: offer.fence for offer in message.tasks}
                    await self.session.handle([Received(message.delivery)])
        self.ended_at = trio.current_time()

    async def _report(self) -> None:
        while not self.session.closed:
            await self.session.handle([Holding(tuple(LeaseRef(*held) for held in self.holding.items()))])
            await trio.sleep(1)

    async def subscribe(self, topic: str = "work", max_tasks: int = 1) -> None:
        await self.session.handle([Subscribe(topic, max_tasks=max_tasks, lock_duration_ms=LOCK_MS)])

    def said(self, kind: type) -> list[Any]:
        return [message for _, message in self.messages if isinstance(message, kind)]

    def said_at(self, kind: type) -> list[float]:
        return [at for at, message in self.messages if isinstance(message, kind)]


@pytest.fixture
async def keys(world: Any, one_task: Any) -> Keys:
    await world.deploy(one_task())
    await world.deploy(one_task(), key="other")
    return Keys(world)


# --- who may open a session, and for what ----------------------------------------------------------------------------


async def test_I3_a_key_says_under_which_worker_ids_one_may_work(autojump_clock: object, keys: Keys) -> None:
    text = await keys.make(worker_ids=("billing-*", "w-1"))
    assert (await Session(keys).open(text, "billing-7")).session.closed is False
    with pytest.raises(Forbidden, match='billing may not be worker "mallory"'):
        await Session(keys).open(text, "mallory")


async def test_a_key_without_the_scope_worker_takes_no_tasks(autojump_clock: object, keys: Keys) -> None:
    with pytest.raises(Forbidden, match="needs the scope worker"):
        await Session(keys).open(await keys.make(scopes=(Scope.OPERATOR,)))


async def test_I3_a_topic_that_the_key_does_not_name_ends_the_session_and_is_named(
    autojump_clock: object, keys: Keys
) -> None:
    session = await Session(keys).open(await keys.make(topics=("payment", "work*")))
    await session.subscribe("work")
    await session.subscribe("stock")
    await trio.sleep(0.1)
    (error,) = session.said(ProtocolErrorMessage)
    assert (error.code, error.message) == ("forbidden", 'billing may not take tasks of topic "stock"')
    assert session.session.topics == ("work",)
    assert session.session.closed


async def test_I3_tasks_of_processes_that_the_key_does_not_name_are_not_given(
    autojump_clock: object, keys: Keys
) -> None:
    session = await Session(keys).open(await keys.make(processes=("oth*",)))
    await session.subscribe(max_tasks=5)
    await keys.world.start("p")
    await keys.world.start("other")
    await trio.sleep(5)
    offers = [offer for frame in session.said(Tasks) for offer in frame.tasks]
    assert [offer.process_definition_id for offer in offers] == ["other:1"]


# --- how it ends -----------------------------------------------------------------------------------------------------


async def test_fault_145_a_credential_that_ran_out_gets_no_work_and_then_no_connection(
    autojump_clock: object, keys: Keys
) -> None:
    """It is asked for a fresh one before, what is under way may still be completed, and leases stay."""
    session = await Session(keys).open(await keys.make(seconds=90))
    began = trio.current_time()
    await session.subscribe(max_tasks=2)
    first = await keys.world.start()
    await trio.sleep(89)
    assert [at - began for at in session.said_at(Reauthenticate)] == [pytest.approx(60)]
    assert session.said(Reauthenticate)[0].within_ms == 30_000
    await trio.sleep(2)
    second = await keys.world.start()
    await trio.sleep(5)
    assert len(session.holding) == 1, "no new work after the end"
    ((task_id, fence),) = session.holding.items()
    assert session.said(Renewed), "a lease is renewed as long as there is a connection"
    await session.session.handle([Complete(1, task_id, fence)])
    await trio.sleep(0.1)
    assert session.said(Ack)
    await trio.sleep(10)
    assert session.ended_at == pytest.approx(began + 100)
    assert session.said(ProtocolErrorMessage)[0].code == "unauthenticated"
    statuses = [(await keys.world.node.wait_for_end(one, timeout_seconds=0)).status for one in (first, second)]
    assert statuses == ["COMPLETED", "RUNNING"]


async def test_fault_145_leases_of_a_session_without_credential_stay_until_their_deadlines(
    autojump_clock: object, keys: Keys
) -> None:
    session = await Session(keys).open(text := await keys.make())
    await session.subscribe()
    await keys.world.start()
    await trio.sleep(1)
    await keys.revoke(text)
    revoked_at = trio.current_time()
    await trio.sleep(6)
    assert session.ended_at is not None
    assert session.ended_at - revoked_at <= 5
    (error,) = session.said(ProtocolErrorMessage)
    assert (error.code, error.message) == ("unauthenticated", "the API key was revoked")
    (task_id,) = session.holding
    task = await keys.world.store.task(task_id)
    assert (task.state, task.fence) == (TaskState.LOCKED, session.holding[task_id])
    await trio.sleep(LOCK_MS / 1000)
    assert (await keys.world.store.task(task_id)).state is TaskState.READY


async def test_fault_145_a_fresh_credential_goes_on_without_a_new_connection(
    autojump_clock: object, keys: Keys
) -> None:
    session = await Session(keys).open(await keys.make(seconds=30))
    await session.subscribe(max_tasks=5)
    await trio.sleep(32)
    assert session.session.accepts_work is False
    await session.session.handle([Authenticate(await keys.make(seconds=600))])
    await keys.world.start()
    await trio.sleep(120)
    assert len(session.holding) == 1
    assert session.ended_at is None
    assert len(session.said(Welcome)) == 1
    assert len(session.said(Reauthenticate)) == 1


@pytest.mark.parametrize(
    "allowed, code, message",
    [
        ({"topics": ("stock",)}, "forbidden", 'billing may not take tasks of topic "work"'),
        ({"worker_ids": ("w-2",)}, "forbidden", 'billing may not be worker "w-1"'),
        ({"scopes": (Scope.CLIENT,)}, "forbidden", "needs the scope worker"),
        ({"seconds": 0}, "unauthenticated", "has expired"),
    ],
)
async def test_a_fresh_credential_that_allows_less_ends_the_session(
    autojump_clock: object, keys: Keys, allowed: Any, code: str, message: str
) -> None:
    session = await Session(keys).open(await keys.make(seconds=30))
    await session.subscribe()
    await session.session.handle([Authenticate(await keys.make(**allowed))])
    await trio.sleep(0.1)
    (error,) = session.said(ProtocolErrorMessage)
    assert error.code == code
    assert message in error.message


async def test_a_fresh_credential_for_other_processes_changes_what_is_given(autojump_clock: object, keys: Keys) -> None:
    session = await Session(keys).open(await keys.make(processes=("p",)))
    await session.subscribe(max_tasks=5)
    await keys.world.start("other")
    await trio.sleep(5)
    assert session.holding == {}
    await session.session.handle([Authenticate(await keys.make(processes=("other",)))])
    await trio.sleep(5)
    assert len(session.holding) == 1


async def test_sessions_from_before_the_first_key_need_one_soon(autojump_clock: object, keys: Keys) -> None:
    session = await Session(keys).open(None)
    await trio.sleep(30)
    assert session.session.credential.identity == ANYBODY
    assert session.session.closed is False
    made_at = trio.current_time()
    keys.is_noticed_at_once = False
    keys.world.nursery.start_soon(keys.gate.watch)
    await keys.make()
    await trio.sleep(6)
    assert session.ended_at is not None
    assert session.ended_at - made_at <= 5
    assert session.said(ProtocolErrorMessage)[0].code == "unauthenticated"


async def test_nobody_is_thrown_out_while_the_store_cannot_answer(
    autojump_clock: object, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await Session(keys).open(text := await keys.make())
    asked: list[str] = []
    read = keys.world.store.api_key

    async def api_key(key_id: str) -> Any:
        asked.append(key_id)
        if len(asked) < 5:
            raise StellwerkError("away", code="unavailable")
        return await read(key_id)

    monkeypatch.setattr(keys.world.store, "api_key", api_key)
    await keys.revoke(text)
    await trio.sleep(8)
    assert session.session.closed is False
    await trio.sleep(8)
    assert session.session.closed is True


async def test_what_a_session_shows_of_itself_has_no_credential(autojump_clock: object, keys: Keys) -> None:
    text = await keys.make()
    identity = await keys.gate.identify(text)
    session = await keys.world.node.open_session(Hello("w", "b", 1, "test/1", token=text), identity, keys.gate)
    await session.handle([Authenticate(text)])
    assert text not in f"{session!r} {session.hello!r} {vars(session)!r}"
