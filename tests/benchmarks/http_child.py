"""The HTTP server of the engine with nothing behind it: one handler that reads its request and answers ``{}``.

Commands (lines of JSON on standard input): ``cost`` gives the processor time so far. It ends with its input.
"""

from __future__ import annotations

import json
import sys
import time

import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stellwerk.server.http.connection import HttpHost
from stellwerk.server.http.limits import HttpLimits
from stellwerk.server.serving import Server
from stellwerk.system.clock import SystemClock
from stellwerk.system.entropy import SystemEntropy
from stellwerk.system.logging import LogLevel, open_log
from stellwerk.system.memory import collect_seldom
from stellwerk.system.sockets import listening_port, open_listeners

__all__: list[str] = []


async def _empty(request: Request) -> Response:
    await request.body()
    return Response(b"{}", media_type="application/json")


async def _run() -> None:
    host = HttpHost(
        application=Starlette(routes=[Route("/empty", _empty, methods=["POST"])]),
        upgrade=lambda _request: None,
        limits=HttpLimits(),
        clock=SystemClock(),
        entropy=SystemEntropy(),
        log=open_log(LogLevel.WARNING),
    )
    listeners = await open_listeners("127.0.0.1", 0)
    async with trio.open_nursery() as nursery:
        await nursery.start(Server(host).serve, listeners)
        print(json.dumps({"url": f"http://127.0.0.1:{listening_port(listeners)}"}), flush=True)
        while await trio.to_thread.run_sync(sys.stdin.readline):
            print(json.dumps({"cpu_seconds": time.process_time()}), flush=True)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    collect_seldom()  # as the command does
    trio.run(_run)
