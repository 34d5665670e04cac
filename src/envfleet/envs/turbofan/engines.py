"""Turbofan fleets for any number of flights per decision, on two compiled programs.

Compiling the kernel takes about half a minute, and the shape of observations is part of the compiled code. A service
hosts engines with different numbers of flights for many users on two programs, for at most 10 and at most 50 flights,
and cuts observations to the requested number: rows that were not flown repeat the last one, as in the kernel for that
number.
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
"""Flights per decision of the two programs; the larger number is the maximum of the original clients."""


class BlockEngine(KernelEngine):
    """Fleet engine that behaves like a kernel compiled for `step_size`.

    Args:
        num_envs: Number of turbofan engines.
        step_size: Flights per decision, at most those of the program.
        return_all_states: True if an observation has a row for each flight; otherwise it has the last row only.
        options: Options of the fleet.
        **kwargs: Other arguments of `KernelEngine` and of the kernel.

    Raises:
        InvalidArgument: An option is invalid.
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
        spec: Spec of the registered environment.
        num_envs: Number of engines.
        autoreset_mode: Gymnasium's autoreset mode.
        options: Options of the environment, including `step_size` and `return_all_states`.

    Raises:
        InvalidArgument: An option is invalid.
    """
    rest = {"max_episode_steps": spec.max_episode_steps, "env_spec": spec, **options}
    size, is_whole = rest.pop("step_size", SHORT_BLOCK), rest.pop("return_all_states", True)
    fleet_options = read_options(backend="kernel", autoreset_mode=autoreset_mode, seed=0)
    return Fleet(BlockEngine(num_envs, size, is_whole, fleet_options, **rest))
