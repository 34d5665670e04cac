"""References of a function to globals, closures and members, and a hash of them: the key of cached machine code.

Problem. Compiled code contains the functions that a kernel calls and the constants that it uses, of any module. If one
changes, the cached code is wrong, without an error.

What does not work. Hashing files: notebooks lack them, and a change of one function would recompile all. Pickling:
functions are pickled by name.

Solution. The byte code names what a function takes from outside (`_paths`), and its globals and closure have the values
(`_resolve`). `fingerprint` hashes both, recursively (`_walk`). A value that cannot be hashed, such as a dict, is
rejected with the user's line, and so is a draw that ignores the seed.

What remains. References that are computed at run time (`getattr`) are not seen; numba compiles none.

See ADR 9.
"""

from __future__ import annotations

import builtins
import dis
import enum
import functools
import hashlib
import inspect
import random
import types
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, NoReturn

import numpy as np

from envfleet.errors import KernelError
from envfleet.native.explaining import describe_line

_LIBRARIES = frozenset({"builtins", "cmath", "math", "numba", "numpy", "operator"})
"""Packages with members that numba knows by name; their versions decide what these do."""

OUTLINED = "is_outlined"
"""Attribute of functions that are called instead of inlined."""

_NUMBA_TYPES = "numba.core.types."
_SCALARS = (bool, int, float, complex, str, bytes, types.NoneType, types.EllipsisType, slice)
_OF_CODE = (
    *("co_code", "co_exceptiontable", "co_flags", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount"),
    *("co_names", "co_varnames", "co_freevars", "co_cellvars"),
)
_OUTER = {"LOAD_GLOBAL": True, "LOAD_NAME": True, "LOAD_DEREF": False}  # whether it loads a global
_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
_BETWEEN = ("CACHE", "EXTENDED_ARG", "PUSH_NULL")
_NO_SEED = ", whose draws ignore the seed: draw from `rng`, as in `rng.random()`"
_NO_KEYWORDS = (
    ", which has parameters after `*` or `**`, which compiled code does not support: make them positional; callers may "
    "still name them"
)
_NO_VALUE = (
    ", which compiled code does not support: use numbers, arrays, functions, tuples of these, and such members of "
    "modules and classes"
)


def is_of_library(value: Any) -> bool:
    """Return whether numba knows a module, class, function or other object by name."""
    module = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
    return isinstance(module, str) and module.partition(".")[0] in _LIBRARIES and not _is_draw(value)


def _is_draw(value: Any) -> bool:
    """Return whether a value is a module of draws, or draws from a global generator."""
    holder = getattr(value, "__self__", None)
    return value is random or value is np.random or type(holder) in (random.Random, np.random.RandomState)


class _Place(NamedTuple):
    """Use of an outside value by a function.

    Attributes:
        code: Code of the function.
        line: Line in its file.
        path: Expression that names the value.
    """

    code: types.CodeType
    line: int
    path: str

    def refuse(self, why: str) -> NoReturn:
        """Raise a `KernelError` that names the line, the expression and the reason."""
        line = describe_line(self.code.co_filename, self.line, self.code.co_name)
        raise KernelError(f"{line}: it uses {self.path}{why}")


def references(function: Any) -> dict[str, Any]:
    """Return the values of a function's outside names: globals, its closure, and members of modules and classes.

    Returns:
        Values by the expression that names them, such as `"TABLE"` or `"geometry.area"`; without builtins.

    Raises:
        KernelError: The function uses a name that does not exist.
    """
    return {place.path: value for place, value in _resolve(function)}


def _resolve(function: Any) -> Iterator[tuple[_Place, Any]]:
    """Yield the values of a function's outside names, each with its first use."""
    code = function.__code__
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    for (is_global, (name, *attributes)), line in _paths(code).items():
        place = _Place(code, line, name)
        try:
            value = function.__globals__[name] if is_global else cells[name].cell_contents
        except (KeyError, ValueError):  # a builtin, a local variable, or an empty cell
            if is_global and not hasattr(builtins, name):
                place.refuse(", which is not defined")
            continue
        for attribute in attributes:
            if not isinstance(value, (types.ModuleType, type)):
                break
            member = place._replace(path=f"{place.path}.{attribute}")
            if not hasattr(value, attribute):
                member.refuse(", which does not exist")
            if is_of_library(value) and getattr(value, attribute) is not np.random:
                break
            place, value = member, getattr(value, attribute)
        yield place, value


def line_of(code: types.CodeType, instruction: dis.Instruction) -> int:
    """Return the line of an instruction, or the function's first line if it lacks one."""
    return (instruction.positions and instruction.positions.lineno) or code.co_firstlineno


@functools.lru_cache(maxsize=4096)  # called often, and slow
def _paths(code: types.CodeType) -> dict[tuple[bool, tuple[str, ...]], int]:
    """Map outside names of code, with whether each is a global and the attributes that follow, to lines."""
    paths: dict[tuple[bool, tuple[str, ...]], int] = {}
    for inner in code.co_consts:
        paths |= _paths(inner) if isinstance(inner, types.CodeType) else {}
    is_global, path, line = False, tuple[str, ...](), 0
    for instruction in dis.get_instructions(code):
        if path and instruction.opname in _ATTRIBUTE:
            path = (*path, instruction.argval)
        elif instruction.opname not in _BETWEEN:
            paths.setdefault((is_global, path), line)
            is_global = _OUTER.get(instruction.opname, False)
            path = (instruction.argval,) if instruction.opname in _OUTER else ()
            line = line_of(code, instruction) if path else 0
    return {key: paths[key] for key in sorted(paths) if key[1]}


def fingerprint(functions: Iterable[Any], *more: str, has_places: bool = False) -> str:
    """Hash everything that decides the machine code of functions: their code and, recursively, what it refers to.

    Args:
        functions: The functions.
        more: Further values that the machine code depends on.
        has_places: True if files and lines count too, as for code that names them.

    Raises:
        KernelError: A function refers to a value that cannot be hashed; names it and the function.
    """
    digest = hashlib.sha256()

    def feed(text: bytes) -> None:
        digest.update(f"{len(text)} ".encode() + text)

    visited: dict[Any, int] = {}
    for function in functions:
        for value, label in _walk(_place_of(function), function, visited):
            feed(label)
            if has_places and isinstance(value, types.CodeType):
                feed(f"{value.co_filename} {value.co_firstlineno} ".encode() + value.co_linetable)
    for text in more:
        feed(text.encode())
    return digest.hexdigest()[:24]


def reachable(function: Any) -> Iterator[types.FunctionType]:
    """Yield a function and, once each, all functions outside the libraries that it can call."""
    for value, _ in _walk(_place_of(function), function, {}):
        if isinstance(value, types.FunctionType) and not is_of_library(value):
            yield value


def _place_of(function: Any) -> _Place:
    return _Place(function.__code__, function.__code__.co_firstlineno, function.__name__)


def _walk(
    place: _Place, value: Any, visited: dict[Any, int], callers: tuple[Any, ...] = ()
) -> Iterator[tuple[Any, bytes]]:
    """Yield a value with its label, then recursively the values that it holds.

    Args:
        place: Use of the value.
        value: The value.
        visited: Functions that were visited before, by number; a second visit yields no value.
        callers: Functions that hold the value.
    """
    if isinstance(value, types.FunctionType):
        if value in callers:
            place.refuse(", which calls itself: write a loop")
        if value.__code__.co_kwonlyargcount or value.__code__.co_flags & inspect.CO_VARKEYWORDS:
            place.refuse(_NO_KEYWORDS)
        if value in visited:
            yield None, f"as {visited[value]}".encode()
            return
        visited[value] = len(visited)
        callers = (*callers, value)
    own, parts = _take_apart(place, value)
    yield value, f"{type(value).__module__}.{type(value).__qualname__} {own!r} {len(parts)}".encode()
    for part in parts:
        yield from _walk(*part, visited, callers)


def _take_apart(place: _Place, value: Any) -> tuple[Any, list[tuple[_Place, Any]]]:
    """Return a description of a value without the values that it holds, and these, each with its place.

    Raises:
        KernelError: The value cannot be hashed, or its draws ignore the seed.
    """
    kind = type(value)
    own: Any = None
    parts: list[tuple[_Place, Any]] = []
    if isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
        own = value.dtype, value.shape, hashlib.sha256(value.tobytes()).digest()
    elif isinstance(value, types.CodeType):
        own = [getattr(value, name) for name in _OF_CODE]
        parts = [(place, constant) for constant in value.co_consts]
    elif kind in _SCALARS or (kind.__module__.startswith(_NUMBA_TYPES) and is_of_library(value)):
        own = value
    elif is_of_library(value) and hasattr(value, "__name__"):
        own = getattr(value, "__module__", ""), value.__name__
    elif isinstance(value, types.FunctionType):
        named = list(_resolve(value))
        own = OUTLINED in vars(value), *(held.path for held, _ in named)
        default = _place_of(value)._replace(path="a default")
        parts = [(default, held) for held in (value.__defaults__ or ())]
        parts = [(place, value.__code__), *parts, *named]
    elif isinstance(value, tuple):
        own = getattr(value, "_fields", None) or range(len(value))
        items = zip(own, value, strict=True)
        parts = [(place._replace(path=f"{place.path}[{index!r}]"), item) for index, item in items]
    elif isinstance(value, frozenset):  # as code holds a set of constants
        parts = [(place, item) for item in sorted(value, key=repr)]
    elif isinstance(value, enum.Enum):
        own, parts = value.name, [(place._replace(path=f"{place.path}.value"), value.value)]
    elif hasattr(value, "__wrapped__") and not isinstance(value, type):
        parts = [(place, value.__wrapped__)]
    else:
        place.refuse(_NO_SEED if _is_draw(value) else f", a {kind.__qualname__}{_NO_VALUE}")
    return own, parts
