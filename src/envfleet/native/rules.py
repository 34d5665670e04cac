"""Compile-time checks: reject writes to read-only arguments and lossy assignments; convert ints as NumPy does.

Problem. Numba accepts writes to parameters, which all rows share, silently cuts a float that is assigned to an int, and
makes a float of a uint64 and an int, unlike NumPy and Python.

What does not work. Checks of the source: types are known to the compiler only. Checks in compiled code: they cost time
and keep loops scalar.

Solution. Numba asks its typing context for the type of everything that is read, written or called. `follow_rules` makes
a context that refuses there, so the error has the user's line; `explaining` words it. Read-only records are of another
type: their fields have titles.

What remains. The context is numba's private class with methods overridden; it is not applied to numba's own library.
"""

from __future__ import annotations

import copy
import dis
import operator
from collections.abc import Callable
from types import FunctionType
from typing import Any, NoReturn

import numpy as np

from envfleet.errors import KernelError
from envfleet.native.explaining import OURS, READ_ONLY, describe_line
from envfleet.native.fields import OF_ARRAY, describe_loss
from envfleet.native.references import line_of
from envfleet.native.rng import METHODS, RNG_DTYPE

_IN_PLACE = "add and floordiv lshift matmul mod mul or pow rshift sub truediv xor"
_CHANGING = {getattr(operator, f"i{name}") for name in _IN_PLACE.split()}
_WRITING = {"static_setitem", *_CHANGING}
"""Operations that write to their first argument."""

_OF_INTS = "add and floordiv lshift mod mul or rshift sub xor"
_UNSIGNED = {getattr(operator, f"__{i}{name}__") for name in _OF_INTS.split() for i in ("", "i")}
"""Operations on two ints that return a uint64 if one operand is a uint64; comparisons need no change."""

_MASK = (
    "indexes by a mask of several dimensions, which compiled code does not support: write `array[:] = np.where(mask, "
    "value, array)`, or a loop"
)


def check_returns(name: str, step: Callable[..., Any]) -> None:
    """Check that no path through a step function returns None, or a tuple with None, which numba would compile.

    Args:
        name: Name of the class, for messages.
        step: The function.

    Raises:
        KernelError: A path does; names the line.
    """
    code, is_none = step.__code__, False
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_CONST", "RETURN_CONST"):
            value = instruction.argval
            is_none = value is None or (isinstance(value, tuple) and None in value)
        if is_none and instruction.opname in ("RETURN_CONST", "RETURN_VALUE"):
            place = describe_line(code.co_filename, line_of(code, instruction), code.co_name)
            raise KernelError(f"{name}, {place}: it may return None: end it by `return reward, terminated`")
        is_none = is_none and instruction.opname == "LOAD_CONST"


def make_read_only(intrinsic: Any, types: Any) -> Any:
    """Make an intrinsic `(value)` that returns a record, array or number as read-only.

    Args:
        intrinsic: The target's decorator.
        types: The target's types.
    """

    @intrinsic
    def read_only(_context: Any, value: Any) -> Any:
        return read_only_type(types, value)(value), lambda _context, _builder, _signature, args: args[0]

    return read_only


def read_only_type(types: Any, kind: Any) -> Any:
    """Return the read-only type of a value: for a record, one with titles of its fields."""
    if isinstance(kind, types.Array):
        return kind.copy(readonly=True)
    if not isinstance(kind, types.Record):
        return kind
    fields = [(name, {**field._asdict(), "title": f"{name}, read-only"}) for name, field in kind.fields.items()]
    return types.Record(fields, kind.size, kind.aligned)


class Rules:
    """Mixin for a compiler's typing context that rejects code which breaks a rule; see `follow_rules`.

    Attributes:
        replacements: Functions that compiled code uses instead of others.
    """

    replacements: dict[Any, Any]
    _types: Any
    _as_dtype: Any
    _error: Any
    _original: Any

    def refresh(self) -> None:
        """Refresh the original context, with which this one shares all declarations."""
        self._original.refresh()

    def _ask(self, name: str, *args: Any) -> Any:
        return getattr(super(), name)(*args)

    def _refuse(self, what: str) -> NoReturn:
        raise self._error(OURS + what)

    def _is_read_only(self, value: Any) -> bool:
        if isinstance(value, self._types.Record):
            return bool(value.has_titles())
        array = getattr(value, "array_type", value)  # if it is a flat iterator
        return isinstance(array, self._types.Array) and not array.mutable

    def _part(self, holder: Any, part: Any) -> Any:
        is_array = self._is_read_only(holder) and isinstance(part, self._types.Array)
        return part.copy(readonly=True) if is_array else part

    def resolve_value_type(self, value: Any) -> Any:
        """Replace some functions."""
        replaced = self.replacements.get(value, value) if isinstance(value, FunctionType) else value
        return self._ask("resolve_value_type", replaced)

    def resolve_getattr(self, value: Any, name: str) -> Any:
        """Reject fields that do not exist."""
        if isinstance(value, self._types.Record) and name not in value.fields:
            if value.fields.keys() != set(RNG_DTYPE.names or ()):
                self._refuse(f"uses {name!r}, which is not a field; the fields are: {', '.join(value.fields)}")
            if name not in METHODS:
                self._refuse(f"calls rng.{name}, which kernels do not have; they have: {', '.join(METHODS)}")
        return self._part(value, self._ask("resolve_getattr", value, name))

    def _widen(self, kind: Any) -> Any:
        return self._types.int64 if isinstance(kind, self._types.Integer) and kind.bitwidth < 64 else kind

    def _as_uint64(self, key: Any, kind: Any) -> Any:
        """Return the type to which an operand next to a uint64 is converted."""
        is_choice = key in (min, max) and getattr(kind, "literal_value", -1) >= 0
        is_int = isinstance(kind, self._types.Integer) and (key in _UNSIGNED or is_choice)
        return self._types.uint64 if is_int else kind

    def _fit(self, key: Any, array: Any, operand: Any) -> tuple[Any, Any]:
        """Convert an int to the type of the array that it changes, as in NumPy; reject a lossy change."""
        types, element = self._types, array.dtype
        is_int = isinstance(element, types.Integer)
        if is_int and isinstance(operand, types.Integer) and key is not operator.itruediv:
            return array, element
        kind = self._as_dtype(getattr(operand, "dtype", types.unliteral(operand)))
        kind = np.result_type(kind, np.float64) if is_int and key is operator.itruediv else kind
        if not np.can_cast(kind, self._as_dtype(element), "same_kind"):
            self._refuse(
                f"changes an array of {element} in place by values of type {kind}, which it cannot hold: write "
                f"`array[:] = values.astype(np.{element})`"
            )
        return array, operand

    def _check_index(self, index: Any) -> None:
        types = self._types
        for part in index if isinstance(index, types.BaseTuple) else (index,):
            if isinstance(part, types.Array) and part.ndim > 1 and isinstance(part.dtype, types.Boolean):
                self._refuse(_MASK)

    def resolve_function_type(self, function: Any, args: Any, kws: Any) -> Any:
        """Reject changes of read-only values in place, and `~` of bools; convert operands as NumPy does.

        Bools become ints before they are converted to float, which numba does not support. Narrow ints become int64,
        since numba lets differences of unsigned ones wrap around at 2**64. Next to a uint64, or an array of them, ints
        become uint64; numba makes floats or signed ints of the two.
        """
        key = getattr(function, "typing_key", function)
        if key in _WRITING and self._is_read_only(args[0]):
            self._refuse(READ_ONLY)
        if key is operator.invert and isinstance(args[0], self._types.Boolean):
            self._refuse("calculates ~ of a bool, which is -1 or -2 in Python: write `not`")
        if key is float and isinstance(args[0], self._types.Boolean):
            args = (self._types.int64,)
        if any(getattr(kind, "dtype", kind) == self._types.uint64 for kind in args):
            args = tuple(self._as_uint64(key, kind) for kind in args)
        elif getattr(key, "__module__", None) in ("_operator", "builtins"):
            args = tuple(map(self._widen, args))
        if key in _CHANGING and isinstance(args[0], self._types.Array):
            args = self._fit(key, *args)
        if key in (operator.getitem, operator.setitem):
            self._check_index(args[1])
        signature = self._ask("resolve_function_type", function, args, kws)
        if signature and key == "static_getitem":
            return signature.replace(return_type=self._part(args[0], signature.return_type))
        return signature

    def resolve_setattr(self, record: Any, name: str, value: Any) -> Any:
        """Reject writes to parameters and to whole arrays, and lossy assignments."""
        types = self._types
        if not isinstance(record, types.Record):
            return self._ask("resolve_setattr", record, name, value)
        field = self.resolve_getattr(record, name)
        kind = types.unliteral(value.type if isinstance(value, types.Optional) else value)
        if self._is_read_only(record):
            self._refuse(READ_ONLY)
        if isinstance(field, types.Array):
            self._refuse(OF_ARRAY.format(name=name))
        if isinstance(kind, (types.Boolean, types.Number)):
            loss = describe_loss(name, self._as_dtype(field), self._as_dtype(kind).kind, f"a number of type {kind}")
            if loss:
                self._refuse(loss)
        return self._ask("resolve_setattr", record, name, value)

    def resolve_setitem(self, target: Any, index: Any, value: Any) -> Any:
        """Reject writes to elements of read-only values."""
        self._check_index(index)
        if self._is_read_only(target):
            self._refuse(READ_ONLY)
        return self._ask("resolve_setitem", target, index, value)


def follow_rules(context: Any, types: Any, as_dtype: Any, typing_error: Any) -> Any:
    """Return a typing context with rules, with the declarations of another, which is not changed.

    Args:
        context: The compiler's typing context.
        types: The compiler's types.
        as_dtype: Function from such a type to a dtype.
        typing_error: Exception class of the compiler.
    """
    kind = type(context)
    ruled = copy.copy(context)  # with the same declarations
    ruled.__class__ = type(f"Ruled{kind.__name__}", (Rules, kind), {})
    more = {"replacements": {}, "_types": types, "_as_dtype": as_dtype, "_error": typing_error, "_original": context}
    vars(ruled).update(more)
    return ruled
