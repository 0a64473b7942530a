"""For people who test their own BPMN processes, and for whoever writes a store.

`ProcessTest` is an engine in virtual time: deploy, start, complete tasks by element, move the clock to the next timer,
and look at what happened. The pytest fixture ``process_test`` (extra ``testing``) gives one; `open_process_test` opens
one anywhere, and `run_in_virtual_time` runs a program whose clock it can move. `draw_process` draws a process as SVG,
`Coverage` counts what of it was visited.

`StoreContract` is the suite that every store must pass: a new store inherits it (`stellwerk.testing.store_contract`).
`ManualClock` is time that stands still until a test moves it, `StoreWorld` a store with a few helpers to talk to it.
These three need pytest.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stellwerk.testing.coverage import Coverage, ProcessCoverage
    from stellwerk.testing.drawing import Visits, draw_process
    from stellwerk.testing.instance import StartedInstance
    from stellwerk.testing.process_test import ProcessTest, open_process_test
    from stellwerk.testing.store_contract import ManualClock, StoreContract, StoreWorld
    from stellwerk.testing.virtual_time import run_in_virtual_time
    from stellwerk.testing.work import OpenTask, OpenTimer, OpenUserTask

__all__ = [
    "Coverage",
    "ManualClock",
    "OpenTask",
    "OpenTimer",
    "OpenUserTask",
    "ProcessCoverage",
    "ProcessTest",
    "StartedInstance",
    "StoreContract",
    "StoreWorld",
    "Visits",
    "draw_process",
    "open_process_test",
    "run_in_virtual_time",
]

_MODULES = {
    "Coverage": "coverage",
    "ManualClock": "store_contract",
    "OpenTask": "work",
    "OpenTimer": "work",
    "OpenUserTask": "work",
    "ProcessCoverage": "coverage",
    "ProcessTest": "process_test",
    "StartedInstance": "instance",
    "StoreContract": "store_contract",
    "StoreWorld": "store_contract",
    "Visits": "drawing",
    "draw_process": "drawing",
    "open_process_test": "process_test",
    "run_in_virtual_time": "virtual_time",
}


def __getattr__(name: str) -> object:
    """On first use: pytest's plugin lies in this package, and is loaded by everyone's pytest."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"stellwerk.testing.{_MODULES[name]}"), name)
