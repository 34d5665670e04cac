"""What a function refers to, and a hash of all of it: the key under which machine code is kept."""

from __future__ import annotations

import dis
import enum
import functools
import hashlib
import types
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from envfleet.errors import KernelError

_LIBRARIES = frozenset({"builtins", "cmath", "math", "numba", "numpy", "operator"})
"""Packages whose members numba knows by name; what those do is told by the packages' versions."""

OUTLINED = "is_outlined"
"""Attribute of functions that are called rather than inlined."""

_NUMBA_TYPES = "numba.core.types."
_SCALARS = (bool, int, float, complex, str, bytes, types.NoneType, types.EllipsisType, slice)
_OF_CODE = (
    *("co_code", "co_exceptiontable", "co_flags", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount"),
    *("co_names", "co_varnames", "co_freevars", "co_cellvars"),
)
_OUTER = {"LOAD_GLOBAL": True, "LOAD_NAME": True, "LOAD_DEREF": False}  # whether it loads a global
_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
_BETWEEN = ("CACHE", "EXTENDED_ARG", "PUSH_NULL")


def is_of_library(value: Any) -> bool:
    """Return whether a module, class, function or other object belongs to what numba knows by name."""
    module = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
    return isinstance(module, str) and module.partition(".")[0] in _LIBRARIES


def references(function: Any) -> dict[str, Any]:
    """Find what a function's names stand for: globals, its closure, and the members it names of modules and classes.

    Returns:
        Values by the path that the function writes, such as `"TABLE"` or `"geometry.area"`; builtins and names that
            are not defined are left out.
    """
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    found: dict[str, Any] = {}
    for is_global, path in _paths(function.__code__):
        name, *attributes = path
        try:
            value = function.__globals__[name] if is_global else cells[name].cell_contents
        except (KeyError, ValueError):  # a builtin, a variable of the function itself, or a cell that is still empty
            continue
        for attribute in attributes:
            if not isinstance(value, (types.ModuleType, type)) or is_of_library(value) or not hasattr(value, attribute):
                break
            name, value = f"{name}.{attribute}", getattr(value, attribute)
        found[name] = value
    return found


@functools.lru_cache(maxsize=4096)  # as it is asked for again and again, and slow
def _paths(code: types.CodeType) -> tuple[tuple[bool, tuple[str, ...]], ...]:
    """Names that code takes from outside, each with the attributes that follow, and whether it is a global."""
    found = {path for inner in code.co_consts if isinstance(inner, types.CodeType) for path in _paths(inner)}
    is_global, path = False, tuple[str, ...]()
    for instruction in dis.get_instructions(code):
        if path and instruction.opname in _ATTRIBUTE:
            path = (*path, instruction.argval)
        elif instruction.opname not in _BETWEEN:
            found.add((is_global, path))
            is_global = _OUTER.get(instruction.opname, False)
            path = (instruction.argval,) if instruction.opname in _OUTER else ()
    return tuple(sorted(one for one in found if one[1]))


def fingerprint(functions: Iterable[Any], *more: str, has_places: bool = False) -> str:
    """Hash all that decides the machine code of some functions: their code, and what it refers to, throughout.

    Args:
        functions: Which.
        more: What else decides it.
        has_places: Whether files and lines count, too, as in code that names them.

    Raises:
        KernelError: They refer to something whose changes would not be seen; names it and the function.
    """
    digest = hashlib.sha256()

    def feed(text: bytes) -> None:
        digest.update(f"{len(text)} ".encode() + text)

    met: dict[Any, int] = {}
    for function in functions:
        for value, label in _walk(function.__name__, function, met):
            feed(label)
            if has_places and isinstance(value, types.CodeType):
                feed(f"{value.co_filename} {value.co_firstlineno} ".encode() + value.co_linetable)
    for text in more:
        feed(text.encode())
    return digest.hexdigest()[:24]


def reachable(function: Any) -> Iterator[types.FunctionType]:
    """Yield a function, and all that it comes to outside of the libraries, once each."""
    for value, _ in _walk(function.__name__, function, {}):
        if isinstance(value, types.FunctionType) and not is_of_library(value):
            yield value


def _walk(path: str, value: Any, met: dict[Any, int]) -> Iterator[tuple[Any, bytes]]:
    """Yield a value with its label, then likewise the values that it holds.

    Args:
        path: Of the value.
        value: Any.
        met: Functions that were met before, numbered; they may hold themselves, and have no value the next time.
    """
    if isinstance(value, types.FunctionType):
        if value in met:
            yield None, f"as {met[value]}".encode()
            return
        met[value] = len(met)
    own, parts = _take_apart(path, value)
    yield value, f"{type(value).__module__}.{type(value).__qualname__} {own!r} {len(parts)}".encode()
    for part in parts:
        yield from _walk(*part, met)


def _take_apart(path: str, value: Any) -> tuple[Any, list[tuple[str, Any]]]:
    """Return what a value is besides the values that it holds, and those, each with its path.

    Raises:
        KernelError: Nothing tells the value from another.
    """
    kind = type(value)
    own: Any = None
    parts: list[tuple[str, Any]] = []
    if isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
        own = value.dtype, value.shape, hashlib.sha256(value.tobytes()).digest()
    elif isinstance(value, types.CodeType):
        own = [getattr(value, name) for name in _OF_CODE]
        parts = [(path, constant) for constant in value.co_consts]
    elif kind in _SCALARS or (kind.__module__.startswith(_NUMBA_TYPES) and is_of_library(value)):
        own = value
    elif is_of_library(value) and hasattr(value, "__name__"):
        own = getattr(value, "__module__", ""), value.__name__
    elif isinstance(value, types.FunctionType):
        code, named, keywords = value.__code__, references(value), value.__kwdefaults__ or {}
        where = f"{code.co_filename}:{code.co_firstlineno}, in {value.__name__}: it uses "
        own = OUTLINED in vars(value), *named, *keywords
        parts = [(f"{where}a default", default) for default in (*(value.__defaults__ or ()), *keywords.values())]
        parts = [(path, code), *parts, *((where + name, held) for name, held in named.items())]
    elif isinstance(value, tuple):
        own = getattr(value, "_fields", None) or range(len(value))
        parts = [(f"{path}[{place!r}]", item) for place, item in zip(own, value, strict=True)]
    elif isinstance(value, frozenset):  # that a set of constants is, in code
        parts = [(path, item) for item in sorted(value, key=repr)]
    elif isinstance(value, enum.Enum):
        own, parts = value.name, [(f"{path}.value", value.value)]
    elif hasattr(value, "__wrapped__") and not isinstance(value, type):
        parts = [(path, value.__wrapped__)]
    else:
        raise KernelError(
            f"{path}, a {kind.__qualname__}, and compiled code can hold none: use numbers, arrays, functions, and "
            "tuples of these"
        )
    return own, parts
