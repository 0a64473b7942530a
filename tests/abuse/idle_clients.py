"""Connections that are open and say nothing more: ``python idle_clients.py PORT NUMBER``.

A third of them never says anything, a third asked for something once, a third are workers' WebSockets. Prints how many
of each kind got what they wait for, and closes them when its input ends.
"""

from __future__ import annotations

import json
import resource
import selectors
import socket
import sys

ASKED = b"GET /livez HTTP/1.1\r\nHost: here\r\n\r\n"
UPGRADE = (
    b"GET /workers HTTP/1.1\r\nHost: here\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    b"Sec-WebSocket-Protocol: stellwerk.v1\r\n\r\n"
)


def hello(number: int) -> bytes:
    """A text frame (RFC 6455, 5.2) with an all-zero mask."""
    said = {"type": "hello", "worker_id": "idle", "boot_id": f"idle-{number}", "session_no": 1, "client": "t"}
    content = json.dumps(said).encode()
    assert len(content) < 126
    return bytes([0x81, 0x80 | len(content)]) + bytes(4) + content


KINDS = (("silent", b"", b""), ("asked", ASKED, b"\r\n\r\nok"), ("workers", UPGRADE, b'"welcome"'))


def open_all(port: int, number: int) -> tuple[list[socket.socket], dict[str, int]]:
    """→ the connections, and how many of each kind got what they wait for."""
    connections, got = [], {name: 0 for name, _, _ in KINDS}
    waiting = selectors.DefaultSelector()
    for each in range(number):
        name, request, wanted = KINDS[each % len(KINDS)]
        connection = socket.create_connection(("127.0.0.1", port), timeout=20)
        connections.append(connection)
        connection.sendall(request + (hello(each) if name == "workers" else b""))
        if wanted:
            waiting.register(connection, selectors.EVENT_READ, (name, wanted, bytearray()))
        else:
            got[name] += 1
    while waiting.get_map():
        ready = waiting.select(timeout=20)
        assert ready, f"nothing came for 20 s: {got}"
        for key, _ in ready:
            name, wanted, received = key.data
            assert isinstance(key.fileobj, socket.socket)
            piece = key.fileobj.recv(4096)
            received += piece
            if wanted in received:
                got[name] += 1
            if wanted in received or not piece:
                waiting.unregister(key.fileobj)
    return connections, got


def main(port: int, number: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    connections, got = open_all(port, number)
    print(json.dumps(got), flush=True)
    sys.stdin.read()
    for connection in connections:
        connection.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
