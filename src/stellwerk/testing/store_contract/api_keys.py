"""The keys by which callers are known."""

from __future__ import annotations

import attrs

from stellwerk.errors import InvalidInput
from stellwerk.ports import ApiKeyRow, Identity, RevokeApiKey, Scope, StoreApiKey
from stellwerk.testing.store_contract.world import START_MS, ContractBase, StoreWorld

__all__ = ["ApiKeyContract"]


def _key(key_id: str, created_at_ms: int = START_MS, /, **identity: object) -> ApiKeyRow:
    values: dict[str, object] = {"name": f"owner of {key_id}", "scopes": (Scope.CLIENT,), **identity}
    return ApiKeyRow(
        key_id=key_id,
        secret_digest=f"digest of {key_id}",
        identity=Identity(**values),  # type: ignore[arg-type]
        created_at_ms=created_at_ms,
    )


async def _store(world: StoreWorld, *rows: ApiKeyRow) -> None:
    assert await world.transact(*map(StoreApiKey, rows)) == [None] * len(rows)


class ApiKeyContract(ContractBase):
    async def test_api_keys_are_kept_with_all_that_their_identity_says(self) -> None:
        async with self.open_world() as world:
            plain = _key("plain")
            strict = _key(
                "strict",
                name='worker "ü\n"',
                scopes=(Scope.WORKER, Scope.ADMIN),
                worker_ids=("w-*",),
                topics=("payment", "stock"),
                processes=(),
                expires_at_ms=START_MS + 1,
                key_id="strict",
            )
            await _store(world, plain, strict)
            await world.reopen()
            assert await world.store.api_key("plain") == plain
            assert await world.store.api_key("strict") == strict
            assert await world.store.api_key("other") is None
            assert await world.store.api_key("pl\x00ain") is None

    async def test_api_keys_are_listed_by_creation_and_id(self) -> None:
        async with self.open_world() as world:
            assert list(await world.store.api_keys()) == []
            await _store(world, _key("c", START_MS + 2), _key("b", START_MS + 1), _key("d"), _key("a", START_MS + 1))
            assert [row.key_id for row in await world.store.api_keys()] == ["d", "a", "b", "c"]

    async def test_an_api_key_is_revoked_once_and_stays_known(self) -> None:
        async with self.open_world() as world:
            row = _key("k")
            await _store(world, row, _key("other"))
            answers = await world.transact(
                RevokeApiKey("k", START_MS + 5), RevokeApiKey("k", START_MS + 6), RevokeApiKey("unknown", START_MS + 7)
            )
            assert answers == [True, False, False]
            assert await world.transact(RevokeApiKey("k", START_MS + 8)) == [False]
            await world.reopen()
            assert await world.store.api_key("k") == attrs.evolve(row, revoked_at_ms=START_MS + 5)
            assert await world.store.api_key("other") == _key("other")

    async def test_whether_there_ever_was_an_api_key_stays_true(self) -> None:
        async with self.open_world() as world:
            assert await world.store.has_api_keys() is False
            await _store(world, _key("a"), _key("expired", expires_at_ms=1))
            assert await world.store.has_api_keys() is True
            await world.transact(RevokeApiKey("a", START_MS))
            assert await world.store.has_api_keys() is True
            await world.transact(RevokeApiKey("expired", START_MS))
            assert await world.store.has_api_keys() is True
            await world.reopen()
            assert await world.store.has_api_keys() is True

    async def test_a_key_id_is_given_once_and_its_neighbours_in_the_batch_are_done(self) -> None:
        async with self.open_world() as world:
            first = _key("k")
            outcomes = await world.transact(
                StoreApiKey(_key("before")),
                StoreApiKey(first),
                StoreApiKey(_key("k", START_MS + 9)),
                RevokeApiKey("before", 7),
            )
            assert outcomes[:2] == [None, None]
            assert isinstance(outcomes[2], InvalidInput)
            assert "the API key k is there already" in str(outcomes[2])
            assert outcomes[3] is True
            (again,) = await world.transact(StoreApiKey(_key("k", START_MS + 10)))
            assert isinstance(again, InvalidInput)
            assert await world.store.api_key("k") == first

    async def test_a_key_that_was_made_and_revoked_in_one_batch_is_revoked(self) -> None:
        async with self.open_world() as world:
            assert await world.transact(StoreApiKey(_key("k")), RevokeApiKey("k", 7)) == [None, True]
            kept = await world.store.api_key("k")
            assert kept is not None
            assert kept.revoked_at_ms == 7
            assert await world.store.has_api_keys() is True
