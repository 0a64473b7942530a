"""The course of the demo: processes up, orders in, a worker and the engine killed, everything checked."""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from urllib.parse import urlsplit

import attrs
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from stellwerk.cli.demo.audit import audit, count_repeated_runs
from stellwerk.cli.demo.engine_api import EngineApi, count_attempts
from stellwerk.cli.demo.intake import OrderIntake
from stellwerk.cli.demo.ledger import EventKind, LedgerEvent, LedgerReader, Outside, open_runs
from stellwerk.cli.demo.orders import RELEASE, SHIP, PlannedOrder, make_orders
from stellwerk.cli.demo.processes import Child, ChildFailed, Children, log_tail, wait_for_listening_url
from stellwerk.cli.demo.report import Result, print_findings, print_table
from stellwerk.cli.mistakes import CommandFailed
from stellwerk.cli.streams import OutputFailed

__all__ = ["run_demo"]

MODEL = "order-saga.bpmn"
ORDERS_PER_SECOND = 25
INTAKE_SECONDS_MIN = 3.0
KILL_WORKER_AFTER = 0.25
KILL_ENGINE_AFTER = 0.55
"""Both are shares of the orders that have been started."""
REPLACE_WORKER_AFTER_SECONDS = 1.0
ENGINE_START_SECONDS_MAX = 30.0
ENDING_SECONDS_MAX = 60.0
"""So long, beyond the intake, the orders may take before the demo gives up."""
LOOK_SECONDS = 0.1
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
EXIT_UNSEEN = 2


def run_demo(
    *, orders: int = 200, workers: int = 4, seed: int = 1, keep: bool = False, console: Console | None = None
) -> int:
    """Run the demo in a directory of its own; returns the exit code: 0 when every check holds.

    :param keep: leave the directory (database, logs, ledgers) behind and say where it is. It also stays on a failure.
    """
    console = console or Console()
    directory = Path(tempfile.mkdtemp(prefix="stellwerk-demo-"))
    exit_code = EXIT_FAILED
    try:
        with _sigterm_interrupts():
            exit_code = _run_in(directory, make_orders(orders, seed), workers, console)
    except KeyboardInterrupt:
        console.print("interrupted")
        exit_code = EXIT_INTERRUPTED
    except OutputFailed:
        # Nobody would learn where the files are.
        exit_code = EXIT_UNSEEN
        raise
    finally:
        if keep or exit_code == EXIT_FAILED:
            console.print(f"The files are in {directory}", highlight=False, soft_wrap=True)
        else:
            shutil.rmtree(directory, ignore_errors=True)
    return exit_code


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """SIGTERM ends the demo as Ctrl-C does: with its children stopped."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run_in(directory: Path, plan: list[PlannedOrder], workers: int, console: Console) -> int:
    for name in ("logs", "ledgers"):
        (directory / name).mkdir()
    try:
        with Children(directory / "logs") as children:
            demo = _Demo(directory, plan, workers, children, console)
            findings, result = demo.run()
    except (ChildFailed, CommandFailed) as error:
        findings, result = [str(error)], None
    if findings:
        print_findings(console, findings)
        _print_log_tails(console, directory / "logs")
        return EXIT_FAILED
    assert result is not None
    print_table(console, result)
    console.print(
        "[green]Checked against the workers' own ledgers:[/] every order was shipped once or compensated in reverse "
        "order. Nothing was lost, and nothing was done twice."
    )
    return 0


def _print_log_tails(console: Console, logs: Path) -> None:
    for log in sorted(logs.glob("*.log")):
        if tail := log_tail(log):
            console.print(f"[bold]the end of {log.name}[/]")
            console.print(tail, markup=False, highlight=False, soft_wrap=True)


@attrs.define(eq=False)
class _Demo:
    directory: Path
    plan: list[PlannedOrder]
    worker_count: int
    children: Children
    console: Console
    began: float = attrs.field(factory=time.monotonic)
    url: str = ""
    engine: Child | None = None
    workers: dict[str, Child] = attrs.field(factory=dict)
    events: list[LedgerEvent] = attrs.field(factory=list)
    workers_killed: int = 0
    engines_killed: int = 0
    worker_killed_at: float | None = None
    worker_replaced: bool = False

    def run(self) -> tuple[list[str], Result]:
        """What is wrong, and what happened.

        :raises ChildFailed: when a process ends that nobody killed.
        """
        self.console.print(f"An order saga ({MODEL}): {len(self.plan)} orders, {self.worker_count} worker processes")
        self.start_engine()
        api = self.make_api()
        api.deploy(MODEL, files("stellwerk.cli.demo").joinpath(MODEL).read_text(encoding="utf-8"))
        for _ in range(self.worker_count):
            self.start_worker()
        with self.progress() as advance:
            self.take_orders(api, advance)
        return self.conclude(api)

    @property
    def intake_seconds(self) -> float:
        return max(INTAKE_SECONDS_MIN, len(self.plan) / ORDERS_PER_SECOND)

    @property
    def deadline(self) -> float:
        return self.began + ENGINE_START_SECONDS_MAX + 2 * self.intake_seconds + ENDING_SECONDS_MAX

    def make_api(self, is_stopped: Callable[[], bool] = lambda: False) -> EngineApi:
        return EngineApi(self.url, self.deadline, is_stopped)

    # --- processes

    def start_engine(self, port: int = 0) -> None:
        log = self.directory / "logs" / "engine.log"
        offset = log.stat().st_size if log.exists() else 0
        database = self.directory / "orders.db"
        self.engine = self.children.start(
            "engine", ["-m", "stellwerk", "serve", "--db", str(database), "--port", str(port)]
        )
        self.url = wait_for_listening_url(self.engine, ENGINE_START_SECONDS_MAX, log_offset=offset)
        self.say(f"engine listens on {self.url}, its store is {database.name}")

    def start_worker(self) -> None:
        name = f"worker-{len(self.workers) + 1}"
        module = "stellwerk.cli.demo.order_worker"
        self.workers[name] = self.children.start(name, ["-m", module, self.url, str(self.directory), name])

    def say(self, what: str) -> None:
        self.console.print(f"[dim]{time.monotonic() - self.began:5.1f} s[/]  {what}", highlight=False)

    # --- the storm

    @contextmanager
    def progress(self) -> Iterator[Callable[[int], None]]:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self.console, transient=True) as progress:
            bar: TaskID = progress.add_task("orders ended", total=len(self.plan))
            yield lambda ended: progress.update(bar, completed=ended)

    def take_orders(self, api: EngineApi, advance: Callable[[int], None]) -> None:
        """Start all orders, kill, and wait until the engine says that every instance has ended, or the deadline."""
        reader = LedgerReader(self.directory / "ledgers")
        with OrderIntake(self.plan, self.make_api, self.intake_seconds) as intake:
            while time.monotonic() < self.deadline:
                self.events.extend(reader.read_new())
                ended = self.count_ended()
                advance(ended)
                intake.raise_failure()
                self.check_children()
                self.do_harm(intake.started / len(self.plan), everything_ended=ended == len(self.plan))
                if ended == len(self.plan) and self.engines_killed and self.all_instances_ended(api):
                    break
                time.sleep(LOOK_SECONDS)
        self.events.extend(reader.read_new())

    def count_ended(self) -> int:
        """Orders whose last step a worker has finished."""
        return len(
            {event.order for event in self.events if event.kind is EventKind.END and event.topic in (SHIP, RELEASE)}
        )

    def all_instances_ended(self, api: EngineApi) -> bool:
        instances = api.instances()
        return len(instances) >= len(self.plan) and all(instance.status != "RUNNING" for instance in instances)

    def check_children(self) -> None:
        for child in (self.engine, *self.workers.values()):
            if child is not None and not child.running and child.process.returncode != -signal.SIGKILL:
                raise ChildFailed(f"{child.name} ended by itself with exit code {child.process.returncode}")

    def do_harm(self, share_started: float, *, everything_ended: bool) -> None:
        """The next of: kill a worker, replace it, kill the engine. A worker without a task is not worth killing."""
        if not self.workers_killed and not everything_ended:
            if share_started >= KILL_WORKER_AFTER:
                self.kill_busiest_worker()
        elif self.workers_killed and not self.worker_replaced:
            self.replace_worker_when_due()
        elif not self.engines_killed and share_started >= KILL_ENGINE_AFTER:
            self.kill_engine()

    def kill_busiest_worker(self) -> None:
        """SIGKILL to the worker with the most tasks in hand; nothing when all are idle just now."""
        in_hand = {name: len(open_runs(self.events, name)) for name in self.workers}
        name = max(in_hand, key=lambda candidate: in_hand[candidate])
        if in_hand[name] == 0:
            return
        self.workers[name].kill()
        self.workers_killed += 1
        self.worker_killed_at = time.monotonic()
        self.say(f"[red]kill -9[/] {name}, with handlers running: {in_hand[name]}")

    def replace_worker_when_due(self) -> None:
        assert self.worker_killed_at is not None
        if time.monotonic() - self.worker_killed_at >= REPLACE_WORKER_AFTER_SECONDS:
            self.start_worker()
            self.worker_replaced = True
            self.say("another worker process takes its place")

    def kill_engine(self) -> None:
        assert self.engine is not None
        self.engine.kill()
        self.engines_killed += 1
        self.say("[red]kill -9[/] the engine, and start it again on the same file")
        port = urlsplit(self.url).port
        assert port is not None
        self.start_engine(port)

    # --- the end

    def conclude(self, api: EngineApi) -> tuple[list[str], Result]:
        self.say("compare the workers' ledgers with what had to happen")
        instances = api.instances()
        tasks = [task for instance in instances for task in api.tasks(instance.instance_id)]
        events = sorted(self.events, key=lambda event: event.at_ns)
        findings = audit(self.plan, instances, events, Outside(self.directory / "outside").keys())
        return findings, Result(
            plan=self.plan,
            counts=count_attempts(tasks),
            renewed=sum(event.kind is EventKind.RENEWED for event in events),
            repeated_runs=count_repeated_runs(events),
            tasks=len(tasks),
            workers_killed=self.workers_killed,
            engines_killed=self.engines_killed,
            seconds=time.monotonic() - self.began,
        )
