"""`WrapperRayVecEnv`: num_workers × per_worker_env environments on Ray, on a fleet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym

from envfleet.adapters.old_gym import modern
from envfleet.adapters.sb3 import FleetVecEnv
from envfleet.errors import InvalidArgument


class WrapperRayVecEnv(FleetVecEnv):
    """Environments on Ray workers as one Stable-Baselines3 `VecEnv`.

    Sub-environment `i` runs on worker `i // per_worker_env`. `reset()` returns the observations, `step(actions)`
    observations, rewards, dones and infos; after the end of an episode its sub-environment is reset in the same step.
    `get_attr`, `set_attr`, `env_method`, `env_is_wrapped` and `seed` are those of `VecEnv`; `close` ends the workers.

    Args:
        make_env: Makes a sub-environment, of Gymnasium or of the old `gym`, and seeds it with the number it is given.
        num_workers: Ray actors.
        per_worker_env: Sub-environments of each.
        seed: Sub-environment `i` is made with `seed + i`; `None` draws it.
        ray_options: Options of Ray, as for `envfleet.make`, but workers reserve CPUs only if `num_cpus` is passed.
        **make_kwargs: For `envfleet.make`: `on_failure`, …

    Raises:
        InvalidArgument: A count is below 1, or from `envfleet.make`.
        WorkersUnplaced: Ray did not find a place for every worker.
    """

    def __init__(
        self,
        make_env: Callable[[int], Any],
        num_workers: int,
        per_worker_env: int,
        *,
        seed: int | None = 0,
        ray_options: Mapping[str, Any] | None = None,
        **make_kwargs: Any,
    ) -> None:
        if num_workers < 1 or per_worker_env < 1:
            raise InvalidArgument(f"num_workers={num_workers}, per_worker_env={per_worker_env}: pass 1 or more of each")
        super().__init__(
            _builder(make_env),
            backend="ray",
            workers=num_workers,
            envs_per_worker=per_worker_env,
            seed=seed,
            ray_options={"num_cpus": 0, **(ray_options or {})},
            **make_kwargs,
        )


def _builder(make_env: Callable[[int], Any]) -> Callable[[int], gym.Env[Any, Any]]:
    def build(seed: int) -> gym.Env[Any, Any]:  # pickled by value: workers need not import Stable-Baselines3
        try:
            return modern(make_env(seed))
        except AttributeError as error:
            if error.name != "seed":
                raise
            raise InvalidArgument(
                "make_env called env.seed(seed), which Gymnasium's environments do not have: write "
                "env.reset(seed=seed), or make an environment of the old gym"
            ) from error

    return build
