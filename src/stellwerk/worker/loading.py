"""Finds the worker that a command line names: ``MODULE:OBJECT``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from stellwerk.errors import InvalidInput, NotFound
from stellwerk.worker.worker import Worker

__all__ = ["load_worker"]


def load_worker(target: str) -> Worker:
    """``"shop.workers:worker"`` or ``"workers/payment.py:worker"``; without ``:OBJECT`` it is called ``worker``.

    The current directory (for a file: the file's) is put on ``sys.path``. What the module itself raises passes through,
    a `StellwerkError` too.

    :raises InvalidInput: when the text names no worker.
    :raises NotFound: when there is no such module or object.
    """
    module_name, _, object_name = target.partition(":")
    if not module_name:
        raise InvalidInput(f"MODULE:OBJECT is expected, as in shop.workers:worker, not {target!r}")
    module = _load_file(Path(module_name)) if module_name.endswith(".py") else _load_module(module_name)
    found: object = module
    for part in (object_name or "worker").split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise NotFound(f"module {module_name} has no {object_name or 'worker'!r}") from None
    if not isinstance(found, Worker):
        raise InvalidInput(f"{target} is no Worker but of type {type(found).__name__}")
    return found


def _load_module(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise InvalidInput(f"{name!r} is no name of a module")
    _put_on_path(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise NotFound(f"there is no module {name}, seen from {Path.cwd()}") from None
        raise


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise NotFound(f"there is no file {path}")
    path = path.resolve()
    _put_on_path(path.parent)
    return importlib.import_module(path.stem)


def _put_on_path(directory: Path) -> None:
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
