"""Camunda's typed variables become JSON values and back: what a client sets is what a client gets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stellwerk.errors import InvalidInput, NotServed
from stellwerk.json_values import JsonObject, JsonValue, canonical_object, dumps, loads
from stellwerk.server.camunda.typed_values import kept_value, kept_variables, typed_value, typed_variables


def kept(value: JsonValue, kind: str | None = None, **info: object) -> JsonValue:
    typed: JsonObject = {"value": value} if kind is None else {"value": value, "type": kind}
    return kept_value({**typed, "valueInfo": info}, "$.variables.x")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("text", "String"),
        ("", "String"),
        (True, "Boolean"),
        (False, "Boolean"),
        (0, "Integer"),
        (-(2**31), "Integer"),
        (2**31, "Long"),
        (-(2**63), "Long"),
        (1.5, "Double"),
        (5.0, "Double"),
        (None, "Null"),
        ("2026-01-31T12:00:00.000+0200", "Date"),
        ('{"a":[1,2.5,null]}', "Json"),
        ("[]", "Json"),
    ],
)
def test_a_value_comes_back_as_it_was_set(value: JsonValue, kind: str) -> None:
    shown = typed_value(kept(value, kind), deserialized=False)
    assert shown == {"type": kind, "value": value, "valueInfo": {}}
    assert type(shown["value"]) is type(value)


def test_types_are_known_in_lower_case_too() -> None:
    assert kept(7, "integer") == 7
    assert kept('{"a":1}', "json") == {"a": 1}
    assert kept(None, "null") is None


def test_a_short_is_an_integer_and_a_number_without_type_is_what_it_is() -> None:
    assert kept(7, "Short") == 7
    assert kept(7) == 7
    assert kept({"deep": [1]}) == {"deep": [1]}


def test_numbers_and_truth_values_are_read_from_text_as_camunda_does() -> None:
    assert kept("42", "Integer") == 42
    assert kept("-7", "Long") == -7
    assert kept("2.5", "Double") == 2.5
    assert kept("true", "Boolean") is True
    assert kept(42, "String") == "42"


def test_a_double_stays_one_though_it_is_written_as_a_whole_number() -> None:
    value = kept(5, "Double")
    assert (value, type(value)) == (5.0, float)


def test_objects_are_kept_where_they_are_serialised_as_json() -> None:
    text = '{"name":"Ann"}'
    info = {"serializationDataFormat": "application/json", "objectTypeName": "com.example.Person"}
    assert kept(text, "Object", **info) == {"name": "Ann"}
    with pytest.raises(NotServed, match="serializationDataFormat must be application/json"):
        kept("rO0ABXVyABN", "Object", serializationDataFormat="application/x-java-serialized-object")


def test_json_is_given_as_text_or_if_asked_for_as_it_is() -> None:
    assert typed_value({"a": 1}, deserialized=False) == {"type": "Json", "value": '{"a":1}', "valueInfo": {}}
    assert typed_value({"a": 1}, deserialized=True) == {"type": "Json", "value": {"a": 1}, "valueInfo": {}}


def test_numbers_beyond_a_long_are_json_which_loses_no_digit() -> None:
    assert typed_value(10**30, deserialized=False) == {"type": "Json", "value": "1" + "0" * 30, "valueInfo": {}}


@pytest.mark.parametrize(
    ("given_date", "kept_date"),
    [
        ("2026-01-31T12:00:00.000+0000", "2026-01-31T12:00:00.000+0000"),
        ("2026-01-31T12:00:00.5-03:30", "2026-01-31T12:00:00.500-0330"),
        ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00.000+0000"),
        ("2026-01-31T12:00:00", "2026-01-31T12:00:00.000+0000"),
    ],
)
def test_dates_are_kept_in_camundas_format(given_date: str, kept_date: str) -> None:
    assert kept(given_date, "Date") == kept_date
    assert typed_value(kept_date, deserialized=False)["type"] == "Date"


def test_other_texts_are_no_dates() -> None:
    for text in ("2026-01-31T12:00:00.000Z", "2026-01-31", "2026-99-31T12:00:00.000+0000", "noon"):
        assert typed_value(text, deserialized=False)["type"] == "String", text


def test_bytes_stay_in_base64() -> None:
    assert kept("aGVsbG8=", "Bytes") == "aGVsbG8="
    with pytest.raises(InvalidInput, match=r"type Bytes .* @ \$\.variables\.x\.value"):
        kept("not base64", "Bytes")


def test_files_are_refused_with_a_way_out() -> None:
    with pytest.raises(NotServed, match=r"keep them elsewhere.* @ \$\.variables\.x"):
        kept("aGVsbG8=", "File", filename="a.txt")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (2**31, "Integer"),
        (2**15, "Short"),
        (2**63, "Long"),
        (1.5, "Integer"),
        (True, "Integer"),
        ("many", "Integer"),
        ("yes", "Boolean"),
        (1, "Boolean"),
        (True, "Double"),
        ("1,5", "Double"),
        (10**400, "Double"),
        ({}, "String"),
        ("1 o'clock", "Date"),
        (7, "Date"),
        ("{", "Json"),
        ({}, "Json"),
        ("x", "Unheard"),
    ],
)
def test_a_value_that_does_not_fit_its_type_is_refused_where_it_stands(value: JsonValue, kind: str) -> None:
    with pytest.raises(InvalidInput, match=r"\$\.variables\.x"):
        kept(value, kind)


@pytest.mark.parametrize("typed", [7, "text", None, [1], {"value": 1, "type": 7}])
def test_what_is_no_typed_value_is_refused(typed: JsonValue) -> None:
    with pytest.raises(InvalidInput, match=r"@ \$\.variables\.x"):
        kept_variables({"x": typed}, "$.variables")


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text("abcde", min_size=1, max_size=3), json_values, max_size=4))
def test_whatever_the_engine_has_a_client_can_send_back_unchanged(variables: JsonObject) -> None:
    wanted = canonical_object(variables)
    on_the_wire = loads(dumps(typed_variables(wanted, deserialized=False)))
    assert isinstance(on_the_wire, dict)
    assert dumps(canonical_object(kept_variables(on_the_wire, "$"))) == dumps(wanted)
