"""Gymnasium's spaces on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument, WireError


def space_to_plain(space: gym.Space[Any]) -> dict[str, Any]:
    """A space as values that `pack` takes.

    Raises:
        InvalidArgument: It is none of Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple.
    """
    if isinstance(space, spaces.Box):
        low, high = _uniform(space.low), _uniform(space.high)
        return {"type": "Box", "low": low, "high": high, "shape": list(space.shape), "dtype": np.dtype(space.dtype).str}
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": np.dtype(space.dtype).str}
    if isinstance(space, spaces.MultiDiscrete):
        return {"type": "MultiDiscrete", "nvec": space.nvec, "start": space.start, "dtype": np.dtype(space.dtype).str}
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "shape": list(space.shape)}
    if isinstance(space, spaces.Dict):
        return {"type": "Dict", "spaces": [[name, space_to_plain(each)] for name, each in space.spaces.items()]}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "spaces": [space_to_plain(each) for each in space.spaces]}
    raise InvalidArgument(
        f"a space of type {type(space).__name__} cannot be sent: a service hosts environments of Box, Discrete, "
        "MultiDiscrete, MultiBinary, Dict and Tuple spaces"
    )


def space_from_plain(plain: Mapping[str, Any]) -> gym.Space[Any]:
    """The inverse of `space_to_plain`.

    Raises:
        WireError: It is something else.
    """
    try:
        return _read(plain)
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        raise WireError(f"the space {plain!r:.200} cannot be read: {type(error).__name__}: {error}") from error


def _read(plain: Mapping[str, Any]) -> gym.Space[Any]:
    kind = plain["type"]
    if kind == "Box":
        shape, dtype = tuple(plain["shape"]), np.dtype(plain["dtype"])
        low, high = (np.full(shape, plain[side], dtype) for side in ("low", "high"))
        return spaces.Box(low, high, shape, dtype.type)
    if kind == "Discrete":
        return spaces.Discrete(plain["n"], start=plain["start"], dtype=np.dtype(plain["dtype"]).type)
    if kind == "MultiDiscrete":
        dtype = np.dtype(plain["dtype"])
        return spaces.MultiDiscrete(np.array(plain["nvec"]), dtype.type, start=np.array(plain["start"]))
    if kind == "MultiBinary":
        shape = tuple(plain["shape"])
        return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)
    if kind == "Dict":
        return spaces.Dict({name: _read(each) for name, each in plain["spaces"]})
    if kind == "Tuple":
        return spaces.Tuple([_read(each) for each in plain["spaces"]])
    raise ValueError(f"no space is called {kind!r}")


def _uniform(bounds: NDArray[Any]) -> Any:
    """One number if all are the same."""
    if bounds.size == 0 or not bool((bounds == bounds.flat[0]).all()):
        return bounds
    return bounds.ravel()[0].item()
