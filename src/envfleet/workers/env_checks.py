"""Checks of what users' environments are and return, with messages that say what to change in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector.utils import batch_differing_spaces, batch_space

from envfleet.errors import InvalidArgument, SpacesDiffer

UNSET: Any = object()
"""Stands for "the environment returned nothing yet", which `None` cannot."""


def check_same_spaces(first_index: int, first: Any, index: int, other: Any, same_bounds: bool) -> None:
    """Check that two sub-environments (or groups of them) can stand in one fleet.

    Args:
        first_index: Index of `first`.
        first: Has `observation_space` and `action_space`.
        index: Index of `other`.
        other: The same.
        same_bounds: Whether observation spaces must be equal, or only of one shape and type.

    Raises:
        SpacesDiffer: Their spaces differ; names both and what differs.
    """
    ours, theirs = first.observation_space, other.observation_space
    fits = ours == theirs if same_bounds else is_space_dtype_shape_equiv(ours, theirs)
    for name, mine, yours, is_same in (
        ("observation_space", ours, theirs, fits),
        ("action_space", first.action_space, other.action_space, first.action_space == other.action_space),
    ):
        if is_same:
            continue
        hint = ', or pass observation_mode="different" if only bounds differ' if name == "observation_space" else ""
        raise SpacesDiffer(
            f"{name} of sub-environment {index} is {yours}, but sub-environment {first_index} has {mine}: "
            f"all sub-environments of a fleet share their spaces; wrap them so that they do{hint}",
            name,
        )


def check_distinct(identities: Sequence[int], first_index: int = 0) -> None:
    """Check that no two sub-environments are the same object.

    Raises:
        InvalidArgument: Two are.
    """
    seen: dict[int, int] = {}
    for row, identity in enumerate(identities):
        if identity in seen:
            raise InvalidArgument(
                f"sub-environments {first_index + seen[identity]} and {first_index + row} are the same object: the "
                "callable must make a new environment each time, e.g. "
                '`lambda: gym.make("CartPole-v1")` instead of `lambda: env`'
            )
        seen[identity] = row


def check_infos(infos: Sequence[Any], spans: Sequence[range], *, same_bounds: bool) -> None:
    """Check that what different workers built fits together, as each worker did for its own.

    Raises:
        SpacesDiffer: It does not.
        InvalidArgument: Two are the same object, which workers of one process can be.
    """
    if len({info.pid for info in infos}) == 1:
        check_distinct([identity for info in infos for identity in info.identities])
    for info, span in zip(infos[1:], spans[1:], strict=True):
        check_same_spaces(0, infos[0], span.start, info, same_bounds)


def batched_space(infos: Sequence[Any], spans: Sequence[range]) -> gym.Space[Any]:
    """Return the batched observation space of all workers; sub-environments may differ in their bounds."""
    each: list[gym.Space[Any]] = []
    for info, span in zip(infos, spans, strict=True):
        found = info.observation_spaces
        each += found * len(span) if len(found) == 1 else found
    if all(space == each[0] for space in each):
        return batch_space(each[0], len(each))
    return batch_differing_spaces(each)


def explain_result(error: BaseException, result: Any) -> BaseException:
    """Return an error that says what is wrong with the result of `step`; `error` itself if nothing is."""
    if result is UNSET:
        return error
    if not (isinstance(result, tuple) and len(result) == 5):
        problem = (
            f"step() returned {_shape_of(result)}, expected (observation, reward, terminated, truncated, info); "
            "an environment of the old gym API must be converted first"
        )
    elif isinstance(result[1], np.ndarray) and result[1].shape:
        problem = (
            f"step() returned a reward of shape {result[1].shape}, expected one number: "
            "return float(reward[0]), or what it shall be"
        )
    elif not isinstance(result[1], (int, float, np.integer, np.floating, np.bool_, np.ndarray)):
        problem = f"step() returned the reward {result[1]!r}, expected a number"
    elif not isinstance(result[4], dict):
        problem = f"step() returned the info {result[4]!r} (a {type(result[4]).__name__}), expected a dict"
    else:
        return error
    explained = InvalidArgument(problem)
    explained.__cause__ = error
    return explained


def read_reset(result: Any) -> tuple[Any, dict[str, Any]]:
    """Return the observation and the info that `reset` returned.

    Raises:
        InvalidArgument: It returned something else.
    """
    try:
        observation, info = result
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"reset() returned {_shape_of(result)}, expected (observation, info)") from error
    if not isinstance(info, dict):
        raise InvalidArgument(f"reset() returned the info {info!r} (a {type(info).__name__}), expected a dict")
    return observation, info


def _shape_of(result: Any) -> str:
    return f"a tuple of {len(result)}" if isinstance(result, tuple) else f"one {type(result).__name__}"
