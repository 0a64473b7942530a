"""The composition root: picks the store and the adapters, and wires a node to its server.

`open_engine` embeds an engine in a trio program; `serve_engine` is what ``stellwerk serve`` runs, and `serve_node` the
same on ports and listeners of the caller's.
"""

from stellwerk.app.config import MEMORY, PORT_DEFAULT, AppConfig, CannotListen, TlsConfig
from stellwerk.app.embedding import open_engine
from stellwerk.app.engine import Engine
from stellwerk.app.groups import without_group
from stellwerk.app.open_files import make_room
from stellwerk.app.serving import ServedEngine, serve_engine, serve_node

__all__ = [
    "MEMORY",
    "PORT_DEFAULT",
    "AppConfig",
    "CannotListen",
    "Engine",
    "ServedEngine",
    "TlsConfig",
    "make_room",
    "open_engine",
    "serve_engine",
    "serve_node",
    "without_group",
]
