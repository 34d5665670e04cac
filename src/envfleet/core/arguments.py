"""Checks on single arguments that a person gives."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from envfleet.errors import InvalidArgument


def check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    """Check that a value is one of a few.

    Raises:
        InvalidArgument: It is not.
    """
    if value not in choices:
        raise InvalidArgument(f"{name}={value!r}: pass one of {', '.join(repr(choice) for choice in choices)}")


def check_whole(name: str, value: Any, least: int, most: int | None = None, *, most_name: str = "") -> int:
    """A whole number of any integer type, NumPy's included, as an int.

    Args:
        name: What it was given as.
        value: What was given.
        least: The smallest allowed.
        most: The largest allowed, if there is one.
        most_name: What that is called.

    Raises:
        InvalidArgument: It is no whole number, or too small or large.
    """
    largest = f"{most_name}={most}" if most_name else most
    wanted = f"a whole number of at least {least}" if most is None else f"a whole number from {least} to {largest}"
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError as error:
        raise InvalidArgument(f"{name}={value!r} (type {type(value).__name__}): pass {wanted}") from error
    if number < least or (most is not None and number > most):
        raise InvalidArgument(f"{name}={number}: pass {wanted}")
    return number


def check_flag(name: str, value: Any) -> None:
    """Check that a value is `True` or `False`.

    Raises:
        InvalidArgument: It is something else.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidArgument(f"{name}={value!r} (type {type(value).__name__}): pass True or False")


def check_seconds(name: str, value: Any) -> None:
    """Check that a value is a duration above 0 that ends.

    Raises:
        InvalidArgument: It is not.
    """
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not (is_number and 0 < value < math.inf):
        raise InvalidArgument(f"{name}={value!r}: pass a number of seconds above 0")
