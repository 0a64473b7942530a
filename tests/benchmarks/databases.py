"""The private PostgreSQL server of a benchmark: durable, and with room for what is measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import attrs
from tests.benchmarks.processes import cpu_seconds_of_server

from stellwerk.testing.databases import PostgresServer

__all__ = ["BenchmarkServer", "private_server"]

_SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
    "max_connections": "200",
}


@attrs.define(eq=False)
class BenchmarkServer:
    server: PostgresServer

    @property
    def pid(self) -> int:
        return int((self.server.data / "postmaster.pid").read_text().splitlines()[0])

    @property
    def version(self) -> str:
        return str(self.server.query("SHOW server_version")[0]["server_version"])

    def cpu_seconds(self) -> float:
        return cpu_seconds_of_server(self.pid)

    @contextmanager
    def database(self, *, is_migrated: bool) -> Iterator[str]:
        """A fresh one. → its DSN, over TCP, which is what everyone who is measured uses"""
        made = self.server.create_database(is_migrated=is_migrated)
        try:
            yield self.server.tcp_dsn(urlsplit(made).path.lstrip("/"))
        finally:
            self.server.drop_database(made)


@contextmanager
def private_server() -> Iterator[BenchmarkServer]:
    """:raises NoServer: PostgreSQL is not installed."""
    with PostgresServer(_SETTINGS, is_durable=True) as server:
        yield BenchmarkServer(server)
