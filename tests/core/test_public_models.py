"""Public BPMN models keep what must always hold. They lie beside the checkout; without them this is skipped."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from stellwerk.core import commands as c
from stellwerk.core.facts import Fact
from stellwerk.core.history import decode_facts
from stellwerk.core.replay import replay
from stellwerk.core.trace import trace
from stellwerk.errors import CallerError
from stellwerk.json_values import JsonObject
from stellwerk.model.process import FailurePolicy
from stellwerk.model.reader import read_definitions

if TYPE_CHECKING:
    from tests.core.conftest import Machine

    Make = Callable[..., Machine]

DATA = Path(__file__).parents[2] / "../shared/data/bpmn"


def _models() -> list[Any]:
    paths = [path for path in sorted(DATA.glob("setA*/*")) if path.suffix in (".bpmn", ".bpmn2", ".xml")]
    found = [pytest.param(path, id=path.name) for path in paths]
    return found or [pytest.param(None, marks=pytest.mark.skip(reason="no public models beside the checkout"))]


@pytest.mark.parametrize("path", _models())
@pytest.mark.parametrize("policy", FailurePolicy)
def test_a_public_model_never_gets_stuck(machine: Make, path: Path, policy: FailurePolicy) -> None:
    """Whatever a model contains: each step keeps what must always hold, and cancelling works."""
    for process in read_definitions(path.read_bytes()).processes:
        starts = [node_id for node_id in process.children if type(process.nodes[node_id]).__name__ == "Event"]
        for start in [None, *starts]:
            run = machine("", policy, process=process)
            _roam(run, start)
            if run.state is not None:
                _check_history(run)


@attrs.frozen
class Recorded:
    version: int
    at_ms: int
    facts: tuple[Fact, ...]


def _check_history(run: Machine) -> None:
    """Requirement P3: what is replayed and traced agrees with what is there."""
    steps = [Recorded(version, version, decode_facts(text)) for version, text in enumerate(run.steps, start=1)]
    assert replay(steps) == run.live
    told = trace("i1", steps, ())
    here = {token.token_id: token.stays[-1].node_id for token in told.tokens if token.stays[-1].left is None}
    assert here == {token.id: token.node_id for token in run.live.tokens.values()}
    for token in told.tokens:
        assert all(before.left == after.entered for before, after in pairwise(token.stays))


def _roam(run: Machine, start: str | None) -> None:
    try:
        run.start({"n": 1, "name": "x"}, start)
    except CallerError:
        return
    for number in range(25):
        if run.status != "RUNNING":
            return
        live = run.live
        tasks = [task_id for task_id, task in live.tasks.items() if not task.failed]
        variables: JsonObject = {"n": number, "approved": number % 2 == 0}
        if number % 7 == 5 and live.incidents:
            run.resolve()
        elif number % 5 == 3 and tasks:
            run.do(c.EndTaskInFailure(tasks[-1], 1, c.FailureKind.RETRIES_EXHAUSTED, "it broke"))
        elif tasks:
            run.do(c.CompleteTask(tasks[0], 1, variables, "digest"))
        elif live.user_tasks:
            run.do(c.CompleteUserTask(next(iter(live.user_tasks)), variables))
        elif live.subscriptions:
            run.do(c.CorrelateMessage(next(iter(live.subscriptions)), "m", variables))
        elif live.timers:
            run.do(c.FireTimer(next(iter(live.timers))))
        else:
            break
    if run.status == "RUNNING":
        run.do(c.CancelInstance("enough"))
        assert run.status == "CANCELLED"


def test_a_compensation_end_event_undoes_the_tweet(machine: Make) -> None:
    path = DATA / "setA/code__InternetThings-Final.bpmn"
    if not path.exists():
        pytest.skip("no public models beside the checkout")
    run = machine("", process=read_definitions(path.read_bytes()).processes[0])
    run.start({"action": "tweet"})
    run.complete("Task_08qm3po")
    run.complete("Task_0ohzlzp", {"responseGood": False})
    assert run.open == ["Task_01t6qxo"]
    run.complete("Task_01t6qxo")
    assert run.status == "COMPLETED"
