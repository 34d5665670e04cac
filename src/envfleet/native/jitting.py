"""Decoration of plain Python functions for a compiler, together with all functions that they call.

Problem. Users write kernels as plain functions, which call others of any module, without decorators. Numba compiles
only what is decorated, and decorating a user's function in place would change it for everybody.

Solution. `FunctionTree` copies a function: the same code, with globals, closure and defaults that hold decorated copies
of the functions it refers to. `references` finds these in the byte code. A copy is made once, and again if anything
that it refers to has changed (`fingerprint`).

What remains. Functions that are looked up at run time, such as values of a dict, are not found and do not compile.

See ADR 9.
"""

from __future__ import annotations

import dis
import enum
import types
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from envfleet.native.references import OUTLINED, fingerprint, is_of_library, reachable, references
from envfleet.native.views import clip

Jit = Callable[[types.FunctionType], Any]

FRAMEWORK = ("envfleet.kernels.", "envfleet.native.")
"""Prefixes of modules of this package; their functions take numbers or a generator, and need no index checks."""

_NUMPY = types.ModuleType(np.__name__)
"""NumPy as kernels see it: with a `clip` of single numbers."""
vars(_NUMPY).update(vars(np), clip=clip)

Function = TypeVar("Function", bound=Callable[..., Any])


def outlined(function: Function) -> Function:
    """Mark a function of a kernel to be called instead of inlined; for large functions, it saves compile time.

    By default everything is inlined, because a call keeps a loop scalar.
    """
    vars(function)[OUTLINED] = True
    return function


class FunctionTree:
    """Decorator of functions, and of all plain functions they refer to, for one target.

    Args:
        jit: The target's decorator.
        jit_outlined: Decorator of `outlined` functions; by default `jit`.
    """

    def __init__(self, jit: Jit, jit_outlined: Jit | None = None) -> None:
        self._jit = jit
        self._jit_outlined = jit_outlined or jit
        self._copies: dict[tuple[Any, str, str], Any] = {}

    def __call__(self, function: Any, records: str = "") -> Any:
        """Return the decorated copy of a function.

        Args:
            function: Plain function, or one decorated for another target.
            records: Dtypes of the records that it is called with, as text; each text has a copy, because a compiler may
                confuse two records of which one has more fields.
        """
        function = getattr(function, "py_func", function)
        records = "" if (function.__module__ or "").startswith(FRAMEWORK) else records
        key = (function, fingerprint([function]), records)
        if key not in self._copies:
            self._copy(*key)
        return self._copies[key]

    def _copy(self, function: types.FunctionType, key: str, records: str) -> None:
        """Copy a function, with globals, closure and defaults that hold decorated functions."""
        code, used = function.__code__, self._copy_references(function, records)
        cells = tuple(types.CellType(used.pop(name)) if name in used else types.CellType() for name in code.co_freevars)
        defaults = self._replace(function.__defaults__, records)
        copy = types.FunctionType(code, {**function.__globals__, **used}, function.__name__, defaults, cells)
        copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__
        jit = self._jit_outlined if OUTLINED in vars(function) else self._jit
        self._copies[function, key, records] = jit(copy)

    def _copy_references(self, function: types.FunctionType, records: str) -> dict[str, Any]:
        """Return decorated references of a function by name; modules and classes become modules of the used members."""
        copies: dict[str, Any] = {}
        for path, value in references(function).items():
            *modules, name = path.split(".")
            holder = copies
            for module in modules:
                holder = vars(holder.setdefault(module, types.ModuleType(module)))
            holder[name] = self._replace(value, records)
        return copies

    def _replace(self, value: Any, records: str) -> Any:
        """Replace functions in a value by decorated copies, and members of an `IntEnum` by their numbers."""
        if value is np:
            return _NUMPY
        if value is np.clip:
            return clip
        if isinstance(value, enum.IntEnum):
            return int(value)
        if isinstance(value, tuple):
            items = [self._replace(item, records) for item in value]
            return type(value)._make(items) if hasattr(value, "_make") else tuple(items)
        is_plain = isinstance(value, types.FunctionType) and not is_of_library(value)
        return self(value, records) if is_plain or hasattr(value, "py_func") else value


def reads_argument(function: Any, position: int) -> bool:
    """Return whether a function uses one of its positional arguments."""
    if position >= function.__code__.co_argcount:
        return False
    name = function.__code__.co_varnames[position]
    return any(
        instruction.argval == name or (isinstance(instruction.argval, tuple) and name in instruction.argval)
        for instruction in dis.get_instructions(function)
    )


def can_be_repeated(function: Any) -> bool:
    """Return whether a step function can run on any state, even that of an ended episode.

    Such a function neither loops nor raises, uses no global tables, and indexes only by constants.
    """
    return not any(
        _may_fail(called.__code__)
        or any(isinstance(value, (np.ndarray, tuple)) for value in references(called).values())
        for called in reachable(function)
    )


def _may_fail(code: types.CodeType) -> bool:
    before = ""
    for instruction in dis.get_instructions(code):
        name = instruction.opname
        is_element = name in ("BINARY_SUBSCR", "STORE_SUBSCR") or (name == "BINARY_OP" and instruction.argrepr == "[]")
        if "JUMP_BACKWARD" in name or name == "RAISE_VARARGS":
            return True
        if is_element and before not in ("LOAD_CONST", "LOAD_SMALL_INT"):
            return True
        before = name
    return any(_may_fail(inner) for inner in code.co_consts if isinstance(inner, types.CodeType))
