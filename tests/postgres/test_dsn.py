"""What an operator may say about the database, and that no message repeats the password."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from stellwerk.errors import InvalidInput, StoreUnavailable
from stellwerk.stores.postgres.dsn import PostgresConfig, parse_dsn
from stellwerk.testing.databases import PostgresServer

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    "text, hosts, database",
    [
        ("postgresql://user@db1/shop", [("db1", 5432)], "shop"),
        ("postgres://user:s3cr3t@db1:6000/a%20b", [("db1", 6000)], "a b"),
        ("postgresql://u@db1,db2:6000/shop", [("db1", 5432), ("db2", 6000)], "shop"),
        ("postgresql://u@[::1]:6000/shop", [("::1", 6000)], "shop"),
        ("postgresql://u@/shop?host=/run/sockets", [("/run/sockets", 5432)], "shop"),
        ("postgresql://u@/shop?host=/run/sockets&port=6000", [("/run/sockets", 6000)], "shop"),
        ("postgresql://u@/shop?host=a,b&port=1,2", [("a", 1), ("b", 2)], "shop"),
        ("postgresql://u@%2Frun%2Fsockets/shop", [("/run/sockets", 5432)], "shop"),
        ("postgresql:///shop", [(None, None)], "shop"),
        ("postgresql://db1", [("db1", 5432)], None),
        ("postgresql://db1?dbname=shop", [("db1", 5432)], "shop"),
    ],
)
def test_ways_to_name_a_database(text: str, hosts: list[Any], database: str | None) -> None:
    dsn = parse_dsn(text)
    assert list(dsn.hosts) == hosts
    assert dsn.database == database
    assert SECRET not in str(dsn) + repr(dsn)


@pytest.mark.parametrize(
    "text, complaint",
    [
        ("", "postgresql://"),
        ("shop", "does not begin with postgresql://"),
        ("mysql://u:s3cr3t@db/shop", "does not begin with postgresql://"),
        ("host=db password=s3cr3t", "does not begin with postgresql://"),
        ("postgresql://u:s3cr3t@db:5577l/shop", "the port '5577l' is not a number from 1 to 65535"),
        ("postgresql://u:s3cr3t@db:65536/shop", "the port '65536' is not"),
        ("postgresql://u:s3cr3t/shop", "stands where the port should.*host is missing"),
        ("postgresql://u:s3cr3t@[db/shop", "IPv6"),
        ("postgresql://u:s3[cr3t@db/shop", "%5B"),
        ("postgresql://u:s3cr3t@db..example/shop", "a host's name"),
        ("postgresql://u:s3cr3t@db1,,db2/shop", "a host is missing"),
        ("postgresql://u:s3cr3t@:5432/shop", "a host is missing"),
        ("postgresql://u@/shop?host=a,b,c&port=1,2", "3 hosts and 2 ports"),
        ("postgresql://u:s3cr3t@db/shop?sslmode", "name=value"),
        ("postgresql://u:a@s3cr3t@db/shop", "%40"),
        ("postgresql://u:12/s3cr3t@db/shop", "%2F"),
        ("postgresql://u:12#s3cr3t@db/shop", "%23"),
        ("postgresql://u:12?s3cr3t@db/shop", "%3F"),
        ("postgresql://db/shop?target_session_attrs=standby", "standby: stellwerk writes"),
        ("postgresql://db/shop?channel_binding=require", "channel_binding=require"),
    ],
)
def test_what_is_wrong_with_a_dsn_is_said_without_its_password(text: str, complaint: str) -> None:
    for settings in ({"dsn": text}, {"dsn": "postgresql://db", "listen_dsn": text}):
        with pytest.raises(InvalidInput, match=complaint) as refused:
            PostgresConfig(**settings)  # type: ignore[arg-type]
        chain: BaseException | None = refused.value
        while chain is not None:
            assert SECRET not in str(chain)
            chain = None if chain.__suppress_context__ else chain.__context__


@pytest.mark.parametrize(
    "text, environment, name",
    [
        ("postgresql://clerk@db", {}, "clerk"),
        ("postgresql://clerk@db", {"PGDATABASE": "shop"}, "shop"),
        ("postgresql://db?user=clerk", {}, "clerk"),
        ("postgresql://db", {"PGUSER": "visitor"}, "visitor"),
    ],
)
def test_database_that_is_tried_where_none_is_named(
    text: str, environment: dict[str, str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("PGDATABASE", "PGUSER"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    assert str(parse_dsn(text)) == f"PostgreSQL database {name} on db:5432"


def test_a_configuration_is_shown_without_passwords() -> None:
    config = PostgresConfig(dsn="postgresql://u:s3cr3t@db/shop", listen_dsn="postgresql://u:s3cr3t@direct/shop")
    assert SECRET not in repr(config)
    assert "shop on db:5432" in repr(config)
    assert "shop on direct:5432" in repr(config)


@pytest.mark.parametrize("setting", ["reading_connections_max", "connect_seconds_max", "command_seconds_max"])
def test_limits_are_greater_than_zero(setting: str) -> None:
    with pytest.raises(InvalidInput, match=f"{setting} is 0"):
        PostgresConfig(dsn="postgresql://db", **{setting: 0})  # type: ignore[arg-type]


@pytest.fixture
def role(breakable_server: PostgresServer) -> Any:
    breakable_server.query(f"CREATE ROLE clerk LOGIN PASSWORD '{SECRET}' IN ROLE with_password")
    yield "clerk"
    breakable_server.query("DROP ROLE clerk")


def _everything_said(error: BaseException) -> str:
    said = ""
    chain: BaseException | None = error
    while chain is not None:
        said += f"{chain!s} {chain!r}\n"
        chain = chain.__cause__ or chain.__context__
    return said


async def test_the_right_password_opens(open_link: Any, breakable_server: PostgresServer, role: str) -> None:
    link = await open_link(breakable_server.tcp_dsn("postgres", user=role, password=SECRET))
    assert await link.value("SELECT current_user") == "clerk"
    await link.bridge.run(link.connections.close)


@pytest.mark.parametrize(
    "user, password, database, complaint",
    [
        ("clerk", f"wrong-{SECRET}", "postgres", "password authentication failed.*check user and password"),
        ("clerk", SECRET, "nothing", "does not exist: create it with createdb"),
        ("nobody_here", SECRET, "postgres", "role .nobody_here. does not exist"),
    ],
)
async def test_a_wrong_login_is_named_at_once_and_without_the_password(
    open_link: Any, breakable_server: PostgresServer, role: str, user: str, password: str, database: str, complaint: str
) -> None:
    with pytest.raises(StoreUnavailable, match=f"PostgreSQL database {database} on 127.0.0.1.*{complaint}") as refused:
        await open_link(breakable_server.tcp_dsn(database, user=user, password=password), connect_seconds_max=60)
    assert SECRET not in _everything_said(refused.value)


async def test_who_is_kept_out_by_the_server_s_rules_is_told(open_link: Any, breakable_server: PostgresServer) -> None:
    breakable_server.query("CREATE ROLE stranger LOGIN IN ROLE kept_out")
    try:
        with pytest.raises(StoreUnavailable, match=r"pg_hba\.conf"):
            await open_link(breakable_server.tcp_dsn("postgres", user="stranger"), connect_seconds_max=60)
    finally:
        breakable_server.query("DROP ROLE stranger")


@pytest.mark.parametrize("host", ["no-such-host.invalid", "127.0.0.1:1"])
async def test_a_wrong_host_is_named(open_link: Any, host: str) -> None:
    with pytest.raises(StoreUnavailable, match=f"shop on {host}.*cannot be reached") as refused:
        await open_link(f"postgresql://clerk:{SECRET}@{host}/shop", connect_seconds_max=0.3)
    assert SECRET not in _everything_said(refused.value)


async def test_parameters_of_other_clients_are_left_out(open_link: Any, breakable_server: PostgresServer) -> None:
    dsn = breakable_server.tcp_dsn("postgres")
    link = await open_link(f"{dsn}?connect_timeout=3&keepalives=1&channel_binding=prefer&application_name=theirs")
    assert await link.value("SHOW application_name") == "stellwerk node-1"


async def test_a_setting_that_the_server_does_not_know_is_named_at_once(
    open_link: Any, breakable_server: PostgresServer
) -> None:
    with trio.fail_after(5), pytest.raises(StoreUnavailable, match=r"unrecognized configuration parameter .*no_such"):
        await open_link(f"{breakable_server.tcp_dsn('postgres')}?no_such.thing=1&no_such=1", connect_seconds_max=60)


async def test_settings_of_the_server_can_stand_in_the_dsn(open_link: Any, breakable_server: PostgresServer) -> None:
    link = await open_link(f"{breakable_server.tcp_dsn('postgres')}?work_mem=9MB")
    assert await link.value("SHOW work_mem") == "9MB"
