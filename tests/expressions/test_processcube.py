"""ProcessCube's expressions: JavaScript on the token, its history and the identity."""

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

BINDINGS = Bindings(
    variables={"total": 7},
    token_payload={"test_type": "normal", "amount": 2, "list": [1, 2], "none": None},
    token_history={"StartEvent_1": {"testType": "service"}, "Task 2": [5]},
    identity={"userId": "ada"},
)


def value_of(text: str) -> JsonValue:
    return evaluate(parse(text, Language.PROCESSCUBE), BINDINGS)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("token.current.test_type === 'normal'", True),
        ("token.history.StartEvent_1.testType === 'service';", True),
        ("token.history['Task 2'][0]", 5),
        ("2 > 1;", True),
        ("1 === 2;", False),
        ("token.current.amount == '2'", True),
        ("token.current.amount === '2'", False),
        ("token.current.amount !== 3 && !(token.current.amount != 2)", True),
        ("${token.current.amount + 1}", 3),
        ("token.current.missing", None),
        ("token.current.none?.deeper.still", None),
        ("token.current.none ?? 'default'", "default"),
        ("token.current.missing || 'other'", "other"),
        ("token.current.amount && 'yes'", "yes"),
        ("token.current.amount > 1 ? 'many' : 'one'", "many"),
        ("identity.userId", "ada"),
        ("total - 1", 6),
        ("unknown === undefined", True),
        ("'a' + 1 + 2", "a12"),
        ("1 + 2 + 'a'", "3a"),
        ("'3' * '4'", 12),
        ("-7 % 3", -1),
        ("token.current.list.length + 'abc'.length", 5),
        ("token.current.list.includes(2)", True),
        ("token.current.list.join('-')", "1-2"),
        ("'a-b'.split('-')", ["a", "b"]),
        ("'aXbX'.replace('X', '.')", "a.bX"),
        ("'abcdef'.slice(-2)", "ef"),
        ("undefined < 1", False),
        ("'x' < 1", False),
        ("{}", {}),
        ("{something: 'something'}", {"something": "something"}),
        ("{ total, 'a b': [token.current.amount] }", {"total": 7, "a b": [2]}),
        ("JSON.stringify({b: 1, a: [true]})", '{"a":[true],"b":1}'),
        ("Number('12') + Number(true)", 13),
    ],
)
def test_values(text: str, value: JsonValue) -> None:
    result = value_of(text)
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{ currentToken: token.bla.iwantyoutocrash }", "cannot read property iwantyoutocrash of null"),
        ("token.current.none['x']", "cannot read property x of null"),
        ("token.current.missing + 1", "null is not a number"),
        ("token.current.missing.includes(1)", "null has no method"),
        ("1 / 0", "division by zero"),
    ],
)
def test_what_javascript_would_throw_or_turn_into_nan_fails(text: str, reason: str) -> None:
    with pytest.raises(ExpressionFailed, match=reason):
        value_of(text)


@pytest.mark.parametrize(
    ("text", "offset", "what"),
    [
        ("token.current.constructor('x')", 14, "method constructor() is not available"),
        ("require('fs')", 0, "function require() is not available"),
        ("a = 1", 2, "unexpected character '='"),
        ("x => 1", 2, "unexpected character '='"),
        ("(() => 1)()", 4, "unexpected character '='"),
        ("1; 2", 1, "unexpected character ';'"),
    ],
)
def test_a_syntax_error_says_what_and_where(text: str, offset: int, what: str) -> None:
    with pytest.raises(ExpressionSyntaxError) as caught:
        parse(text, Language.PROCESSCUBE)
    assert what in caught.value.what
    assert caught.value.offset == offset


def test_conditions_go_by_what_javascript_takes_for_true() -> None:
    assert all(is_true(value, Language.PROCESSCUBE) for value in [True, 1, "no", [], {}])
    assert not any(is_true(value, Language.PROCESSCUBE) for value in [False, None, 0, ""])
    assert evaluate_condition(parse("token.current.amount", Language.PROCESSCUBE), BINDINGS)
