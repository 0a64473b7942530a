"""FEEL: values, null, three-valued logic, and what is refused at deploy."""

from __future__ import annotations

import pytest

from stellwerk.json_values import JsonValue
from stellwerk.model.expressions import (
    Bindings,
    ExpressionFailed,
    ExpressionSyntaxError,
    Language,
    evaluate,
    evaluate_condition,
    is_true,
    parse,
)

VARIABLES: dict[str, JsonValue] = {
    "loopAmount": 3,
    "totalLoops": 5,
    "price": 9.99,
    "name": "Ada",
    "paid": True,
    "nothing": None,
    "order": {"id": "o-1", "lines": [{"sku": "a", "amount": 2}, {"sku": "b", "amount": 3}], "net total": 10},
    "net total": 7,
}


def value_of(text: str) -> JsonValue:
    return evaluate(parse(text, Language.FEEL), Bindings(VARIABLES))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("= 0", 0),
        ("=true", True),
        ("null", None),
        ('="task-1"', "task-1"),
        (r'"a\"b\n\u00e4\u0041\ud83d\ude00"', 'a"b\näA😀'),
        (".5", 0.5),
        ("1.5e2", 150.0),
        ("= loopAmount + 1", 4),
        ("loopAmount - -1", 4),
        ("-loopAmount", -3),
        ("0.1 + 0.2", 0.3),
        ("price * 3", 29.97),
        ("6 / 3", 2),
        ("5 / 2", 2.5),
        ("2 ** 10", 1024),
        ("-5 ** 2", 25),
        ("2 + 3 * 4 - 6 / 2", 11),
        ("(2 + 3) * 4", 20),
        ('"Hello " + name', "Hello Ada"),
        ("order.lines[1].sku", "a"),
        ("order.lines[-1].sku", "b"),
        ("order.lines[3]", None),
        ("order.lines[0]", None),
        ("order.lines.amount", [2, 3]),
        ("sum(order.lines.amount)", 5),
        ("net total + order.net total", 17),
        ("`net total`", 7),
        ("[1, name, [true]]", [1, "Ada", [True]]),
        ('{"name": "order1", id: "1234"}', {"name": "order1", "id": "1234"}),
        ("{a: 1, b: a + 1, c: {a: 10, d: a + b}, e: a}.c.d", 12),
        ("{a: 1, c: {a: 10}, e: a}.e", 1),
        ("if loopAmount > 2 then 1 else 2", 1),
        ("if null then 1 else 2", 2),
        ("1 // a comment\n + /* another */ 1", 2),
    ],
)
def test_values(text: str, value: JsonValue) -> None:
    result = value_of(text)
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("= loopAmount != totalLoops", True),
        ("=paid=true", True),
        ('name = "Ada" and loopAmount >= 3', True),
        ("loopAmount between 1 and 3 and paid", True),
        ("loopAmount between 4 and 9", False),
        ("loopAmount in [1, 2, 3]", True),
        ('name in ["Eve"]', False),
        ("[1, 2] = [1, 2.0]", True),
        ("{a: [1]} != {a: [2]}", True),
        ("nothing = null", True),
        ("missing = null", True),
        ("name = null", False),
        ("name != null", True),
        ('loopAmount = "3"', None),
        ("paid = 1", None),
        ("missing > 3", None),
        ("paid > false", None),
        ("true and null", None),
        ("false and null", False),
        ("null and false", False),
        ("true or null", True),
        ("null or true", True),
        ("false or missing", None),
        ("not(paid)", False),
        ("not(missing)", None),
        ('"a" < "b"', True),
    ],
)
def test_logic_has_three_values(text: str, value: bool | None) -> None:
    assert value_of(text) is value


@pytest.mark.parametrize(
    "text",
    [
        "missing",
        "missing.inner.more",
        "missing + 1",
        "name + 1",
        "paid + 1",
        "1 / 0",
        "name.inner",
        "missing[1]",
        "upper case(3)",
        "count(null)",
        "modulo(1, 0)",
        'number("x")',
        "order.lines[1.5]",
    ],
)
def test_what_does_not_fit_is_null(text: str) -> None:
    assert value_of(text) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("count([1, 2, 3])", 3),
        ("string length(name)", 3),
        ('contains(name, "d")', True),
        ('starts with(name, "A")', True),
        ('ends with(name, "A")', False),
        ('substring("foobar", 3)', "obar"),
        ('substring("foobar", -3, 2)', "ba"),
        ('substring before("a:b:c", ":")', "a"),
        ('substring after("a:b:c", ":")', "b:c"),
        ("append([1], 2, 3)", [1, 2, 3]),
        ("concatenate([1], [2], 3)", [1, 2, 3]),
        ("reverse([1, 2])", [2, 1]),
        ("index of([1, 2, 1], 1)", [1, 3]),
        ("list contains([1, null], null)", True),
        ("string(12.50)", "12.5"),
        ('"#" + string(loopAmount)', "#3"),
        ("string(true)", "true"),
        ('number("1.5")', 1.5),
        ("floor(-1.5)", -2),
        ("ceiling(1.2)", 2),
        ("abs(-3)", 3),
        ("modulo(-12, 5)", 3),
        ("min(3, 1, 2)", 1),
        ("max([3, 1, 2])", 3),
        ("mean(1, 2)", 1.5),
        ('string join(["a", "b"], "-")', "a-b"),
        ("upper case(name)", "ADA"),
        ("is defined(missing)", False),
        ('get value(order, "id")', "o-1"),
    ],
)
def test_functions(text: str, value: JsonValue) -> None:
    assert value_of(text) == value


@pytest.mark.parametrize(
    ("text", "offset", "what"),
    [
        ("", 0, "empty"),
        ("= ", 2, "empty"),
        ("= 1 +", 5, "a value is expected, not the end"),
        ("= 1 2", 4, "the end is expected, not 2"),
        ("= (1", 4, ") is expected"),
        ("a == 1", 3, "a value is expected"),
        ('"open', 0, "does not end"),
        ("'single'", 0, "does not know"),
        ("1 & 2", 2, "unexpected character '&'"),
        ("frobnicate(1)", 0, "frobnicate() is not a function"),
        ('= day of week(today()) = "Tuesday"', 2, "day of week() is not available in expressions yet"),
        ("for x in [1] return x", 0, "for is not available"),
        ("[1..5]", 1, "a range is not available"),
        ("a[b > 1]", 1, "a filter is not available"),
        ('@"2025-01-01"', 0, "@ is not available"),
        ("x instance of number", 2, "instance of is not available"),
        ("count(1, 2)", 0, "count() cannot take 2 arguments"),
        (r'"\q"', 1, "unknown escape"),
        (r'"\ud800"', 1, "lone surrogate"),
        ("a.1", 1, "the end is expected"),
        ("9" * 400, 0, "too large"),
        ("1e999", 0, "too large"),
        ("a\x00b", 1, "NUL"),
        ("a\ud800", 1, "lone surrogate"),
    ],
)
def test_a_syntax_error_says_what_and_where(text: str, offset: int, what: str) -> None:
    with pytest.raises(ExpressionSyntaxError) as caught:
        parse(text, Language.FEEL)
    assert what in caught.value.what
    assert caught.value.offset == offset
    assert f"character {offset + 1}" in str(caught.value)


def test_only_true_is_true() -> None:
    assert is_true(True)
    assert not any(map(is_true, [False, None, 1, "true", [True], {}]))


def test_a_condition_that_gives_something_else_fails() -> None:
    with pytest.raises(ExpressionFailed, match=r"'= name'.*must give true or false, not the string 'Ada'"):
        evaluate_condition(parse("= name", Language.FEEL), Bindings(VARIABLES))
