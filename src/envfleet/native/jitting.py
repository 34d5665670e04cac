"""Plain Python functions made compilable: whatever they call is made so, too, without a decorator in sight."""

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
"""Where functions are defined that take numbers, or the one form of a generator, and whose indices are right."""

_NUMPY = types.ModuleType(np.__name__)
"""NumPy as kernels see it."""
vars(_NUMPY).update(vars(np), clip=clip)

Function = TypeVar("Function", bound=Callable[..., Any])


def outlined(function: Function) -> Function:
    """Mark a function of a kernel to be called rather than inlined: where it is large, for the sake of compile time.

    By default everything is inlined, which a loop needs to be vectorised.
    """
    vars(function)[OUTLINED] = True
    return function


class FunctionTree:
    """Makes functions and all plain functions they refer to compilable by one target.

    Args:
        jit: The target's decorator.
        jit_outlined: That for functions that are `outlined`, if it is another.
    """

    def __init__(self, jit: Jit, jit_outlined: Jit | None = None) -> None:
        self._jit = jit
        self._jit_outlined = jit_outlined or jit
        self._made: dict[tuple[Any, str, str], Any] = {}

    def __call__(self, function: Any, records: str = "") -> Any:
        """Make one function; the same function is made once, and anew when what it refers to has changed.

        Args:
            function: Plain, or decorated for another target.
            records: Names the forms of the records it is called with, for which it is made once each: a compiler may
                take a record for another that has fewer fields.
        """
        function = getattr(function, "py_func", function)
        records = "" if (function.__module__ or "").startswith(FRAMEWORK) else records
        key = (function, fingerprint([function]), records)
        if key not in self._made:
            self._make(*key)
        return self._made[key]

    def _make(self, function: types.FunctionType, key: str, records: str) -> None:
        """Make the same code with globals, closure and defaults that hold compilable functions."""
        code, used = function.__code__, self._make_references(function, records)
        cells = tuple(types.CellType(used.pop(name)) if name in used else types.CellType() for name in code.co_freevars)
        defaults = self._replace(function.__defaults__, records)
        copy = types.FunctionType(code, {**function.__globals__, **used}, function.__name__, defaults, cells)
        copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__
        jit = self._jit_outlined if OUTLINED in vars(function) else self._jit
        self._made[function, key, records] = jit(copy)

    def _make_references(self, function: types.FunctionType, records: str) -> dict[str, Any]:
        """Return what a function refers to, compilable, by name; modules and classes become modules of what it uses."""
        made: dict[str, Any] = {}
        for path, value in references(function).items():
            *modules, name = path.split(".")
            holder = made
            for module in modules:
                holder = vars(holder.setdefault(module, types.ModuleType(module)))
            holder[name] = self._replace(value, records)
        return made

    def _replace(self, value: Any, records: str) -> Any:
        """Replace functions in a value by compilable ones, and members of an `IntEnum` by their numbers."""
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
    """Return whether a function uses one of its positional arguments at all."""
    if position >= function.__code__.co_argcount:
        return False
    name = function.__code__.co_varnames[position]
    return any(
        instruction.argval == name or (isinstance(instruction.argval, tuple) and name in instruction.argval)
        for instruction in dis.get_instructions(function)
    )


def can_be_repeated(function: Any) -> bool:
    """Return whether a step may be taken of any state, even one that ended.

    That is, it neither loops nor raises, looks up no global tables, and elements of anything only by constants.
    """
    return not any(
        _may_go_astray(one.__code__)
        or any(isinstance(value, (np.ndarray, tuple)) for value in references(one).values())
        for one in reachable(function)
    )


def _may_go_astray(code: types.CodeType) -> bool:
    before = ""
    for instruction in dis.get_instructions(code):
        name = instruction.opname
        is_element = name in ("BINARY_SUBSCR", "STORE_SUBSCR") or (name == "BINARY_OP" and instruction.argrepr == "[]")
        if "JUMP_BACKWARD" in name or name == "RAISE_VARARGS":
            return True
        if is_element and before not in ("LOAD_CONST", "LOAD_SMALL_INT"):
            return True
        before = name
    return any(_may_go_astray(inner) for inner in code.co_consts if isinstance(inner, types.CodeType))
