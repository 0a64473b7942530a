"""Lists by offset: what is cut, in which order, and that nothing is cut off unseen."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import pytest

from stellwerk.errors import InvalidInput
from stellwerk.server.camunda.reading import ROWS_MAX, Row, collected, signed
from stellwerk.server.camunda.shapes import SliceQuery, Sorting, TasksQuery
from stellwerk.server.http.structuring import structure_body, structure_query

Read: TypeAlias = Callable[[int, str | None], Awaitable[Sequence[int]]]


def numbers(count: int, asked: list[int] | None = None) -> Read:
    """A list of numbers, whose ids are they themselves."""

    async def read(limit: int, after: str | None) -> Sequence[int]:
        first = 0 if after is None else int(after) + 1
        found = range(first, min(first + limit, count))
        if asked is not None:
            asked.append(len(found))
        return found

    return read


def view(number: int) -> Row | None:
    return None if number % 7 == 6 else {"number": number, "name": None if number == 0 else f"n{number:05}"}


async def found(query: SliceQuery, *reads: Read) -> list[object]:
    rows = await collected(list(reads), str, view, query, {"number": "number", "name": "name"})
    return [row["number"] for row in rows]


async def test_a_part_is_cut_over_pages_and_rows_that_are_left_out_do_not_count() -> None:
    whole = [number for number in range(1000) if number % 7 != 6]
    assert await found(SliceQuery(), numbers(1000)) == whole
    assert await found(SliceQuery(first_result=250, max_results=120), numbers(1000)) == whole[250:370]
    assert await found(SliceQuery(first_result=5000), numbers(1000)) == []
    assert await found(SliceQuery(max_results=0), numbers(1000)) == []


async def test_no_more_is_read_than_is_asked_for() -> None:
    asked: list[int] = []
    await found(SliceQuery(first_result=10, max_results=20), numbers(1000, asked))
    assert asked == [100]


async def test_one_list_follows_the_other() -> None:
    assert await found(SliceQuery(first_result=4, max_results=4), numbers(6), numbers(3)) == [4, 5, 0, 1]


async def test_a_list_that_is_too_long_is_refused_and_never_cut_off() -> None:
    for query in (
        SliceQuery(),
        SliceQuery(first_result=ROWS_MAX, max_results=10),
        SliceQuery(max_results=ROWS_MAX + 1),
    ):
        with pytest.raises(InvalidInput, match="more than 10000 rows"):
            await found(query, numbers(2 * ROWS_MAX))


async def test_orders_are_obeyed_one_within_the_other_and_what_has_no_value_is_last() -> None:
    up, down = Sorting(sort_by="name"), Sorting(sort_by="name", sort_order="desc")
    assert await found(SliceQuery(sorting=(up,)), numbers(4)) == [1, 2, 3, 0]
    assert await found(SliceQuery(sorting=(down,)), numbers(4)) == [3, 2, 1, 0]
    assert await found(SliceQuery(sort_by="number", sort_order="desc", max_results=2), numbers(200)) == [199, 198]
    twice = SliceQuery(sorting=(up, Sorting(sort_by="number", sort_order="desc")))
    assert await found(twice, numbers(3), numbers(3)) == [1, 1, 2, 2, 0, 0]


async def test_an_order_that_is_not_known_is_refused() -> None:
    with pytest.raises(InvalidInput, match="sortBy is one of number, name, not colour"):
        await found(SliceQuery(sort_by="colour"), numbers(1))


@pytest.mark.parametrize("value", [7, -7, "8", "-8", 2**63 - 1, -(2**63)])
def test_whole_numbers_may_be_negative(value: object) -> None:
    assert signed(value, "priority") == int(str(value))


@pytest.mark.parametrize("value", [None, True, 1.5, "", "-", "2.5", "٣", 2**63, "9" * 30])
def test_what_is_no_whole_number_is_refused(value: object) -> None:
    with pytest.raises(InvalidInput, match="a whole number is expected @ priority"):
        signed(value, "priority")


def test_queries_are_in_camel_case_and_lists_in_them_have_commas() -> None:
    query = structure_query(
        [("externalTaskIdIn", "a,b"), ("locked", "true"), ("firstResult", "3")], TasksQuery, tolerant=True
    )
    assert (query.external_task_id_in, query.locked, query.first_result) == (("a", "b"), True, 3)


def test_a_complaint_names_the_field_as_the_client_wrote_it() -> None:
    with pytest.raises(InvalidInput, match=r"@ \$\.externalTaskIdIn\[1\]"):
        structure_body({"externalTaskIdIn": ["a", 1]}, TasksQuery, tolerant=True)
    with pytest.raises(InvalidInput, match=r"@ query\.firstResult"):
        structure_query([("firstResult", "-1")], TasksQuery, tolerant=True)
