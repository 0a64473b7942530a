"""The deliberate bugs are really put in, and leave nothing behind. What they do is in `test_mutants_bite`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from types import FunctionType

import pytest

from simulations.checks.invariants import INVARIANTS
from simulations.mutants.mutant import Mutant
from simulations.mutants.patching import Attribute, Entry, Patch, PatchFailed, Rewrite, applied
from simulations.mutants.registry import FAMILIES, MUTANTS

ALL = sorted(MUTANTS)
THE_TABLE = range(1, 27)
WORKLOAD_IS_WRONG = "W"
"""What comes of an instance is not what its workload promises."""


def _state_of(mutant: Mutant) -> list[object]:
    """What its patches change, as it is now."""
    found: list[object] = []
    for patch in mutant.patches:
        match patch:
            case Rewrite():
                function = _function(patch.target)
                found += [id(function), function.__code__, sorted(function.__globals__)]
            case Attribute():
                found.append(_found(patch.target))
            case Entry():
                table = _found(patch.target)
                assert isinstance(table, dict)
                found.append({key: dict(value) for key, value in table.items()})
            case _:
                raise AssertionError(patch)
    return found


def _found(target: str) -> object:
    module, _, path = target.partition(":")
    found: object = import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found


def _function(target: str) -> FunctionType:
    found = _found(target)
    assert isinstance(found, FunctionType)
    return found


# --- putting in and taking out -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_a_mutant_is_put_in_and_leaves_nothing_behind(name: str) -> None:
    mutant = MUTANTS[name]
    before = _state_of(mutant)
    with mutant.apply():
        during = _state_of(mutant)
    assert during != before
    assert _state_of(mutant) == before
    assert all(new is old for new, old in zip(_codes(_state_of(mutant)), _codes(before), strict=True))


def _codes(state: Sequence[object]) -> list[object]:
    return [item for item in state if hasattr(item, "co_code")]


def test_every_bug_of_the_first_table_is_there_once_and_many_of_our_own() -> None:
    numbers = [mutant.number for mutant in MUTANTS.values() if mutant.number is not None]
    assert sorted(numbers) == list(THE_TABLE)
    assert len(MUTANTS) >= len(THE_TABLE) + 12
    assert len(MUTANTS) == sum(map(len, FAMILIES.values())), "two mutants have one name"


@pytest.mark.parametrize("name", ALL)
def test_a_mutant_says_what_it_does_and_what_should_find_it(name: str) -> None:
    mutant = MUTANTS[name]
    assert mutant.name == name
    assert mutant.what.endswith(".")
    assert mutant.invariants
    assert set(mutant.invariants) <= {*INVARIANTS, WORKLOAD_IS_WRONG}


# --- patching ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("patch", "says"),
    [
        (Rewrite("stellwerk.core.retry:backoff_ms", ("no such text", "")), "occurs 0 times"),
        (Rewrite("stellwerk.core.retry:backoff_ms", ("position", "")), "times, not once"),
        (Rewrite("stellwerk.core.retry:backoff_ms", ("position = ", "position = = ")), "no Python"),
        (Rewrite("stellwerk.core.retry:nothing", ("a", "b")), "there is no nothing"),
        (Rewrite("stellwerk.core.nowhere:nothing", ("a", "b")), "there is no module"),
        (Rewrite("stellwerk.core.retry:BACKOFF_MAX_MS", ("a", "b")), "no plain function"),
        (
            Rewrite("stellwerk.core.retry:backoff_ms", ("(failures: int", "(faults: int")),
            "not that of the running code",
        ),
        (
            Rewrite("stellwerk.core.retry:backoff_ms", ("(failures, 1)", "(failures, 2)"), Sequence=0),
            "a Sequence of its own",
        ),
        (Attribute("stellwerk.core.retry:NOTHING", lambda value: value), "there is no NOTHING"),
        (Entry("stellwerk.core.lease:TRANSITIONS", ("nothing", "at all"), 1), "there is no entry nothing"),
        (Entry("stellwerk.core.retry:BACKOFF_MAX_MS", ("x",), 1), "is no table"),
    ],
)
def test_a_patch_that_fits_nowhere_fails(patch: Patch, says: str) -> None:
    with pytest.raises(PatchFailed, match=says), patch.made():
        pass


def test_of_several_patches_all_are_made_or_none() -> None:
    function = _function("stellwerk.core.retry:backoff_ms")
    code = function.__code__
    good = Rewrite("stellwerk.core.retry:backoff_ms", ("max(failures, 1) - 1", "max(failures, 1)"))
    with pytest.raises(PatchFailed):
        applied(good, Rewrite("stellwerk.core.retry:nothing", ("a", "b")))
    assert function.__code__ is code
    with applied(good):
        assert function(1, (), 0.0) == 2_000
    assert function(1, (), 0.0) == 1_000


def test_a_name_that_the_new_text_brings_along_is_gone_afterwards() -> None:
    function = _function("stellwerk.core.retry:backoff_ms")
    patch = Rewrite(
        "stellwerk.core.retry:backoff_ms", ("max(failures, 1) - 1", "brought(failures)"), brought=lambda _: 3
    )
    with patch.made():
        assert function(1, (), 0.0) == 8_000
        with pytest.raises(PatchFailed, match="a brought of its own"), patch.made():
            pass
    assert "brought" not in function.__globals__


def test_a_bug_is_gone_also_when_the_run_ends_in_an_error() -> None:
    mutant = MUTANTS["fence-not-raised"]
    before = _state_of(mutant)
    with pytest.raises(RuntimeError), mutant.apply():
        raise RuntimeError
    assert _state_of(mutant) == before
