"""What campaigns of runs gave, added up and kept in a file."""

from __future__ import annotations

import fcntl
import json
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import cattrs

from simulations.tools.outcomes import Outcome
from simulations.tools.writing import write_file
from stellwerk.cli.mistakes import Mistake

__all__ = ["Campaign", "append_campaign", "commit_now", "load_campaigns", "total"]


_converter = cattrs.Converter(forbid_extra_keys=True)


@attrs.define(kw_only=True)
class Campaign:
    """Counts add up: see `total`."""

    began: str = ""
    """When, in UTC."""
    commit: str = ""
    python: str = ""
    mutant: str | None = None
    seeds: list[str] = attrs.field(factory=list)
    """Ranges, as ``0..4999``."""
    runs: dict[str, int] = attrs.field(factory=dict)
    """By size and mode: ``small all``."""
    simulated_seconds: float = 0.0
    cpu_seconds: float = 0.0
    real_seconds: float = 0.0
    faults: dict[str, int] = attrs.field(factory=dict)
    """By kind, those that really befell something."""
    sometimes: dict[str, int] = attrs.field(factory=dict)
    """How often each property was seen."""
    sometimes_runs: dict[str, int] = attrs.field(factory=dict)
    """In how many runs."""
    twins: int = 0
    """Runs that were done twice, in processes with different hash seeds."""
    failures: list[str] = attrs.field(factory=list)
    """A line for each, and the file of its plan."""

    @property
    def runs_count(self) -> int:
        return sum(self.runs.values())

    @property
    def speed(self) -> float:
        """Simulated seconds for each real one, over all processes."""
        return self.simulated_seconds / self.real_seconds if self.real_seconds else 0.0

    def add(self, kind: str, outcome: Outcome) -> None:
        self.runs[kind] = self.runs.get(kind, 0) + 1
        self.simulated_seconds += outcome.simulated_seconds
        self.cpu_seconds += outcome.cpu_seconds
        _add(self.faults, outcome.faults)
        _add(self.sometimes, outcome.sometimes)
        _add(self.sometimes_runs, {name: 1 for name, count in outcome.sometimes.items() if count})


def _add(counts: dict[str, int], more: dict[str, int]) -> None:
    for name, count in more.items():
        counts[name] = counts.get(name, 0) + count


def _added(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    added: dict[str, int] = {}
    for more in counts:
        _add(added, more)
    return dict(sorted(added.items()))


def total(campaigns: Sequence[Campaign]) -> Campaign:
    """All of them as one."""
    return Campaign(
        runs=_added(one.runs for one in campaigns),
        faults=_added(one.faults for one in campaigns),
        sometimes=_added(one.sometimes for one in campaigns),
        sometimes_runs=_added(one.sometimes_runs for one in campaigns),
        seeds=[seeds for one in campaigns for seeds in one.seeds],
        simulated_seconds=sum(one.simulated_seconds for one in campaigns),
        cpu_seconds=sum(one.cpu_seconds for one in campaigns),
        real_seconds=sum(one.real_seconds for one in campaigns),
        twins=sum(one.twins for one in campaigns),
        failures=[failure for one in campaigns for failure in one.failures],
    )


def load_campaigns(file: Path) -> list[Campaign]:
    """None where there is no file.

    :raises Mistake: it holds something else.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Mistake(f"{file}: {error.strerror}") from None
    try:
        return _converter.structure(_list(json.loads(text)), list[Campaign])
    except (ValueError, TypeError, KeyError, cattrs.BaseValidationError) as error:
        raise Mistake(f"{file}: holds no campaigns: {error}") from None


def _list(value: object) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise TypeError("a list of objects is expected")
    return value


def append_campaign(file: Path, campaign: Campaign) -> None:
    """:raises Mistake: the file holds something else, or cannot be written; it is as before then."""
    with _locked(file):
        write_file(file, _text([*load_campaigns(file), campaign]))


def _text(campaigns: Sequence[Campaign]) -> str:
    value: list[dict[str, Any]] = [attrs.asdict(one) for one in campaigns]
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Two campaigns may end at once."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = file.with_name(f".{file.name}.lock").open("w")
    except OSError as error:
        raise Mistake(f"{file}: cannot be written: {error.strerror}") from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def commit_now() -> str:
    """Of the checkout that this is; empty where there is none."""
    try:
        ended = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return ""
    return ended.stdout.strip() if ended.returncode == 0 else ""
