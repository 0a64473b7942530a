"""What the history tells afterwards: where each token was and why it went, and what the instance was at any step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stellwerk.core import commands as c
from stellwerk.core.facts import Fact, TokenEntered
from stellwerk.core.history import decode_facts
from stellwerk.core.instance import InstanceState
from stellwerk.core.replay import replay
from stellwerk.core.trace import Moment, StayTrace, TokenTrace, Trace, trace
from stellwerk.errors import InvalidInput, InvariantBroken
from stellwerk.json_values import JsonObject
from stellwerk.limits import Limits
from stellwerk.model.process import FailurePolicy

if TYPE_CHECKING:
    from tests.core.conftest import Machine

    Make = Callable[..., Machine]

PROFILE = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@attrs.frozen
class Recorded:
    version: int
    at_ms: int
    facts: tuple[Fact, ...]


def recorded(run: Machine) -> list[Recorded]:
    return [Recorded(version, 1_000 * version, decode_facts(text)) for version, text in enumerate(run.steps, start=1)]


def traced(run: Machine) -> Trace:
    return trace(run.live.instance_id, recorded(run), ())


def path(token: TokenTrace) -> list[str]:
    """``node end`` of each stay."""
    return [stay.node_id if stay.end is None else f"{stay.node_id} {stay.end.value}" for stay in token.stays]


def paths(run: Machine) -> list[list[str]]:
    return [path(token) for token in traced(run).tokens]


def waits(stay: StayTrace) -> list[str]:
    return [f"{wait.kind.value} {wait.node_id} {wait.end.value if wait.end else 'open'}" for wait in stay.waits]


MODELS = {
    "fork and join": """
        s start -> f
        f and -> a, b, c
        a task T -> j
        b user -> j
        c receive paid -> j
        j and -> d
        d task T -> e
        e end
        """,
    "guarded subprocess": """
        s start -> p
        p sub -> e
          q start -> f
          f and -> a, b
          a task T -> w
          b user -> g
          g xor -> x[${bad}], z[default]
          x end error WRONG
          z end
          w end
        caught error@p WRONG -> h
        late timer@p PT1H -> h
        ping message~p news -> n
        again timer~p R3/PT1M -> n
        n task N
        h task H -> e
        e end
        """,
    "saga": """
        s start -> a
        a task T -> p
        no_a handler U of a
        p sub -> f
          b task T
          no_b handler U of b
        f and -> d, t
        d task T -> x
        no_d handler U of d
        x xor -> back[${bad}], w[default]
        w end error WRONG
        t user -> v
        v throw compensate -> e
        back throw compensate -> e
        e end
        """,
    "first of several events": """
        s start -> g
        g first -> m, r, t
        m catch message paid -> x
        r receive refused -> x
        t catch timer PT5M -> stop
        x task T -> y
        y throw link on
        z catch link on -> g2
        g2 xor -> g[${again}], e[default]
        e end
        stop end terminate
        """,
    "terminated": """
        s start -> f
        f and -> a, b, u, w
        a task T -> j
        b task T -> j
        j and -> e
        u user -> stop
        w catch timer PT1M -> e
        stop end terminate
        e end
        """,
}  # fmt: skip


@pytest.fixture
def random_run(machine: Make) -> Callable[[str, FailurePolicy, st.DataObject], tuple[Machine, list[InstanceState]]]:
    """A run of a model in which anything happens, and the live state after each step."""

    def run(name: str, policy: FailurePolicy, data: st.DataObject) -> tuple[Machine, list[InstanceState]]:
        made = machine(MODELS[name], policy, limits=Limits(instance_tokens_max=60))
        made.start({"bad": data.draw(st.booleans()), "again": True})
        states = [made.live.fork()]
        for _ in range(data.draw(st.integers(0, 14))):
            if made.live.ended:
                break
            made.do(data.draw(st.sampled_from(_possible(made, data))))
            states.append(made.live.fork())
        return made, states

    return run


def _possible(run: Machine, data: st.DataObject) -> list[c.Command]:
    live = run.live
    variables: JsonObject = {"bad": data.draw(st.booleans()), "again": data.draw(st.booleans())}
    commands: list[c.Command] = [c.FireTimer(timer_id) for timer_id in live.timers]
    commands += [c.CompleteUserTask(user_task_id, variables) for user_task_id in live.user_tasks]
    commands += [c.CorrelateMessage(subscription_id, "m", variables) for subscription_id in live.subscriptions]
    commands += [c.ResolveIncident(incident_id) for incident_id in live.incidents]
    for task_id, task in live.tasks.items():
        if not task.failed:
            commands.append(c.CompleteTask(task_id, 1, variables, "digest"))
            commands.append(c.ThrowBpmnError(task_id, 1, "WRONG", None, None, variables, "digest"))
            commands.append(c.EndTaskInFailure(task_id, 1, c.FailureKind.RETRIES_EXHAUSTED, "it broke"))
        if task.draining:
            commands.append(c.EndDraining(task_id))
    return commands


@pytest.mark.parametrize("name", MODELS)
@PROFILE
@given(policy=st.sampled_from(FailurePolicy), data=st.data())
def test_P3_replaying_to_any_step_gives_the_state_that_was_there_then(
    random_run: Callable[..., tuple[Machine, list[InstanceState]]],
    name: str,
    policy: FailurePolicy,
    data: st.DataObject,
) -> None:
    run, states = random_run(name, policy, data)
    steps = recorded(run)
    assert [replay(steps, version) for version in range(1, len(steps) + 1)] == states
    assert replay(steps) == run.live


@pytest.mark.parametrize("name", MODELS)
@PROFILE
@given(policy=st.sampled_from(FailurePolicy), data=st.data())
def test_P3_a_trace_has_no_gap_and_agrees_with_what_is_there_at_every_step(
    random_run: Callable[..., tuple[Machine, list[InstanceState]]],
    name: str,
    policy: FailurePolicy,
    data: st.DataObject,
) -> None:
    run, states = random_run(name, policy, data)
    steps = recorded(run)
    for version, state in enumerate(states, start=1):
        _check(trace("i1", steps[:version], ()), state, steps[:version])


def _check(told: Trace, state: InstanceState, steps: Sequence[Recorded]) -> None:
    entered = [fact for step in steps for fact in step.facts if isinstance(fact, TokenEntered)]
    by_token: dict[str, list[tuple[str, str | None]]] = {}
    for fact in entered:
        by_token.setdefault(fact.token_id, []).append((fact.node_id, fact.via))
    assert {token.token_id: [(stay.node_id, stay.via) for stay in token.stays] for token in told.tokens} == by_token, (
        "every stay is told, in order"
    )
    for token in told.tokens:
        _check_token(token, {other.token_id for other in told.tokens})
    here = {token.token_id: token.stays[-1] for token in told.tokens if token.stays[-1].left is None}
    assert {token_id: stay.node_id for token_id, stay in here.items()} == {
        token.id: token.node_id for token in state.tokens.values()
    }
    for activity in state.activities.values():
        assert here[activity.token_id].activity_id == activity.id
    still = {wait.wait_id for token in told.tokens for stay in token.stays for wait in stay.waits if wait.until is None}
    assert still == {*state.timers, *state.subscriptions, *state.user_tasks, *state.incidents}


def _check_token(token: TokenTrace, token_ids: set[str]) -> None:
    for before, after in pairwise(token.stays):
        assert before.left == after.entered
        assert before.end is not None
    for stay in token.stays:
        assert (stay.left is None) == (stay.end is None)
        assert stay.left is None or stay.left.version >= stay.entered.version
        for wait in stay.waits:
            assert wait.since.version >= stay.entered.version
            assert (wait.until is None) == (wait.end is None)
            assert stay.left is None or wait.until is not None, "nothing waits for a token that has gone"
    assert token.parent_id is None or token.parent_id in token_ids
    assert token.merged_into is None or token.merged_into in token_ids - {token.token_id}


# --- what is told --------------------------------------------------------------------------------------------------


def test_P3_a_trace_tells_of_split_and_join(machine: Make) -> None:
    run = machine(MODELS["fork and join"])
    run.start()
    run.finish("b")
    run.message("c")
    run.complete("a")
    run.complete("d")
    assert paths(run) == [
        ["s left", "f left", "a left", "j left", "d left", "e ended"],
        ["b left", "j merged"],
        ["c left", "j merged"],
    ]
    first, second, third = traced(run).tokens
    assert [token.origin.value for token in (first, second, third)] == ["start", "split", "split"]
    assert {second.parent_id, third.parent_id, second.merged_into, third.merged_into} == {first.token_id}
    assert [waits(token.stays[0]) for token in (second, third)] == [["user_task b completed"], ["message c correlated"]]
    join = third.stays[1]
    assert (join.entered, join.left) == (Moment(3, 3_000), Moment(4, 4_000))


def test_P3_a_trace_tells_what_was_interrupted_and_what_was_cancelled(machine: Make) -> None:
    run = machine(MODELS["guarded subprocess"])
    run.start()
    run.fire("again")
    run.message("ping")
    run.fire("late")
    run.complete("n")
    host, inner, other, fired, pinged = traced(run).tokens
    assert path(host) == ["s left", "p interrupted", "late left", "h"]
    assert [path(inner), path(other)] == [["q left", "f left", "a cancelled"], ["b cancelled"]]
    assert [path(fired), path(pinged)] == [["again left", "n ended"], ["ping left", "n"]]
    assert [token.origin.value for token in (inner, other, fired, pinged)] == ["subprocess", "split", "event", "event"]
    assert {token.parent_id for token in (inner, fired, pinged)} == {host.token_id}
    assert waits(host.stays[1]) == [
        "timer late fired",
        "message ping cancelled",
        "timer again fired",
        "timer again cancelled",
    ]


def test_P3_a_trace_tells_of_an_error_and_who_caught_it(machine: Make) -> None:
    run = machine(MODELS["guarded subprocess"])
    run.start({"bad": True})
    run.finish("b")
    host, inner, other = traced(run).tokens
    assert path(host) == ["s left", "p interrupted", "caught left", "h"]
    assert path(inner)[-1] == "a cancelled"
    assert path(other) == ["b left", "g left", "x ended"]
    run.bpmn_error("h", "ODD")
    assert waits(traced(run).tokens[0].stays[-1]) == ["incident h open"]
    run.resolve()
    assert waits(traced(run).tokens[0].stays[-1]) == ["incident h resolved"]


def test_P3_a_trace_tells_what_a_task_error_ended(machine: Make) -> None:
    run = machine("s start -> a\na task T -> e\ncaught error@a -> b\nb task T\ne end")
    run.start()
    run.bpmn_error("a", "NO")
    assert paths(run) == [["s left", "a failed", "caught left", "b"]]


def test_P3_a_trace_tells_of_compensation(machine: Make) -> None:
    run = machine(MODELS["saga"], FailurePolicy.COMPENSATE)
    run.start()
    run.complete("a")
    run.complete("b")
    run.fail("d")
    run.complete("no_b")
    run.complete("no_a")
    assert run.status == "FAILED"
    told = traced(run).tokens
    assert [(token.origin.value, path(token)) for token in told if token.origin.value == "compensation"] == [
        ("compensation", ["no_b ended"]),
        ("compensation", ["no_a ended"]),
    ]
    assert path(told[0]) == ["s left", "a left", "p left", "f left", "d failed"]
    assert ["t cancelled"] in paths(run)


def test_P3_a_trace_tells_a_terminated_token_from_one_that_ended(machine: Make) -> None:
    run = machine(MODELS["terminated"])
    run.start()
    run.complete("a")
    run.finish("u")
    assert run.status == "COMPLETED"
    assert paths(run) == [
        ["s left", "f left", "a left", "j cancelled"],
        ["b cancelled"],
        ["u left", "stop ended"],
        ["w cancelled"],
    ]


def test_P3_a_trace_of_an_event_gateway_tells_which_event_won(machine: Make) -> None:
    run = machine(MODELS["first of several events"])
    run.start({"again": False})
    run.message("r")
    run.complete("x")
    assert paths(run) == [["s left", "g left", "r left", "x left", "y left", "z left", "g2 left", "e ended"]]
    gateway = traced(run).tokens[0].stays[1]
    assert waits(gateway) == ["message m cancelled", "message r correlated", "timer t cancelled"]
    assert [wait.name for wait in gateway.waits] == ["paid", "refused", None]
    assert [wait.key is None for wait in gateway.waits] == [False, False, True]


def test_P3_the_steps_that_can_be_replayed_are_named(machine: Make) -> None:
    run = machine("s start -> a\na task T -> e\ne end")
    run.start()
    run.complete("a")
    for at in (0, 3, -1):
        with pytest.raises(InvalidInput, match=f"there is no step {at}: the instance has steps 1 to 2"):
            replay(recorded(run), at)
    with pytest.raises(InvariantBroken, match="no step 1: step 2 stands in its place"):
        replay(recorded(run)[1:])
    with pytest.raises(InvariantBroken, match="empty"):
        replay([])
