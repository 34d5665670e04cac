"""Turbofan fleets for any number of flights per decision, on programs that are compiled already.

Compiling the kernel takes about half a minute, and the shape of an observation is part of what is compiled. For those
that host engines with separate blocks for many users, there are two programs, for blocks of at most 10 and at
most 50 flights, and observations are cut to what was asked for: rows of a block that were not flown repeat the last
one, as they do in the kernel for that very number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode

from envfleet.envs.turbofan.kernel import turbofan
from envfleet.fleet.engine import Batch, Rows, StepResult
from envfleet.fleet.fleet import Fleet
from envfleet.kernels.engine import KernelEngine
from envfleet.kernels.kernel import choose_kernel, read_kernel
from envfleet.options import Options, read_options

SHORT_BLOCK, LONG_BLOCK = 10, 50
"""Flights of one decision of the two programs; the longer one's are as many as the original clients allow."""


class BlockEngine(KernelEngine):
    """Engines that look as if their kernel had been compiled for `step_size`.

    Args:
        num_envs: How many turbofan engines.
        step_size: Flights of a decision, at most as many as the program's.
        return_all_states: True if an observation has a row for each flight; otherwise it has the last row only.
        options: Of the fleet.
        **kwargs: Of `KernelEngine`, and of the kernel but for those two.

    Raises:
        InvalidArgument: An option cannot be used.
    """

    def __init__(self, num_envs: int, step_size: int, return_all_states: bool, options: Options, **kwargs: Any) -> None:
        turbofan(step_size)  # rejects an invalid number of flights
        step_size = int(step_size)
        block = SHORT_BLOCK if step_size <= SHORT_BLOCK else max(LONG_BLOCK, step_size)
        kernel, params = choose_kernel(turbofan(), {**kwargs, "step_size": block})
        super().__init__(read_kernel(kernel), num_envs, options, flights=step_size, **params)
        self._seen = slice(step_size) if return_all_states else -1
        width = self.traits.single_observation_space.shape[-1]  # type: ignore[index]  # a box has a shape
        space = spaces.Box(-np.inf, np.inf, (step_size, width) if return_all_states else (width,), np.float32)
        self.traits = dataclasses.replace(self.traits, single_observation_space=space, has_rollouts=False)

    def step(self, actions: Any) -> StepResult:
        """Step every engine once."""
        observations, rewards, terminated, truncated, infos = super().step(actions)
        return observations[:, self._seen], rewards, terminated, truncated, self._cut(infos)

    def _step_rows(self, actions: Any, rows: Rows | None) -> Batch:
        batch = super()._step_rows(actions, rows)
        if rows is None:  # a step of all, cut already
            return batch
        return batch._replace(observations=batch.observations[:, self._seen], infos=self._cut(batch.infos))

    def _cut(self, infos: dict[str, Any]) -> dict[str, Any]:
        if "final_obs" in infos:
            for row in np.flatnonzero(infos["_final_obs"]):
                infos["final_obs"][row] = infos["final_obs"][row][self._seen]
        return infos

    def observe(self, rows: Rows | None = None, *, final: bool = False) -> Any:
        """Return the last observations."""
        return super().observe(rows, final=final)[:, self._seen]


def make_engines(spec: EnvSpec, num_envs: int, autoreset_mode: AutoresetMode, options: Mapping[str, Any]) -> Fleet:
    """Make a fleet of engines on one of the two programs.

    Args:
        spec: Of the registered environment.
        num_envs: How many engines.
        autoreset_mode: Gymnasium's.
        options: Of the environment, `step_size` and `return_all_states` among them.

    Raises:
        InvalidArgument: An option cannot be used.
    """
    rest = {"max_episode_steps": spec.max_episode_steps, "env_spec": spec, **options}
    size, is_whole = rest.pop("step_size", SHORT_BLOCK), rest.pop("return_all_states", True)
    fleet_options = read_options(backend="kernel", autoreset_mode=autoreset_mode, seed=0)
    return Fleet(BlockEngine(num_envs, size, is_whole, fleet_options, **rest))
