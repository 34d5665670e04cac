"""Named fields of a kernel's state and parameters, read from a class of annotations into a record dtype.

And assignments that kernels cannot make: to parameters, to whole arrays, and of which a field would keep only a part.
Numba and NumPy convert a float to an int, and an int to a bool, silently. Fields may widen numbers (bool to int to
float), and narrow their precision.
"""

from __future__ import annotations

import dataclasses
import enum
import typing
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import KernelError

OF_ARRAY = "assigns to {name!r}, an array of the state: write its elements, as in `state.{name}[:] = values`"
_RANKS = {"b": 0, "i": 1, "u": 1, "f": 2}
_NAMES = ("bool", "int", "float")
_KEPT = ("would keep only whether it is 0", "would cut off its fraction")


def array(shape: int | tuple[int, ...], dtype: Any) -> Any:
    """Declare an array among the fields of a state.

    As in `cells: NDArray[np.uint8] = array((8, 8), np.uint8)`.

    Args:
        shape: Fixed.
        dtype: A numpy dtype of numbers; for bools write `np.uint8`.

    Raises:
        KernelError: It cannot be such an array.
    """
    lengths: Any = shape if isinstance(shape, tuple) else (shape,)
    if not all(isinstance(one, (int, np.integer)) and one > 0 for one in lengths):
        raise KernelError(f"array({shape!r}, …): the shape is an int above 0 or a tuple of such")
    if np.dtype(dtype).kind not in "biuf":
        raise KernelError(f"array({shape!r}, {dtype!r}): the dtype is one of numbers, such as np.float32")
    return np.dtype((dtype, lengths))


@dataclasses.dataclass(frozen=True)
class Fields:
    """The fields of a state or of parameters.

    Attributes:
        owner: Name of the class that declares them, for messages.
        dtype: Record dtype, aligned.
        defaults: Value of each field that declares one.
    """

    owner: str
    dtype: np.dtype[Any]
    defaults: Mapping[str, Any] = dataclasses.field(compare=False)

    @property
    def names(self) -> tuple[str, ...]:
        """Names in order of declaration."""
        return self.dtype.names or ()

    def default_record(self) -> NDArray[Any]:
        """Return one record `(1,)` with every field at its default, or zero."""
        record = np.zeros(1, self.dtype)
        for name, value in self.defaults.items():
            record[name] = value
        return record

    def check_name(self, name: str) -> None:
        """Check that there is such a field.

        Raises:
            KernelError: There is not.
        """
        if name not in self.names:
            known = ", ".join(self.names) or "none"
            raise KernelError(f"{self.owner} has no field {name!r}; its fields are: {known}")


def read_fields(declaration: type, owner: str, *, need_defaults: bool) -> Fields:
    """Read the fields a class declares.

    Args:
        declaration: Annotated attributes: `float`, `int`, `bool` or a numpy scalar type, or a value made by `array`;
            parameters may be numpy arrays. Fields of base classes come first.
        owner: Its name, for messages.
        need_defaults: Every field must have a value, as parameters must.

    Raises:
        KernelError: A field of another type, or without the value it needs.
    """
    dtypes: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    annotations = _annotations(declaration, owner)
    for name, value in vars(declaration).items():
        is_python = name.startswith("__")  # which puts numbers there, as `__firstlineno__`
        is_value = isinstance(value, (bool, int, float, np.generic, np.ndarray, np.dtype))
        if is_value and not is_python and name not in annotations:
            raise KernelError(f"{owner}.{name} has no type, without which it is no field: write `{name}: float = …`")
    for name, kind in annotations.items():
        value = getattr(declaration, name, None)
        if need_defaults and (value is None or isinstance(value, np.dtype)):
            raise KernelError(f"{owner}.{name} has no default: write `{name}: float = 1.0`")
        dtypes[name] = _dtype_of(kind, value, f"{owner}.{name}")
        if value is not None and not isinstance(value, np.dtype):
            defaults[name] = _check_default(value, dtypes[name], f"{owner}.{name}")
    return Fields(owner, np.dtype(list(dtypes.items()), align=True), defaults)


def _check_default(value: Any, dtype: Any, where: str) -> Any:
    base, array = np.dtype(dtype).base, np.asarray(value)
    if not np.can_cast(array.dtype, base, "same_kind") and array.dtype.kind not in "iub":
        raise KernelError(f"{where} = {value!r} is no {base}: give it a default of its type")
    return value


def _annotations(declaration: type, owner: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(declaration)
    except NameError as error:
        raise KernelError(
            f"a field of {owner} is annotated with a name that is not known where the class is defined ({error}): use "
            "float, int, bool or a numpy scalar type"
        ) from error


def check_precision(dtype: np.dtype[Any], where: str) -> None:
    """Check that compiled code has floats of this size.

    Args:
        dtype: Any.
        where: What has it, for the message.

    Raises:
        KernelError: It has not.
    """
    if dtype.kind == "f" and dtype.itemsize not in (4, 8):
        raise KernelError(f"{where} is {dtype}, which compiled code does not have: take np.float32 or np.float64")


def _dtype_of(kind: Any, value: Any, where: str) -> Any:
    if isinstance(value, np.ndarray):
        value = np.dtype((value.dtype, value.shape))
    if isinstance(value, np.dtype):
        check_precision(value.base, where)
        if value.base == np.bool_:
            raise KernelError(
                f"{where} is an array of bools, which compiled code cannot keep in a record: make it np.int8, where "
                "True is 1 and False is 0"
            )
        return value
    is_known = isinstance(kind, type) and issubclass(kind, (np.number, np.bool_, enum.IntEnum))
    if is_known or kind in (bool, int, float):
        dtype = np.dtype(np.int64 if issubclass(kind, enum.IntEnum) else kind)
        check_precision(dtype, where)
        return dtype
    raise KernelError(
        f"{where} is annotated as {kind!r}, expected float, int, bool or a numpy scalar type such as np.float32; "
        f"for an array write `{where.rpartition('.')[2]}: NDArray[np.float32] = array(shape, np.float32)`"
    )


def describe_loss(name: str, field: Any, kind: str, given: str) -> str | None:
    """Say what a field would lose of a number that is assigned to it, and what to write; `None` if nothing.

    Args:
        name: Of the field.
        field: Its dtype.
        kind: NumPy's letter for the kind of the number.
        given: The number or its type, in words.
    """
    rank, found = _RANKS.get(field.kind), _RANKS.get(kind)
    if rank is None or found is None or found <= rank:
        return None
    return (
        f"assigns {given} to the {field} field {name!r}, which {_KEPT[rank]}: declare the field as "
        f"`{name}: {_NAMES[found]}`, or write `{_NAMES[rank]}(...)`"
    )
