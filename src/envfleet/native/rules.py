"""What a kernel may not do, though compilers might let it: to write what it can only read, or lose parts of numbers.

Compilers are asked for the type of everything that is read and written. Here they refuse, so the error has the user's
own line; `explaining` turns it, and numba's own, into words.
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
"""What writes to its first argument, as compilers name it."""

_OF_INTS = "add and floordiv lshift mod mul or rshift sub xor"
_UNSIGNED = {getattr(operator, f"__{i}{name}__") for name in _OF_INTS.split() for i in ("", "i")}
"""What makes one int of two, a uint64 if one of them is; comparisons of it with signed ints are right as they are."""

_MASK = (
    "indexes by a mask of several dimensions, which compiled code cannot: write `array[:] = np.where(mask, value, "
    "array)`, or a loop"
)


def check_returns(name: str, step: Callable[..., Any]) -> None:
    """Check that no way through `step` ends without a result, or with None in it, which numba compiles.

    Raises:
        KernelError: One does; names the line.
    """
    code, is_none = step.__code__, False
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_CONST", "RETURN_CONST"):
            given = instruction.argval
            is_none = given is None or (isinstance(given, tuple) and None in given)
        if is_none and instruction.opname in ("RETURN_CONST", "RETURN_VALUE"):
            place = describe_line(code.co_filename, line_of(code, instruction), code.co_name)
            raise KernelError(f"{name}, {place}: it may return None: end it by `return reward, terminated`")
        is_none = is_none and instruction.opname == "LOAD_CONST"


def make_read_only(intrinsic: Any, types: Any) -> Any:
    """Make an intrinsic `(value)`: the same record, array or number, to which compiled code cannot write.

    Args:
        intrinsic: The target's decorator.
        types: The target's types.
    """

    @intrinsic
    def read_only(_context: Any, value: Any) -> Any:
        return read_only_type(types, value)(value), lambda _context, _builder, _signature, args: args[0]

    return read_only


def read_only_type(types: Any, kind: Any) -> Any:
    """Return the type of what cannot be written: of records one that has titles, which mean nothing else."""
    if isinstance(kind, types.Array):
        return kind.copy(readonly=True)
    if not isinstance(kind, types.Record):
        return kind
    fields = [(name, {**field._asdict(), "title": f"{name}, read-only"}) for name, field in kind.fields.items()]
    return types.Record(fields, kind.size, kind.aligned)


class Rules:
    """Mixin for a compiler's typing context, which refuses what breaks a rule; `follow_rules` makes one.

    A compiler asks its typing context for the type of everything that is read, written or called.

    Attributes:
        replacements: What compiled code uses in place of some functions.
    """

    replacements: dict[Any, Any]
    _types: Any
    _as_dtype: Any
    _error: Any
    _original: Any

    def refresh(self) -> None:
        """Let the original context take in what was registered meanwhile: the two share all declarations."""
        self._original.refresh()

    def _ask(self, name: str, *args: Any) -> Any:
        return getattr(super(), name)(*args)

    def _refuse(self, what: str) -> NoReturn:
        raise self._error(OURS + what)

    def _is_read_only(self, value: Any) -> bool:
        if isinstance(value, self._types.Record):
            return bool(value.has_titles())
        array = getattr(value, "array_type", value)  # of its flat iterator
        return isinstance(array, self._types.Array) and not array.mutable

    def _part(self, holder: Any, found: Any) -> Any:
        is_array = self._is_read_only(holder) and isinstance(found, self._types.Array)
        return found.copy(readonly=True) if is_array else found

    def resolve_value_type(self, value: Any) -> Any:
        """Replace some functions."""
        replaced = self.replacements.get(value, value) if isinstance(value, FunctionType) else value
        return self._ask("resolve_value_type", replaced)

    def resolve_getattr(self, value: Any, name: str) -> Any:
        """Refuse fields that do not exist."""
        if isinstance(value, self._types.Record) and name not in value.fields:
            if value.fields.keys() != set(RNG_DTYPE.names or ()):
                self._refuse(f"uses {name!r}, but there is no such field; the fields are: {', '.join(value.fields)}")
            if name not in METHODS:
                self._refuse(f"calls rng.{name}, which kernels do not have; they have: {', '.join(METHODS)}")
        return self._part(value, self._ask("resolve_getattr", value, name))

    def _widen(self, kind: Any) -> Any:
        return self._types.int64 if isinstance(kind, self._types.Integer) and kind.bitwidth < 64 else kind

    def _as_uint64(self, key: Any, kind: Any) -> Any:
        """Return the type of an int beside a uint64."""
        is_choice = key in (min, max) and getattr(kind, "literal_value", -1) >= 0
        is_int = isinstance(kind, self._types.Integer) and (key in _UNSIGNED or is_choice)
        return self._types.uint64 if is_int else kind

    def _fit(self, key: Any, array: Any, given: Any) -> tuple[Any, Any]:
        """Let an int take the type of the array of ints that it changes, as in NumPy; refuse what would lose a part."""
        types, element = self._types, array.dtype
        is_int = isinstance(element, types.Integer)
        if is_int and isinstance(given, types.Integer) and key is not operator.itruediv:
            return array, element
        kind = self._as_dtype(getattr(given, "dtype", types.unliteral(given)))
        kind = np.result_type(kind, np.float64) if is_int and key is operator.itruediv else kind
        if not np.can_cast(kind, self._as_dtype(element), "same_kind"):
            self._refuse(
                f"changes an array of {element} in place by values of type {kind}, which it cannot hold: write "
                f"`array[:] = values.astype(np.{element})`"
            )
        return array, given

    def _check_index(self, index: Any) -> None:
        types = self._types
        for part in index if isinstance(index, types.BaseTuple) else (index,):
            if isinstance(part, types.Array) and part.ndim > 1 and isinstance(part.dtype, types.Boolean):
                self._refuse(_MASK)

    def resolve_function_type(self, function: Any, args: Any, kws: Any) -> Any:
        """Refuse to change what is read-only in place, as arrays of an action of several parts are; and `~` of bools.

        Bools become ints before they are converted to float, which compilers refuse. Narrow ints become int64 first, as
        compilers would let differences of unsigned ones wrap around at 2**64. Beside a uint64, or an array of them,
        ints become uint64, as in NumPy; compilers make floats or signed ints of the two.
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
        found = self._ask("resolve_function_type", function, args, kws)
        if found and key == "static_getitem":
            return found.replace(return_type=self._part(args[0], found.return_type))
        return found

    def resolve_setattr(self, record: Any, name: str, value: Any) -> Any:
        """Refuse to write to parameters, to whole arrays, and what a field would lose a part of."""
        types = self._types
        if not isinstance(record, types.Record):
            return self._ask("resolve_setattr", record, name, value)
        field = self.resolve_getattr(record, name)
        given = types.unliteral(value.type if isinstance(value, types.Optional) else value)
        if self._is_read_only(record):
            self._refuse(READ_ONLY)
        if isinstance(field, types.Array):
            self._refuse(OF_ARRAY.format(name=name))
        if isinstance(given, (types.Boolean, types.Number)):
            loss = describe_loss(name, self._as_dtype(field), self._as_dtype(given).kind, f"a number of type {given}")
            if loss:
                self._refuse(loss)
        return self._ask("resolve_setattr", record, name, value)

    def resolve_setitem(self, target: Any, index: Any, value: Any) -> Any:
        """Refuse to write to elements of what is read-only."""
        self._check_index(index)
        if self._is_read_only(target):
            self._refuse(READ_ONLY)
        return self._ask("resolve_setitem", target, index, value)


def follow_rules(context: Any, types: Any, as_dtype: Any, typing_error: Any) -> Any:
    """Return a typing context for kernels that knows what `context` knows, which stays as it is.

    Args:
        context: The compiler's own.
        types: The compiler's types.
        as_dtype: Turns such a type into a dtype.
        typing_error: Exception that the compiler raises.
    """
    kind = type(context)
    ruled = copy.copy(context)  # with the same declarations
    ruled.__class__ = type(f"Ruled{kind.__name__}", (Rules, kind), {})
    more = {"replacements": {}, "_types": types, "_as_dtype": as_dtype, "_error": typing_error, "_original": context}
    vars(ruled).update(more)
    return ruled
