"""Settings of the two-player environment (mode, controllers), validated when they are set."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from envfleet.envs.hockey.constants import Mode
from envfleet.errors import InvalidArgument


def read_mode(mode: Mode | str | SupportsIndex) -> Mode:
    """Return the mode for a `Mode`, its name or its number.

    Raises:
        InvalidArgument: The mode is unknown.

    Examples:
        >>> read_mode("TRAIN_DEFENSE"), read_mode(1)
        (<Mode.TRAIN_DEFENSE: 2>, <Mode.TRAIN_SHOOTING: 1>)
    """
    try:
        return Mode[mode] if isinstance(mode, str) else Mode(int(mode.__index__()))
    except (KeyError, ValueError, AttributeError) as error:
        names = ", ".join(f"{one.name} ({one.value})" for one in Mode)
        raise InvalidArgument(f"mode={mode!r}: pass a Mode, or the name or number of one: {names}") from error


def _read_flag(value: Any) -> bool:
    if value not in (0, 1):
        raise ValueError(value)
    return bool(value)


_PLAYER = "0 (the action), 1 (the weak scripted player) or 2 (the strong one)"
_CHOICES = {
    "mode": "0 (NORMAL), 1 (TRAIN_SHOOTING) or 2 (TRAIN_DEFENSE)",
    "starter": "1 or 2 for a player, or 0 to draw it for every game",
    "player_one": _PLAYER,
    "player_two": _PLAYER,
}
_SHARES = ("shooting_share", "defense_share")
_EXPECTED = _CHOICES | dict.fromkeys(_SHARES, "a share from 0 to 1") | {"keep_mode": "True or False"}
_READERS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(_CHOICES, operator.index),
    **dict.fromkeys(_SHARES, float),
    "mode": lambda value: int(read_mode(value)),
    "keep_mode": _read_flag,
}
SETTINGS = tuple(_READERS)
"""Their names."""


def check_settings(values: Mapping[str, NDArray[Any]]) -> None:
    """Check settings of many games.

    Args:
        values: Settings by name; other names are ignored.

    Raises:
        InvalidArgument: A setting has an invalid value.
    """
    for name in [name for name in (*_CHOICES, *_SHARES) if name in values]:
        each = np.asarray(values[name])
        is_right = (each >= 0) & (each <= 1) if name in _SHARES else (each == 0) | (each == 1) | (each == 2)
        if not is_right.all():
            wrong = each[~is_right].flat[0]
            raise InvalidArgument(
                f"{name}={wrong}, expected {_EXPECTED[name]}: pass one value for all games, or one for each"
            )


def read_setting(name: str, value: Any) -> Any:
    """Return the value of a setting of one game, converted to its type.

    Raises:
        InvalidArgument: The value is invalid.
    """
    try:
        read = _READERS[name](value)
        check_settings({name: np.asarray(read)})
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"{name}={value!r}, expected {_EXPECTED[name]}; a fleet's set_attr takes one value for all, or a list of "
            "one per sub-environment"
        ) from error
    return read
