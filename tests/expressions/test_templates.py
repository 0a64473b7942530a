"""Attributes whose text is literal unless it is marked, and constants."""

from __future__ import annotations

import pytest

from stellwerk.errors import InvalidInput
from stellwerk.json_values import JsonValue
from stellwerk.model.expressions import (
    Bindings,
    ExpressionSyntaxError,
    Language,
    evaluate,
    literal,
    parse,
    parse_template,
)

BINDINGS = Bindings({"topic": "payment", "n": 2}, token_payload={"topic": "mail"})


@pytest.mark.parametrize(
    ("text", "language", "value"),
    [
        ("payment", Language.FEEL, "payment"),
        ("=topic", Language.FEEL, "payment"),
        (" = n + 1", Language.FEEL, 3),
        ("a = b", Language.FEEL, "a = b"),
        ("", Language.FEEL, ""),
        ("payment", Language.JUEL, "payment"),
        ("true", Language.JUEL, "true"),
        ("${topic}", Language.JUEL, "payment"),
        ("\n  ${n}\n", Language.JUEL, 2),
        ("kermit_${n}", Language.JUEL, "kermit_2"),
        ("a #{topic} ${n}.", Language.JUEL, "a payment 2."),
        ("${n} ${n}", Language.JUEL, "2 2"),
        ("${null}x", Language.JUEL, "x"),
        (r"costs \${n}", Language.JUEL, "costs ${n}"),
        ("5 $ and {x}", Language.JUEL, "5 $ and {x}"),
        ("payment", Language.PROCESSCUBE, "payment"),
        ("token.current.topic", Language.PROCESSCUBE, "mail"),
        ("token.current.topic + '!';", Language.PROCESSCUBE, "mail!"),
        ("identity", Language.PROCESSCUBE, "identity"),
        ("to-${token.current.topic}", Language.PROCESSCUBE, "to-mail"),
        ("#{x}", Language.PROCESSCUBE, "#{x}"),
    ],
)
def test_text_is_literal_unless_marked(text: str, language: Language, value: JsonValue) -> None:
    assert evaluate(parse_template(text, language), BINDINGS) == value


def test_a_mistake_in_a_marked_part_is_found_at_its_place() -> None:
    with pytest.raises(ExpressionSyntaxError) as caught:
        parse_template("order ${n +} of ${topic}", Language.JUEL)
    assert caught.value.offset == 11


@pytest.mark.parametrize("value", [None, True, 0, 1.5, "payment", [1, {"a": None}], {"b": ["x"]}])
def test_a_literal_gives_its_value(value: JsonValue) -> None:
    expression = literal(value)
    assert expression.is_literal
    assert expression.literal_value == value
    assert evaluate(expression, Bindings()) == value
    assert evaluate(parse(expression.source, Language.FEEL), Bindings()) == value


def test_a_literal_must_be_json() -> None:
    with pytest.raises(InvalidInput):
        literal(float("nan"))


def test_constants_are_recognised() -> None:
    assert parse_template("payment", Language.JUEL).literal_value == "payment"
    assert parse('= "pay" + "ment"', Language.FEEL).literal_value == "payment"
    assert parse("${1 + 1}", Language.JUEL).literal_value == 2
    assert parse("=[1, 2]", Language.FEEL).literal_value == [1, 2]
    variable = parse_template("${topic}", Language.JUEL)
    assert not variable.is_literal
    assert variable.literal_value is None
    failing = parse("${1 / 0}", Language.JUEL)
    assert not failing.is_literal


def test_nobody_shares_the_list_of_a_constant() -> None:
    expression = literal([1])
    first = evaluate(expression, Bindings())
    assert isinstance(first, list)
    first.append(2)
    assert evaluate(expression, Bindings()) == [1]


def test_expressions_are_values() -> None:
    assert parse("= a", Language.FEEL) == parse("= a", Language.FEEL)
    assert len({parse("a", Language.JUEL), parse("a", Language.JUEL), parse("a", Language.FEEL)}) == 2
    assert parse("a", Language.JUEL) != parse_template("a", Language.JUEL)
    assert literal(1) != literal("1")
    assert "source='= a'" in repr(parse("= a", Language.FEEL))
