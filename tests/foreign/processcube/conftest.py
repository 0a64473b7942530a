"""Models in ProcessCube's dialect, and its genuine clients under the test's command."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import attrs
import pytest

PYTHON_CLIENT = ("processcube-client==6.1.2",)

_HEAD = """<?xml version="1.0" encoding="UTF-8"?>
<bpmn:definitions xmlns:bpmn="http://www.omg.org/spec/BPMN/20100524/MODEL"
    xmlns:camunda="http://camunda.org/schema/1.0/bpmn" id="file" targetNamespace="http://example.com"
    exporter="5Minds Studio" exporterVersion="1.0">
"""


@pytest.fixture(scope="session")
def engine(start_engine: Callable[..., Any]) -> Any:
    """One for all these tests: it takes longer to start than most of them to run."""
    return start_engine()


Model: TypeAlias = Callable[..., str]


@pytest.fixture(scope="session")
def model() -> Model:
    """``model("order", '<bpmn:serviceTask id="work" …/>', …)``: start, these nodes in a row, and end.

    ``more`` is further elements of the process, ``root`` of the file.
    """

    def make(process: str, *nodes: str, more: str = "", root: str = "") -> str:
        ids = ["start", *(node.partition('id="')[2].partition('"')[0] for node in nodes), "end"]
        flows = "".join(
            f'<bpmn:sequenceFlow id="to_{target}" sourceRef="{source}" targetRef="{target}"/>'
            for source, target in itertools.pairwise(ids)
        )
        inner = "".join(nodes)
        return (
            f'{_HEAD}{root}<bpmn:process id="{process}" name="{process} by name" isExecutable="true">'
            f'<bpmn:startEvent id="start"/>{inner}<bpmn:endEvent id="end"/>{flows}{more}</bpmn:process>'
            "</bpmn:definitions>"
        )

    return make


@pytest.fixture(scope="session")
def service() -> Callable[..., str]:
    """``service("topic")``: a service task "work" for this topic."""

    def make(topic: str, node_id: str = "work", inner: str = "") -> str:
        kind = f'camunda:type="external" camunda:topic="{topic}"'
        return f'<bpmn:serviceTask id="{node_id}" name="Work" {kind}>{inner}</bpmn:serviceTask>'

    return make


class Refused(Exception):
    """The client's method threw this error."""

    def __init__(self, name: str, code: object, message: str, details: Any) -> None:
        super().__init__(f"{name} {code}: {message}")
        self.name = name
        self.code = code
        self.message = message
        self.details = details


@attrs.define
class Genuine:
    """The genuine JavaScript client: EngineClient, ExternalTaskApiClient (``api``) and workers, in one process."""

    client: Any
    _numbers: Iterator[int] = attrs.field(factory=lambda: itertools.count(1))
    _passed: list[Any] = attrs.field(factory=list)
    """Events that came while something else was waited for."""

    def call(self, method: str, *args: object) -> Any:
        """:raises Refused: what the method threw."""
        return self._run(call=method, args=list(args))

    def begin(self, method: str, *args: object) -> int:
        """Without waiting for the answer, see `answer_to`."""
        number = next(self._numbers)
        self.client.tell(id=number, call=method, args=list(args))
        return number

    def answer_to(self, number: int, seconds: float = 30.0) -> Any:
        found = self._next(lambda event: event.get("id") == number, seconds)
        if found["event"] == "failed":
            raise Refused(found["name"], found.get("code"), found["message"], found.get("details"))
        return found["value"]

    def listen(self, method: str) -> None:
        self._run(listen=method)

    def connect(self) -> None:
        """Returns when the socket of the notifications is connected."""
        self._run(connected=True)

    def start_worker(
        self, name: str, topic: object, behaviour: str = "echo", *, tokens: list[str] | None = None, **config: object
    ) -> None:
        """:param tokens: what its identity has, one after the other; each one that it fetches is an event identity."""
        self._run(worker={"name": name, "topic": topic, "behaviour": behaviour, "config": config, "tokens": tokens})

    def stop_worker(self, name: str) -> None:
        self._run(stop=name)

    def release(self, task_id: str, result: object) -> None:
        """For the behaviour ``hold``."""
        self._run(release=task_id, result=result)

    def paths(self) -> dict[str, str]:
        """All that the client knows of."""
        found: dict[str, str] = self._run(paths=True)
        return found

    def event(self, name: str, seconds: float = 30.0, **values: object) -> Any:
        """The next such event: task, aborted, worker_error, notified."""
        return self._next(
            lambda event: event["event"] == name and all(event.get(key) == value for key, value in values.items()),
            seconds,
        )

    def reset(self) -> None:
        """All workers stop; what came from them is forgotten."""
        self._run(reset=True)
        self._passed.clear()

    def _run(self, **command: object) -> Any:
        number = next(self._numbers)
        self.client.tell(id=number, **command)
        return self.answer_to(number)

    def _next(self, is_it: Callable[[Any], bool], seconds: float) -> Any:
        for index, event in enumerate(self._passed):
            if is_it(event):
                return self._passed.pop(index)
        while True:
            event = self.client.next(seconds)
            if is_it(event):
                return event
            self._passed.append(event)


@pytest.fixture(scope="module")
def _one_for_all(start_node_for_module: Callable[..., Any], engine: Any) -> Genuine:
    return Genuine(start_node_for_module("processcube.mjs", engine.url))


@pytest.fixture
def genuine(_one_for_all: Genuine) -> Iterator[Genuine]:
    """One process for all tests of a file; the workers of a test end with it."""
    yield _one_for_all
    _one_for_all.reset()


@pytest.fixture(scope="session")
def drive() -> type[Genuine]:
    return Genuine


@pytest.fixture
def refused() -> type[Refused]:
    return Refused


@pytest.fixture
def start_genuine_python(start_python: Callable[..., Any], engine: Any) -> Callable[..., Any]:
    """``start("worker", *arguments)``: one of the programs in ``py/processcube.py``, with the genuine client."""

    def start(program: str, *arguments: str) -> Any:
        return start_python(PYTHON_CLIENT, "processcube.py", program, engine.url, *arguments)

    return start
