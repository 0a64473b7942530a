"""stellwerk: a BPMN process engine whose heart is external tasks."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stellwerk.worker import BpmnError, Task, TaskFailure, Worker

__all__ = ["BpmnError", "Task", "TaskFailure", "Worker"]


def __getattr__(name: str) -> object:
    """What workers need, without making every import of the package pay for it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("stellwerk.worker"), name)
