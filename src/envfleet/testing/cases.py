"""Environments with which `check_backend` compares vector environments."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import gymnasium

from envfleet.testing.envs import SPACE_KINDS, ActionKeeperEnv, CountingEnv, InPlaceEnv, LockedEnv, LooseEnv, SpaceEnv
from envfleet.testing.infos import InfoEnv

EnvFn = Callable[[], gymnasium.Env[Any, Any]]


@dataclasses.dataclass(frozen=True)
class Case:
    """Environment of a comparison.

    Attributes:
        name: Name in reports.
        make_env: Function that builds sub-environment `index`; its spaces must not depend on `index`.
    """

    name: str
    make_env: Callable[[int], gymnasium.Env[Any, Any]]

    def env_fns(self, num_envs: int) -> list[EnvFn]:
        """Return one constructor per sub-environment."""
        return [functools.partial(self.make_env, index) for index in range(num_envs)]


class Detach(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Copies actions and results, because environments that reuse arrays corrupt those of `SyncVectorEnv`."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Return a copy of the result of `reset`."""
        return copy.deepcopy(self.env.reset(seed=seed, options=options))

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step with a copy of the action; return a copy of the result."""
        return copy.deepcopy(self.env.step(copy.deepcopy(action)))


# Lengths differ by sub-environment, so that episodes end at different steps and sometimes together.
def _build(index: int, env_class: Callable[..., Any] = CountingEnv, shortest: int = 2, **options: Any) -> Any:
    return env_class(length=shortest + index % 3, **options)


def _limited(index: int) -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TimeLimit(CountingEnv(length=9), max_episode_steps=2 + index % 3)


def _informing(index: int, kind: str) -> gymnasium.Env[Any, Any]:
    return InfoEnv(kind, index, length=3 + index % 3)


_MAKERS: dict[str, Callable[[int], gymnasium.Env[Any, Any]]] = {
    "counting": _build,
    "counting-dict": functools.partial(_build, dict_obs=True, ends="truncated"),
    "counting-varied": functools.partial(_build, vary=True, ends="alternate"),
    "counting-render": functools.partial(_build, render_mode="rgb_array"),
    "brief": functools.partial(_build, shortest=1),
    "time-limit": _limited,
    "locked": functools.partial(_build, env_class=LockedEnv),
    "loose": functools.partial(_build, env_class=LooseEnv),
    "in-place": functools.partial(_build, env_class=InPlaceEnv),
    "in-place-sequence": functools.partial(_build, env_class=InPlaceEnv, in_sequence=True),
    "action-kept": functools.partial(_build, env_class=ActionKeeperEnv),
    "action-mutated": functools.partial(_build, env_class=ActionKeeperEnv, mutates=True),
}
for _kind in ("numbers", "objects", "nested", "sparse", "reserved"):
    _MAKERS[f"info-{_kind}"] = functools.partial(_informing, kind=_kind)
for _kind in SPACE_KINDS:
    _MAKERS[f"space-{_kind}"] = functools.partial(_build, env_class=SpaceEnv, observation=_kind, action=_kind)

CASES: tuple[Case, ...] = tuple(Case(name, make_env) for name, make_env in _MAKERS.items())
"""Environments that `SyncVectorEnv` reports without errors if it gets copies."""
