"""Keys that would lock everybody out, and restrictions that mean nothing."""

from __future__ import annotations

import time
from typing import Any

import pytest

from stellwerk.app import CannotListen
from stellwerk.ports import ApiKeyRow
from stellwerk.server.auth.gate import Gate
from stellwerk.stores.memory import MemoryStore
from stellwerk.system.clock import VirtualClock

WORKER = {"name": "w", "scopes": ["worker"]}


@pytest.mark.parametrize("wanted", [WORKER, {"name": "bound", "scopes": ["admin"], "processes": ["order"]}])
async def test_a_first_key_that_can_make_no_others_is_not_made_by_mistake(serve: Any, wanted: dict[str, Any]) -> None:
    async with serve() as client:
        refused = await client.ask("POST", "/keys", wanted)
        assert (refused.status, refused.body["code"]) == (409, "conflict")
        assert "closes the engine" in refused.body["detail"]
        assert "scope admin" in refused.body["detail"]
        assert refused.body["detail"].endswith("$.force")
        assert (await client.ask("GET", "/keys")).body["keys"] == [], "and the engine is as open as before"
        made = await client.ask("POST", "/keys", {**wanted, "force": True})
        assert made.status == 201
        assert "keys create --db" in made.body["warning"]
        assert (await client.ask("GET", "/keys")).status == 401


async def test_others_than_the_first_are_made_without_a_word(serve: Any) -> None:
    async with serve() as client:
        admin = await client.make_key()
        made = await client.ask("POST", "/keys", WORKER, credential=admin)
        assert (made.status, made.body["warning"]) == (201, None)


async def test_the_last_key_that_can_make_others_is_not_revoked_by_mistake(serve: Any) -> None:
    async with serve() as client:
        first = await client.make_key()
        await client.make_key(by=first, scopes=["admin"], topics=["payment"])
        second = await client.make_key(by=first)
        gone = await client.ask("DELETE", f"/keys/{first.split('_')[1]}", credential=second)
        assert (gone.status, gone.body["warning"]) == (200, None)
        last = f"/keys/{second.split('_')[1]}"
        refused = await client.ask("DELETE", last, credential=second)
        assert refused.status == 409
        assert "last API key that can make" in refused.body["detail"]
        assert (await client.ask("GET", "/keys", credential=second)).status == 200
        revoked = await client.ask("DELETE", f"{last}?force=true", credential=second)
        assert (revoked.status, "--db" in revoked.body["warning"]) == (200, True)
        assert (await client.ask("GET", "/keys", credential=second)).status == 401


async def test_where_tokens_are_good_there_is_only_a_warning(serve: Any, make_issuer: Any) -> None:
    issuer = make_issuer(int(time.time()))
    async with serve(jwt=issuer.config()) as client:
        token = issuer.token(scope="admin")
        made = await client.ask("POST", "/keys", WORKER, credential=token)
        assert made.status == 201
        assert "only a token" in made.body["warning"]
        admin = await client.make_key(by=token)
        gone = await client.ask("DELETE", f"/keys/{admin.split('_')[1]}", credential=token)
        assert (gone.status, "only a token" in gone.body["warning"]) == (200, True)


@pytest.mark.parametrize(
    "restriction, complaint",
    [
        ({"scopes": ["worker"], "topics": ["pay*ment"]}, '"pay*ment": * stands for the rest of a name'),
        ({"scopes": ["worker"], "worker_ids": ["**"]}, '"**": * stands for the rest'),
        ({"scopes": ["client"], "topics": ["payment"]}, "topics are for keys with the scope worker"),
        ({"scopes": ["client", "operator"], "worker_ids": ["w-*"]}, "worker ids are for keys with the scope worker"),
        ({"scopes": ["client"], "processes": ["order:3"]}, '"order:3": processes are named by their keys'),
    ],
)
async def test_a_restriction_that_means_nothing_is_refused(
    serve: Any, restriction: dict[str, Any], complaint: str
) -> None:
    async with serve() as client:
        admin = await client.make_key()
        refused = await client.ask("POST", "/keys", {"name": "k", **restriction}, credential=admin)
        assert (refused.status, complaint in refused.body["detail"]) == (400, True), refused


async def test_a_star_at_the_end_means_something(serve: Any) -> None:
    async with serve() as client:
        admin = await client.make_key()
        await client.make_key(by=admin, scopes=["worker"], topics=["*", "pay*"], worker_ids=["w-*"], processes=["o*"])
        await client.make_key(by=admin, scopes=["operator"], topics=["pay*"])


class CountedStore(MemoryStore):
    reads = 0

    async def has_api_keys(self) -> bool:
        self.reads += 1
        return await super().has_api_keys()

    async def api_keys(self) -> list[ApiKeyRow]:
        self.reads += 1
        return list(await super().api_keys())


async def test_an_open_engine_asks_its_store_once_at_a_time_whether_there_is_a_key(autojump_clock: object) -> None:
    clock = VirtualClock()
    store = CountedStore(clock)
    await Gate(store, clock).look()
    assert store.reads == 1


@pytest.mark.parametrize(
    "text, reason",
    [
        (None, "No such file"),
        ("{}", "no JWK set"),
        ("nonsense", "Expecting value"),
        ('{"keys": []}', "no key that can verify"),
    ],
)
async def test_a_file_of_keys_that_holds_none_stops_the_start(
    serve: Any, make_issuer: Any, tmp_path: Any, text: str | None, reason: str
) -> None:
    issuer = make_issuer(int(time.time()))
    issuer.file.unlink() if text is None else issuer.file.write_text(text)
    with pytest.raises(CannotListen, match=f"jwks.json: .*{reason}"):
        async with serve(jwt=issuer.config(), db=tmp_path / "x.db"):
            pytest.fail("it listens")
    assert not (tmp_path / "x.db").exists()


async def test_a_url_of_keys_that_does_not_answer_yet_is_only_told(serve: Any, make_issuer: Any, log: Any) -> None:
    import attrs

    config = attrs.evolve(make_issuer(int(time.time())).config(), jwks="http://127.0.0.1:9/keys")
    async with serve(jwt=config) as client:
        await client.ask("GET", "/keys", credential="a.b.c")
        issuer_away = "the keys of the tokens' issuer cannot be had"
        refused = await client.ask("GET", "/keys", credential=make_issuer(int(time.time())).token())
        assert refused.status == 503
    (line,) = [line for line in log.read().splitlines() if issuer_away in line]
    assert "http://127.0.0.1:9/keys" in line
    assert "no token is good until they can" in line


async def test_an_address_that_others_can_reach_leaves_no_empty_database(serve: Any, tmp_path: Any) -> None:
    with pytest.raises(CannotListen, match="keys create --db"):
        async with serve(db=tmp_path / "x.db", host="0.0.0.0"):
            pytest.fail("it listens")
    assert list(tmp_path.iterdir()) == []
