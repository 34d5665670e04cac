"""Whole episodes played with a policy, a fixed number in each sub-environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument

Progress = Callable[[str, float], None]
"""Called with a text and the finished share, from 0 to 1."""


def play_episodes(
    fleet: Any, policy: Any, episodes: int | None, progress: Progress | None = None
) -> NDArray[np.float64]:
    """Play episodes, evenly divided among the sub-environments, so that short ones are not preferred.

    Args:
        fleet: A `Fleet`; it is reset first.
        policy: See `Fleet.evaluate`.
        episodes: Number of episodes; `None` for those of the fleet's attempt.
        progress: See `Fleet.evaluate`.

    Returns:
        Returns, `(episodes,)`; sub-environment `i` played those with the numbers `i`, `i + num_envs`, …

    Raises:
        InvalidArgument: The number of episodes is missing or differs from the attempt's, which may also have begun, or
            `policy` is not one.
    """
    fleet.engine.traits.refuse_vector_rewards("an evaluation")
    count = fleet.engine.traits.attempt_episodes or episodes
    if count is None or episodes not in (None, count) or count < 1:
        expected = "at least 1" if count == episodes else f"{count}, those of the attempt, or leave it out"
        raise InvalidArgument(f"episodes={episodes}: pass {expected}")
    if fleet.engine.traits.attempt_episodes and (fleet.stats().steps or fleet.engine.traits.pending_rows is not None):
        raise InvalidArgument(
            "the attempt has begun, and an evaluation resets the fleet, which abandons its episodes: finish them by "
            "step(), or connect() again for another attempt"
        )
    act, begin = read_policy(policy), getattr(policy, "begin", None)
    num_envs, mode = fleet.num_envs, fleet.autoreset_mode
    returns, played = np.zeros(count), np.zeros(num_envs, np.int64)
    wanted = np.bincount(np.arange(count) % num_envs, minlength=num_envs)
    observations, _ = fleet.reset()
    begun, ended = np.ones(num_envs, np.bool_), np.zeros(num_envs, np.bool_)
    while (played < wanted).any():
        if begin is not None and begun.any():
            begin(begun)
        ended_before = ended
        observations, _, terminated, truncated, _ = fleet.step(act(observations))
        ended = terminated | truncated
        if ended.any():
            rows, totals = fleet.engine.ended_episodes()[:2]
            places = rows + played[rows] * num_envs
            returns[places[places < count]] = totals[places < count]
            played[rows] += 1
            if progress is not None:
                num_ended = int(np.minimum(played, wanted).sum())
                progress(f"{num_ended} of {count} episodes", num_ended / count)
        begun = ended_before if mode is AutoresetMode.NEXT_STEP else ended
        if mode is AutoresetMode.DISABLED and ended.any():
            observations, _ = fleet.reset(options={"reset_mask": ended})
    return returns


def read_policy(policy: Any) -> Any:
    """Return the function from batched observations to actions of a policy.

    Raises:
        InvalidArgument: It is not a policy.
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
