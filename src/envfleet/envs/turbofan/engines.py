"""Fleets of turbofan engines whose decisions are for any number of flights, all on programs that are compiled already.

Compiling the kernel takes about half a minute, and the shape of an observation is part of what is compiled. For those
who host engines for many people, each with blocks of their own, there are two programs, for blocks of at most 10 and at
most 50 flights, and observations are cut to what was asked for: rows of a block that were not flown repeat the last
one, as they do in the kernel for that very number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from envfleet.core.rows import StepResult
from envfleet.envs.turbofan.kernel import turbofan
from envfleet.kernels.fleet import KernelFleet
from envfleet.kernels.kernel import choose_kernel, read_kernel

SHORT_BLOCK, LONG_BLOCK = 10, 50
"""Flights of one decision of the two programs; the longer one's are as many as the original clients allow."""


class EngineFleet(KernelFleet):
    """Engines that are seen as if their kernel had been compiled for `step_size`; otherwise a `KernelFleet`.

    Args:
        num_envs: How many engines.
        step_size: Flights of a decision, fewer than the program's or as many.
        return_all_states: Whether an observation has a row for each of them, or the last alone.
        options: Of `KernelFleet`, and of the kernel but for those two.

    Raises:
        InvalidArgument: An option that cannot be.
    """

    def __init__(self, num_envs: int, step_size: int, return_all_states: bool, options: Mapping[str, Any]) -> None:
        turbofan(step_size)  # refuses what is no number of flights
        step_size = int(step_size)
        block = SHORT_BLOCK if step_size <= SHORT_BLOCK else max(LONG_BLOCK, step_size)
        own = {name: options[name] for name in _OWN_OPTIONS if name in options}
        rest = {name: value for name, value in options.items() if name not in own}
        kernel, params = choose_kernel(turbofan(), {**rest, "step_size": block})
        super().__init__(read_kernel(kernel), num_envs, params={"flights": step_size, **params}, **own)
        self._seen = slice(step_size) if return_all_states else -1
        width = self.single_observation_space.shape[-1]  # type: ignore[index]  # a box has a shape
        shape = (step_size, width) if return_all_states else (width,)
        self.single_observation_space = spaces.Box(-np.inf, np.inf, shape, np.float32)
        self.observation_space = batch_space(self.single_observation_space, num_envs)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """As `KernelFleet.reset`."""
        observations, infos = super().reset(seed=seed, options=options)
        return observations[:, self._seen], infos

    def reset_envs(
        self,
        indices: Sequence[int] | NDArray[np.integer[Any]],
        seeds: Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """As `KernelFleet.reset_envs`."""
        observations, infos = super().reset_envs(indices, seeds, options)
        return observations[:, self._seen], infos

    def step(self, actions: Any) -> StepResult:
        """As `KernelFleet.step`."""
        observations, rewards, terminated, truncated, infos = super().step(actions)
        if "final_obs" in infos:
            final = infos["final_obs"]
            for row in np.flatnonzero(infos["_final_obs"]):
                final[row] = final[row][self._seen]
        return observations[:, self._seen], rewards, terminated, truncated, infos

    def set_state(self, state: Any, indices: Sequence[int] | NDArray[np.integer[Any]] | None = None) -> NDArray[Any]:
        """As `KernelFleet.set_state`."""
        return super().set_state(state, indices)[:, self._seen]


def has_program(options: Mapping[str, Any]) -> bool:
    """Whether one of the two programs is that of the very kernel for some options, so that nothing is to be cut."""
    size, is_whole = options.get("step_size", SHORT_BLOCK), options.get("return_all_states", True)
    return is_whole is True and size in (SHORT_BLOCK, LONG_BLOCK)


def make_engines(
    spec: EnvSpec, num_envs: int, autoreset_mode: AutoresetMode, options: Mapping[str, Any]
) -> KernelFleet:
    """Make a fleet of engines on one of the two programs.

    Args:
        spec: Of the registered environment.
        num_envs: How many engines.
        autoreset_mode: Gymnasium's.
        options: Of the fleet and the kernel, `step_size` and `return_all_states` among them.

    Raises:
        InvalidArgument: An option that cannot be.
    """
    rest = {"max_episode_steps": spec.max_episode_steps, "env_spec": spec, "seed": 0, **options}
    size, is_whole = rest.pop("step_size", SHORT_BLOCK), rest.pop("return_all_states", True)
    return EngineFleet(num_envs, size, is_whole, {**rest, "autoreset_mode": autoreset_mode})


_OWN_OPTIONS = ("max_episode_steps", "autoreset_mode", "copy", "seed", "env_spec", "render_mode")
