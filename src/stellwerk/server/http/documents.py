"""``python -m stellwerk.server.http.documents docs`` writes ``_static/openapi.json`` into the folder ``docs``."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from stellwerk.server.http.api import documented_endpoints
from stellwerk.server.http.openapi import openapi_document

__all__ = ["OPENAPI_FILE", "openapi_text"]

OPENAPI_FILE = "_static/openapi.json"


def openapi_text() -> str:
    """What the file says."""
    return msgspec.json.format(msgspec.json.encode(openapi_document(documented_endpoints())), indent=2).decode() + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m stellwerk.server.http.documents FOLDER")
    path = Path(sys.argv[1], OPENAPI_FILE)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(openapi_text(), encoding="utf-8")
    print(path)
