"""What a kernel may not do, found in its code before it is compiled: so the message can name the user's own line.

Numba compiles some of it and means something else (writing to a parameter, drawing from `np.random`), and speaks of the
rest in terms of its own.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import random
import types
from collections.abc import Sequence
from typing import Any, Final, NoReturn

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
    "state to observe": "writes to the state, which observe is to look at only: write it in reset and in step",
}
_KNOWN_MODULES = frozenset({"builtins", "numpy", "math", "cmath", "operator"})
_VALUES = (bool, int, float, complex, str, tuple, np.generic, np.ndarray)
_UNKNOWN: Final = object()
_RESULTS = ("reward", "terminated", "truncated")
_NO_CHOICE = "takes a function from a tuple by a number that is not a constant: write `if` and `elif` around calls"
_NO_CLASS = "uses the class {name}, which cannot be compiled: use functions and constants of a module or class"
_NO_VALUE = "uses {name}, a {kind}, which cannot be compiled: use numbers, tuples, arrays and functions"
_DRAWS = "draws from {name}, which no seed reaches: draw from `rng`, as in `rng.random()`"


def check_rules(spec: KernelSpec) -> None:
    """Check the functions of a kernel and all they call.

    Raises:
        KernelError: One breaks a rule; names the line and what to write.
    """
    seen: set[tuple[Any, ...]] = set()
    for name, kinds in _ARGUMENTS.items():
        _Frame(spec, getattr(spec, name), kinds, seen).check()


@dataclasses.dataclass(frozen=True)
class _Known:
    """What is known of a variable.

    Attributes:
        kind: What it is of the kernel's, such as `"state"`.
        value: A constant, or something from outside the function.
        items: Variables that a tuple is made of.
        is_part: It holds an element of an array, or a row.
    """

    kind: str | None = None
    value: Any = _UNKNOWN
    items: Sequence[Any] = ()
    is_part: bool = False


_NOTHING = _Known()


@dataclasses.dataclass
class _Frame:
    """One function as it is walked through.

    Attributes:
        spec: The kernel.
        function: The function.
        kinds: What its arguments are, such as `"state"`.
        seen: Functions that were checked, each with its kinds.
        callers: The functions that led here.
        variables: What is known of each by now.
        num_results: Values that a return of the step gives, once there was one.
    """

    spec: KernelSpec
    function: Any
    kinds: tuple[str | None, ...]
    seen: set[tuple[Any, ...]]
    callers: tuple[Any, ...] = ()
    variables: dict[str, _Known] = dataclasses.field(default_factory=dict)
    num_results: int | None = None

    def check(self) -> None:
        """Check the function and all it calls, unless that was done."""
        if (self.function, self.kinds) in self.seen:
            return
        self.seen.add((self.function, self.kinds))
        try:
            code = run_frontend(self.function)
        except (NumbaError, UnsupportedBytecodeError, NotImplementedError) as error:
            raise KernelError(explain(self.spec, error)) from error
        for label in sorted(code.blocks):
            for statement in code.blocks[label].body:
                self._visit(statement)

    def _visit(self, statement: Any) -> None:
        """Check one statement of numba's intermediate form."""
        if isinstance(statement, ir.Assign):
            self.variables[statement.target.name] = self._read(statement.value, statement.loc)
        elif isinstance(statement, ir.SetAttr):
            self._set_field(statement)
        elif isinstance(statement, (ir.SetItem, ir.StaticSetItem)):
            self._refuse_frozen(statement.target, statement.loc)
        elif isinstance(statement, ir.Return) and self.function is self.spec.step:
            self._check_return(statement)

    def _known(self, variable: Any) -> _Known:
        return self.variables.get(getattr(variable, "name", ""), _NOTHING)

    def _fail(self, loc: Any, what: str) -> NoReturn:
        place = describe_line(self.function.__code__.co_filename, loc.line, self.function.__name__)
        raise KernelError(f"{self.spec.name}, {place}: it {what}")

    def _refuse_frozen(self, variable: Any, loc: Any) -> None:
        kind = self._known(variable).kind
        if kind in _FROZEN:
            self._fail(loc, _FROZEN[kind])

    # ------------------------------------------------------------------ fields

    def _set_field(self, statement: Any) -> None:
        self._refuse_frozen(statement.target, statement.loc)
        if self._known(statement.target).kind == "state":
            self._check_field("state", statement.attr, statement.loc)
            if self.spec.state.dtype[statement.attr].shape:
                self._fail(statement.loc, OF_ARRAY.format(name=statement.attr))

    def _check_field(self, kind: str, name: str, loc: Any) -> None:
        if kind == "rng":
            if name not in METHODS:
                self._fail(loc, f"calls rng.{name}, which kernels do not have; they have: {', '.join(METHODS)}")
            return
        fields = self.spec.params if kind == "params" else self.spec.state
        if name not in fields.names:
            known = ", ".join(fields.names) or "none"
            self._fail(loc, f"uses {name!r}, but {fields.owner} has no such field; its fields are: {known}")

    # ------------------------------------------------------------------ values

    def _read(self, value: Any, loc: Any) -> _Known:
        """Check what is assigned to a variable, and return what is known of it."""
        if isinstance(value, ir.Arg):
            return _Known(self.kinds[value.index])
        if isinstance(value, ir.Var):
            return self._known(value)
        if isinstance(value, (ir.Global, ir.FreeVar)):
            self._check_value(value.name, value.value, loc)
        if isinstance(value, (ir.Global, ir.FreeVar, ir.Const)):
            return _Known(value=value.value)
        return self._read_expression(value, loc) if isinstance(value, ir.Expr) else _NOTHING

    def _read_expression(self, value: Any, loc: Any) -> _Known:
        found = _NOTHING
        if value.op == "cast":
            found = self._known(value.value)
        elif value.op == "getattr":
            found = self._get_attribute(value, loc)
        elif value.op in ("getitem", "static_getitem"):
            found = self._get_item(value, loc)
        elif value.op == "getiter":
            self._refuse_choice(value.value, loc)
        elif value.op == "build_tuple":
            found = _Known(items=value.items)
        elif value.op == "inplace_binop":
            left = self._known(value.lhs)
            if not left.is_part and (self.spec.action.shape or left.kind != "action"):  # a number is nobody's
                self._refuse_frozen(value.lhs, loc)
        elif value.op == "call" and self._known(value.func).value is slice:
            found = _Known(value=slice)
        elif value.op == "call":
            self._call(value, loc)
        return found

    def _get_item(self, value: Any, loc: Any) -> _Known:
        holder = self._known(value.value)
        index = value.index if value.op == "getitem" else value.index_var  # none where a tuple is unpacked
        place, table, item = self._known(index).value, holder.value, _UNKNOWN
        if isinstance(table, tuple) and isinstance(place, int) and -len(table) <= place < len(table):
            item = table[place]  # it may be a function
        elif place is not slice:
            self._refuse_choice(value.value, loc)
        # A part of an array is the same memory.
        return _Known(holder.kind if holder.kind in _FROZEN else None, item, is_part=place is not slice)

    def _refuse_choice(self, variable: Any, loc: Any) -> None:
        """Refuse to choose one of several functions while code runs."""
        table = self._known(variable).value
        if isinstance(table, tuple) and any(isinstance(item, types.FunctionType) for item in table):
            self._fail(loc, _NO_CHOICE)

    def _get_attribute(self, value: Any, loc: Any) -> _Known:
        holder, name = self._known(value.value), value.attr
        if holder.kind in ("state", "state to observe", "params", "rng"):
            self._check_field(holder.kind, name, loc)
            if holder.kind == "params" and self.spec.params.dtype[name].shape:
                return _Known("array of params")
            return _Known("shuffle" if holder.kind == "rng" and name == "shuffle" else None)
        if isinstance(holder.value, (types.ModuleType, type)):
            path = f"{holder.value.__name__}.{name}"
            if not hasattr(holder.value, name):
                self._fail(loc, f"uses {path}, which does not exist")
            self._check_value(path, getattr(holder.value, name), loc)
        elif isinstance(holder.value, enum.Enum):
            self._fail(loc, f"uses .{name} of {holder.value!s}, which is a plain number here: leave it out")
        elif name not in getattr(holder.value, "_fields", ()):
            return _NOTHING
        return _Known(value=getattr(holder.value, name))

    def _call(self, value: Any, loc: Any) -> None:
        if self._known(value.func).kind == "shuffle" and value.args:
            self._refuse_frozen(value.args[0], loc)
        function = self._known(value.func).value
        function = getattr(function, "py_func", function)
        for one in (function, *(self._known(argument).value for argument in value.args)):
            if isinstance(one, type) and one.__module__ not in _KNOWN_MODULES:
                self._fail(loc, _NO_CLASS.format(name=one.__name__))
        if not isinstance(function, types.FunctionType) or function.__module__.partition(".")[0] in _KNOWN_MODULES:
            return
        callers = (*self.callers, self.function)
        if function in callers:
            self._fail(loc, f"calls {function.__name__}, which calls itself: write a loop")
        signature = inspect.signature(function)
        try:
            given = signature.bind(*value.args, **dict(value.kws)).arguments
        except TypeError as error:
            self._fail(loc, f"calls {function.__name__} wrongly: {error}")
        kinds = (self._known(given.get(name)).kind for name in signature.parameters)
        _Frame(self.spec, function, tuple(kinds), self.seen, callers).check()

    def _check_value(self, name: str, value: Any, loc: Any) -> None:
        """Check that compiled code can hold a value from outside the function."""
        if value is ir.UNDEFINED:
            self._fail(loc, f"uses {name}, which is not defined")
        if isinstance(value, types.ModuleType):
            if value.__name__ in ("random", "numpy.random"):
                self._fail(loc, _DRAWS.format(name=value.__name__))
        elif value is any or value is all:
            self._fail(loc, f"calls {name}, which compiled code does not have: write a loop, or np.{name} of an array")
        elif type(getattr(value, "__self__", None)) in (random.Random, np.random.RandomState):  # bound to a generator
            self._fail(loc, _DRAWS.format(name=name))
        elif not (value is None or value is Ellipsis or callable(value) or isinstance(value, _VALUES)):
            self._fail(loc, _NO_VALUE.format(name=name, kind=type(value).__name__))

    def _check_return(self, statement: Any) -> None:
        result = self._known(statement.value)
        if result.value is None:
            self._fail(statement.loc, "returns nothing on some way through it: end it by `return reward, terminated`")
        if result.items:
            self._check_count(len(result.items), statement.loc)
        for item, what in zip(result.items, _RESULTS, strict=False):
            value = self._known(item).value
            if value is not _UNKNOWN and not isinstance(value, (bool, int, float, np.generic)):
                self._fail(statement.loc, f"returns {value!r} as {what}, expected a number")

    def _check_count(self, count: int, loc: Any) -> None:
        if count not in (2, 3):
            self._fail(loc, f"returns {count} values, {EXPECTED_RESULTS}")
        if self.num_results not in (None, count):
            self._fail(loc, f"returns {count} values and elsewhere {self.num_results}, {EXPECTED_RESULTS}")
        self.num_results = count
