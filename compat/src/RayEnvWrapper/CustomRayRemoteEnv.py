"""`CustomRayRemoteVectorEnv`: the same environments, driven by `poll` and `send_actions`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from envfleet.errors import InvalidArgument
from envfleet.fleet.checks import check_whole
from RayEnvWrapper.CustomWrapperRayVecEnv import WrapperRayVecEnv

ASYNC_RESET_RETURN = "async_reset_return"
"""What RLlib's `BaseEnv.try_reset` returns if `poll` has the result."""


class CustomRayRemoteVectorEnv(WrapperRayVecEnv):
    """Environments on Ray workers, driven by `poll` and `send_actions`; it is also a `VecEnv`.

    Args:
        make_env: Makes a sub-environment and seeds it with the number it is given.
        num_workers: Ray actors.
        env_per_worker: Sub-environments of each.
        multiagent: False; environments of several agents are refused.
        **options: Of `WrapperRayVecEnv`.

    Attributes:
        num_workers: Ray actors.
        env_per_worker: Sub-environments of each.
        multiagent: False.

    Raises:
        InvalidArgument: A count is below 1, or `multiagent` is true.
    """

    def __init__(
        self,
        make_env: Callable[[int], Any],
        num_workers: int,
        env_per_worker: int,
        multiagent: bool = False,
        **options: Any,
    ) -> None:
        if multiagent:
            raise InvalidArgument(
                "multiagent=True is not supported, as it fails in RayEnvWrapper itself: pass False, or use "
                "envfleet.make for PettingZoo games, whose rows are agents"
            )
        super().__init__(make_env, num_workers, env_per_worker, **options)
        self.num_workers, self.env_per_worker, self.multiagent = num_workers, env_per_worker, multiagent
        self._to_reset = set(range(num_workers))
        self._is_new = True

    def poll(self) -> VecEnvStepReturn:
        """Wait for the step of `send_actions`, then reset the workers of `try_reset`; the first time, reset all.

        Returns:
            Observations, rewards (float32), dones, and a list of infos; of a reset, the reward is 0.

        Raises:
            NothingPending: Nothing was asked for.
        """
        rewards, dones = np.zeros(self.num_envs, np.float32), np.zeros(self.num_envs, np.bool_)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        if self._is_stepping or not self._to_reset:
            observations, rewards, dones, infos = self.step_wait()
        if self._to_reset:
            workers = np.isin(np.arange(self.num_workers), list(self._to_reset))
            rows = workers.repeat(self.env_per_worker)
            options = None if self._is_new else {"reset_mask": rows}
            observations, _ = self.fleet.reset(options=options)
            self._is_new = False
            self._to_reset.clear()
            rewards[rows], dones[rows] = 0.0, False
            infos = [{} if is_reset else info for is_reset, info in zip(rows, infos, strict=True)]
        return observations, rewards, dones, infos

    def try_reset(self, env_id: int | None = None) -> str:
        """Have all sub-environments of a worker reset by the next `poll`.

        Args:
            env_id: Index of the worker; `None` for all workers.

        Returns:
            RLlib's constant `ASYNC_RESET_RETURN`.
        """
        last = self.num_workers - 1
        self._to_reset |= set(range(last + 1)) if env_id is None else {check_whole("env_id", env_id, 0, last)}
        return ASYNC_RESET_RETURN

    def send_actions(self, action_list: Any) -> None:
        """Start to step all sub-environments, with one action for each."""
        self.step_async(action_list)

    def stop(self) -> None:
        """End the workers."""
        self.close()
