"""JUEL: Camunda 7's coercions, its words, and methods on plain data."""

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
    "responseGood": False,
    "needsReview": True,
    "action": "forum",
    "input": 3,
    "text": "12",
    "nothing": None,
    "items": ["a", "b"],
    "policy": {"verdict": "deny", "rules": [{"id": 1}], "mod": 5},
    "flag": "TRUE",
}


def value_of(text: str) -> JsonValue:
    return evaluate(parse(text, Language.JUEL), Bindings(VARIABLES))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("#{not responseGood}", True),
        ("${needsReview == true}", True),
        ("#{action == 'forum'}", True),
        ("${input == 3 || input == 1}", True),
        ("${input ge 3 and input lt 4 or false}", True),
        ('${"forum" eq action && input ne 4}', True),
        ("${!(input > 2)}", False),
        ("${policy.verdict == 'deny'}", True),
        ("${policy['rules'][0].id}", 1),
        ("${policy.mod mod 3}", 2),
        ("${items[5]}", None),
        ("${policy.missing.deeper}", None),
        ("${input > 2 ? 'many' : 'few'}", "many"),
        ("${input > 9 ? 1 : input > 2 ? 2 : 3}", 2),
        ("${empty nothing and empty '' and not empty items}", True),
        ("${7 div 2}", 3.5),
        ("${-7 % 3}", -1),
        ("${-input}", -3),
        ("${text + 1}", 13),
        ("${text == 12}", True),
        ("${text == '12'}", True),
        ("${flag == true}", True),
        ("${nothing == null}", True),
        ("${nothing + 1}", 1),
        ("${nothing < 1}", False),
        ("${nothing <= null}", True),
        ("${'Order ' + input + 1}", "Order 31"),
        ("${input + 1 + ' orders'}", "4 orders"),
        ("${text += input}", "123"),
        ("${[1, input, {'a': text}]}", [1, 3, {"a": "12"}]),
        ('${"it\'s"}', "it's"),
        (r"${'it\'s'}", "it's"),
        ("${'}'}", "}"),
        ("Order ${input} of #{action}!", "Order 3 of forum!"),
        ("${input}${text}", "312"),
        (" ${input} ", 3),
        ("input * 2", 6),
    ],
)
def test_values(text: str, value: JsonValue) -> None:
    result = value_of(text)
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('"forum".equals(action)', True),
        ("action.equalsIgnoreCase('FORUM')", True),
        ("action.equals(3)", False),
        ("action.contains('or') && action.startsWith('f') && action.endsWith('m')", True),
        ("action.length() + action.indexOf('u')", 8),
        ("action.substring(1, 3).toUpperCase().concat('!')", "OR!"),
        ("' x '.trim().replace('x', 'yy').toLowerCase()", "yy"),
        ("'a,b,,'.split(',')", ["a", "b"]),
        ("items.size()", 2),
        ("items.contains('b')", True),
        ("items.get(1)", "b"),
        ("items.isEmpty() || ''.isEmpty()", True),
        ("policy.get('verdict')", "deny"),
        ("policy.getOrDefault('none', 7)", 7),
        ("policy.containsKey('mod')", True),
        ("policy.keySet()", ["verdict", "rules", "mod"]),
        ("input.toString()", "3"),
        ("(7 / 2).intValue()", 3),
    ],
)
def test_methods_on_plain_data(text: str, value: JsonValue) -> None:
    assert value_of("${" + text + "}") == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("${missing == 1}", "unknown variable missing"),
        ("${action + action}", r"the string 'forum' is not a number \(\+ adds numbers"),
        ("${action == 3}", "the string 'forum' is not a number"),
        ("${input && true}", "the number 3 is not a boolean"),
        ("${action.verdict}", "the string 'forum' has no property verdict"),
        ("${nothing.size()}", r"null has no method size\(\)"),
        ("${input.size()}", r"the number 3 has no method size\(\)"),
        ("${items.get(2)}", r"get\(2\) is outside a list of 2 items"),
        ("${1 / 0}", "division by zero"),
        ("${items < 3}", "a list is not a number"),
        ("${action.substring(9)}", "outside a string of 5 characters"),
        ("${action.split('.')}", "only by plain text"),
    ],
)
def test_what_does_not_fit_fails(text: str, reason: str) -> None:
    with pytest.raises(ExpressionFailed, match=reason) as caught:
        value_of(text)
    assert text in caught.value.message


@pytest.mark.parametrize(
    ("text", "offset", "what"),
    [
        ("${customFlowBean.executeLogic('flow1', execution)}", 17, "method executeLogic() is not available"),
        ("${x.getClass()}", 4, "method getClass() is not available"),
        ("stringEquals(resolution,'approved')", 0, "function stringEquals() is not available"),
        ("${fn:length(x)}", 2, "function fn:length() is not available"),
        ("${x.size(1)}", 4, "size() cannot take 1 arguments"),
        ("${}", 2, "empty"),
        ("${a", 3, "the closing } is missing"),
        ("${a ${b}}", 4, "$ "),
        ("a = b", 2, "unexpected character '='"),
        ("${a b}", 4, "the end is expected, not b"),
        ("x ${a} ${b +}", 12, "a value is expected"),
    ],
)
def test_a_syntax_error_says_what_and_where(text: str, offset: int, what: str) -> None:
    with pytest.raises(ExpressionSyntaxError) as caught:
        parse(text, Language.JUEL)
    assert what in caught.value.what + " "
    assert caught.value.offset == offset


def test_conditions_take_the_string_true() -> None:
    assert is_true("true", Language.JUEL)
    assert is_true(True, Language.JUEL)
    assert not any(is_true(value, Language.JUEL) for value in [None, "", "no", 1, [1], False])


def test_a_condition_that_is_no_boolean_fails() -> None:
    with pytest.raises(ExpressionFailed, match="must give true or false, not the number 3"):
        evaluate_condition(parse("${input}", Language.JUEL), Bindings(VARIABLES))
    with pytest.raises(ExpressionFailed, match="must give true or false, not null: nothing is null"):
        evaluate_condition(parse("${nothing}", Language.JUEL), Bindings(VARIABLES))
    with pytest.raises(ExpressionFailed, match="must give true or false, not the string ''"):
        evaluate_condition(parse("${text}", Language.JUEL), Bindings({"text": ""}))


@pytest.mark.parametrize(("text", "holds"), [("true", True), ("TRUE", True), ("False", False)])
def test_a_condition_may_be_the_word_for_a_boolean(text: str, holds: bool) -> None:
    assert evaluate_condition(parse("${text}", Language.JUEL), Bindings({"text": text})) is holds
