"""What pages of other sites may not do, and by which names an engine without a credential is asked."""

from __future__ import annotations

from typing import Any

import pytest

from stellwerk.server.http.sites import is_public_name


@pytest.mark.parametrize("host", ["evil.example", "evil.example:10560", "EVIL.example.", "127.0.0.1.evil.example"])
async def test_a_name_that_somebody_may_own_is_refused_while_everybody_may_do_everything(
    client: Any, host: str
) -> None:
    assert is_public_name(host)
    for path in ("/api/v1/process-definitions", "/engine-rest/external-task", "/atlas_engine/api/v1/process_models"):
        reply = await client.ask(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert reply.status == 403, path
        assert "stellwerk keys create" in str(reply.body), path


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:10560", "[::1]:10560", "localhost:10560", "shop.localhost", "engine", "10.0.0.7:80"],
)
async def test_names_of_this_machine_and_addresses_are_served(client: Any, host: str) -> None:
    assert not is_public_name(host)
    request = f"GET /api/v1/process-definitions HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
    assert (await client.ask(request)).status == 200


async def test_a_page_that_took_over_a_name_of_this_machine_opens_no_session(client: Any) -> None:
    upgrade = (
        "GET /workers HTTP/1.1\r\nHost: evil.example\r\nOrigin: http://evil.example\r\nConnection: Upgrade\r\n"
        "Upgrade: websocket\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Protocol: stellwerk.v1\r\n\r\n"
    )
    assert (await client.ask(upgrade.encode())).status == 403
