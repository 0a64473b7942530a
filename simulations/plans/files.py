"""Plans as files: those that failed become regressions."""

from __future__ import annotations

from pathlib import Path

from simulations.plans.plan import InvalidPlan, Plan, from_json, to_json

__all__ = ["REGRESSIONS", "load_plan", "save_plan", "stored_plans"]

REGRESSIONS = Path(__file__).parents[1] / "regressions"


def load_plan(path: Path) -> Plan:
    """:raises InvalidPlan: naming the file too; also when it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidPlan(f"{path}: cannot be read: {error}") from None
    try:
        return from_json(text)
    except InvalidPlan as error:
        raise InvalidPlan(f"{path}: {error}") from None


def save_plan(plan: Plan, path: Path) -> None:
    """Whole or not at all; a plan that is there is replaced.

    :raises OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        unfinished.write_text(to_json(plan), encoding="utf-8")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def stored_plans(directory: Path = REGRESSIONS) -> list[Path]:
    """In the order of their names."""
    return sorted(directory.glob("*.json"))
