"""Length, depth, work and sizes are bounded, whatever an expression asks for."""

from __future__ import annotations

import pytest

from stellwerk.json_values import JsonValue
from stellwerk.model.expressions import (
    Bindings,
    ExpressionFailed,
    ExpressionSyntaxError,
    Language,
    evaluate,
    parse,
)

EVERY = list(Language)


def wrapped(count: int, before: str, inner: str, after: str) -> str:
    return before * count + inner + after * count


@pytest.mark.parametrize("language", EVERY)
def test_text_may_have_ten_thousand_characters(language: Language) -> None:
    long_sum = "+".join(["1"] * 5000)
    assert evaluate(parse(long_sum, language), Bindings()) == 5000
    with pytest.raises(ExpressionSyntaxError, match="10001 characters, at most 10000"):
        parse(long_sum + "+1", language)


@pytest.mark.parametrize("language", EVERY)
@pytest.mark.parametrize(
    ("before", "after"),
    [("(", ")"), ("[", "]"), ("-", ""), ('{"a":', "}"), ("x[", "]"), ("[-1*(", ")]"), ("1+2*-(", ")")],
)
def test_deep_nesting_is_a_clean_syntax_error(language: Language, before: str, after: str) -> None:
    parse(wrapped(20, before, "1", after), language)
    for count in (101, 1000, 1200):
        with pytest.raises(ExpressionSyntaxError, match="nested deeper than 100"):
            parse(wrapped(count, before, "1", after), language)


@pytest.mark.parametrize(
    ("text", "language"),
    [
        (wrapped(101, "!", "a", ""), Language.JUEL),
        (wrapped(101, "not ", "a", ""), Language.JUEL),
        (wrapped(101, "empty ", "a", ""), Language.JUEL),
        (wrapped(101, "a?b:", "c", ""), Language.PROCESSCUBE),
        ("a" + ".b" * 101, Language.FEEL),
        ("a" + "[0]" * 101, Language.JUEL),
        ("a" + "==a" * 101, Language.JUEL),
        (wrapped(101, "if a then b else ", "c", ""), Language.FEEL),
        (wrapped(101, "not(", "a", ")"), Language.FEEL),
    ],
)
def test_chains_that_make_a_deep_tree_are_refused(text: str, language: Language) -> None:
    with pytest.raises(ExpressionSyntaxError, match="nested deeper than 100"):
        parse(text, language)


def test_long_chains_of_one_operator_are_fine() -> None:
    either = " or ".join(["x = 1"] * 1000)
    assert evaluate(parse(either, Language.FEEL), Bindings({"x": 2})) is False
    both = " && ".join(["x == 1"] * 1000)
    assert evaluate(parse("${" + both + "}", Language.JUEL), Bindings({"x": 1})) is True


def test_nesting_at_the_bound_is_read_and_evaluated() -> None:
    value: JsonValue = evaluate(parse(wrapped(98, "[", "1", "]"), Language.FEEL), Bindings())
    for _ in range(98):
        assert isinstance(value, list)
        value = value[0]
    assert value == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("n**9**9**9", "more than 1024 bits|too large|beyond"),
        ("n**999999999", "exponent 999999999 is beyond"),
        ("n**-2000", "beyond"),
        ("*".join(["n"] * 400), "more than 1024 bits"),
        ("x * x", "too large"),
        ("huge + 1", "more than 1024 bits"),
        ("huge * 1.5", "more than 1024 bits"),
        ("string(huge)", "more than 1024 bits"),
    ],
)
def test_numbers_do_not_explode(text: str, reason: str) -> None:
    bindings = Bindings({"n": 9, "x": 1e300, "huge": 10**5000})
    with pytest.raises(ExpressionFailed, match=reason):
        evaluate(parse(text, Language.FEEL), bindings)


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("+".join(["t"] * 20), Language.FEEL),
        ("".join(["${t}"] * 20), Language.JUEL),
        ("[" + ",".join(["t"] * 20) + "]", Language.FEEL),
        ("t.replace('a', t)", Language.JUEL),
        ("l.join(t)", Language.PROCESSCUBE),
        ("string([t,t,t,t,t,t,t,t,t,t,t,t])", Language.FEEL),
        ("upper case(sharp)", Language.FEEL),
    ],
)
def test_texts_and_lists_do_not_explode(text: str, language: Language) -> None:
    bindings = Bindings({"t": "a" * 100_000, "l": [1] * 20, "sharp": "ß" * 600_000})
    with pytest.raises(ExpressionFailed, match="characters"):
        evaluate(parse(text, language), bindings)


@pytest.mark.parametrize(
    "text",
    [
        " or ".join(["l = m"] * 100),
        "concatenate(" + ",".join(["l"] * 500) + ")",
        "[" + ",".join(["sum(l)"] * 100) + "]",
        "[" + ",".join(["count(l.x)"] * 500) + "]",
    ],
)
def test_work_is_bounded(text: str) -> None:
    bindings = Bindings({"l": [1] * 20_000, "m": [1] * 19_999 + [2]})
    with pytest.raises(ExpressionFailed, match="more than 100000 steps"):
        evaluate(parse(text, Language.FEEL), bindings)


def test_a_value_that_would_be_nested_too_deeply_to_be_kept_fails() -> None:
    deep: JsonValue = 1
    for _ in range(100):
        deep = [deep]
    assert evaluate(parse("deep", Language.FEEL), Bindings({"deep": deep})) == deep
    with pytest.raises(ExpressionFailed, match="nested deeper than 100"):
        evaluate(parse("[deep]", Language.FEEL), Bindings({"deep": deep}))


def test_a_value_from_the_variables_is_as_large_as_they_allow() -> None:
    large = ["x" * 1000] * 2000
    assert evaluate(parse("= large", Language.FEEL), Bindings({"large": large})) is large


def test_a_long_expression_is_shortened_in_the_message() -> None:
    with pytest.raises(ExpressionFailed) as caught:
        evaluate(parse("${" + "+".join(["x"] * 1000) + "}", Language.JUEL), Bindings())
    assert len(caught.value.message) < 300
    assert "unknown variable x" in caught.value.message
