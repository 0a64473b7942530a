"""Random models, random orders: tokens are neither lost nor doubled, and nothing sleeps for ever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stellwerk.core import commands as c
from stellwerk.json_values import JsonObject
from stellwerk.limits import Limits
from stellwerk.model.process import FailurePolicy

if TYPE_CHECKING:
    from tests.core.conftest import Machine

    Make = Callable[..., Machine]

PROFILE = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _nested(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.one_of(
        st.tuples(st.just("seq"), st.lists(inner, min_size=1, max_size=3)),
        st.tuples(st.just("and"), st.lists(inner, min_size=2, max_size=3)),
        st.tuples(st.just("sub"), inner),
    )


def _wild(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.one_of(
        _nested(inner),
        st.tuples(st.just("guarded"), inner),
        st.tuples(st.just("loop"), inner),
    )


wild_blocks = st.recursive(
    st.sampled_from(["task", "handled", "timed", "noted", "user", "wrong", "undo"]), _wild, max_leaves=8
)
blocks = st.recursive(
    st.sampled_from(["task", "handled", "pass"]),
    _nested,
    max_leaves=8,
)


class Plan:
    """Lines of a drawing for a tree of blocks; ``tasks`` are all external ones, in no order."""

    def __init__(self) -> None:
        self.number = 0
        self.tasks: list[str] = []

    def name(self, prefix: str) -> str:
        self.number += 1
        return f"{prefix}{self.number}"

    def draw(self, block: object, following: str | None, indent: str) -> tuple[str, list[str]]:
        """→ the first element's id, and the lines."""
        arrow = f" -> {following}" if following else ""
        match block:
            case "task":
                name = self.name("t")
                self.tasks.append(name)
                return name, [f"{indent}{name} task T{arrow}"]
            case "handled":
                name = self.name("h")
                self.tasks.append(name)
                return name, [f"{indent}{name} task T{arrow}", f"{indent}no_{name} handler U of {name}"]
            case ("seq", list(parts)):
                lines: list[str] = []
                for part in reversed(parts):
                    following, more = self.draw(part, following, indent)
                    lines += more
                assert following is not None
                return following, lines
            case ("and", list(parts)):
                fork, join = self.name("f"), self.name("j")
                drawn = [self.draw(part, join, indent) for part in parts]
                inside = [line for _, more in drawn for line in more]
                targets = ", ".join(first for first, _ in drawn)
                return fork, [f"{indent}{fork} and -> {targets}", *inside, f"{indent}{join} and{arrow}"]
            case "timed":
                name = self.name("t")
                return name, [f"{indent}{name} task T{arrow}", f"{indent}late_{name} timer@{name} PT1M"]
            case "noted":
                name = self.name("t")
                note = [f"{indent}note_{name} message~{name} note -> u_{name}", f"{indent}u_{name} task N"]
                return name, [f"{indent}{name} task T{arrow}", *note]
            case "user":
                name = self.name("u")
                return name, [f"{indent}{name} user{arrow}"]
            case "wrong":
                name, split = self.name("w"), self.name("g")
                targets = ", ".join([f"{name}[${{bad}}]", f"{following}[default]"] if following else [name])
                return split, [f"{indent}{split} xor -> {targets}", f"{indent}{name} end error WRONG"]
            case "undo":
                name = self.name("c")
                return name, [f"{indent}{name} throw compensate{arrow}"]
            case ("guarded", inner):
                name = self.name("p")
                _, inside = self.draw(inner, None, indent + "  ")
                guard = [f"{indent}all_{name} error@{name}", f"{indent}stop_{name} timer@{name} PT2M"]
                return name, [f"{indent}{name} sub{arrow}", *inside, *guard]
            case ("loop", inner):
                merge, split = self.name("m"), self.name("g")
                first, inside = self.draw(inner, split, indent)
                targets = ", ".join([f"{merge}[${{again}}]", *([f"{following}[default]"] if following else [])])
                if not following:
                    inside.append(f"{indent}end_{split} end")
                    targets += f", end_{split}[default]"
                return merge, [f"{indent}{merge} xor -> {first}", *inside, f"{indent}{split} xor -> {targets}"]
            case ("sub", inner):
                name = self.name("p")
                _, inside = self.draw(inner, None, indent + "  ")
                return name, [f"{indent}{name} sub{arrow}", *inside]
            case _:
                name = self.name("x")
                return name, [f"{indent}{name} pass{arrow}"]


def _model(block: object) -> tuple[str, list[str]]:
    plan = Plan()
    first, lines = plan.draw(block, "e", "")
    return "\n".join([f"s start -> {first}", *lines, "e end"]), plan.tasks


@PROFILE
@given(block=blocks, data=st.data())
def test_E3_every_task_comes_exactly_once_in_whatever_order_they_are_completed(
    machine: Make, block: object, data: st.DataObject
) -> None:
    text, tasks = _model(block)
    run = machine(text)
    run.start()
    done: Counter[str] = Counter()
    while run.status == "RUNNING":
        element_id = data.draw(st.sampled_from(run.open))
        run.complete(element_id, {element_id: 1})
        done[element_id] += 1
    assert run.status == "COMPLETED"
    assert done == Counter(tasks)
    assert run.entered("e") == 1


@PROFILE
@given(block=blocks, data=st.data())
def test_E4_whatever_fails_all_that_was_completed_is_undone_once_in_reverse(
    machine: Make, block: object, data: st.DataObject
) -> None:
    text, _ = _model(block)
    run = machine(text, FailurePolicy.COMPENSATE)
    run.start()
    completed: list[str] = []
    undone: list[str] = []
    for _ in range(200):
        if run.status != "RUNNING":
            break
        if not run.open:
            run.resolve()
            continue
        element_id = data.draw(st.sampled_from(run.open))
        draining = run.live.tasks[run.task(element_id)].draining
        how = data.draw(st.sampled_from(["complete", "complete", "fail", "error"]))
        if how == "complete":
            run.complete(element_id)
            if element_id.startswith("no_"):
                undone.append(element_id.removeprefix("no_"))
            elif element_id.startswith("h"):
                completed.append(element_id)
        elif how == "fail":
            run.fail(element_id)
        else:
            run.bpmn_error(element_id, "WRONG")
        assert draining or not undone or element_id.startswith("no_") or run.status == "RUNNING"
    match run.status:
        case "COMPLETED":
            assert not undone
        case "FAILED":
            assert Counter(undone) == Counter(completed), "each completed activity is undone exactly once"
        case _:
            assert run.status == "RUNNING"


@PROFILE
@given(block=blocks, data=st.data())
def test_cancelling_succeeds_at_any_moment(machine: Make, block: object, data: st.DataObject) -> None:
    text, _ = _model(block)
    run = machine(text, FailurePolicy.COMPENSATE)
    run.start()
    for _ in range(data.draw(st.integers(0, 6))):
        if run.status != "RUNNING" or not run.open:
            break
        element_id = data.draw(st.sampled_from(run.open))
        if data.draw(st.integers(0, 3)) == 0:
            run.fail(element_id)
        else:
            run.complete(element_id)
    if run.status == "RUNNING":
        run.do(c.CancelInstance("now"))
        assert run.status == "CANCELLED"
        assert "READY" not in run.rows.tasks.values()


@settings(PROFILE, max_examples=150)
@given(block=wild_blocks, policy=st.sampled_from(FailurePolicy), data=st.data())
def test_whatever_happens_the_instance_ends_or_something_will_wake_it(
    machine: Make, block: object, policy: FailurePolicy, data: st.DataObject
) -> None:
    """The checks after each step are the test: the fold, the rows, the wake-up sources, nothing left behind."""
    text, _ = _model(block)
    run = machine(text, policy, limits=Limits(instance_tokens_max=200, steps_in_one_command_max=300))
    run.start({"bad": data.draw(st.booleans()), "again": False})
    for _ in range(25):
        if run.status != "RUNNING":
            return
        run.do(data.draw(st.sampled_from(_possible(run, data))))
    if run.status == "RUNNING":
        run.do(c.CancelInstance("now"))
        assert run.status == "CANCELLED"


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
