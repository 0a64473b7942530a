"""Options that several commands share, and how their texts become values."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, TypeAlias

from cyclopts import Parameter

from stellwerk.cli.mistakes import Mistake

__all__ = ["URL_DEFAULT", "AsJson", "Url", "Variables", "read_object"]

URL_DEFAULT = "http://127.0.0.1:10560"

Url: TypeAlias = Annotated[str, Parameter(name="--url", env_var="STELLWERK_URL", help="Where the engine is.")]
AsJson: TypeAlias = Annotated[
    bool, Parameter(name="--json", negative=(), help="Print JSON for programs instead of text for people.")
]
Variables: TypeAlias = Annotated[
    str, Parameter(name="--variables", help="A JSON object, or @FILE to read it from a file (@- for standard input).")
]


def read_object(text: str) -> dict[str, object]:
    """:raises Mistake: when it is no JSON object, or the file cannot be read."""
    from stellwerk.errors import InvalidInput
    from stellwerk.json_values import canonical_object, loads

    source = "--variables"
    if text.startswith("@"):
        source = text[1:]
        text = _read(source)
    try:
        return canonical_object(loads(text))
    except InvalidInput as error:
        raise Mistake(f"{source}: {error.message}") from None


def _read(name: str) -> str:
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise Mistake(f"{name}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Mistake(f"{name}: not UTF-8 text") from None
