"""How to see a run again: the command that a report ends with."""

from __future__ import annotations

import shlex
from pathlib import Path

__all__ = ["PROGRAM", "replay_command", "run_command"]

PROGRAM = "python -m simulations"


def run_command(seed: int, size: str, mode: str, mutant: str | None = None) -> str:
    return f"{PROGRAM} run --seed {seed} --size {size} --mode {mode}{_bug(mutant)}"


def replay_command(plan: Path, mutant: str | None = None) -> str:
    return f"{PROGRAM} replay {shlex.quote(str(plan))}{_bug(mutant)}"


def _bug(mutant: str | None) -> str:
    return f" --mutant {mutant}" if mutant else ""
