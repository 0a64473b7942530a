"""What counts as progress once a simulated cluster is left in peace, and what a task may have to wait for."""

from __future__ import annotations

import attrs
import pytest

from simulations.checks.rehearsal import Rehearsal
from simulations.quiet import Progress
from stellwerk.core.external_task import ExternalTask, TaskState
from stellwerk.ports import ExpireLocks, FailTask

HEAD = (
    '<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" targetNamespace="t"'
    ' xmlns:camunda="http://camunda.org/schema/1.0/bpmn">'
)
ONE_TASK = f"""{HEAD}<process id="one" isExecutable="true">
<startEvent id="s"/><sequenceFlow id="f1" sourceRef="s" targetRef="work"/>
<serviceTask id="work" camunda:type="external" camunda:topic="work"/>
<sequenceFlow id="f2" sourceRef="work" targetRef="e"/><endEvent id="e"/></process></definitions>"""


@attrs.define
class Play:
    """Instances of one task each, at instants that the tests set."""

    now: float = 0.0
    progress: Progress = attrs.field(init=False)
    rehearsal: Rehearsal = attrs.field(init=False)
    definition_id: str = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.progress = Progress(lambda: self.now)
        self.rehearsal = Rehearsal(self.progress)
        self.definition_id = self.rehearsal.deploy(ONE_TASK)

    def task(self, instance_id: str) -> ExternalTask:
        self.rehearsal.start(instance_id, self.definition_id)
        self.rehearsal.pass_ms(1_000)
        (task,) = self.rehearsal.tasks(instance_id)
        return task


@pytest.fixture
def play() -> Play:
    return Play()


def test_V1_a_step_of_an_instance_and_a_failed_attempt_are_progress(play: Play) -> None:
    play.now = 1.0
    task = play.task("i1")
    assert play.progress.last == 1.0
    leased = play.rehearsal.lease(task, "w1", 1_000)
    play.now = 2.0
    play.rehearsal.transact(FailTask(leased.task_id, leased.fence, "d", "broken", None, 0, None, "w1"))
    assert play.progress.last == 2.0


def test_V1_leases_that_come_and_go_are_no_progress(play: Play) -> None:
    task = play.task("i1")
    for play.now in (1.0, 2.0, 3.0):
        assert play.rehearsal.lease(task, "w1", 1_000).state is TaskState.LOCKED
        play.rehearsal.pass_ms(2_000)
        play.rehearsal.transact(ExpireLocks(10))
    assert play.progress.last == 0.0


def test_V3_a_task_waits_in_vain_only_while_none_before_it_is_handed_out(play: Play) -> None:
    older, task, newer = play.task("i1"), play.task("i2"), play.task("i3")
    assert play.progress.passed_over_since(task) == 0.0
    play.now = 1.0
    play.rehearsal.lease(older, "w1", 1_000)
    play.now = 2.0
    play.rehearsal.lease(newer, "w1", 1_000)
    assert play.progress.passed_over_since(task) == 1.0
    other_topic = attrs.evolve(task, topic="other")
    assert play.progress.passed_over_since(other_topic) == 0.0
