"""API keys: their form, and when they are good."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
import trio

from stellwerk.errors import StoreUnavailable, Unauthenticated
from stellwerk.ports import ANYBODY, ApiKeyRow, Identity, RevokeApiKey, Scope, StoreApiKey
from stellwerk.server.auth.credentials import credential_in
from stellwerk.server.auth.gate import KEY_SECONDS_MAX, Gate
from stellwerk.server.auth.keys import digest_of, new_key, read_key, without_secrets
from stellwerk.stores.memory import MemoryStore
from stellwerk.system.clock import VirtualClock
from stellwerk.system.entropy import SystemEntropy

NOTICED_SECONDS = 5.0
"""What a node may take to notice that a key was made or revoked."""


class Store(MemoryStore):
    """Counts what it is asked."""

    reads = 0

    async def api_key(self, key_id: str) -> ApiKeyRow | None:
        self.reads += 1
        return await super().api_key(key_id)


class Keys:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.store = Store(self.clock)

    async def closed_gate(self) -> Gate:
        """As it is where there is a key."""
        gate = self.gate()
        await gate.look()
        return gate

    async def make(self, **allowed: Any) -> str:
        text, key = new_key(SystemEntropy())
        identity = Identity(**{"name": "ops", "scopes": (Scope.ADMIN,), **allowed})
        row = ApiKeyRow(
            key_id=key.key_id,
            secret_digest=digest_of(key.secret),
            identity=identity,
            created_at_ms=self.clock.wall_ms(),
        )
        await self.store.transact([StoreApiKey(row)])
        return text

    def gate(self, **options: Any) -> Gate:
        return Gate(self.store, self.clock, **options)


@pytest.fixture
async def keys() -> Keys:
    return Keys()


def test_a_key_has_256_random_bits_and_its_parts() -> None:
    made = [new_key(SystemEntropy()) for _ in range(100)]
    assert len({text for text, _ in made}) == 100
    for text, key in made:
        assert re.fullmatch(r"sw_[0-9A-Za-z]{11}_[0-9A-Za-z]{43}", text)
        assert read_key(text) == key
    assert 62**43 > 2**256


@pytest.mark.parametrize("text", ["", "sw_", "sw__", "sw_a_b", "sw_" + "a" * 11 + "_" + "b" * 42 + "ä"])
def test_what_has_not_the_form_of_a_key_is_none(text: str) -> None:
    assert read_key(text) is None


def test_a_key_in_a_text_is_not_shown() -> None:
    text, key = new_key(SystemEntropy())
    assert key.secret not in without_secrets(f"/keys/{text}?x={text}")
    assert without_secrets("switch_over sw") == "switch_over sw"


@pytest.mark.parametrize(
    "headers, credential",
    [
        ([], None),
        ([(b"authorization", b"Bearer abc")], "abc"),
        ([(b"authorization", b"bEARER   abc ")], "abc"),
        ([(b"authorization", b"abc")], "abc"),
        ([(b"authorization", b"Basic dXNlcjphYmM=")], "abc"),
        ([(b"authorization", b"Basic OmE6Yg==")], "a:b"),
        ([(b"x-api-key", b"abc")], "abc"),
        ([(b"authorization", b"Bearer ZHVtbXlfdG9rZW4=")], None),
        ([(b"authorization", b"Bearer ZHVtbXlfdG9rZW4="), (b"x-api-key", b"abc")], "abc"),
        ([(b"authorization", b"Bearer abc"), (b"x-api-key", b"abc")], "abc"),
        ([(b"authorization", b"Bearer ")], None),
    ],
)
def test_where_a_credential_may_stand(headers: Sequence[tuple[bytes, bytes]], credential: str | None) -> None:
    assert credential_in(headers) == credential


@pytest.mark.parametrize(
    "headers",
    [
        [(b"authorization", b"Basic n\xc3\xb6")],
        [(b"authorization", b"Digest realm=x")],
        [(b"authorization", b"Bearer abc"), (b"x-api-key", b"def")],
        [(b"authorization", b"Bearer abc"), (b"authorization", b"Bearer def")],
    ],
)
def test_what_cannot_be_read_is_refused(headers: Sequence[tuple[bytes, bytes]]) -> None:
    with pytest.raises(Unauthenticated):
        credential_in(headers)


# --- the gate --------------------------------------------------------------------------------------------------------


async def test_the_gate_is_open_until_the_first_key(autojump_clock: object, keys: Keys, nursery: trio.Nursery) -> None:
    gate = keys.gate()
    nursery.start_soon(gate.watch)
    assert await gate.identify(None) == ANYBODY
    assert await gate.identify("nonsense") == ANYBODY
    await keys.make()
    await trio.sleep(NOTICED_SECONDS)
    with pytest.raises(Unauthenticated, match="a credential is needed"):
        await gate.identify(None)


async def test_the_gate_does_not_open_again_when_the_last_key_is_revoked(autojump_clock: object, keys: Keys) -> None:
    text = await keys.make()
    await keys.store.transact([RevokeApiKey(text.split("_")[1], keys.clock.wall_ms())])
    for gate in (keys.gate(), keys.gate(may_be_open=False)):
        await gate.look()
        with pytest.raises(Unauthenticated):
            await gate.identify(None)


async def test_a_gate_that_others_can_reach_is_never_open(autojump_clock: object, keys: Keys) -> None:
    with pytest.raises(Unauthenticated):
        await keys.gate(may_be_open=False).identify(None)


async def test_what_is_not_the_key_is_refused_in_the_same_words(autojump_clock: object, keys: Keys) -> None:
    text = await keys.make()
    gate = await keys.closed_gate()
    identity = await gate.identify(text)
    assert (identity.name, identity.key_id) == ("ops", text.split("_")[1])
    other, _ = new_key(SystemEntropy())
    _, key_id, secret = text.split("_")
    wrong = [other, f"sw_{key_id}_{other.split('_')[2]}", f"sw_{other.split('_')[1]}_{secret}", text[:-1], "nonsense"]
    messages = set()
    for credential in wrong:
        with pytest.raises(Unauthenticated) as refusal:
            await gate.identify(credential)
        messages.add(refusal.value.message)
    assert messages == {"the API key is not valid"}


async def test_a_key_ends_when_it_was_to(autojump_clock: object, keys: Keys) -> None:
    text = await keys.make(expires_at_ms=keys.clock.wall_ms() + 60_000)
    gate = await keys.closed_gate()
    await trio.sleep(59)
    await gate.identify(text)
    await trio.sleep(2)
    with pytest.raises(Unauthenticated, match="has expired"):
        await gate.identify(text)


class Tokens:
    leeway_ms = 10_000

    async def identify(self, token: str) -> Identity:
        raise Unauthenticated(token)


async def test_the_gate_says_when_a_credential_has_run_out(autojump_clock: object, keys: Keys) -> None:
    """A key at its end, a token as much later as clocks may differ."""
    gate = keys.gate(tokens=Tokens())
    ends_at_ms = keys.clock.wall_ms() + 5_000
    key = Identity(name="key", scopes=(Scope.CLIENT,), key_id="k", expires_at_ms=ends_at_ms)
    token = Identity(name="token", scopes=(Scope.CLIENT,), expires_at_ms=ends_at_ms)
    await trio.sleep(4)
    gate.check_end(key)
    await trio.sleep(2)
    with pytest.raises(Unauthenticated, match="has run out"):
        gate.check_end(key)
    gate.check_end(token)
    gate.check_end(Identity(name="for ever", scopes=()))
    await trio.sleep(10)
    with pytest.raises(Unauthenticated, match="has run out"):
        gate.check_end(token)


async def test_a_revoked_key_is_noticed_within_seconds_and_at_once_where_it_was_revoked(
    autojump_clock: object, keys: Keys
) -> None:
    text = await keys.make()
    here, there = await keys.closed_gate(), await keys.closed_gate()
    await here.identify(text)
    await there.identify(text)
    await keys.store.transact([RevokeApiKey(text.split("_")[1], keys.clock.wall_ms())])
    here.forget(text.split("_")[1])
    with pytest.raises(Unauthenticated, match="was revoked"):
        await here.identify(text)
    await trio.sleep(NOTICED_SECONDS)
    with pytest.raises(Unauthenticated, match="was revoked"):
        await there.identify(text)


async def test_one_key_is_read_seldom_and_guesses_fill_no_memory(autojump_clock: object, keys: Keys) -> None:
    text = await keys.make()
    gate = await keys.closed_gate()
    for _ in range(100):
        await gate.identify(text)
    assert keys.store.reads == 1
    await trio.sleep(KEY_SECONDS_MAX + 0.1)
    await gate.identify(text)
    assert keys.store.reads == 2
    for _ in range(10_100):
        with pytest.raises(Unauthenticated):
            await gate.identify(new_key(SystemEntropy())[0])
    assert len(gate._rows) <= 10_000


async def test_without_the_store_nobody_gets_in(
    autojump_clock: object, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = await keys.make()
    gate = await keys.closed_gate()

    async def away(*_: object) -> Any:
        raise StoreUnavailable("away")

    monkeypatch.setattr(keys.store, "api_key", away)
    with pytest.raises(StoreUnavailable):
        await gate.identify(text)
    with pytest.raises(Unauthenticated):
        await gate.identify(None)


async def test_a_key_that_was_known_stays_known_while_the_store_is_away(
    autojump_clock: object, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the figures of an engine in trouble can be seen; not for ever."""
    text = await keys.make()
    gate = await keys.closed_gate()
    await gate.identify(text)

    async def hangs(_key_id: str) -> Any:
        await trio.sleep_forever()

    monkeypatch.setattr(keys.store, "api_key", hangs)
    await trio.sleep(200)
    began = trio.current_time()
    assert (await gate.identify(text)).name == "ops"
    assert trio.current_time() - began <= 1
    await trio.sleep(200)
    with trio.move_on_after(60) as waiting:
        await gate.identify(text)
    assert waiting.cancelled_caught
