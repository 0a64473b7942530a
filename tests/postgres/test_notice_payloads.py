"""Hints as the payloads of NOTIFY: what is told arrives, whatever its size, or as ``missed``."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stellwerk.ports import Hint, RevokedHint
from stellwerk.stores.postgres.notice_payloads import PAYLOAD_BYTES_MAX, GatheredHints, notice_of, payloads_of

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
TEXT_TUPLES = st.lists(TEXTS, max_size=60, unique=True).map(tuple)
REVOKED = st.builds(
    RevokedHint, TEXTS, TEXTS, st.integers(0, 2**63 - 1), st.sampled_from(["cancelled", "expired", "lost"])
)
HINTS = st.builds(
    Hint,
    topics=TEXT_TUPLES,
    timer_due_at_ms=st.none() | st.integers(0, 2**63 - 1),
    messages=st.booleans(),
    process_keys=TEXT_TUPLES,
    revoked=st.lists(REVOKED, max_size=60, unique=True).map(tuple),
    instances=TEXT_TUPLES,
    missed=st.booleans(),
)


def sum_of(*hints: Hint) -> Hint:
    gathered = GatheredHints()
    for hint in hints:
        gathered.add(hint)
    return gathered.take()


@given(HINTS)
def test_what_is_told_arrives_in_payloads_that_postgresql_takes(hint: Hint) -> None:
    payloads = payloads_of(hint, "node-é")
    assert all(len(payload.encode()) <= PAYLOAD_BYTES_MAX for payload in payloads)
    notices = [notice_of(payload) for payload in payloads]
    assert {notice.sender for notice in notices} == {"node-é"}
    assert sum_of(*(notice.hint for notice in notices)) == sum_of(hint)


def test_a_payload_is_ascii_so_that_every_database_can_carry_it() -> None:
    [payload] = payloads_of(Hint(topics=("Prüfung €", "nul \0")), "a")
    assert payload.isascii()
    assert notice_of(payload).hint.topics == ("Prüfung €", "nul \0")


def test_as_few_payloads_as_it_takes() -> None:
    hint = Hint(instances=tuple(f"instance-{number:027}" for number in range(1_000)), messages=True)
    payloads = payloads_of(hint, "a")
    assert len(payloads) == -(-1_000 * len('"instance-000000000000000000000000000",') // PAYLOAD_BYTES_MAX)
    assert [notice_of(payload).hint.messages for payload in payloads] == [True, *[False] * 4]


def test_an_item_that_fits_into_no_payload_becomes_missed() -> None:
    payloads = payloads_of(Hint(topics=("short", "t" * 8_000), messages=True), "a")
    assert [notice_of(payload).hint for payload in payloads] == [Hint(missed=True)]


def test_hints_are_merged() -> None:
    first = Hint(topics=("a", "b"), timer_due_at_ms=20, instances=("i",), revoked=(RevokedHint("s", "t", 7, "lost"),))
    second = Hint(topics=("b", "c"), timer_due_at_ms=10, messages=True, revoked=(RevokedHint("s", "t", 7, "lost"),))
    assert sum_of(first, second, Hint(timer_due_at_ms=30)) == Hint(
        topics=("a", "b", "c"),
        timer_due_at_ms=10,
        messages=True,
        instances=("i",),
        revoked=(RevokedHint("s", "t", 7, "lost"),),
    )


def test_the_next_sum_begins_empty() -> None:
    gathered = GatheredHints()
    gathered.add(Hint(topics=("a",), timer_due_at_ms=0, messages=True, instances=("i",), missed=True))
    assert gathered
    gathered.take()
    assert not gathered
    assert gathered.take() == Hint()


def test_a_timer_that_is_due_at_zero_counts() -> None:
    gathered = GatheredHints()
    gathered.add(Hint(timer_due_at_ms=0))
    assert gathered
    gathered.add(Hint(timer_due_at_ms=5))
    assert gathered.take().timer_due_at_ms == 0


def test_too_many_hints_become_missed_instead_of_memory() -> None:
    gathered = GatheredHints()
    for number in range(100_000):
        gathered.add(Hint(instances=(f"instance-{number}",), topics=("orders",)))
    hint = gathered.take()
    assert hint.missed
    assert len(hint.instances) < 2_000


def test_what_a_newer_node_says_besides_is_skipped() -> None:
    payload = {
        "sender": "newer",
        "topics": ["a"],
        "weather": {"is": "fine"},
        "revoked": [["s", "t", 7, "melted", "and", 5]],
    }
    notice = notice_of(json.dumps(payload))
    assert notice.hint == Hint(topics=("a",), revoked=(RevokedHint("s", "t", 7, "lost"),))


@pytest.mark.parametrize(
    "payload",
    [
        "",
        "hello",
        "null",
        "[]",
        "{}",
        '{"sender":5}',
        '{"sender":"a","topics":"b"}',
        '{"sender":"a","topics":[1]}',
        '{"sender":"a","revoked":[["s"]]}',
        '{"sender":"a","timer_due_at_ms":"soon"}',
        '{"sender":"a","topics":["\\ud800"]}',
        '{"sender":"a"',
    ],
)
def test_what_is_none_of_ours_is_refused(payload: str) -> None:
    with pytest.raises(ValueError):
        notice_of(payload)
