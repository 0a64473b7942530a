"""Cancelling a program that embeds an engine, whatever it is at."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import pytest
import trio

import stellwerk
from stellwerk.errors import StoreUnavailable

Process: TypeAlias = Callable[..., tuple[str, bytes]]

SECONDS_MAX = 20
STEPS_MAX = 5_000


class _CancelAfter(trio.abc.Instrument):
    """Cancels a scope when trio has run so many steps of tasks."""

    def __init__(self, steps: int) -> None:
        self.steps_left = steps
        self.scope = trio.CancelScope()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps_left -= 1
        if self.steps_left == 0:
            self.scope.cancel()


async def _work_through(file: tuple[str, bytes]) -> None:
    async with stellwerk.open_engine(log_level="error") as engine:
        await engine.deploy(file)
        worker = engine.worker()
        worker.task("work")(lambda payload: {"done": True})
        await engine.start_worker(worker)
        instance_id = await engine.start("order")
        await engine.wait_for_end(instance_id)
        await engine.trace(instance_id)


def test_E6_a_program_can_be_cancelled_at_every_step(process: Process, capfd: pytest.CaptureFixture[str]) -> None:
    async def run(instrument: _CancelAfter) -> None:
        with trio.fail_after(SECONDS_MAX), instrument.scope:
            await _work_through(process("work"))

    for steps in range(1, STEPS_MAX):
        instrument = _CancelAfter(steps)
        trio.run(run, instrument, instruments=[instrument])
        if instrument.steps_left > 0:
            break
    else:
        pytest.fail("the program does not end")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("db", [":memory:", "orders.db"])
async def test_what_is_asked_for_while_tidying_up_after_a_cancellation_is_refused(
    db: str, process: Process, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(str(tmp_path))
    refused: list[str] = []

    async def ask(what: Callable[[], Awaitable[object]]) -> None:
        with trio.CancelScope(shield=True), pytest.raises(StoreUnavailable) as raised:
            await what()
        refused.append(str(raised.value))

    with trio.fail_after(SECONDS_MAX), trio.CancelScope() as scope:
        async with stellwerk.open_engine(db) as engine:
            await engine.deploy(process("approve"))
            instance_id = await engine.start("order")
            scope.cancel()
            try:
                await trio.sleep_forever()
            finally:
                await ask(lambda: engine.start("order"))
                await ask(lambda: engine.start("order", request_id="again"))
                await ask(lambda: engine.start("order", request_id="again"))
                await ask(lambda: engine.cancel(instance_id, "tidy up"))
                await ask(lambda: engine.publish("paid"))
    assert len(refused) == 5
