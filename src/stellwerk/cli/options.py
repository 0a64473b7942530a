"""Options that several commands share, and how their texts become values."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeAlias

from cyclopts import Parameter, Token, convert

from stellwerk.cli.mistakes import Mistake

__all__ = [
    "AdoptJava",
    "After",
    "AsJson",
    "Limit",
    "OfInstance",
    "Variables",
    "any_case",
    "check_seconds",
    "flag",
    "read_file",
    "read_object",
]


def flag(*, help: str, name: str | None = None) -> Parameter:  # noqa: A002 - as cyclopts has it
    """An option without a value, and without an opposite."""
    return Parameter(name=name, help=help, negative=(), show_default=False)


def any_case(kind: Any, tokens: Sequence[Token]) -> Any:
    """A converter for choices in small letters: the lists show states in capitals, and so they may be given."""
    return convert(kind, [token.evolve(value=token.value.lower()) for token in tokens])


AdoptJava: TypeAlias = Annotated[
    bool,
    flag(
        name="--adopt-java",
        help="Offer workers what a Java engine does itself: classes, beans, scripts, decisions.",
    ),
]
AsJson: TypeAlias = Annotated[bool, flag(name="--json", help="Print JSON for programs instead of text for people.")]
Variables: TypeAlias = Annotated[
    str, Parameter(name="--variables", help="A JSON object, or @FILE to read it from a file (@- for standard input).")
]
Limit: TypeAlias = Annotated[int, Parameter(name="--limit", help="At most so many, up to 1000.")]
After: TypeAlias = Annotated[
    str | None, Parameter(name="--after", help="Only what comes after it: the last id of the list before.")
]
OfInstance: TypeAlias = Annotated[
    str | None, Parameter(name="--instance", help="Only those of this instance: its id, or the id's unique beginning.")
]

_VARIABLES_BYTES_MAX = 16 * 1024 * 1024
"""An engine takes 1 MiB without spaces and escapes; this is for files like /dev/zero, which have no end."""


def check_seconds(option: str, seconds: float | None, *, is_bounded: bool = False) -> None:
    """:raises Mistake: when it is no duration; `is_bounded`: nor may it be infinite."""
    if seconds is not None and (not seconds >= 0 or (is_bounded and math.isinf(seconds))):
        raise Mistake(f"{option} {seconds}: seconds are a number from 0 on")


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
    content = _read_input() if name == "-" else read_file(Path(name), _VARIABLES_BYTES_MAX)
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise Mistake(f"{name}: not UTF-8 text") from None


def _read_input() -> bytes:
    if sys.stdin is None:
        raise Mistake("standard input is closed")
    return _read_bounded("-", sys.stdin.buffer, _VARIABLES_BYTES_MAX)


def read_file(file: Path, bytes_max: int) -> bytes:
    """:raises Mistake: when it cannot be read, or is longer."""
    try:
        with file.open("rb") as stream:
            return _read_bounded(str(file), stream, bytes_max)
    except OSError as error:
        raise Mistake(f"{file}: {error.strerror}") from None


def _read_bounded(name: str, stream: BinaryIO, bytes_max: int) -> bytes:
    content = stream.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise Mistake(f"{name}: longer than {bytes_max // 1024**2} MiB")
    return content
