"""The environments `check_backend` compares a vector environment over."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import gymnasium

from envfleet.testing.envs import (
    SPACE_KINDS,
    ActionKeeperEnv,
    AttributeEnv,
    CountingEnv,
    InPlaceEnv,
    LockedEnv,
    LooseEnv,
    SpaceEnv,
)
from envfleet.testing.infos import InfoEnv

EnvFn = Callable[[], gymnasium.Env[Any, Any]]


class Detach(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Copy whatever passes, so that an environment which reuses its arrays cannot disturb the reference."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Return a copy of what the environment returns."""
        return copy.deepcopy(self.env.reset(seed=seed, options=options))

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Return a copy of what the environment returns, given a copy of the action."""
        return copy.deepcopy(self.env.step(copy.deepcopy(action)))


@dataclasses.dataclass(frozen=True)
class Case:
    """An environment to compare over.

    Attributes:
        name: What a report calls it.
        make_env: Builds sub-environment `index`; the spaces must not depend on `index`.
        is_aliasing: The environment reuses or scribbles over arrays. The reference then runs over copies, for
            Gymnasium's own `SyncVectorEnv` is disturbed by such environments.
    """

    name: str
    make_env: Callable[[int], gymnasium.Env[Any, Any]]
    is_aliasing: bool = False

    def env_fns(self, num_envs: int) -> list[EnvFn]:
        """Return one builder per sub-environment."""
        return [functools.partial(self.make_env, index) for index in range(num_envs)]

    def reference_env_fns(self, num_envs: int) -> list[EnvFn]:
        """Return the builders of the reference."""
        if not self.is_aliasing:
            return self.env_fns(num_envs)
        return [functools.partial(_detached, self.make_env, index) for index in range(num_envs)]


def _detached(make_env: Callable[[int], gymnasium.Env[Any, Any]], index: int) -> gymnasium.Env[Any, Any]:
    return Detach(make_env(index))


# Lengths differ by sub-environment so that episodes end apart from each other, and sometimes together.
def _counting(index: int, **options: Any) -> gymnasium.Env[Any, Any]:
    return CountingEnv(length=2 + index % 3, **options)


def _attributes(index: int) -> gymnasium.Env[Any, Any]:
    return AttributeEnv(difficulty=1.0 + index, length=2 + index % 3)


def _infos(index: int, kind: str) -> gymnasium.Env[Any, Any]:
    return InfoEnv(kind, index, length=3 + index % 3)


def _of_space(index: int, kind: str) -> gymnasium.Env[Any, Any]:
    return SpaceEnv(observation=kind, action=kind, length=2 + index % 3)


def _brief(index: int) -> gymnasium.Env[Any, Any]:
    return CountingEnv(length=1 + index % 2)


def _of_length(
    index: int, env_class: Callable[..., gymnasium.Env[Any, Any]], **options: Any
) -> gymnasium.Env[Any, Any]:
    return env_class(length=2 + index % 3, **options)


def _limited(index: int) -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TimeLimit(CountingEnv(length=9), max_episode_steps=2 + index % 3)


_COMPARABLE_INFOS = ("numbers", "objects", "nested", "sparse", "reserved")

CASES: tuple[Case, ...] = (
    Case("counting", _counting),
    Case("counting-dict", functools.partial(_counting, dict_obs=True, ends="truncated")),
    Case("counting-varied", functools.partial(_counting, vary=True, ends="alternate")),
    Case("counting-render", functools.partial(_counting, render_mode="rgb_array")),
    Case("brief", _brief),
    Case("time-limit", _limited),
    Case("attributes", _attributes),
    Case("locked", functools.partial(_of_length, env_class=LockedEnv)),
    Case("loose", functools.partial(_of_length, env_class=LooseEnv)),
    Case("in-place", functools.partial(_of_length, env_class=InPlaceEnv), is_aliasing=True),
    Case("action-kept", functools.partial(_of_length, env_class=ActionKeeperEnv), is_aliasing=True),
    Case("action-mutated", functools.partial(_of_length, env_class=ActionKeeperEnv, mutates=True), is_aliasing=True),
    *(Case(f"info-{kind}", functools.partial(_infos, kind=kind)) for kind in _COMPARABLE_INFOS),
    *(Case(f"space-{kind}", functools.partial(_of_space, kind=kind)) for kind in SPACE_KINDS),
)
"""Every environment whose rollouts Gymnasium's `SyncVectorEnv` carries unharmed."""
