"""What is played and who plays: settings of the two-player environment, checked when they are set."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from envfleet.envs.hockey.rules import read_mode
from envfleet.errors import InvalidArgument

_T = TypeVar("_T")

_CHOICES = {
    "mode": "0 (NORMAL), 1 (TRAIN_SHOOTING) or 2 (TRAIN_DEFENSE)",
    "starter": "1 or 2 for a player, or 0 to draw it for every game",
    "player_one": "0 (the action), 1 (the weak scripted player) or 2 (the strong one)",
    "player_two": "0 (the action), 1 (the weak scripted player) or 2 (the strong one)",
}
_SHARES = ("shooting_share", "defense_share")


def check_settings(values: Mapping[str, NDArray[Any]]) -> None:
    """Check settings of many games, as the attributes of one are when they are set.

    Args:
        values: By name; others are not looked at.

    Raises:
        InvalidArgument: One has a wrong value.
    """
    for name in (*_CHOICES, *_SHARES):
        each = np.asarray(values.get(name, 0))
        is_right = (each >= 0) & (each <= 1) if name in _SHARES else np.isin(each, (0, 1, 2))
        if not is_right.all():
            wrong, expected = each[~is_right].flat[0], _CHOICES.get(name, "a share from 0 to 1")
            raise InvalidArgument(f"{name}={wrong}, expected {expected}: pass one for all games, or one for each")


class Setting(Generic[_T]):
    """An attribute whose values are checked.

    Args:
        read: Turns a value into that of the attribute; a `TypeError` or `ValueError` of it becomes an error for people.
        expected: What the value is to be, in words.
    """

    def __init__(self, read: Callable[[Any], _T], expected: str) -> None:
        self._read, self._expected = read, expected

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
            vars(instance)[self._name] = self._read(value)
        except (TypeError, ValueError) as error:
            raise InvalidArgument(
                f"{self._name}={value!r}, expected {self._expected}; a fleet's set_attr takes one value for all, or a "
                "list of one per sub-environment"
            ) from error


def _one_of(*choices: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        number = operator.index(value)
        if number not in choices:
            raise ValueError(value)
        return number

    return read


def _read_share(value: Any) -> float:
    share = float(value)
    if not 0 <= share <= 1:
        raise ValueError(value)
    return share


def _read_flag(value: Any) -> bool:
    return bool(_one_of(0, 1)(int(value)))


def mode_setting() -> Setting[int]:
    """What is played: a `Mode`, its name or its number; read as a number."""
    return Setting(lambda value: int(read_mode(value)), _CHOICES["mode"])


def flag_setting() -> Setting[bool]:
    """Yes or no."""
    return Setting(_read_flag, "True or False")


def starter_setting() -> Setting[int]:
    """Who gets the puck."""
    return Setting(_one_of(0, 1, 2), _CHOICES["starter"])


def player_setting() -> Setting[int]:
    """Who plays on a side."""
    return Setting(_one_of(0, 1, 2), _CHOICES["player_one"])


def share_setting() -> Setting[float]:
    """A share of games."""
    return Setting(_read_share, "a share from 0 to 1")
