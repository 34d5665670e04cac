"""Plain Python functions made compilable: whatever they call is made so, too, without a decorator in sight."""

from __future__ import annotations

import dis
import functools
import hashlib
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

_KNOWN_TO_NUMBA = frozenset({"math", "cmath", "numpy", "operator", "builtins"})

Jit = Callable[[types.FunctionType], Any]


_OUTLINED = "is_outlined"
_TOLD_BY_TEXT = (bool, int, float, complex, str, np.generic, type)
_TYPES = "numba.core.types."  # which convert numbers when they are called
_FRAMEWORK = "envfleet.kernels."  # whose functions take numbers, or the one form of a generator

Function = TypeVar("Function", bound=Callable[..., Any])


def outlined(function: Function) -> Function:
    """Mark a function of a kernel to be called rather than inlined: where it is large, for the sake of compile time.

    By default everything is inlined, which a loop needs to be vectorised.
    """
    vars(function)[_OUTLINED] = True
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
        self._made: dict[tuple[int, str, str], Any] = {}
        self._kept: list[Any] = []  # so that no id is used twice

    def __call__(self, function: Any, records: str = "") -> Any:
        """Make one function; the same function is made once, and anew when what it refers to has changed.

        Args:
            function: Plain, or decorated for another target.
            records: Names the forms of the records it is called with, for which it is made once each: a compiler may
                take a record for another that has fewer fields.
        """
        function = getattr(function, "py_func", function)
        records = "" if function.__module__.startswith(_FRAMEWORK) else records
        key = (id(function), fingerprint([function]), records)
        if key not in self._made:
            self._kept.append(function)
            self._make(function, key)
        return self._made[key]

    def _make(self, function: types.FunctionType, key: tuple[int, str, str]) -> None:
        """Make the same code with globals and closure that hold compilable functions."""
        names = dict(function.__globals__)
        cells = [types.CellType() for _ in function.__closure__ or ()]
        copy = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, tuple(cells))
        copy.__kwdefaults__, copy.__qualname__ = function.__kwdefaults__, function.__qualname__
        copy.__module__ = function.__module__
        # It is kept before what it refers to is made, which may be itself.
        self._made[key] = (self._jit_outlined if _OUTLINED in vars(function) else self._jit)(copy)
        used, records = _names(function.__code__), key[2]
        names.update({name: self._replace(value, used, records) for name, value in references(function)})
        for cell, original in zip(cells, function.__closure__ or (), strict=True):
            cell.cell_contents = self._replace(original.cell_contents, used, records)

    def _replace(self, value: Any, used: set[str], records: str) -> Any:
        """A function made compilable, or a stand-in for a module with those of its members that are used."""
        if _is_function(value):
            return self(value, records)
        if isinstance(value, types.ModuleType) and not _is_known(value):
            stand_in = types.ModuleType(value.__name__)
            members = {name: self._replace(item, used, records) for name, item in vars(value).items() if name in used}
            stand_in.__dict__.update(members)
            return stand_in
        return value


def _is_function(value: Any) -> bool:
    return isinstance(value, types.FunctionType) or hasattr(value, "py_func")


def references(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Global names that a function reads, with their values."""
    for name in sorted(_global_names(function.__code__)):
        if name in function.__globals__:
            yield name, function.__globals__[name]


@functools.lru_cache(maxsize=4096)  # as it is asked for again and again, and slow
def _global_names(code: types.CodeType) -> frozenset[str]:
    """Without names of attributes, which a module may have, too: `state.step` is not the function `step`."""
    names = {each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return frozenset(names).union(*(_global_names(one) for one in code.co_consts if isinstance(one, types.CodeType)))


def _names(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names


def reads_argument(function: Any, position: int) -> bool:
    """Whether a function uses one of its positional arguments at all."""
    name = function.__code__.co_varnames[position]
    # Closures inside the function hold the argument in a cell.
    return name in function.__code__.co_cellvars or any(
        (instruction.opname.startswith("LOAD_") and instruction.argval in (name, (name,)))
        or (isinstance(instruction.argval, tuple) and name in instruction.argval)
        for instruction in dis.get_instructions(function)
    )


def can_be_repeated(function: Any) -> bool:
    """Whether a step may be taken of any state, even one that ended.

    That is, it neither loops nor raises, looks up no global tables, and elements of anything only by constants.
    """
    return not any(
        _may_go_astray(one.__code__) or any(isinstance(value, (np.ndarray, tuple)) for value in _values(one))
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


def fingerprint(functions: list[Any], *more: str) -> str:
    """A hash of all that decides the machine code of some functions: their code, and what it refers to, throughout."""
    digest = hashlib.sha256()
    for function in functions:
        for one in reachable(function):
            _feed_code(digest.update, one.__code__)
            _feed(digest.update, (one.__defaults__, tuple((one.__kwdefaults__ or {}).items())))
            for value in _values(one):
                if not _is_function(value):
                    _feed(digest.update, value)
    for text in more:
        digest.update(text.encode())
    return digest.hexdigest()[:24]


def reachable(function: Any) -> Iterator[types.FunctionType]:
    """A function, and all plain functions that it comes to through names, once each."""
    found, waiting = {id(function)}, [function]
    while waiting:
        one = waiting.pop()
        yield one
        for value in _values(one):
            plain = getattr(getattr(value, "_dispatcher", value), "py_func", value)  # the former of numba.vectorize
            if isinstance(plain, types.FunctionType) and id(plain) not in found:
                found.add(id(plain))
                waiting.append(plain)


def _values(function: types.FunctionType) -> Iterator[Any]:
    """What a function's names and closure stand for; of modules, the members that it names."""
    used = _names(function.__code__)
    waiting = [value for _, value in references(function)]
    waiting += [cell.cell_contents for cell in function.__closure__ or ()]
    while waiting:
        value = waiting.pop()
        if not isinstance(value, types.ModuleType):
            yield value
        elif not _is_known(value):
            waiting += [item for name, item in vars(value).items() if name in used]


def _is_known(module: types.ModuleType) -> bool:
    return module.__name__.partition(".")[0] in _KNOWN_TO_NUMBA


def _feed(update: Callable[[bytes], None], value: Any) -> None:
    """Take in a value that a function refers to, other than a function."""
    if isinstance(value, np.ndarray):
        update(f"{value.dtype}{value.shape}".encode())
        update(value.tobytes())
    elif isinstance(value, (tuple, list)):
        update(f"{type(value).__name__}{len(value)}".encode())
        for item in value:
            _feed(update, item)
    elif value is None or isinstance(value, _TOLD_BY_TEXT) or type(value).__module__.startswith(_TYPES):
        update(repr(value).encode())
    else:  # of a library, or nothing that could be compiled: its text may hold an address, or grow
        update(f"{type(value).__qualname__} {getattr(value, '__name__', '')}".encode())


def _feed_code(update: Callable[[bytes], None], code: types.CodeType) -> None:
    update(code.co_code)
    update(repr(code.co_names + code.co_varnames).encode())
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _feed_code(update, constant)
        else:
            update(repr(constant).encode())
