"""Changing the running code from outside, for the time of a run: an attribute, an entry of a table, or an expression in
the source of a function.

A function is changed in place (its code object is exchanged), so that every name, table and bound method that refers to
it sees the change. What is not found exactly where it is expected is an error: a deliberate bug that no longer exists
must not look like one that nobody finds.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib import import_module
from types import CodeType, FunctionType
from typing import Any, Protocol

import attrs

__all__ = ["Attribute", "Entry", "Patch", "PatchFailed", "Rewrite", "applied"]

_MISSING = object()
_FUTURE_ANNOTATIONS = 0x1000000
"""``CO_FUTURE_ANNOTATIONS``: the one flag of a compilation that the modules here use."""


class PatchFailed(Exception):
    """What a patch wants to change is not there, or not as it was when the patch was written."""


class Patch(Protocol):
    """A change that can be made and taken back. Targets are named ``package.module:Class.method``."""

    @property
    def target(self) -> str: ...

    def made(self) -> AbstractContextManager[None]:
        """For the time of the context.

        :raises PatchFailed: nothing was changed.
        """


def applied(*patches: Patch) -> ExitStack:
    """All of them, or none.

    :raises PatchFailed: one of them fits nowhere.
    """
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch.made())
        return stack.pop_all()


# --- finding -------------------------------------------------------------------------------------------------------


def _owner_and_name(target: str) -> tuple[object, str]:
    module_name, _, path = target.partition(":")
    try:
        owner: object = import_module(module_name)
    except ImportError as error:
        raise PatchFailed(f"{target}: there is no module {module_name} ({error})") from None
    *outer, name = path.split(".")
    for part in outer:
        owner = _member(owner, part, target)
    _member(owner, name, target)
    return owner, name


def _member(owner: object, name: str, target: str) -> object:
    """Without descriptors at work: a property is the property itself."""
    found: object = inspect.getattr_static(owner, name, _MISSING)
    if found is _MISSING:
        raise PatchFailed(f"{target}: there is no {name} in {owner!r}")
    return found


def _found(target: str) -> object:
    owner, name = _owner_and_name(target)
    return _member(owner, name, target)


def _function(target: str) -> FunctionType:
    found = _found(target)
    if isinstance(found, property):
        found = found.fget
    elif isinstance(found, staticmethod | classmethod):
        found = found.__func__
    if not isinstance(found, FunctionType) or hasattr(found, "__wrapped__"):
        raise PatchFailed(f"{target}: is no plain function")
    return found


# --- attributes and tables -----------------------------------------------------------------------------------------


@attrs.frozen
class Attribute:
    """An attribute of a module or class gets another value."""

    target: str
    change: Callable[[Any], object]
    """The old value → the new one."""

    @contextmanager
    def made(self) -> Iterator[None]:
        owner, name = _owner_and_name(self.target)
        before = _member(owner, name, self.target)
        setattr(owner, name, self.change(before))
        try:
            yield
        finally:
            setattr(owner, name, before)


@attrs.frozen
class Entry:
    """An entry of a table, possibly one that is not there yet."""

    target: str
    path: tuple[object, ...]
    """Keys of the tables inside, the entry's own key last."""
    value: object

    @contextmanager
    def made(self) -> Iterator[None]:
        table, key = self._table(), self.path[-1]
        before = table.get(key, _MISSING)
        if before == self.value:
            raise PatchFailed(f"{self.target}: {key} is {self.value!r} already")
        table[key] = self.value
        try:
            yield
        finally:
            if before is _MISSING:
                del table[key]
            else:
                table[key] = before

    def _table(self) -> MutableMapping[object, object]:
        table = _found(self.target)
        for key in self.path[:-1]:
            if not isinstance(table, Mapping) or key not in table:
                raise PatchFailed(f"{self.target}: there is no entry {key}")
            table = table[key]
        if not isinstance(table, MutableMapping):
            raise PatchFailed(f"{self.target}: is no table")
        return table


# --- source --------------------------------------------------------------------------------------------------------


class Rewrite:
    """A text in the source of a function is replaced by another one; it must occur there exactly once."""

    def __init__(self, target: str, *replacements: tuple[str, str], **names: object) -> None:
        """:param names: what the new text uses and the function's module does not have."""
        self.target = target
        self._replacements = replacements
        self._names = names

    def __repr__(self) -> str:
        return f"Rewrite({self.target!r})"

    @contextmanager
    def made(self) -> Iterator[None]:
        function = _function(self.target)
        before = function.__code__
        after = self._compiled(function)
        for name in self._names:
            if name in function.__globals__:
                raise PatchFailed(f"{self.target}: its module has a {name} of its own")
        function.__globals__.update(self._names)
        function.__code__ = after
        try:
            yield
        finally:
            function.__code__ = before
            for name in self._names:
                del function.__globals__[name]

    def _compiled(self, function: FunctionType) -> CodeType:
        if function.__code__.co_freevars:
            raise PatchFailed(f"{self.target}: a closure cannot be rewritten")
        source = textwrap.dedent(inspect.getsource(function))
        for old, new in self._replacements:
            found = source.count(old)
            if found != 1:
                raise PatchFailed(f"{self.target}: this occurs {found} times, not once:\n{old}")
            source = source.replace(old, new)
        return self._code_of(function, self._definition(source))

    def _definition(self, source: str) -> ast.FunctionDef | ast.AsyncFunctionDef:
        try:
            body = ast.parse(source).body
        except SyntaxError as error:
            raise PatchFailed(f"{self.target}: the new text is no Python: {error}") from None
        if len(body) != 1 or not isinstance(body[0], ast.FunctionDef | ast.AsyncFunctionDef):
            raise PatchFailed(f"{self.target}: its source is no function")
        definition = body[0]
        definition.decorator_list = []
        return definition

    def _code_of(self, function: FunctionType, definition: ast.FunctionDef | ast.AsyncFunctionDef) -> CodeType:
        old = function.__code__
        module = ast.Module([definition], type_ignores=[])
        ast.increment_lineno(module, old.co_firstlineno - 1)
        compiled = compile(module, old.co_filename, "exec", flags=old.co_flags & _FUTURE_ANNOTATIONS, dont_inherit=True)
        codes = [item for item in compiled.co_consts if isinstance(item, CodeType) and item.co_name == old.co_name]
        if len(codes) != 1 or _signature(codes[0]) != _signature(old):
            raise PatchFailed(f"{self.target}: the source on disk is not that of the running code")
        return codes[0].replace(co_qualname=old.co_qualname)


def _signature(code: CodeType) -> tuple[str, tuple[str, ...], int]:
    arguments = code.co_argcount + code.co_kwonlyargcount
    return code.co_name, code.co_varnames[:arguments], code.co_flags & inspect.CO_COROUTINE
