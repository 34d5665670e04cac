"""What is played and who plays: settings of the two-player environment, checked when they are set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument

_T = TypeVar("_T")

_CHOICES = {
    "mode": "0 (NORMAL), 1 (TRAIN_SHOOTING) or 2 (TRAIN_DEFENSE)",
    "starter": "1 or 2 for a player, or 0 to draw it for every game",
    "player_one": "0 (the action), 1 (the weak scripted player) or 2 (the strong one)",
    "player_two": "0 (the action), 1 (the weak scripted player) or 2 (the strong one)",
}
_SHARES = ("shooting_share", "defense_share")
_EXPECTED = _CHOICES | dict.fromkeys(_SHARES, "a share from 0 to 1") | {"keep_mode": "True or False"}


def check_settings(values: Mapping[str, NDArray[Any]]) -> None:
    """Check settings of many games, as the attributes of one are when they are set.

    Args:
        values: By name; others are not looked at.

    Raises:
        InvalidArgument: One has a wrong value.
    """
    for name in [name for name in (*_CHOICES, *_SHARES) if name in values]:
        each = np.asarray(values[name])
        is_right = (each >= 0) & (each <= 1) if name in _SHARES else (each == 0) | (each == 1) | (each == 2)
        if not is_right.all():
            wrong = each[~is_right].flat[0]
            raise InvalidArgument(
                f"{name}={wrong}, expected {_EXPECTED[name]}: pass one for all games, or one for each"
            )


class Setting(Generic[_T]):
    """An attribute of that name, whose values are checked as those of `check_settings`.

    Args:
        read: Turns a value into that of the attribute; raises `TypeError` or `ValueError` if it is none.
    """

    def __init__(self, read: Callable[[Any], _T]) -> None:
        self._read = read

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Setting[_T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> _T: ...
    def __get__(self, instance: object | None, owner: type) -> Setting[_T] | _T:
        if instance is None:
            return self
        value: _T = vars(instance)[self._name]
        return value

    def __set__(self, instance: object, value: Any) -> None:
        try:
            read = self._read(value)
            check_settings({self._name: np.asarray(read)})
        except (TypeError, ValueError) as error:
            raise InvalidArgument(
                f"{self._name}={value!r}, expected {_EXPECTED[self._name]}; a fleet's set_attr takes one value for "
                "all, or a list of one per sub-environment"
            ) from error
        vars(instance)[self._name] = read


def read_flag(value: Any) -> bool:
    """Return a bool, or 0 or 1 as one.

    Raises:
        ValueError: It is something else.
    """
    if value not in (0, 1):
        raise ValueError(value)
    return bool(value)
