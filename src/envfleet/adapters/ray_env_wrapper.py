"""The vector environment of the package RayEnvWrapper, on a fleet: workers × environments per worker on Ray.

In place of that package's own, `pip install envfleet-compat` offers it under the name it had:
`from RayEnvWrapper import WrapperRayVecEnv`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal

import gymnasium as gym
from gymnasium.vector import AutoresetMode

from envfleet.adapters.old_gym import modern
from envfleet.adapters.originals import raising_originals
from envfleet.adapters.sb3 import FleetVecEnv
from envfleet.errors import InvalidArgument
from envfleet.make import make


class WrapperRayVecEnv(FleetVecEnv):
    """Environments on Ray workers as one Stable-Baselines3 `VecEnv`.

    Sub-environment `i` runs on worker `i // envs_per_worker`. `reset()` returns the observations, `step(actions)`
    observations, rewards, dones and infos; sub-environments whose episode ended are reset in the same step. `get_attr`,
    `set_attr`, `env_method`, `env_is_wrapped` and `seed` are those of `VecEnv`; `close` ends the workers.

    Args:
        make_and_seed: Makes a sub-environment, of Gymnasium or of the old `gym`, and seeds it with the number it is
            given.
        number_of_workers: Ray actors.
        envs_per_worker: Sub-environments of each.
        seed: Sub-environment `i` is made with `seed + i`; `None` draws it.
        **make_kwargs: For `envfleet.make`: `ray_options`, `on_failure`, …

    Raises:
        InvalidArgument: A count is below 1, or from `envfleet.make`.
        WorkersUnplaced: Ray did not find a place for every worker.
    """

    def __init__(
        self,
        make_and_seed: Callable[[int], Any],
        number_of_workers: int,
        envs_per_worker: int,
        *,
        seed: int | None = None,
        **make_kwargs: Any,
    ) -> None:
        if number_of_workers < 1 or envs_per_worker < 1:
            raise InvalidArgument(
                f"number_of_workers={number_of_workers}, envs_per_worker={envs_per_worker}: pass 1 or more of each"
            )
        backend: Literal["ray"] = "ray"
        with raising_originals():
            fleet = make(
                functools.partial(_build, make_and_seed),
                backend=backend,
                workers=number_of_workers,
                envs_per_worker=envs_per_worker,
                autoreset_mode=AutoresetMode.SAME_STEP,
                seed=seed,
                **make_kwargs,
            )
        try:
            super().__init__(fleet)
        except BaseException:
            fleet.close(terminate=True)
            raise


def _build(make_and_seed: Callable[[int], Any], seed: int) -> gym.Env[Any, Any]:
    try:
        return modern(make_and_seed(seed))
    except AttributeError as error:
        if error.name != "seed":
            raise
        raise InvalidArgument(
            "make_and_seed called env.seed(seed), which Gymnasium's environments do not have: write "
            "env.reset(seed=seed), or make an environment of the old gym"
        ) from error
