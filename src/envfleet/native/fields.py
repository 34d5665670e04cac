"""Named fields of a state and of parameters, read from a class of annotations into a record dtype.

Also checks assignments that compiled code rejects: to parameters, to whole arrays, and lossy ones. Numba and NumPy
silently convert a float to an int, and an int to a bool. A field may widen a number (bool to int to float) and lower
its precision.
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
_LOSSES = ("keeps only whether it is 0", "cuts off its fraction")


def array(shape: int | tuple[int, ...], dtype: Any) -> Any:
    """Declare an array among the fields of a state.

    For example `cells: NDArray[np.uint8] = array((8, 8), np.uint8)`.

    Args:
        shape: Shape, which is fixed.
        dtype: NumPy dtype of numbers; use `np.uint8` for bools.

    Raises:
        KernelError: The shape or dtype is invalid.
    """
    lengths: Any = shape if isinstance(shape, tuple) else (shape,)
    if not all(isinstance(length, (int, np.integer)) and length > 0 for length in lengths):
        raise KernelError(f"array({shape!r}, …): the shape must be a positive int or a tuple of positive ints")
    if np.dtype(dtype).kind not in "biuf":
        raise KernelError(f"array({shape!r}, {dtype!r}): the dtype must be one of numbers, such as np.float32")
    return np.dtype((dtype, lengths))


@dataclasses.dataclass(frozen=True)
class Fields:
    """Fields of a state or of parameters.

    Attributes:
        owner: Name of the class that declares them, for messages.
        dtype: Record dtype, aligned.
        defaults: Default values by field, if declared.
    """

    owner: str
    dtype: np.dtype[Any]
    defaults: Mapping[str, Any] = dataclasses.field(compare=False)

    @property
    def names(self) -> tuple[str, ...]:
        """Names, in the order of declaration."""
        return self.dtype.names or ()

    def default_record(self) -> NDArray[Any]:
        """Return one record, `(1,)`, with every field at its default or zero."""
        record = np.zeros(1, self.dtype)
        for name, value in self.defaults.items():
            record[name] = value
        return record

    def check_name(self, name: str) -> None:
        """Check that a field exists.

        Raises:
            KernelError: The field does not exist.
        """
        if name not in self.names:
            known = ", ".join(self.names) or "none"
            raise KernelError(f"{self.owner} has no field {name!r}; its fields are: {known}")


def read_fields(declaration: type, owner: str, *, need_defaults: bool) -> Fields:
    """Read the fields that a class declares.

    Args:
        declaration: Class with annotated attributes: `float`, `int`, `bool` or a NumPy scalar type, or a value made by
            `array`; parameters may be NumPy arrays. Fields of base classes come first.
        owner: Name of the class, for messages.
        need_defaults: True if every field must have a default, as parameters must.

    Raises:
        KernelError: A field has another type, or lacks a default.
    """
    dtypes: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    annotations = _annotations(declaration, owner)
    for name, value in vars(declaration).items():
        is_python = name.startswith("__")  # such as `__firstlineno__`, a number
        is_value = isinstance(value, (bool, int, float, np.generic, np.ndarray, np.dtype))
        if is_value and not is_python and name not in annotations:
            raise KernelError(f"{owner}.{name} lacks a type, so it is not a field: write `{name}: float = …`")
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
        raise KernelError(f"{where} = {value!r} is not a {base}: use a default of the field's type")
    return value


def _annotations(declaration: type, owner: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(declaration)
    except NameError as error:
        raise KernelError(
            f"a field of {owner} is annotated with an undefined name ({error}): use float, int, bool or a NumPy scalar "
            "type"
        ) from error


def check_precision(dtype: np.dtype[Any], where: str) -> None:
    """Check that compiled code supports floats of a dtype's size.

    Args:
        dtype: Any dtype.
        where: Name of the value that has it, for the message.

    Raises:
        KernelError: The dtype is a float of another size than 4 or 8 bytes.
    """
    if dtype.kind == "f" and dtype.itemsize not in (4, 8):
        raise KernelError(f"{where} is {dtype}, which compiled code does not support: use np.float32 or np.float64")


def _dtype_of(kind: Any, value: Any, where: str) -> Any:
    if isinstance(value, np.ndarray):
        value = np.dtype((value.dtype, value.shape))
    if isinstance(value, np.dtype):
        check_precision(value.base, where)
        if value.base == np.bool_:
            raise KernelError(
                f"{where} is an array of bools, which records of compiled code do not support: use np.int8, with 1 for "
                "True and 0 for False"
            )
        return value
    is_known = isinstance(kind, type) and issubclass(kind, (np.number, np.bool_, enum.IntEnum))
    if is_known or kind in (bool, int, float):
        dtype = np.dtype(np.int64 if issubclass(kind, enum.IntEnum) else kind)
        check_precision(dtype, where)
        return dtype
    raise KernelError(
        f"{where} is annotated as {kind!r}, expected float, int, bool or a NumPy scalar type such as np.float32; "
        f"for an array write `{where.rpartition('.')[2]}: NDArray[np.float32] = array(shape, np.float32)`"
    )


def describe_loss(name: str, field: Any, kind: str, number: str) -> str | None:
    """Describe what a field would lose of an assigned number, and what to write; `None` if nothing is lost.

    Args:
        name: Name of the field.
        field: Dtype of the field.
        kind: NumPy's letter for the kind of the number.
        number: Description of the number.
    """
    field_rank, rank = _RANKS.get(field.kind), _RANKS.get(kind)
    if field_rank is None or rank is None or rank <= field_rank:
        return None
    return (
        f"assigns {number} to the {field} field {name!r}, which {_LOSSES[field_rank]}: declare the field as "
        f"`{name}: {_NAMES[rank]}`, or write `{_NAMES[field_rank]}(...)`"
    )
