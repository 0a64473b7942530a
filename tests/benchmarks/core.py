"""Three service tasks in a row, in memory and one process: our core and engine, and other engines beside them."""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs
from tests.benchmarks.children import Child
from tests.benchmarks.environments import Environments, Unavailable
from tests.benchmarks.machine import describe_machine
from tests.benchmarks.models import chain

__all__ = ["CoreOptions", "measure_core", "ours"]

Report = Callable[[str], None]

_TASKS = 3
_WARM_UPS = 4
_INSTANCES_MIN = 10
_HERE = Path(__file__).parent


@attrs.frozen(kw_only=True)
class CoreOptions:
    seconds: float = 1.0
    """About how long one round takes."""
    rounds: int = 5
    with_peers: bool = True
    install: bool = True
    """Whether peers that are not there are installed."""
    peer_python: Path | None = None


@attrs.frozen
class _Contestant:
    name: str
    is_ours: bool
    command: Callable[[Environments, Path], Sequence[str]]
    """From where peers live and a directory for its model."""


@attrs.define(eq=False)
class _Running:
    contestant: _Contestant
    child: Child
    version: str
    runtime: str
    instances: int = _INSTANCES_MIN
    rounds: list[Mapping[str, Any]] = attrs.field(factory=list)

    def run(self, instances: int) -> Mapping[str, Any]:
        """:raises AssertionError: it did not do the whole work."""
        figures: Mapping[str, Any] = self.child.ask(instances=instances)
        assert figures["ended"] == instances, f"{self.contestant.name}: {figures}"
        assert figures["handled"] == instances * _TASKS, f"{self.contestant.name}: {figures}"
        return {**figures, "instances": instances}

    def calibrate(self, seconds: float) -> None:
        """Warm up, and find out how many instances take so long."""
        instances = _INSTANCES_MIN
        while True:
            warm_up = self.run(instances)
            if warm_up["seconds"] >= seconds / _WARM_UPS:
                break
            instances *= _WARM_UPS
        self.instances = max(_INSTANCES_MIN, round(instances / warm_up["seconds"] * seconds))


def measure_core(options: CoreOptions, report: Report) -> Mapping[str, object]:
    """Rounds of all contestants are interleaved. Gives plain values for JSON."""
    with tempfile.TemporaryDirectory(prefix="stellwerk-benchmark-") as name, ExitStack() as stack:
        folder = Path(name)
        machine = describe_machine(folder)
        environments = Environments(report, options.install, options.peer_python)
        running, skipped = [], {}
        for contestant in _CONTESTANTS:
            if not (contestant.is_ours or options.with_peers):
                continue
            try:
                running.append(_start(contestant, environments, folder, options.seconds, stack))
            except Unavailable as reason:
                skipped[contestant.name] = str(reason)
                report(f"{contestant.name} is left out: {reason}")
        for number in range(options.rounds):
            report(f"round {number + 1} of {options.rounds}")
            for each in running:
                each.rounds.append(each.run(each.instances))
        return {"machine": machine, "contestants": _summaries(running), "skipped": skipped}


def _start(
    contestant: _Contestant, environments: Environments, folder: Path, seconds: float, stack: ExitStack
) -> _Running:
    command = contestant.command(environments, folder)
    child = stack.enter_context(Child(command, folder / f"{contestant.name}.log"))
    told = child.answer()
    running = _Running(contestant, child, told["version"], told["runtime"])
    running.calibrate(seconds)
    return running


def _summaries(running: Sequence[_Running]) -> list[Mapping[str, object]]:
    cpu = {each.contestant.name: _median(each, _cpu_us) for each in running}
    return [
        {
            "name": each.contestant.name,
            "version": each.version,
            "runtime": each.runtime,
            "instances_per_second": _median(each, _per_second),
            "instances_per_second_rounds": [_per_second(figures) for figures in each.rounds],
            "cpu_us": cpu[each.contestant.name],
            "instances_per_cpu_second": 1e6 / cpu[each.contestant.name],
            "cpu_of_decisions": cpu[each.contestant.name] / cpu["decisions"],
            "cpu_of_embedded": cpu[each.contestant.name] / cpu["embedded"],
        }
        for each in running
    ]


def _median(running: _Running, value: Callable[[Mapping[str, Any]], float]) -> float:
    return statistics.median(value(figures) for figures in running.rounds)


def _per_second(figures: Mapping[str, Any]) -> float:
    return float(figures["instances"] / figures["seconds"])


def _cpu_us(figures: Mapping[str, Any]) -> float:
    return float(figures["cpu_seconds"] / figures["instances"] * 1e6)


# --- who takes part ------------------------------------------------------------------------------------------------


def ours(variant: str) -> Sequence[str]:
    """The command that runs it: decisions, core, core-and-store or embedded."""
    return [sys.executable, "-m", "tests.benchmarks.core_child", variant]


def _ours(variant: str) -> Callable[[Environments, Path], Sequence[str]]:
    def command(_environments: Environments, _folder: Path) -> Sequence[str]:
        return ours(variant)

    return command


def _python_peer(
    package: str, requirement: str, module: str, binding: str, minor_min: int = 11
) -> Callable[[Environments, Path], Sequence[str]]:
    def command(environments: Environments, folder: Path) -> Sequence[str]:
        python = environments.python_with(package, requirement, minor_min=minor_min)
        return [str(python), "-m", f"tests.benchmarks.peers.{module}", str(_model(folder, module, binding))]

    return command


def _camunda_python(variant: str) -> Callable[[Environments, Path], Sequence[str]]:
    command = _python_peer(
        "camunda-python", "camunda-python==0.1.2", "camunda_python", 'camunda:delegateExpression="${noop}"', 12
    )

    def with_variant(environments: Environments, folder: Path) -> Sequence[str]:
        return [*command(environments, folder), variant]

    return with_variant


def _bpmn_engine(environments: Environments, folder: Path) -> Sequence[str]:
    node, home = environments.node_with("bpmn-engine", "25")
    model = _model(folder, "bpmn_engine", 'implementation="${environment.services.noop}"')
    return [str(node), str(_HERE / "peers" / "bpmn_engine.mjs"), str(model), str(home)]


def _model(folder: Path, name: str, binding: str) -> Path:
    file = folder / f"{name}.bpmn"
    file.write_text(chain(tasks=_TASKS, binding=binding))
    return file


_CONTESTANTS = (
    _Contestant("decisions", True, _ours("decisions")),
    _Contestant("core", True, _ours("core")),
    _Contestant("core and store", True, _ours("core-and-store")),
    _Contestant("embedded", True, _ours("embedded")),
    _Contestant("camunda-python", False, _camunda_python("waiting")),
    _Contestant("camunda-python inline", False, _camunda_python("inline")),
    _Contestant("SpiffWorkflow", False, _python_peer("SpiffWorkflow", "spiffworkflow>=3.2", "spiffworkflow", "")),
    _Contestant("bpmn-engine", False, _bpmn_engine),
)
