"""A condition that gives null fails and says why: the token must not silently go the other way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stellwerk.json_values import JsonObject
from stellwerk.model.expressions import Bindings, ExpressionFailed, Language, evaluate, evaluate_condition, parse
from stellwerk.model.expressions.evaluation import evaluate_mapping_condition


def _reason(text: str, variables: JsonObject, language: Language = Language.FEEL) -> str:
    """What is told behind "not null"."""
    expression = parse(text, language)
    assert evaluate(expression, Bindings(variables)) is None
    with pytest.raises(ExpressionFailed) as caught:
        evaluate_condition(expression, Bindings(variables))
    begin = "a condition must give true or false, not null"
    assert caught.value.reason.startswith(begin)
    return caught.value.reason.removeprefix(begin).removeprefix(": ")


@pytest.mark.parametrize(
    ("text", "variables", "reason"),
    [
        ("total > 100", {}, "total is not set"),
        ("total > 100", {"total": None}, "total is null"),
        ("approved", {}, "approved is not set"),
        ("order.total > 1", {}, "order is not set"),
        ("order.total > 1", {"order": {}}, "order.total is not set"),
        ("order.total > 1", {"order": {"total": None}}, "order.total is null"),
        ("order.total > 1", {"order": "A-1"}, 'order is a text ("A-1") and has no total'),
        ("items[3].price > 1", {"items": [{"price": 1}]}, "items[3] is not set"),
        ("items[at] > 1", {"items": [1]}, "at is not set"),
        ('contains(name, "a")', {}, "name is not set"),
        ("total > limit", {}, "total is not set; limit is not set"),
        ("not(total > 100)", {}, "total is not set"),
        ("if true then total > 1 else false", {}, "total is not set"),
    ],
)
def test_what_is_not_set_is_named(text: str, variables: JsonObject, reason: str) -> None:
    assert _reason(text, variables) == reason


@pytest.mark.parametrize(
    ("text", "variables", "reason"),
    [
        (
            "total > 100",
            {"total": "210.0"},
            'total is a text ("210.0"), and is compared with the number 100: write number(total)',
        ),
        (
            "100 < total",
            {"total": "210.0"},
            'total is a text ("210.0"), and is compared with the number 100: write number(total)',
        ),
        (
            "order.total = limit",
            {"order": {"total": "5"}, "limit": 5},
            'order.total is a text ("5"), and is compared with limit, which is the number 5: write number(order.total)',
        ),
        (
            "limit > total",
            {"total": "5", "limit": 5},
            'limit is the number 5, and is compared with total, which is a text ("5"): write number(total)',
        ),
        ("total > 100", {"total": "many"}, 'total is a text ("many"), and is compared with the number 100'),
        (
            "total > 100",
            {"total": "9" * 41},
            "total is a text, and is compared with the number 100: write number(total)",
        ),
        ("total > 100", {"total": True}, "total is the boolean true, and is compared with the number 100"),
        ("total > 100", {"total": []}, "total is a list, and is compared with the number 100"),
        (
            "total between 1 and 10",
            {"total": "5"},
            'total is a text ("5"), and is compared with the number 1: write number(total)',
        ),
        ("number(total) > 1", {"total": "many"}, 'number() gives null, where total is a text ("many")'),
        ("a / b > 1", {"a": 1, "b": 0}, "a calculation gives null, where a is the number 1 and b is the number 0"),
        ("not(vip)", {"vip": "yes"}, 'vip is a text ("yes"), not true or false'),
        (
            "vip and total > 100",
            {"vip": "yes", "total": "5"},
            'vip is a text ("yes"), not true or false; '
            'total is a text ("5"), and is compared with the number 100: write number(total)',
        ),
        ("null", {}, ""),
    ],
)
def test_what_does_not_go_together_is_named(text: str, variables: JsonObject, reason: str) -> None:
    assert _reason(text, variables) == reason


def test_only_what_made_it_null_is_named() -> None:
    assert _reason("note = null and vip and total > 100", {"vip": True, "total": None}) == "total is null"


def test_number_compares_the_text_of_a_number_exactly() -> None:
    for total, holds in (("210.00", True), ("100.01", True), ("100.00", False), ("9.5", False)):
        expression = parse("number(total) > 100", Language.FEEL)
        assert evaluate_condition(expression, Bindings({"total": total})) is holds


def test_what_is_decided_without_the_missing_value_is_no_failure() -> None:
    few = Bindings({"total": 5})
    assert not evaluate_condition(parse("total > 100 and vip", Language.FEEL), few)
    assert evaluate_condition(parse("total < 100 or vip", Language.FEEL), few)
    assert evaluate_condition(parse("vip = null", Language.FEEL), few)


@pytest.mark.parametrize(
    ("text", "variables", "reason"),
    [
        ("${approved}", {"approved": None}, "approved is null"),
        ("${order.approved}", {"order": {}}, "order.approved is not set"),
        ("${vip ? approved : null}", {"vip": False, "approved": True}, ""),
        ("${vip ? approved : true}", {"vip": True, "approved": None}, "approved is null"),
    ],
)
def test_null_fails_in_juel_too(text: str, variables: JsonObject, reason: str) -> None:
    assert _reason(text, variables, Language.JUEL) == reason


def test_null_is_falsy_in_processcube_as_in_javascript() -> None:
    bound = Bindings(token_payload={"total": None})
    assert not evaluate_condition(parse("token.current.total", Language.PROCESSCUBE), bound)
    assert not evaluate_condition(parse("token.current.missing > 3", Language.PROCESSCUBE), bound)


def test_an_error_mapping_that_gives_null_does_not_apply() -> None:
    expression = parse("${errorMessage}", Language.JUEL)
    assert not evaluate_mapping_condition(expression, Bindings({"errorMessage": None}))
    assert evaluate_mapping_condition(parse("${failed}", Language.JUEL), Bindings({"failed": True}))
    with pytest.raises(ExpressionFailed, match="must give true or false, not the number 3"):
        evaluate_mapping_condition(expression, Bindings({"errorMessage": 3}))


def test_a_long_condition_names_three_reasons_and_takes_its_time_once() -> None:
    text = " and ".join(f"a{number} > b{number}" for number in range(500))
    assert _reason(text, {}) == "a0 is not set; b0 is not set; a1 is not set"
    assert len(_reason("x" * 5_000 + " > 1", {})) == 500


_operands = st.sampled_from(["a", "b.c", "c[1]", "1", '"x"', "null", "number(a)", "a + 1", "-b", "(a = b)", "{a: b}.a"])
_values = st.sampled_from([None, True, 0, 1.5, "x", "2", [], [None], ["1"], {}, {"c": 1}, {"c": None}])


@given(
    st.lists(st.tuples(_operands, st.sampled_from([">", "=", "!=", "<="]), _operands), min_size=1, max_size=4),
    st.sampled_from([" and ", " or "]),
    st.dictionaries(st.sampled_from("abc"), _values),
)
def test_whatever_gives_null_is_told_and_never_breaks(
    comparisons: list[tuple[str, str, str]], joined_by: str, variables: JsonObject
) -> None:
    expression = parse(joined_by.join(" ".join(comparison) for comparison in comparisons), Language.FEEL)
    value = evaluate(expression, Bindings(variables))
    if isinstance(value, bool):
        assert evaluate_condition(expression, Bindings(variables)) is value
    else:
        with pytest.raises(ExpressionFailed, match="must give true or false, not null"):
            evaluate_condition(expression, Bindings(variables))
