"""What a model makes too large or too deep stops its token with an incident: never the engine, never a reader later."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stellwerk.core import commands as c
from stellwerk.core import facts as f
from stellwerk.core.history import encode_facts
from stellwerk.errors import CallerError, InvalidInput
from stellwerk.json_values import DEPTH_MAX, JsonValue
from stellwerk.limits import Limits

if TYPE_CHECKING:
    from tests.core.conftest import Machine

    Make = Callable[..., Machine]

MIB = 1024 * 1024
SMALL = Limits(step_bytes_max=MIB)


def _mappings(kind: str, *pairs: tuple[str, str]) -> str:
    inside = "".join(f'<zeebe:{kind} source="={source}" target="{target}"/>' for source, target in pairs)
    return f"<extensionElements><zeebe:ioMapping>{inside}</zeebe:ioMapping></extensionElements>"


def _process(*nodes: str) -> str:
    """Each node and a sequence flow to the next; ``-> id`` leads from the last one to another."""
    ids = [node.removeprefix("-> ") if node.startswith("->") else node.split('id="')[1].split('"')[0] for node in nodes]
    ways = pairwise(ids)
    flows = "".join(f'<sequenceFlow id="{a}.{b}" sourceRef="{a}" targetRef="{b}"/>' for a, b in ways)
    inside = "".join(node for node in nodes if not node.startswith("->"))
    return f'<process id="process" isExecutable="true">{inside}{flows}</process>'


START = '<startEvent id="s"/>'
MERGE = '<exclusiveGateway id="m"/>'


def _messages(run: Machine) -> list[str]:
    return [fact.message for fact in run.facts if isinstance(fact, f.IncidentOpened)]


def _deep(depth: int) -> JsonValue:
    value: JsonValue = 1
    for _ in range(depth):
        value = [value]
    return value


# --- how much one step writes --------------------------------------------------------------------------------------


def test_a_loop_that_maps_a_large_variable_into_a_subprocess_stops_before_it_fills_the_memory(machine: Make) -> None:
    body = _mappings("input", ("big", "copy")) + '<startEvent id="inner"/>'
    run = machine(_process(START, MERGE, f'<subProcess id="p">{body}</subProcess>', "-> m"), limits=SMALL)
    run.start({"big": "z" * 100_000})
    assert len(encode_facts(run.facts)) < 2 * MIB
    assert [kind for kind, _ in run.incidents] == ["model_fault"]
    assert "one step would write more than 1 MiB" in _messages(run)[0]


def test_after_the_incident_the_token_can_be_sent_on_for_as_much_again(machine: Make) -> None:
    body = _mappings("input", ("big", "copy")) + '<startEvent id="inner"/>'
    run = machine(_process(START, MERGE, f'<subProcess id="p">{body}</subProcess>', "-> m"), limits=SMALL)
    run.start({"big": "z" * 100_000})
    before = len(encode_facts(run.facts))
    run.resolve()
    assert before < len(encode_facts(run.facts)) < 2 * before
    assert len(run.incidents) == 1
    run.do(c.CancelInstance("enough"))


def test_a_wide_fork_copies_large_variables_no_further_than_the_bound(machine: Make) -> None:
    branches = ", ".join(f"t{number}" for number in range(100))
    tasks = "\n".join(f"t{number} task T" for number in range(100))
    run = machine(f"s start -> f\nf and -> {branches}\n{tasks}", limits=SMALL)
    run.start({"lines": ["z" * 100] * 1_000})
    assert 5 < len(run.open) < 20
    assert len(run.open) + len(run.incidents) == 100
    run.resolve()


def test_one_node_with_very_many_mappings_is_stopped_too(machine: Make) -> None:
    many = [(f"big + &quot;{number}&quot;", f"copy{number}") for number in range(500)]
    for node in (
        f'<subProcess id="n">{_mappings("input", *many)}<startEvent id="inner"/></subProcess>',
        f'<task id="n">{_mappings("output", *many)}</task>',
    ):
        run = machine(_process(START, node), limits=SMALL)
        run.start({"big": "z" * 100_000})
        assert run.incidents == [("model_fault", "n")]
        assert len(encode_facts(run.facts)) < MIB


def test_a_task_is_not_created_with_more_variables_than_a_step_may_write(machine: Make) -> None:
    for task in ("a task A", "a user"):
        run = machine(f"s start -> w\nw user -> {task[0]}\n{task}", limits=SMALL)
        run.start({})
        for number in range(30):
            run.do(c.SetVariables({f"v{number}": "z" * 100_000}))
        run.finish("w")
        assert run.incidents == [("model_fault", "a")]


def test_headers_and_texts_of_tasks_count_as_well(machine: Make) -> None:
    text = "z" * 100_000
    xml = _process(
        START, MERGE, '<parallelGateway id="f"/>', f'<userTask id="u" name="{text}"/>', '<endEvent id="e"/>'
    ).replace("</process>", '<sequenceFlow id="again" sourceRef="f" targetRef="m"/></process>')
    run = machine(xml, limits=SMALL)
    run.start()
    assert len(encode_facts(run.facts)) < 2 * MIB
    assert len(run.user_tasks) < 20


def test_tokens_that_split_off_with_a_large_payload_count_as_well(machine: Make) -> None:
    condition = "<conditionExpression>token.current.n === 1</conditionExpression>"
    xml = f"""<process id="process" isExecutable="true">{START}{MERGE}<parallelGateway id="f"/>
      <intermediateCatchEvent id="t"><timerEventDefinition><timeDuration>PT1M</timeDuration></timerEventDefinition>
      </intermediateCatchEvent><exclusiveGateway id="x" default="x.t"/><endEvent id="never"/>
      <sequenceFlow id="s.m" sourceRef="s" targetRef="m"/><sequenceFlow id="m.f" sourceRef="m" targetRef="f"/>
      <sequenceFlow id="f.m" sourceRef="f" targetRef="m"/><sequenceFlow id="f.x" sourceRef="f" targetRef="x"/>
      <sequenceFlow id="x.t" sourceRef="x" targetRef="t"/>
      <sequenceFlow id="x.never" sourceRef="x" targetRef="never">{condition}</sequenceFlow></process>"""
    run = machine(xml, limits=SMALL)
    run.start({"big": "z" * 100_000})
    assert run.live.results, "this is a ProcessCube model"
    assert len(run.live.tokens) < 20


def test_a_long_way_with_a_large_variable_that_is_not_copied_is_no_fault(machine: Make) -> None:
    lines = [f"p{number} pass -> p{number + 1}" for number in range(1_000)]
    run = machine("s start -> p0\n" + "\n".join(lines) + "\np1000 end", limits=SMALL)
    run.start({"big": "z" * 1_000_000})
    assert run.status == "COMPLETED"


def test_a_correlation_key_that_no_message_can_have_is_an_incident(machine: Make) -> None:
    catch = '<intermediateCatchEvent id="n"><messageEventDefinition messageRef="o"/></intermediateCatchEvent>'
    key = '<zeebe:subscription correlationKey="=key"/>'
    root = f'<message id="o" name="order"><extensionElements>{key}</extensionElements></message>'
    run = machine(_process(START, catch) + root)
    run.start({"key": "k" * 1_000})
    assert "the correlation key has 1000 characters" in _messages(run)[0]
    run.do(c.SetVariables({"key": "k-1"}))
    run.resolve()
    assert [subscription.key for subscription in run.live.subscriptions.values()] == ["k-1"]


def test_an_incident_shows_no_more_than_the_beginning_of_a_large_value(machine: Make) -> None:
    timer = "<timerEventDefinition><timeDuration>=big</timeDuration></timerEventDefinition>"
    nodes = (f'<intermediateCatchEvent id="n">{timer}</intermediateCatchEvent>', f'<task id="t">{_mappings("output")}')
    run = machine(_process(START, nodes[0], nodes[1] + "</task>"))
    run.start({"big": "z" * 100_000})
    (message,) = _messages(run)
    assert len(message) <= 1_000


# --- how deep values are nested ------------------------------------------------------------------------------------


def _depth(value: object) -> int:
    """Of an object that may hold others many times over."""
    depth, level = -1, [value]
    while level:
        depth += 1
        inner: dict[int, object] = {}
        for item in level:
            parts = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
            inner.update({id(part): part for part in parts})
        level = list(inner.values())
    return depth


def _check_variables(run: Machine) -> None:
    """Every variable that is written anywhere can be read by the readers of JSON on the way."""
    for fact in run.facts:
        for name in ("variables", "compensation_variables", "payload"):
            assert _depth(getattr(fact, name, None)) <= DEPTH_MAX


def test_a_target_that_is_deeper_than_any_value_is_an_incident(machine: Make) -> None:
    run = machine(_process(START, f'<task id="n">{_mappings("output", ("1", ".".join(["a"] * 2_000)))}</task>'))
    run.start()
    assert run.incidents == [("model_fault", "n")]
    assert "2000 parts" in _messages(run)[0]


def test_a_deep_result_under_a_path_is_an_incident_and_can_be_repaired(machine: Make) -> None:
    definition = '<zeebe:taskDefinition type="T"/>'
    mappings = _mappings("output", ("answer", "a.b.c")).replace("<zeebe:ioMapping>", definition + "<zeebe:ioMapping>")
    run = machine(_process(START, f'<serviceTask id="n">{mappings}</serviceTask>'))
    run.start()
    run.complete("n", {"answer": _deep(DEPTH_MAX - 1)})
    assert run.incidents == [("model_fault", "n")]
    assert 'the variable "a" cannot be kept: the value is nested deeper' in _messages(run)[0]
    run.do(c.SetVariables({"answer": _deep(DEPTH_MAX - 3)}, next(iter(run.live.activities.values())).inner_scope_id))
    run.resolve()
    assert run.status == "COMPLETED"
    _check_variables(run)


@pytest.mark.parametrize(
    ("source", "target"), [("[x]", "x"), ("{a: x}", "x"), ("x", "x.a"), ("x", "x.a.b"), ("[x, x]", "x"), ("x", "y.a.x")]
)
def test_a_variable_that_wraps_itself_again_and_again_ends_as_an_incident(
    machine: Make, source: str, target: str
) -> None:
    more = [("y", "x")] if target.startswith("y") else []
    node = f'<task id="n">{_mappings("output", (source, target), *more)}</task>'
    run = machine(_process(START, MERGE, node, "-> m"))
    run.start({"x": {"text": "z" * 100}})
    assert run.incidents == [("model_fault", "n")]
    _check_variables(run)


def test_a_list_that_is_too_deep_to_become_a_variable_is_refused(machine: Make) -> None:
    run = machine("s start -> a\na task A")
    run.start()
    with pytest.raises(InvalidInput, match="nested deeper than 100"):
        run.complete("a", _deep(DEPTH_MAX))
    run.complete("a", _deep(DEPTH_MAX - 1))
    assert run.status == "COMPLETED"
    _check_variables(run)


# --- whatever is mapped to whatever --------------------------------------------------------------------------------

NAMES = ["x", "y", "x.a", "y.b.c", "z.a.a.a"]
FEEL_SOURCES = [
    *("x", "y", "z", "x.a", "y.b", "[x]", "[x, y]", "[x, x, x]", "{a: x}", "{a: x, b: y, c: z}", "string(x)"),
    *("x + x", "x * x", "x ** 3", "concatenate([x], y)", "append(x, y)", "n * n", "1 / n", "[string(x), string(x)]"),
]
JUEL_SOURCES = ["x", "x.a", "[x]", "[x, y]", "{'a': x}", "x += x", "x + x", "n * n", "'${x}'"]


def _zeebe(kind: str, mapping: tuple[str, str]) -> str:
    return f'<zeebe:{kind} source="={mapping[0]}" target="{mapping[1]}"/>'


def _camunda(kind: str, mapping: tuple[str, str]) -> str:
    source = mapping[0] if "${" in mapping[0] else f"${{{mapping[0]}}}"
    return f'<camunda:{kind}Parameter name="{mapping[1]}">{source}</camunda:{kind}Parameter>'


def _wild_process(*, feel: bool, inputs: list[tuple[str, str]], outputs: list[tuple[str, str]], waits: bool) -> str:
    """A loop over a task and a subprocess with mappings, with or without a wait in it."""
    write = _zeebe if feel else _camunda
    inside = "".join([*(write("input", pair) for pair in inputs), *(write("output", pair) for pair in outputs)])
    frame = "zeebe:ioMapping" if feel else "camunda:inputOutput"
    extension = f"<extensionElements><{frame}>{inside}</{frame}></extensionElements>"
    kind = "userTask" if waits else "task"
    sub = f'<subProcess id="p">{extension}<startEvent id="inner"/></subProcess>'
    return _process(START, MERGE, f'<{kind} id="n">{extension}</{kind}>', sub, "-> m")


mapping_lists = {
    feel: st.lists(
        st.tuples(st.sampled_from(FEEL_SOURCES if feel else JUEL_SOURCES), st.sampled_from(NAMES)), max_size=4
    )
    for feel in (True, False)
}
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
values = st.recursive(
    st.one_of(st.integers(-3, 2**70), texts, st.none(), st.floats(allow_nan=False, allow_infinity=False)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abc"), inner, max_size=3)),
    max_leaves=6,
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(feel=st.booleans(), waits=st.booleans(), data=st.data())
def test_whatever_is_mapped_every_step_can_be_written_and_read(
    machine: Make, feel: bool, waits: bool, data: st.DataObject
) -> None:
    inputs, outputs = data.draw(mapping_lists[feel]), data.draw(mapping_lists[feel])
    limits = Limits(steps_in_one_command_max=250, step_bytes_max=100_000)
    run = machine(_wild_process(feel=feel, inputs=inputs, outputs=outputs, waits=waits), limits=limits)
    run.start({"x": data.draw(values), "y": [], "z": {}, "n": 3})
    for _ in range(6):
        if len(run.steps[-1]) > limits.step_bytes_max:
            break  # large enough to have met the bounds, and slow to be checked again and again
        try:
            if run.user_tasks:
                run.finish("n", {"y": data.draw(values)})
            elif run.incidents:
                run.resolve()
        except CallerError:
            break
    _check_variables(run)
