"""CartPole on every kind of fleet of this process; the fixture `make_fleet` adds those of a service.

For what must be the same on all of them; Ray's are in tests/ray.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gymnasium
import pytest
from gymnasium.vector import SyncVectorEnv

import envfleet
from envfleet.fleet.fleet import Fleet
from envfleet.options import read_autoreset_mode


def adopted(num_envs: int, autoreset_mode: Any, **env_kwargs: Any) -> Fleet:
    env_fn = functools.partial(gymnasium.make, "CartPole-v1", **env_kwargs)
    return envfleet.adopt(SyncVectorEnv([env_fn] * num_envs, autoreset_mode=read_autoreset_mode(autoreset_mode)))


KINDS: dict[str, Callable[..., Fleet]] = {
    "serial": functools.partial(envfleet.make, "CartPole-v1", backend="serial"),
    "thread": functools.partial(envfleet.make, "CartPole-v1", backend="thread", workers=2),
    "process": functools.partial(envfleet.make, "CartPole-v1", backend="process", workers=2),
    "kernel": functools.partial(envfleet.make, "envfleet/CartPole-v1", backend="kernel"),
    "adopted": adopted,
}
"""Called with `num_envs`, `autoreset_mode` and keywords of `gymnasium.make`."""

LOCAL_FLEETS = [pytest.param(make_fleet, id=name) for name, make_fleet in KINDS.items()]
