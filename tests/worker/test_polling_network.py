"""A worker that polls, over real sockets, with TLS, with plain functions in threads, and as a program of its own."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import trio

import stellwerk
from stellwerk.app.config import TlsConfig
from stellwerk.app.engine import Engine
from stellwerk.json_values import JsonValue
from stellwerk.worker import Task, Worker

MODEL = b"""<?xml version="1.0" encoding="UTF-8"?>
<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" targetNamespace="t"
             xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn">
  <process id="order" isExecutable="true">
    <startEvent id="s"/><sequenceFlow id="f1" sourceRef="s" targetRef="step"/>
    <serviceTask id="step" stellwerk:topic="work"/>
    <sequenceFlow id="f2" sourceRef="step" targetRef="e"/><endEvent id="e"/>
  </process>
</definitions>
"""
SCRIPT = """
import pathlib
from stellwerk import Worker

worker = Worker("http://127.0.0.1:1", worker_id="script")

@worker.task("work", max_tasks=1)
def work(payload, task):
    if payload["hangs"]:
        pathlib.Path("began").touch()
        task.signal.wait(1.0)
    return {"in_time": not task.cancelled}
"""


async def start(engine: Engine, **variables: JsonValue) -> str:
    await engine.deploy(("order.bpmn", MODEL))
    return await engine.start("order", variables)


async def end_of(engine: Engine, instance_id: str) -> dict[str, object]:
    ended = await engine.wait_for_end(instance_id, timeout_seconds=20)
    assert ended.status == "COMPLETED"
    return dict(await engine.variables(instance_id))


async def test_plain_functions_run_side_by_side_in_threads(nursery: trio.Nursery) -> None:
    together = threading.Barrier(20)
    async with stellwerk.open_engine(port=0) as engine:
        worker = Worker(engine.url, transport="http")

        @worker.task("work", max_tasks=20)
        def work(payload: dict[str, int], task: Task) -> dict[str, bool]:
            together.wait(20)
            task.extend(60)
            return {"locked": task.lock_remaining > 10}

        ids = [await start(engine, number=number) for number in range(20)]
        await nursery.start(worker.serve)
        for number, instance_id in enumerate(ids):
            assert await end_of(engine, instance_id) == {"number": number, "locked": True}
        worker.stop()


async def test_fault_13_a_stop_ends_the_wait_at_the_engine_at_once(nursery: trio.Nursery) -> None:
    async with stellwerk.open_engine(port=0) as engine:
        worker = Worker(engine.url, transport="http", long_polling_timeout=60)
        worker.task("work")(lambda payload: None)
        await nursery.start(worker.serve)
        while not worker.is_healthy():
            await trio.sleep(0.01)
        await trio.sleep(0.1)  # so that the long poll is under way
        before = trio.current_time()
        ended = trio.Event()
        nursery.start_soon(notice_end, worker, ended)
        worker.stop()
        await ended.wait()
        assert trio.current_time() - before < 2, "the engine noticed that the worker had closed its side"


async def notice_end(worker: Worker, ended: trio.Event) -> None:
    while worker.health().is_polling_active or "running" in repr(worker):
        await trio.sleep(0.01)
    ended.set()


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> TlsConfig:
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    files = ["-keyout", str(key), "-out", str(certificate), "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    try:
        subprocess.run([*make, *files], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no certificate can be made: {error}")
    return TlsConfig(certificate=certificate, key=key)


async def test_over_tls_the_work_is_done_and_a_stop_is_noticed(nursery: trio.Nursery, tls: TlsConfig) -> None:
    context = ssl.create_default_context(cafile=str(tls.certificate))
    async with stellwerk.open_engine(port=0, tls=tls) as engine:
        assert engine.url.startswith("https://")
        worker = Worker(engine.url, transport="http", ssl_context=context, long_polling_timeout=60)

        @worker.task("work")
        async def work(payload: object) -> dict[str, bool]:
            return {"done": True}

        with trio.fail_after(20):
            await nursery.start(worker.serve)
            assert await end_of(engine, await start(engine)) == {"done": True}
            ended = trio.Event()
            nursery.start_soon(notice_end, worker, ended)
            before = trio.current_time()
            worker.stop()
            await ended.wait()
        assert trio.current_time() - before < 2


async def test_a_certificate_that_nobody_knows_is_trouble_that_says_so(nursery: trio.Nursery, tls: TlsConfig) -> None:
    async with stellwerk.open_engine(port=0, tls=tls) as engine:
        worker = Worker(engine.url, transport="http")
        worker.task("work")(lambda payload: None)
        errors: list[str] = []
        failed = trio.Event()

        @worker.on_error
        def note(kind: str, error: Exception, task: Task | None) -> None:
            errors.append(f"{kind}: {error}")
            failed.set()

        await nursery.start(worker.serve)
        with trio.fail_after(20):
            await failed.wait()
        worker.stop()
    assert errors[0].startswith("fetchAndLock: ")
    assert "certificate" in errors[0].lower()


async def test_W10_the_command_polls_and_stops_gracefully_on_SIGTERM(nursery: trio.Nursery, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SCRIPT)
    async with stellwerk.open_engine(port=0) as engine:
        command = [sys.executable, "-m", "stellwerk", "worker", "shop", "--url", engine.url, "--transport", "http"]
        process: trio.Process = await nursery.start(
            lambda task_status: trio.run_process(command, cwd=tmp_path, capture_stderr=True, task_status=task_status)
        )
        quick = await start(engine, hangs=False)
        assert await end_of(engine, quick) == {"hangs": False, "in_time": True}
        hanging = await start(engine, hangs=True)
        while not (tmp_path / "began").exists():
            await trio.sleep(0.02)
        (seen,) = await engine.workers()
        assert seen.worker_id == "script"
        os.kill(process.pid, signal.SIGTERM)
        late = await start(engine, hangs=False)
        assert await end_of(engine, hanging) == {"hangs": True, "in_time": True}
        with trio.fail_after(20):
            assert await process.wait() == 0
        assert (await engine.instance(late)).summary.status == "RUNNING"
