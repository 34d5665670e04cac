"""Whole episodes played with a policy, a fixed number in each sub-environment."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument


def play_episodes(
    fleet: VectorEnv[Any, Any, Any], policy: Any, episodes: int, mode: AutoresetMode
) -> NDArray[np.float64]:
    """Play episodes, evenly divided among the sub-environments, so that short ones are not preferred.

    Args:
        fleet: The fleet; it is reset first.
        policy: See `Fleet.evaluate`.
        episodes: Number of episodes.
        mode: Autoreset mode of the fleet.

    Returns:
        Returns, `(episodes,)`; sub-environment `i` played those with the numbers `i`, `i + num_envs`, …
    """
    act, begin = read_policy(policy), getattr(policy, "begin", None)
    num_envs = fleet.num_envs
    every = np.arange(num_envs)
    returns, totals = np.zeros(episodes), np.zeros(num_envs)
    played, resetting = np.zeros(num_envs, np.int64), np.zeros(num_envs, np.bool_)
    observations, _ = fleet.reset()
    begun = np.ones(num_envs, np.bool_)
    while (every + played * num_envs < episodes).any():
        if begin is not None and begun.any():
            begin(begun)
        observations, rewards, terminated, truncated, _ = fleet.step(act(observations))
        totals += np.where(resetting, 0.0, rewards)
        ended = (terminated | truncated) & ~resetting
        places = every + played * num_envs
        counted = ended & (places < episodes)
        returns[places[counted]] = totals[counted]
        played += ended
        totals[ended] = 0.0
        if mode is AutoresetMode.NEXT_STEP:
            begun, resetting = resetting, ended
            continue
        begun = ended
        if mode is AutoresetMode.DISABLED and ended.any():
            observations, _ = fleet.reset(options={"reset_mask": ended})
    return returns


def read_policy(policy: Any) -> Any:
    """Return the function from batched observations to actions of a policy.

    Raises:
        InvalidArgument: It is no policy.
    """
    if hasattr(policy, "act_batch"):
        return lambda observations: policy.act_batch(observations, deterministic=True)
    if hasattr(policy, "predict"):
        return lambda observations: policy.predict(observations, deterministic=True)[0]
    if not callable(policy):
        raise InvalidArgument(
            f"policy={policy!r:.100}: pass a function of observations that returns actions, or an object with "
            "`act_batch` (an agent) or `predict` (a model of Stable-Baselines3)"
        )
    return policy
