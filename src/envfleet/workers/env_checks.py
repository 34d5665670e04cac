"""Checks of users' environments and their return values, with messages that say what to change."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from types import CodeType, FunctionType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector.utils import batch_differing_spaces, batch_space

from envfleet.errors import InvalidArgument, SpacesDiffer

_POLYGONS = frozenset({"filled_polygon", "textured_polygon"})
"""Functions of `pygame.gfxdraw` that sort edges in one buffer of the process, with the interpreter's lock released."""

_OLD_GYM = "for an environment of the old gym pass a function that returns envfleet.adapters.old_gym.OldGymEnv(env)"

UNSET: Any = object()
"""Placeholder for a missing result, because an environment may return `None`."""


def batch_spaces(infos: Sequence[Any], mode: str | tuple[Any, Any]) -> tuple[gym.Space[Any], gym.Space[Any]]:
    """Return the batched and the single observation space of all sub-environments.

    Args:
        infos: `GroupInfo` of each worker.
        mode: `"same"`: observation spaces must be equal; `"different"`: they must have one shape and dtype; or the two
            spaces to return.

    Raises:
        SpacesDiffer: Spaces of two sub-environments do not match.
        InvalidArgument: Two sub-environments are the same object.
    """
    is_given = isinstance(mode, tuple)
    first: Any = (mode[1], infos[0].spaces[0][1]) if is_given else infos[0].spaces[0]
    spaces = [first if pair == first else pair for info in infos for pair in info.spaces]
    for index, pair in enumerate(spaces):
        if pair is not first:
            _check_same_spaces(first, index, pair, mode == "same", is_given)
    seen: dict[Any, int] = {}
    for index, identity in enumerate((info.pid, identity) for info in infos for identity in info.identities):
        if identity in seen:
            raise InvalidArgument(
                f"sub-environments {seen[identity]} and {index} are the same object: the callable must make a new "
                'environment each time, e.g. `lambda: gym.make("CartPole-v1")` instead of `lambda: env`'
            )
        seen[identity] = index
    rewards = [space for info in infos for space in info.reward_spaces]
    for index, space in enumerate(rewards):
        if getattr(space, "shape", ()) != getattr(rewards[0], "shape", ()):
            raise SpacesDiffer(
                f"reward_space of sub-environment {index} is {space}, but sub-environment 0 has {rewards[0]}: all "
                "rewards of a fleet must have one shape",
                "reward_space",
            )
    each = [observation_space for observation_space, _ in spaces]
    if isinstance(mode, tuple):
        if not is_space_dtype_shape_equiv(mode[0], batch_space(mode[1], len(each))):
            raise InvalidArgument(
                f"observation_mode=({mode[0]}, {mode[1]}): the first space does not batch the second {len(each)} times"
            )
        return mode
    is_same = all(pair is first for pair in spaces)
    return batch_space(each[0], len(each)) if is_same else batch_differing_spaces(each), each[0]


def _check_same_spaces(first: Any, index: int, other: Any, same_bounds: bool, is_given: bool) -> None:
    (ours, our_actions), (theirs, their_actions) = first, other
    fits = ours == theirs if same_bounds else is_space_dtype_shape_equiv(ours, theirs)
    for name, expected, actual, is_same in (
        ("observation_space", ours, theirs, fits),
        ("action_space", our_actions, their_actions, our_actions == their_actions),
    ):
        if is_same:
            continue
        is_observed = name == "observation_space"
        owner = "observation_mode has" if is_given and is_observed else "sub-environment 0 has"
        hint = ', or pass observation_mode="different" if only bounds differ' if is_observed and not is_given else ""
        raise SpacesDiffer(
            f"{name} of sub-environment {index} is {actual}, but {owner} {expected}: "
            f"all sub-environments of a fleet must have the same spaces; use wrappers that make them equal{hint}",
            name,
        )


def find_reward_space(env: gym.Env[Any, Any]) -> gym.spaces.Box | None:
    """Return the space of rewards that are vectors, `reward_space` as in MO-Gymnasium; `None` if rewards are numbers.

    The outermost wrapper that has the attribute decides, because it may change rewards.
    """
    layer: Any = env
    while type(layer).__name__ != "LinearReward":  # MO-Gymnasium's, which makes vectors numbers and has no reward_space
        space = getattr(layer, "reward_space", None)
        if isinstance(space, gym.spaces.Box):
            return space if space.shape else None
        if not isinstance(layer, gym.Wrapper):
            break
        layer = layer.env
    return None


def explain_result(error: BaseException, result: Any, reward_shape: tuple[int, ...] = ()) -> BaseException:
    """Return an error that explains an invalid result of `step`; `error` itself if the result is valid.

    Args:
        error: Exception raised while the result was read.
        result: Result of `step`, or `UNSET`.
        reward_shape: Shape of the environment's rewards.
    """
    if result is UNSET:
        return error
    if not (isinstance(result, tuple) and len(result) == 5):
        is_old = isinstance(result, tuple) and len(result) == 4
        problem = (
            f"step() returned {_shape_of(result)}, expected (observation, reward, terminated, truncated, info): "
            f"{_OLD_GYM if is_old else 'return all five'}"
        )
    elif not reward_shape and isinstance(result[1], np.ndarray) and result[1].shape:
        problem = (
            f"step() returned a reward of shape {result[1].shape}, expected one number: return float(reward[0]), or "
            "set the attribute reward_space, a Box of that shape, if rewards are vectors"
        )
    elif not reward_shape and isinstance(result[1], (list, tuple)):
        problem = (
            f"step() returned {len(result[1])} rewards in a {type(result[1]).__name__}, expected one number: an "
            "environment of several agents has to be a PettingZoo ParallelEnv, which envfleet.adapters.pettingzoo "
            "takes; for objectives of one agent set the attribute reward_space, a Box"
        )
    elif not reward_shape and not isinstance(result[1], (int, float, np.integer, np.floating, np.bool_, np.ndarray)):
        problem = f"step() returned the reward {result[1]!r}, expected a number"
    elif not isinstance(result[4], dict):
        problem = f"step() returned the info {result[4]!r} (a {type(result[4]).__name__}), expected a dict"
    else:
        return error
    explained = InvalidArgument(problem)
    explained.__cause__ = error
    return explained


def explain_reset(error: BaseException, seed: int | None, options: Any) -> BaseException:
    """Return an error that explains a `reset` which rejected the keywords that Gymnasium passes; others as they are."""
    is_refused = isinstance(error, TypeError) and "reset() got an unexpected keyword argument" in str(error)
    if not is_refused or (seed is None and options is None):
        return error
    explained = InvalidArgument(
        f"{error}: write `def reset(self, *, seed=None, options=None)` with `super().reset(seed=seed)` first; "
        f"{_OLD_GYM}"
    )
    explained.__cause__ = error
    return explained


def check_flags(terminated: Any, truncated: Any) -> None:
    """Check the flags of a step that ended an episode, because any truthy object would end it.

    Raises:
        InvalidArgument: A flag is text or a container.
    """
    for name, value in (("terminated", terminated), ("truncated", truncated)):
        if isinstance(value, (str, bytes, list, tuple, dict, set)):
            raise InvalidArgument(f"step() returned {name}={value!r}, expected True or False: return bool(...)")


def read_reset(result: Any) -> tuple[Any, dict[str, Any]]:
    """Return the observation and the info from the result of `reset`.

    Raises:
        InvalidArgument: The result is not a tuple of an observation and a dict.
    """
    try:
        observation, info = result
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"reset() returned {_shape_of(result)}, expected (observation, info)") from error
    if not isinstance(info, dict):
        raise InvalidArgument(f"reset() returned the info {info!r} (a {type(info).__name__}), expected a dict")
    return observation, info


def _shape_of(result: Any) -> str:
    if result is None:
        return "None"
    return f"a tuple of {len(result)}" if isinstance(result, tuple) else f"one {type(result).__name__}"


def refuse_in_thread(env: gym.Env[Any, Any]) -> None:
    """Raise an error if an environment draws polygons with `pygame.gfxdraw`.

    Two threads that do so at the same time get wrong pictures and free the same memory twice. A lock would have to be
    inside pygame. No attribute shows what an environment draws, so its code is searched: the names that the modules
    of its classes define or import.

    Args:
        env: An environment that a thread will step.

    Raises:
        InvalidArgument: The environment draws such polygons, and has a render mode or image observations.
    """
    pictured = env.render_mode is not None or _observes_pictures(env.unwrapped.observation_space)
    if pictured and any(not _POLYGONS.isdisjoint(_names(function.__code__)) for function in _functions_near(env)):
        remedy = "" if env.render_mode is None else f", or leave out render_mode={env.render_mode!r}"
        raise InvalidArgument(
            f'{type(env.unwrapped).__name__} with backend="thread": it draws with pygame.gfxdraw, which shares '
            "a buffer between all threads of a process, so pictures would be wrong and the process could crash: "
            f'pass backend="process" or "serial"{remedy}'
        )


def _observes_pictures(space: Any) -> bool:
    if isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple)):
        parts = space.spaces.values() if isinstance(space, gym.spaces.Dict) else space.spaces
        return any(map(_observes_pictures, parts))
    return isinstance(space, gym.spaces.Box) and space.dtype == np.uint8 and len(space.shape) > 1


def _functions_near(env: gym.Env[Any, Any]) -> Iterator[FunctionType]:
    """Yield the functions and methods in the modules of an environment's classes and of its wrappers'."""
    layers: list[Any] = [env]
    while isinstance(layers[-1], gym.Wrapper):
        layers.append(layers[-1].env)
    modules = {base.__module__ for layer in layers for base in type(layer).__mro__}
    values = [value for name in modules for value in list(getattr(sys.modules.get(name), "__dict__", {}).values())]
    members = [member for value in values if isinstance(value, type) for member in vars(value).values()]
    for value in values + members:
        function = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
        if isinstance(function, FunctionType):
            yield function


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
