"""What a kernel may not do, found in its code before it is compiled: so the message can name the user's own line.

Numba compiles some of it and means something else (writing to a parameter, drawing from `np.random`), and speaks of the
rest in terms of its own.
"""

from __future__ import annotations

import enum
import inspect
import random
import types
from typing import Any, NoReturn

import numpy as np

from envfleet.errors import KernelError
from envfleet.kernels.explaining import describe_line, explain
from envfleet.kernels.fields import OF_ARRAY, OF_PARAMETER
from envfleet.kernels.kernel import KernelSpec
from envfleet.kernels.numba_private import NumbaError, UnsupportedBytecodeError, ir, run_frontend
from envfleet.kernels.plain import EXPECTED_RESULTS
from envfleet.kernels.rng import METHODS

_ARGUMENTS = {
    "reset": ("state", "rng", "params"),
    "step": ("state", "action", "rng", "params"),
    "observe": ("state to observe", "out"),
}
_FROZEN = {
    "params": OF_PARAMETER,
    "array of params": OF_PARAMETER,
    "action": "writes to the action, which is the caller's: calculate with a number of your own",
    "observation": "writes to the observation, which the rollout keeps: calculate with a number of your own",
    "state to observe": "writes to the state, which observe is to look at only: write it in reset and in step",
}
_KNOWN_MODULES = frozenset({"builtins", "numpy", "math", "cmath", "operator"})
_VALUES = (bool, int, float, complex, str, tuple, np.generic, np.ndarray)
_RESULTS = ("reward", "terminated", "truncated")
_NO_CLASS = "uses the class {name}, which cannot be compiled: use functions and constants of a module or class"
_DRAWS = "draws from {name}, which no seed reaches: draw from `rng`, as in `rng.random()`"


def check_rules(spec: KernelSpec) -> None:
    """Check the functions of a kernel and all they call.

    Raises:
        KernelError: One breaks a rule; names the line and what to write.
    """
    seen: set[tuple[Any, ...]] = set()
    for name, kinds in _ARGUMENTS.items():
        _Frame(spec, getattr(spec, name), kinds, seen).check()


def check_policy_rules(spec: KernelSpec, act: Any) -> None:
    """Check a policy's function and all it calls.

    Raises:
        KernelError: It breaks a rule; names the line and what to write.
    """
    _Frame(spec, act, ("observation", "out", "rng") if spec.action.shape else ("observation", "rng"), set()).check()


class _Frame:
    """One function as it is walked through: what each of its variables is.

    Args:
        spec: The kernel.
        function: The function.
        kinds: What its arguments are, such as `"state"`.
        seen: Functions that were checked, each with its kinds.
        callers: The functions that led here.
    """

    def __init__(
        self,
        spec: KernelSpec,
        function: Any,
        kinds: tuple[str | None, ...],
        seen: set[tuple[Any, ...]],
        callers: tuple[Any, ...] = (),
    ) -> None:
        self._spec, self._function, self._arguments, self._seen = spec, function, kinds, seen
        self._stack = (*callers, function)
        self._kinds: dict[str, str] = {}
        self._values: dict[str, Any] = {}
        self._tuples: dict[str, list[Any]] = {}
        self._parts: set[str] = set()  # variables that hold an element of an array, or a row
        self._is_step = function is spec.step
        self._num_results: int | None = None  # that a return before this one gives

    def check(self) -> None:
        """Check the function and all it calls, unless that was done."""
        if (self._function, self._arguments) in self._seen:
            return
        self._seen.add((self._function, self._arguments))
        try:
            code = run_frontend(self._function)
        except (NumbaError, UnsupportedBytecodeError, NotImplementedError) as error:
            raise KernelError(explain(self._spec, error)) from error
        for label in sorted(code.blocks):
            for statement in code.blocks[label].body:
                self._visit(statement)

    def _visit(self, statement: Any) -> None:
        """Check one statement of numba's intermediate form."""
        if isinstance(statement, ir.Assign):
            self._assign(statement.target.name, statement.value, statement.loc)
        elif isinstance(statement, ir.SetAttr):
            self._set_field(statement)
        elif isinstance(statement, (ir.SetItem, ir.StaticSetItem)):
            self._refuse_frozen(statement.target.name, statement.loc)
        elif isinstance(statement, ir.Return) and self._is_step:
            self._check_return(statement)

    def _fail(self, loc: Any, what: str) -> NoReturn:
        place = describe_line(self._function.__code__.co_filename, loc.line, self._function.__name__)
        raise KernelError(f"{self._spec.name}, {place}: it {what}")

    def _refuse_frozen(self, name: str, loc: Any) -> None:
        kind = self._kinds.get(name)
        if kind in _FROZEN:
            self._fail(loc, _FROZEN[kind])

    # ------------------------------------------------------------------ fields

    def _set_field(self, statement: Any) -> None:
        name, kind = statement.target.name, self._kinds.get(statement.target.name)
        self._refuse_frozen(name, statement.loc)
        if kind == "state":
            self._check_field("state", statement.attr, statement.loc)
            if self._spec.state.dtype[statement.attr].shape:
                self._fail(statement.loc, OF_ARRAY.format(name=statement.attr))

    def _check_field(self, kind: str, name: str, loc: Any) -> None:
        if kind == "rng":
            if name not in METHODS:
                self._fail(loc, f"calls rng.{name}, which kernels do not have; they have: {', '.join(METHODS)}")
            return
        fields = self._spec.params if kind == "params" else self._spec.state
        if name not in fields.names:
            known = ", ".join(fields.names) or "none"
            self._fail(loc, f"uses {name!r}, but {fields.owner} has no such field; its fields are: {known}")

    # ------------------------------------------------------------------ values

    def _assign(self, target: str, value: Any, loc: Any) -> None:
        if isinstance(value, ir.Arg):
            self._set_kind(target, self._arguments[value.index] if value.index < len(self._arguments) else None)
        elif isinstance(value, ir.Var):
            self._copy(target, value.name)
        elif isinstance(value, (ir.Global, ir.FreeVar)):
            self._check_value(value.name, value.value, loc)
            self._values[target] = value.value
        elif isinstance(value, ir.Const):
            self._values[target] = value.value
        elif isinstance(value, ir.Expr):
            self._expression(target, value, loc)

    def _set_kind(self, target: str, kind: str | None) -> None:
        if kind is None:
            self._kinds.pop(target, None)
        else:
            self._kinds[target] = kind

    def _copy(self, target: str, source: str) -> None:
        self._set_kind(target, self._kinds.get(source))
        (self._parts.add if source in self._parts else self._parts.discard)(target)
        for known in (self._values, self._tuples):
            known.pop(target, None)
            if source in known:
                known[target] = known[source]

    def _expression(self, target: str, value: Any, loc: Any) -> None:
        if value.op == "cast":
            self._copy(target, value.value.name)
        elif value.op == "getattr":
            self._get_attribute(target, value, loc)
        elif value.op in ("getitem", "static_getitem"):
            self._get_item(target, value, loc)
        elif value.op == "getiter":
            self._refuse_choice(value.value.name, loc)
        elif value.op == "build_tuple":
            self._tuples[target] = value.items
        elif value.op == "inplace_binop" and value.lhs.name not in self._parts:
            if self._spec.action.shape or self._kinds.get(value.lhs.name) != "action":  # a number is nobody's
                self._refuse_frozen(value.lhs.name, loc)
        elif value.op == "call" and self._values.get(value.func.name) is slice:
            self._values[target] = slice
        elif value.op == "call":
            self._call(value, loc)

    def _get_item(self, target: str, value: Any, loc: Any) -> None:
        kind = self._kinds.get(value.value.name)  # a part of an array is the same memory
        self._set_kind(target, kind if kind in _FROZEN else None)
        index = value.index if value.op == "getitem" else value.index_var  # none where a tuple is unpacked
        place = None if index is None else self._values.get(index.name)
        if place is not slice:
            self._parts.add(target)
        table = self._values.get(value.value.name)
        if isinstance(table, tuple) and isinstance(place, int) and -len(table) <= place < len(table):
            self._values[target] = table[place]  # it may be a function
        elif place is not slice:
            self._refuse_choice(value.value.name, loc)

    def _refuse_choice(self, name: str, loc: Any) -> None:
        """Refuse to choose one of several functions while code runs."""
        table = self._values.get(name)
        if isinstance(table, tuple) and any(isinstance(item, types.FunctionType) for item in table):
            what = (
                "takes a function from a tuple by a number that is not a constant: write `if` and `elif` around calls"
            )
            self._fail(loc, what)

    def _get_attribute(self, target: str, value: Any, loc: Any) -> None:
        kind = self._kinds.get(value.value.name)
        if kind in ("state", "state to observe", "params", "rng"):
            self._check_field(kind, value.attr, loc)
            is_array = kind == "params" and bool(self._spec.params.dtype[value.attr].shape)
            is_shuffle = kind == "rng" and value.attr == "shuffle"
            self._set_kind(target, "array of params" if is_array else "shuffle" if is_shuffle else None)
            return
        holder: Any = self._values.get(value.value.name)
        is_namespace = isinstance(holder, (types.ModuleType, type))
        if is_namespace:
            if not hasattr(holder, value.attr):
                self._fail(loc, f"uses {holder.__name__}.{value.attr}, which does not exist")
            self._check_value(f"{holder.__name__}.{value.attr}", getattr(holder, value.attr), loc)
        if isinstance(holder, enum.Enum):
            self._fail(loc, f"uses .{value.attr} of {holder!s}, which is a plain number here: leave it out")
        if is_namespace or value.attr in getattr(holder, "_fields", ()):
            self._values[target] = getattr(holder, value.attr)

    def _call(self, value: Any, loc: Any) -> None:
        if self._kinds.get(value.func.name) == "shuffle" and value.args:
            self._refuse_frozen(value.args[0].name, loc)
        function = self._values.get(value.func.name)
        function = getattr(function, "py_func", function)
        for one in (function, *(self._values.get(argument.name) for argument in value.args)):
            if isinstance(one, type) and one.__module__ not in _KNOWN_MODULES:
                self._fail(loc, _NO_CLASS.format(name=one.__name__))
        if not isinstance(function, types.FunctionType) or function.__module__.partition(".")[0] in _KNOWN_MODULES:
            return
        if function in self._stack:
            self._fail(loc, f"calls {function.__name__}, which calls itself: write a loop")
        try:
            given = inspect.signature(function).bind(*value.args, **dict(value.kws))
        except TypeError as error:
            self._fail(loc, f"calls {function.__name__} wrongly: {error}")
        names = list(inspect.signature(function).parameters)
        kinds = (self._kinds.get(getattr(given.arguments.get(name), "name", "")) for name in names)
        _Frame(self._spec, function, tuple(kinds), self._seen, self._stack).check()

    def _check_value(self, name: str, value: Any, loc: Any) -> None:
        """Check that compiled code can hold a value from outside the function."""
        if value is ir.UNDEFINED:
            self._fail(loc, f"uses {name}, which is not defined")
        if isinstance(value, types.ModuleType):
            if value.__name__ in ("random", "numpy.random"):
                self._fail(loc, _DRAWS.format(name=value.__name__))
        elif value is any or value is all:
            self._fail(loc, f"calls {name}, which compiled code does not have: write a loop, or np.{name} of an array")
        elif isinstance(value, (list, dict, set)):
            what = f"uses {name}, a {type(value).__name__}, which cannot be compiled: make it a tuple or an array"
            self._fail(loc, what)
        elif type(getattr(value, "__self__", None)) in (random.Random, np.random.RandomState):  # bound to a generator
            self._fail(loc, _DRAWS.format(name=name))
        elif not (value is None or value is Ellipsis or callable(value) or isinstance(value, _VALUES)):
            what = f"uses {name}, a {type(value).__name__}, which cannot be compiled: use numbers, arrays and functions"
            self._fail(loc, what)

    def _check_return(self, statement: Any) -> None:
        name = statement.value.name
        if name in self._values and self._values[name] is None:
            self._fail(statement.loc, "returns nothing on some way through it: end it by `return reward, terminated`")
        items = self._tuples.get(name)
        if items is not None:
            self._check_count(len(items), statement.loc)
        for item, what in zip(items or (), _RESULTS, strict=False):
            if item.name in self._values and not isinstance(self._values[item.name], (bool, int, float, np.generic)):
                self._fail(statement.loc, f"returns {self._values[item.name]!r} as {what}, expected a number")

    def _check_count(self, count: int, loc: Any) -> None:
        if count not in (2, 3):
            self._fail(loc, f"returns {count} values, {EXPECTED_RESULTS}")
        if self._num_results not in (None, count):
            self._fail(loc, f"returns {count} values and elsewhere {self._num_results}, {EXPECTED_RESULTS}")
        self._num_results = count
