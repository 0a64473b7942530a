"""stellwerk: a BPMN process engine whose heart is external tasks.

The names below are loaded when they are first used: a worker loads nothing of the engine.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stellwerk.app import Engine, open_engine
    from stellwerk.worker import BpmnError, Task, TaskFailure, Worker

__all__ = ["BpmnError", "Engine", "Task", "TaskFailure", "Worker", "open_engine"]

_MODULES = {"Engine": "stellwerk.app", "open_engine": "stellwerk.app"}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(importlib.import_module(_MODULES.get(name, "stellwerk.worker")), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
