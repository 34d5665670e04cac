"""From what is written on the command line to values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from envfleet.errors import InvalidArgument


def split_names(text: str) -> list[str]:
    """Split a list with commas.

    >>> split_names("serial, process")
    ['serial', 'process']
    """
    return [part.strip() for part in text.split(",") if part.strip()]


def split_counts(text: str, option: str) -> list[int]:
    """Split a list of positive whole numbers with commas.

    >>> split_counts("1,8,64", "--num-envs")
    [1, 8, 64]
    """
    parts = split_names(text)
    if not parts or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise InvalidArgument(f"{option} is {text!r}, expected whole numbers from 1, such as 8 or 1,8,64: write it so.")
    return [int(part) for part in parts]


def parse_env_kwargs(assignments: Iterable[str]) -> dict[str, Any]:
    """Read `name=value` arguments of an environment; a value is JSON where it reads as such, else text.

    >>> parse_env_kwargs(["gravity=-9.5", "continuous=true", "render_mode=rgb_array"])
    {'gravity': -9.5, 'continuous': True, 'render_mode': 'rgb_array'}
    """
    kwargs: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not name.isidentifier():
            raise InvalidArgument(
                f"--env-arg is {assignment!r}, expected name=value, such as gravity=-9.5: write it so."
            )
        try:
            kwargs[name] = json.loads(text)
        except ValueError:
            kwargs[name] = text
    return kwargs


def choose_names(text: str, option: str, accepted: Sequence[str], default: Sequence[str]) -> list[str]:
    """Read a list of names: `default`, `all`, `none`, or names with commas.

    Raises:
        InvalidArgument: A name is not accepted.
    """
    special = {"default": list(default), "all": list(accepted), "none": []}
    if text in special:
        return special[text]
    names = split_names(text)
    unknown = [name for name in names if name not in accepted]
    if unknown:
        raise InvalidArgument(
            f"{option} names {', '.join(unknown)}, expected some of {', '.join(accepted)}, or all, default or none: "
            "check the spelling."
        )
    return names


def refuse_given(options: Mapping[str, Any], why: str) -> None:
    """Refuse options that mean nothing here.

    Args:
        options: Values by name; `None` for what is not given.
        why: Why they mean nothing; the message begins with it.

    Raises:
        InvalidArgument: One is given.
    """
    names = [name for name, value in options.items() if value is not None]
    if names:
        raise InvalidArgument(f"{why}: leave out {', '.join(names)}")
