"""Requests that name very much: they are refused or worked on, and others are served meanwhile."""

from __future__ import annotations

import itertools
import json
import string
from typing import Any

import pytest

from stellwerk.actors.payloads import selected_variables
from stellwerk.errors import InvalidInput
from stellwerk.json_values import canonical, dumps, loads
from stellwerk.limits import Limits

TOPICS_MAX = Limits().request_topics_max
CAMUNDA = "//engine-rest/external-task/fetchAndLock"
CUBE = "//atlas_engine/api/v1/external_tasks/fetch_and_lock"
NAMES = ["".join(letters) for letters in itertools.islice(itertools.product(string.ascii_letters, repeat=3), 100_000)]


def topics(count: int) -> list[str]:
    return [f"topic-{number}" for number in range(count)]


def polls(count: int) -> list[tuple[str, dict[str, Any]]]:
    wanted = [{"topicName": topic, "lockDuration": 10_000} for topic in topics(count)]
    return [
        ("/external-tasks/fetch-and-lock", {"worker_id": "w", "task_types": topics(count)}),
        (CAMUNDA, {"workerId": "w", "maxTasks": 1, "topics": wanted}),
        (CUBE, {"workerId": "w", "topicName": topics(count), "longPollingTimeout": 0}),
    ]


async def test_a_request_for_tasks_names_so_many_topics_and_no_more(client: Any) -> None:
    for path, body in polls(TOPICS_MAX):
        reply = await client.post(path, body, "Content-Type: application/json\r\n")
        assert reply.status == 200, (path, reply)
    for path, body in polls(TOPICS_MAX + 1):
        reply = await client.post(path, body, "Content-Type: application/json\r\n")
        assert reply.status == 400, (path, reply)
        assert f"{TOPICS_MAX + 1} topics, at most {TOPICS_MAX} are possible" in str(reply.body), path


async def test_a_hundred_thousand_variables_are_kept_as_they_are(deployed: Any) -> None:
    variables = dict.fromkeys(NAMES, 1)
    instance_id = await deployed.start("order", variables=variables)
    poll = {"worker_id": "w", "task_types": ["charge"], "variables": ["abc", "no such variable", "aaa"]}
    (task,) = (await deployed.post("/external-tasks/fetch-and-lock", {**poll, "wait_ms": 5_000})).body
    assert task["variables"] == {"aaa": 1, "abc": 1}
    assert (await deployed.get(f"/process-instances/{instance_id}")).body["variables"] == variables


@pytest.mark.parametrize("names", [("b", "absent", "ä", "a"), ('with "quotes"', "a"), ("class", "line\nfeed"), ()])
def test_of_many_variables_those_asked_for_are_picked_as_of_few(names: tuple[str, ...]) -> None:
    few = {"a": 1, "b": {"x": [1, 2.5, None]}, "ä": "ü", 'with "quotes"': True, "class": 0, "line\nfeed": "x"}
    many = {**dict.fromkeys(NAMES, 0), **few}
    assert len(dumps(many)) > 64 * 1024
    assert selected_variables(dumps(many), names) == selected_variables(dumps(few), names)
    assert json.loads(selected_variables(dumps(many), names)) == {name: few[name] for name in names if name in few}


@pytest.mark.parametrize("text", ["[" + "1," * 50_000 + "1]", '"' + "x" * 100_000 + '"'])
def test_long_variables_that_are_no_object_are_sent_whole(text: str) -> None:
    assert selected_variables(text.encode(), ("a",)) == text.encode()


# --- the canonical form ----------------------------------------------------------------------------------------------


class Text(str):
    """Somebody's own."""


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ({"a": "x\x00"}, r"NUL character @ \$\.a"),
        ({"x\x00": 1}, r"NUL character @ \$"),
        ({"a": ["\ud800"]}, r"lone surrogate @ \$\.a\[0\]"),
        ({"a": {"\udfff": 1}}, r"lone surrogate @ \$\.a"),
        ({"a": [1, float("nan")]}, r"nan is no JSON number @ \$\.a\[1\]"),
        ({"a": {1: 2}}, r"a name must be a string, not int @ \$\.a"),
        ({"a": b"x"}, r"bytes is no JSON value @ \$\.a"),
        ([1, {2}], r"set is no JSON value @ \$\[1\]"),
        ({"a": Text("x\x00")}, r"NUL character @ \$\.a"),
    ],
)
def test_what_is_no_value_is_found_where_it_stands(value: object, found: str) -> None:
    with pytest.raises(InvalidInput, match=found):
        canonical(value)


def test_a_copy_has_the_same_values() -> None:
    value = {"a": [True, None, 10**30, "ü", -0.0, (1, "x")], "b": {"c": {"d": "x"}}, "": 1.5}
    copy = canonical(value)
    assert dumps(copy) == dumps({"a": [True, None, 10**30, "ü", 0.0, [1, "x"]], "b": {"c": {"d": "x"}}, "": 1.5})
    assert copy is not value
    assert loads(dumps(copy)) == copy


@pytest.mark.parametrize("innermost", [1, "x", None, {}, []])
@pytest.mark.parametrize("kind", [dict, list])
def test_the_depth_is_counted_to_the_innermost_value(innermost: object, kind: type) -> None:
    def nested(depth: int) -> object:
        value = innermost
        for _ in range(depth):
            value = {"a": value} if kind is dict else [value]
        return value

    assert canonical(nested(100)) == nested(100)
    with pytest.raises(InvalidInput, match="nested deeper than 100"):
        canonical(nested(101))
