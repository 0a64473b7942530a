"""Real processes for the end-to-end tests: engines on SQLite or PostgreSQL, workers, and a small HTTP client."""

from __future__ import annotations

import http.client
import itertools
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from stellwerk.core.facts import TaskCompleted, TokenEntered, VariablesSet
from stellwerk.core.history import decode_facts
from stellwerk.testing.databases import PostgresAccess

_HERE = Path(__file__).parent
_START_SECONDS = 30.0


@attrs.define
class EngineProcess:
    """``stellwerk serve`` on a database; after a kill it starts again on the same port."""

    folder: Path
    options: tuple[str, ...] = ()
    port: int = 0
    process: subprocess.Popen[str] | None = None
    name: str = "engine"
    dsn: str | None = None
    """None: on a file of its own."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def database(self) -> Path:
        return self.folder / f"{self.name}.db"

    @property
    def log(self) -> str:
        return (self.folder / f"{self.name}.log").read_text()

    def start(self) -> None:
        self._close_output()
        database = str(self.database) if self.dsn is None else self.dsn
        command = [sys.executable, "-m", "stellwerk", "serve", "--db", database, "--port", str(self.port)]
        with (self.folder / f"{self.name}.log").open("a") as log:
            self.process = subprocess.Popen(
                [*command, *self.options], stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if "listening on http://" in line:
                self.port = int(line.strip().rsplit(":", 1)[1].rstrip("/"))
                return
        self.end()
        raise AssertionError(f"the engine did not start:\n{self.log}")

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        """After a test: whatever state it is in."""
        if self.process is not None and self.process.poll() is None:
            self.kill()
        self._close_output()

    def _close_output(self) -> None:
        if self.process is not None and self.process.stdout is not None:
            self.process.stdout.close()

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=30)

    def request(self, method: str, path: str, body: object = None) -> Any:
        """The JSON answer; an assertion for every status above 299."""
        status, answer = self.ask(method, path, body)
        assert status < 300, f"{method} {path}: {status} {answer}"
        return answer

    def ask(self, method: str, path: str, body: object = None, seconds: float = 60.0) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        try:
            payload = None if body is None else json.dumps(body)
            connection.request(method, path, payload, {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read()
            return response.status, json.loads(text) if text[:1] in (b"{", b"[") else text.decode()
        finally:
            connection.close()

    def deploy(self, *files: Path, **options: object) -> Any:
        listed = [{"name": file.name, "xml": file.read_text("utf-8")} for file in files]
        return self.request("POST", "/api/v1/process-definitions", {"files": listed, **options})

    def deploy_xml(self, name: str, xml: str) -> Any:
        return self.request("POST", "/api/v1/process-definitions", {"files": [{"name": name, "xml": xml}]})

    def deploy_tasks(self, process: str, attributes: str = "", topics: tuple[str, ...] = (), more: str = "") -> Any:
        """A process of external tasks in a row: one with its topic named like the process, or one for each topic.

        ``attributes`` stand on every task. ``more`` is further elements; the tasks' ids are ``task-0``, ``task-1``, …
        """
        return self.deploy_xml(f"{process}.bpmn", _in_a_row(process, attributes, topics or (process,), more))

    def start_instance(self, process: str, variables: dict[str, object] | None = None, **options: object) -> str:
        body = {"process_def_id": process, "variables": variables or {}, **options}
        answer = self.request("POST", "/api/v1/process-instances", body)
        return str(answer["instance_id"])

    def until(self, condition: Callable[[], bool], seconds: float = _START_SECONDS) -> None:
        """Look again until `condition` holds; other processes give no event to wait for."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "did not happen in time"
            time.sleep(0.02)

    def wait(self, instance_id: str, seconds: float = 30.0) -> Any:
        """The instance's whole view with its history, after its end (or when time is up)."""
        timeout = f"timeout_ms={int(seconds * 1000)}&or_incident=true"
        self.request("GET", f"/api/v1/process-instances/{instance_id}/wait?{timeout}")
        return self.request("GET", f"/api/v1/process-instances/{instance_id}?history=true")


def _in_a_row(process: str, attributes: str, topics: tuple[str, ...], more: str) -> str:
    nodes = [f"task-{number}" for number in range(len(topics))]
    tasks = (
        f'<serviceTask id="{node}" stellwerk:topic="{topic}" {attributes}/>'
        for node, topic in zip(nodes, topics, strict=True)
    )
    flows = (
        f'<sequenceFlow id="flow-{number}" sourceRef="{source}" targetRef="{target}"/>'
        for number, (source, target) in enumerate(itertools.pairwise(["start", *nodes, "end"]))
    )
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn"
             targetNamespace="https://stellwerk.dev/tests">
  <error id="declined" errorCode="DECLINED"/>
  <process id="{process}" isExecutable="true" stellwerk:failurePolicy="incident">
    <startEvent id="start"/> {"".join(tasks)} <endEvent id="end"/> {"".join(flows)}
    {more}
  </process>
</definitions>"""


_GATEWAYS = ("split", "join")


def _at_once(process: str, topics: tuple[str, ...]) -> str:
    ids = [f"task-{number}" for number in range(len(topics))]
    tasks = (f'<serviceTask id="{name}" stellwerk:topic="{topic}"/>' for name, topic in zip(ids, topics, strict=True))
    paths = [("start", "split"), *(("split", name) for name in ids), *((name, "join") for name in ids), ("join", "end")]
    flows = (f'<sequenceFlow id="{a}-{b}" sourceRef="{a}" targetRef="{b}"/>' for a, b in paths)
    gateways = (f'<parallelGateway id="{name}"/>' for name in _GATEWAYS)
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn"
             targetNamespace="https://stellwerk.dev/tests">
  <process id="{process}" isExecutable="true">
    <startEvent id="start"/> {"".join(tasks)} {"".join(gateways)} <endEvent id="end"/> {"".join(flows)}
  </process>
</definitions>"""


@attrs.define
class WorkerProcess:
    process: subprocess.Popen[bytes]
    ledger_file: Path
    reports_file: Path
    log_file: Path

    def ledger(self, event: str | None = None) -> list[dict[str, Any]]:
        """What its handlers noted: begin, end, cancelled."""
        return [line for line in _lines(self.ledger_file) if event in (None, line["event"])]

    def reports(self, event: str) -> list[dict[str, Any]]:
        """What the worker called back: error, heartbeat; and health, stopped."""
        return [line for line in _lines(self.reports_file) if line["event"] == event]

    def is_healthy(self) -> bool:
        return [line["healthy"] for line in self.reports("health")][-1:] == [True]

    def log(self) -> str:
        return self.log_file.read_text()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(timeout=30)


def _lines(file: Path) -> list[dict[str, Any]]:
    """The last line may be half written."""
    whole = file.read_text().rpartition("\n")[0] if file.exists() else ""
    return [json.loads(line) for line in whole.splitlines()]


@attrs.define
class Workers:
    """Starts worker processes and ends them all with the test."""

    folder: Path
    engine: EngineProcess
    started: list[WorkerProcess] = attrs.field(factory=list)

    def start(self, topics: dict[str, list[dict[str, object]]], **options: object) -> WorkerProcess:
        """Options: see scenario_worker.py."""
        scenario = self.folder / f"scenario-{len(self.started)}.json"
        scenario.write_text(json.dumps({"topics": topics, **options}))
        return self._run([sys.executable, str(_HERE / "scenario_worker.py"), self.engine.url, str(scenario)])

    def start_connected(self, topics: dict[str, list[dict[str, object]]], **options: object) -> WorkerProcess:
        worker = self.start(topics, **options)
        self.engine.until(worker.is_healthy)
        return worker

    def run_module(self, name: str, code: str) -> WorkerProcess:
        """``stellwerk worker NAME:worker`` with this code in a file of that name."""
        (self.folder / f"{name}.py").write_text(code)
        return self._run([sys.executable, "-m", "stellwerk", "worker", f"{name}:worker", "--url", self.engine.url])

    def _run(self, command: list[str]) -> WorkerProcess:
        number = len(self.started)
        ledger, reports, log = (
            self.folder / f"{what}-{number}.{kind}"
            for what, kind in (("ledger", "jsonl"), ("reports", "jsonl"), ("worker", "log"))
        )
        arguments = [str(ledger), str(reports)] if "-m" not in command else []
        with log.open("w") as output:
            process = subprocess.Popen(
                [*command, *arguments], stdout=output, stderr=output, cwd=self.folder, start_new_session=True
            )
        self.started.append(WorkerProcess(process, ledger, reports, log))
        return self.started[-1]


@pytest.fixture(scope="session")
def engine_process() -> type[EngineProcess]:
    """For who makes engines of its own; end them."""
    return EngineProcess


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[EngineProcess]:
    process = EngineProcess(tmp_path)
    process.start()
    yield process
    process.end()


@pytest.fixture
def workers(tmp_path: Path, engine: EngineProcess) -> Iterator[Workers]:
    started = Workers(tmp_path, engine)
    yield started
    for worker in started.started:
        if worker.process.poll() is None:
            worker.kill()


# --- several engines on one PostgreSQL -------------------------------------------------------------------------------

ROAMING_TOPICS = ("first", "second", "third")
_LOCK_SECONDS = 5.0
_STUBBORN_LOCK_SECONDS = 1.0
_RESULTS = 60
"""So many are waited for, before a blow and after it."""
_RECOVERY_SECONDS_MAX = 10.0
"""On a machine that does something else as well; most often it takes less than one."""
_LOG_LINES_MAX = 30
"""Of one node, for one trouble from its beginning to its end, workers that come back included."""
_PATIENCE_SECONDS = 5.0
"""So long a starter waits for an answer, before it asks the other node."""
_REFUSED = "refused"
"""No answer from the engine: it is down, or went down meanwhile, or took too long."""


@attrs.define
class RoamingWorker:
    """A process of roaming_worker.py or stubborn_worker.py, and what its ledger says so far."""

    process: subprocess.Popen[bytes]
    ledger_file: Path
    log_file: Path
    lines: list[dict[str, Any]] = attrs.field(factory=list)
    is_killed: bool = False
    is_stubborn: bool = False
    _read_bytes: int = 0

    def ledger(self, event: str) -> list[dict[str, Any]]:
        self._read_on()
        return [line for line in self.lines if line["event"] == event]

    def count(self, event: str) -> int:
        return len(self.ledger(event))

    def _read_on(self) -> None:
        if not self.ledger_file.exists():
            return
        with self.ledger_file.open("rb") as file:
            file.seek(self._read_bytes)
            whole = file.read().rpartition(b"\n")[0]
        self._read_bytes += len(whole) + 1 if whole else 0
        self.lines += [json.loads(line) for line in whole.splitlines()]

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(timeout=30)


@attrs.define
class Cluster:
    """Engines on one database, and workers that go to whichever of them answers."""

    folder: Path
    server: PostgresAccess
    dsn: str
    """Of the database, for who looks into it as an administrator."""
    tasks_max: int = 4
    """Of each topic, that a worker works on at a time."""
    nodes: list[EngineProcess] = attrs.field(factory=list)
    workers: list[RoamingWorker] = attrs.field(factory=list)

    def add_nodes(self, *dsns: str) -> None:
        """Start one on each of these DSNs, all at once."""
        new = [EngineProcess(self.folder, name=f"engine-{number}", dsn=dsn) for number, dsn in enumerate(dsns)]
        self.nodes += new
        with ThreadPoolExecutor() as threads:
            list(threads.map(EngineProcess.start, new))

    def add_workers(self, number: int, stubborn: int = 0) -> None:
        """They begin on one node after the other; waits until all are connected."""
        urls = [node.url for node in self.nodes]
        for position in range(number + stubborn):
            self.workers.append(self._new_worker(urls, is_stubborn=position >= number))
        self.nodes[0].until(lambda: all(worker.count("connected") for worker in self.workers))

    def _new_worker(self, urls: list[str], *, is_stubborn: bool = False) -> RoamingWorker:
        seed = len(self.workers)
        ledger, log_file = self.folder / f"ledger-{seed}.jsonl", self.folder / f"worker-{seed}.log"
        program = "stubborn_worker.py" if is_stubborn else "roaming_worker.py"
        lock_seconds = _STUBBORN_LOCK_SECONDS if is_stubborn else _LOCK_SECONDS
        with log_file.open("w") as log:
            process = subprocess.Popen(
                [
                    sys.executable,
                    str(_HERE / program),
                    str(ledger),
                    str(seed),
                    str(lock_seconds),
                    str(self.tasks_max),
                    *urls,
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return RoamingWorker(process, ledger, log_file, is_stubborn=is_stubborn)

    def replace_worker(self, number: int) -> None:
        """Kill that one of those that run, and start another one."""
        worker = self.running_workers()[number]
        worker.is_killed = True
        worker.process.kill()
        worker.process.wait()
        self.workers.append(self._new_worker([node.url for node in self.nodes]))

    def running_workers(self, *, are_stubborn: bool = False) -> list[RoamingWorker]:
        return [worker for worker in self.workers if not worker.is_killed and worker.is_stubborn is are_stubborn]

    def acknowledged(self) -> int:
        """How many results the engine has taken, for all workers to know."""
        return sum(worker.count("acknowledged") for worker in self.workers)

    def stop(self) -> None:
        """In order: workers first. An assertion when somebody does not go well."""
        for worker in (*self.running_workers(), *self.running_workers(are_stubborn=True)):
            assert worker.stop() == 0, worker.log_file.read_text()
        for node in self.nodes:
            assert node.stop() == 0, node.log

    def end(self) -> None:
        """After a test: whatever state it is in."""
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.process.kill()
                worker.process.wait()
        for node in self.nodes:
            node.end()


@attrs.define
class Load:
    """Starts instances of processes of three tasks all the time, on one node after the other, until each start was
    acknowledged; and holds in the end what was acknowledged against the database."""

    cluster: Cluster
    name: str
    """The business key of its instances."""
    pause_seconds: float = 0.02
    processes: tuple[str, ...] = ("chain",)
    """Each in its turn: ``chain``, the tasks one after the other, and ``fork``, all at once."""
    started: dict[str, str] = attrs.field(factory=dict)
    """By request id."""
    answers: Counter[str] = attrs.field(factory=Counter)
    """How often each other answer came than the one hoped for."""
    variables_set: dict[str, str] = attrs.field(factory=dict)
    """Names of variables, and the instance where it was acknowledged that they are set."""
    variables_refused: set[str] = attrs.field(factory=set)
    """Names of variables that are nowhere."""
    unexpected: list[object] = attrs.field(factory=list)
    _is_over: bool = False
    _starters: int = 0

    def deploy(self) -> None:
        self.cluster.nodes[0].deploy_tasks("chain", topics=ROAMING_TOPICS)
        if "fork" in self.processes:
            self.cluster.nodes[0].deploy_xml("fork.bpmn", _at_once("fork", ROAMING_TOPICS))

    # --- meanwhile -------------------------------------------------------------------------------------------------

    async def start_instances(self, starter: str) -> None:
        numbers = itertools.count(1)
        self._starters += 1
        while not self._is_over:
            await self._start(f"{self.name}-{starter}-{next(numbers)}")
            await trio.sleep(self.pause_seconds)
        self._starters -= 1

    async def _start(self, request_id: str) -> None:
        process = self.processes[len(self.started) % len(self.processes)]
        body = {"process_def_id": process, "business_key": self.name, "request_id": request_id}
        for node in itertools.cycle(self.cluster.nodes[:: 1 if len(self.started) % 2 else -1]):
            status, answer = await _ask(node, "POST", "/api/v1/process-instances", body)
            if status == 201:
                self.started[request_id] = answer["instance_id"]
                return
            if status not in (_REFUSED, 503):
                self.unexpected.append((status, answer))
                return
            self.answers[_REFUSED if status == _REFUSED else answer["detail"]] += 1
            await trio.sleep(0.05)

    async def set_variables(self) -> None:
        """Of instances that run, on one node after the other: a request without an id, which nobody repeats."""
        self._starters += 1
        for number, node in enumerate(itertools.cycle(self.cluster.nodes)):
            if self._is_over:
                break
            await trio.sleep(self.pause_seconds / 2)
            if not self.started:
                continue
            newest = list(self.started.values())[-2:]
            instance_id, name = newest[number % len(newest)], f"set-{number}"
            path = f"/api/v1/process-instances/{instance_id}/variables"
            status, answer = await _ask(node, "POST", path, {"variables": {name: number}})
            if status == 200:
                self.variables_set[name] = instance_id
            elif status in (404, 409):
                self.variables_refused.add(name)
            elif status not in (_REFUSED, 503):
                self.unexpected.append((status, answer))
        self._starters -= 1

    async def recovery(self, after: float = 0.0) -> float:
        """Work goes on soon, by itself. → how long it took

        :param after: the seconds that it may take beside what is usual.
        """
        return await self.progress(_RESULTS, after + _RECOVERY_SECONDS_MAX)

    async def progress(self, results: int, seconds: float = _START_SECONDS) -> float:
        """Wait until so many more results were acknowledged. → how long it took"""
        began = trio.current_time()
        goal = self.cluster.acknowledged() + results
        with trio.move_on_after(seconds):
            while self.cluster.acknowledged() < goal:
                await trio.sleep(0.02)
            return trio.current_time() - began
        missing = goal - self.cluster.acknowledged()
        raise AssertionError(f"{missing} of {results} results are missing after {seconds} s: {self.troubles()}")

    def troubles(self) -> str:
        logs = "\n".join(f"--- {node.name}\n{node.log[-4000:]}" for node in self.cluster.nodes)
        return f"answers {dict(self.answers)}, unexpected {self.unexpected[:3]}\n{logs}"

    # --- in the end ------------------------------------------------------------------------------------------------

    async def end(self) -> None:
        """No more starts; wait until every instance has ended."""
        self._is_over = True
        with trio.fail_after(60):
            while self._starters:
                await trio.sleep(0.02)
        await self.settle(60.0)

    async def settle(self, seconds: float = _RECOVERY_SECONDS_MAX) -> None:
        """Wait until every instance has ended that is there now: nothing was left behind."""
        there = await trio.to_thread.run_sync(self._running)
        with trio.move_on_after(seconds):
            while there:
                await trio.sleep(0.1)
                there &= await trio.to_thread.run_sync(self._running)
            return
        raise AssertionError(f"instances do not end: {sorted(there)[:10]}: {self.troubles()}")

    def _running(self) -> set[str]:
        rows = self._rows("SELECT instance_id FROM stellwerk.instances WHERE business_key = $1 AND status = 'RUNNING'")
        return {row["instance_id"] for row in rows}

    def check(self) -> None:
        """Nothing that was acknowledged is lost, and nothing has happened twice."""
        assert self.unexpected == []
        instances = self._rows("SELECT instance_id, status FROM stellwerk.instances WHERE business_key = $1")
        assert {row["status"] for row in instances} == {"COMPLETED"}
        # A start that was repeated because its answer was lost made no second instance.
        assert sorted(row["instance_id"] for row in instances) == sorted(self.started.values())
        tasks = self._rows(
            """SELECT t.* FROM stellwerk.external_tasks t JOIN stellwerk.instances i ON i.instance_id = process_instance
            WHERE i.business_key = $1"""
        )
        assert Counter(row["state"] for row in tasks) == {"COMPLETED": 3 * len(instances)}
        effects = self._effects()
        for name, instance_id in self.variables_set.items():
            assert name in effects[instance_id]
        assert self.variables_refused.isdisjoint(name for effect in effects.values() for name in effect)
        assert effects.keys() == {row["instance_id"] for row in instances}
        self._check_results({row["task_id"]: row for row in tasks}, effects)

    def _rows(self, statement: str) -> Sequence[Any]:
        return self.cluster.server.query(statement, self.name, dsn=self.cluster.dsn)

    def _effects(self) -> dict[str, dict[str, object]]:
        """By instance: what its variables were set to, each of them once."""
        effects: dict[str, dict[str, object]] = {}
        steps = self._rows(
            """SELECT h.instance_id, h.facts FROM stellwerk.history h JOIN stellwerk.instances i USING (instance_id)
            WHERE i.business_key = $1 ORDER BY h.instance_id, h.version"""
        )
        counted: Counter[tuple[str, str]] = Counter()
        for step in steps:
            instance_id, effect = step["instance_id"], effects.setdefault(step["instance_id"], {})
            for fact in decode_facts(step["facts"]):
                match fact:
                    case TaskCompleted(task_id):
                        counted[instance_id, task_id] += 1
                    case TokenEntered(node_id=node_id):
                        counted[instance_id, node_id] += node_id not in _GATEWAYS
                    case VariablesSet(_, variables):
                        assert effect.keys().isdisjoint(variables), "a request has had its effect twice"
                        effect.update(variables)
                    case _:
                        pass
        counted = +counted
        assert set(counted.values()) == {1}
        assert len(counted) == len(effects) * 8  # start, three tasks and end are entered, three tasks completed
        return effects

    def _check_results(self, tasks: dict[str, Any], effects: dict[str, dict[str, object]]) -> None:
        done = {
            (line["task"], line["fence"]): line for worker in self.cluster.workers for line in worker.ledger("done")
        }
        acknowledged = {
            (line["task"], line["fence"])
            for worker in self.cluster.workers
            for line in worker.ledger("acknowledged")
            if line["task"] in tasks
        }
        assert acknowledged, "the workers have done nothing"
        assert len({task for task, _ in acknowledged}) == len(acknowledged), "a task was completed under two fences"
        for task_id, row in tasks.items():
            # Also where the acknowledgement itself was lost: it is what some worker has handed in.
            line = done[task_id, row["fence"]]
            assert effects[row["process_instance"]][line["topic"]] == line["value"]
            assert row["updated_at"] < row["lock_expire_at"], "it was completed when its lease had run out"
        final = {(task_id, row["fence"]) for task_id, row in tasks.items()}
        assert acknowledged <= final, "acknowledged under a fence that did not complete it"
        refused = {(line["task"], line["fence"]) for line in self.refused()}
        assert refused.isdisjoint(acknowledged), "refused, and acknowledged all the same"
        assert refused.isdisjoint(final), "refused, and done all the same"

    def refused(self) -> list[dict[str, Any]]:
        """Completions that were refused for good, of workers that note it."""
        return [line for worker in self.cluster.workers for line in worker.ledger("refused")]

    def worked_twice(self) -> set[str]:
        """Tasks whose results were handed in under several fences."""
        lines = (line for worker in self.cluster.workers for line in worker.ledger("done"))
        fences = Counter(task for task, _ in {(line["task"], line["fence"]) for line in lines})
        return {task for task, number in fences.items() if number > 1}


async def _ask(node: EngineProcess, method: str, path: str, body: object) -> tuple[int | str, Any]:
    try:
        return await trio.to_thread.run_sync(node.ask, method, path, body, _PATIENCE_SECONDS)
    except (OSError, http.client.HTTPException):
        return _REFUSED, None


@pytest.fixture(scope="session")
def cluster_of() -> type[Cluster]:
    """For who makes clusters of its own; end them."""
    return Cluster


@pytest.fixture(scope="session")
def load_on() -> type[Load]:
    return Load


@pytest.fixture
def loaded(request: pytest.FixtureRequest) -> Callable[[Cluster], AbstractAsyncContextManager[Load]]:
    """Work goes on before, meanwhile, and soon afterwards; in the end all is there, and the logs are short."""

    @asynccontextmanager
    async def run(cluster: Cluster) -> AsyncIterator[Load]:
        load = Load(cluster, request.node.name)
        await trio.to_thread.run_sync(load.deploy)
        lengths = [len(node.log.splitlines()) for node in cluster.nodes]
        async with trio.open_nursery() as nursery:
            for starter in ("one", "other"):
                nursery.start_soon(load.start_instances, starter)
            await load.progress(_RESULTS)
            yield load
            seconds = await load.recovery()
            await load.end()
        load.check()
        print(f"{len(load.started)} instances, {_RESULTS} results in {seconds:.1f} s, {dict(load.answers)}")
        for node, length in zip(cluster.nodes, lengths, strict=True):
            written = node.log.splitlines()[length:]
            assert len(written) <= _LOG_LINES_MAX, "\n".join(written)
            assert "Traceback" not in node.log, node.log

    return run
