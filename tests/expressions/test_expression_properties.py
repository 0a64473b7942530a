"""Whatever the text and the values are: only the two documented errors, and results that a store can keep."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stellwerk.json_values import JsonValue, canonical, dumps
from stellwerk.model.expressions import (
    Bindings,
    Expression,
    ExpressionFailed,
    ExpressionSyntaxError,
    Language,
    evaluate,
    evaluate_condition,
    is_true,
    literal,
    parse,
    parse_template,
)

languages = st.sampled_from(Language)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5)
)
values = st.recursive(
    scalars | st.sampled_from(["", "1", "true", 10**400, 1e308, 5e-324]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
).map(canonical)
names = ["a", "b", "c", "token", "identity", "token.current", "token.history.a", "order total"]
fragments = st.sampled_from(
    [
        *names,
        *(
            "1",
            "0",
            "2.5",
            "1e308",
            "'x'",
            '"y"',
            '""',
            "true",
            "false",
            "null",
            "undefined",
            "[",
            "]",
            "{",
            "}",
            "(",
            ")",
        ),
        *(
            "+",
            "-",
            "*",
            "/",
            "%",
            "**",
            "=",
            "==",
            "===",
            "!=",
            "!",
            "<",
            ">=",
            "&&",
            "||",
            "??",
            "?",
            ":",
            ".",
            "?.",
            ",",
        ),
        *("and", "or", "not", "not(", "empty", "div", "mod", "eq", "lt", "between", "in", "if", "then", "else", "+="),
        *("${", "#{", ";", ".size()", ".length", ".contains(", ".substring(", "string(", "count(", "sum(", "floor("),
        *(
            "append(",
            "substring(",
            "[1]",
            "[-1]",
            "['a']",
            "{a:",
            ".a",
            ".b",
            ".split(",
            ".replace(",
            "JSON.stringify(",
        ),
    ]
)
texts = (
    st.text(max_size=40)
    | st.text(st.characters(categories=None), max_size=40)
    | st.lists(fragments, max_size=20).map(" ".join)
    | st.lists(fragments, max_size=20).map("".join)
)


@st.composite
def sources(draw: st.DrawFn, depth: int = 3) -> str:
    """Mostly well-formed expressions, in operators that at least two languages have."""
    if depth == 0:
        return draw(st.sampled_from(["a", "b", "c", "1", "0", "2.5", '"x"', '"12"', "true", "null", "a.b", "[]", "{}"]))
    inner = sources(depth - 1)
    shape = draw(
        st.sampled_from(
            [
                *("{} + {}", "{} - {}", "{} * {}", "{} / {}", "{} < {}", "{} >= {}", "{} != {}", "({})", "-({})"),
                *("[{}, {}]", '{{"k": {}}}', "({})[{}]", "({}).a", "{} and {}", "{} or {}", "{} && {}", "{} || {}"),
                *("{} == {}", "{} = {}", "{} % {}", "{} ** {}", "not({})", "!{}", "({} ? {} : {})", "{} ?? {}"),
                *("if {} then {} else {}", "{} between {} and {}", "{} in [{}]", "string({})", "count({})", "sum({})"),
                *("({}).toString()", "({}).contains({})", "({}).slice({}, {})", "({}).substring({})", "number({})"),
                *("append({}, {})", "substring({}, {})", "index of({}, {})", "modulo({}, {})", "empty {}", "{} += {}"),
            ]
        )
    )
    count = shape.replace("{{", "").count("{}")
    return shape.format(*(draw(inner) for _ in range(count)))


bindings = st.builds(
    Bindings,
    variables=st.dictionaries(st.sampled_from("abc"), values, max_size=3),
    token_payload=values,
    token_history=st.dictionaries(st.sampled_from("ab"), values, max_size=2),
    identity=values,
)


def read(text: str, language: Language) -> list[Expression]:
    expressions: list[Expression] = []
    errors: list[ExpressionSyntaxError] = []
    for reader in (parse, parse_template):
        try:
            expressions.append(reader(text, language))
        except ExpressionSyntaxError as error:
            errors.append(error)
    assert all(0 <= error.offset <= len(text) and error.what in str(error) for error in errors)
    return expressions


def check(expression: Expression, bound: Bindings) -> None:
    try:
        value = evaluate(expression, bound)
    except ExpressionFailed:
        return
    assert dumps(canonical(value)) == dumps(value)
    assert isinstance(is_true(value, expression.language), bool)
    if expression.is_literal:
        assert dumps(expression.literal_value) == dumps(value)


@given(texts, languages, bindings)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_text_is_read_or_refused_and_evaluates_or_fails(text: str, language: Language, bound: Bindings) -> None:
    for expression in read(text, language):
        check(expression, bound)


@given(sources(), languages, bindings)
@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_expressions_give_json_or_fail(text: str, language: Language, bound: Bindings) -> None:
    for expression in read(text, language):
        check(expression, bound)
        with suppress(ExpressionFailed):
            evaluate_condition(expression, bound)


@given(values)
@settings(deadline=None)
def test_a_literal_round_trips(value: JsonValue) -> None:
    expression = literal(value)
    assert dumps(evaluate(expression, Bindings())) == dumps(value)
    assert hash(expression) == hash(literal(value))


@given(st.text(max_size=30))
def test_feel_text_without_a_mark_is_itself(text: str) -> None:
    if "\x00" not in text and not text.lstrip().startswith("="):
        assert parse_template(text, Language.FEEL).literal_value == text
