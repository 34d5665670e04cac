"""Assignments that kernels cannot make: to parameters, to whole arrays, and of which a field would keep only a part.

Numba and NumPy convert a float to an int, and an int to a bool, silently. Fields may widen numbers (bool to int to
float), and narrow their precision.
"""

from __future__ import annotations

from typing import Any

OF_PARAMETER = (
    "writes to a parameter: parameters do not change during an episode; make it a field of the state, which reset "
    "copies from the parameter"
)
OF_ARRAY = "assigns to {name!r}, an array of the state: write its elements, as in `state.{name}[:] = values`"
_RANKS = {"b": 0, "i": 1, "u": 1, "f": 2}
_NAMES = ("bool", "int", "float")
_KEPT = ("would keep only whether it is 0", "would cut off its fraction")


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


def describe_typed_loss(types: Any, as_dtype: Any, record: Any, name: str, value: Any) -> str | None:
    """Say the same of an assignment in compiled code.

    Args:
        types: The compiler's types.
        as_dtype: Turns such a type into a dtype.
        record: Type of what is assigned to.
        name: Of the field.
        value: Type of what is assigned.
    """
    value = types.unliteral(value.type if isinstance(value, types.Optional) else value)
    if not isinstance(record, types.Record) or not isinstance(value, (types.Boolean, types.Number)):
        return None
    return describe_loss(name, as_dtype(record.typeof(name)), as_dtype(value).kind, f"a number of type {value}")
