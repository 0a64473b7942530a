"""``stellwerk serve`` with deadlines of about a second in place of ten and more, so that tests see them pass.

``python impatient.py DATABASE``. All else is as the command has it.
"""

from __future__ import annotations

import sys

import attrs

from stellwerk.cli.serving import ServeOptions, serve_here
from stellwerk.limits import Limits
from stellwerk.server import websocket
from stellwerk.server.http.limits import HttpLimits

HTTP_LIMITS = HttpLimits(
    head_seconds_max=1.0, body_seconds_max=1.5, idle_seconds_max=1.5, write_seconds_max=1.0, linger_seconds_max=0.3
)


def main(database: str) -> None:
    options = ServeOptions(
        db=database,
        listen_db=None,
        host="127.0.0.1",
        port=0,
        synchronous="normal",
        failure_policy=None,
        keep_ended_ms=None,
        log_level="info",
        log_format="text",
    )
    config = options.config()
    node = attrs.evolve(config.node, limits=Limits(session_write_ms_max=1_000, delivery_timeout_ms=1_000))
    websocket._HELLO_SECONDS_MAX = 1.0
    websocket._CLOSE_SECONDS_MAX = 0.3
    serve_here(attrs.evolve(config, http_limits=HTTP_LIMITS, node=node))


if __name__ == "__main__":
    main(sys.argv[1])
