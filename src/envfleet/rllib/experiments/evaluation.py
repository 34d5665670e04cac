"""Evaluation of a trained module by its best actions: figures, and a GIF."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.core.columns import Columns

import envfleet
from envfleet.envs.film import save_film
from envfleet.rllib.connectors import actions_for_env

_FILMED_STEPS = 2000  # of an episode that does not end by itself

Act = Callable[[NDArray[Any]], NDArray[Any]]


def evaluate(algorithm: Algorithm, env: str, num_episodes: int, seed: int) -> NDArray[np.float64]:
    """Play whole episodes with the best actions.

    Args:
        algorithm: Algorithm with the module that plays.
        env: A Gymnasium id.
        num_episodes: Number of episodes, played at once, each in another sub-environment.
        seed: Seed of the first episode; each other one has the next seed.

    Returns:
        Their returns, `(num_episodes,)`.
    """
    with gym.make(env) as single:
        act = _best_actions(algorithm, single.action_space)
    return envfleet.evaluate(act, env, episodes=num_episodes, seeds=seed, num_envs=num_episodes).returns


def record(algorithm: Algorithm, env: str, file: Path, *, seed: int) -> None:
    """Write an episode with the best actions to a GIF: every second frame of its first 2,000 steps.

    Args:
        algorithm: Algorithm with the module that plays.
        env: A Gymnasium id that renders `rgb_array`.
        file: File to write.
        seed: Seed of the episode.
    """
    with gym.make(env, render_mode="rgb_array") as single:
        frames = _frames(single, _best_actions(algorithm, single.action_space), seed)
        save_film(file, frames, fps=(single.metadata.get("render_fps") or 30) / 2)


def _frames(env: gym.Env[Any, Any], act: Act, seed: int) -> Iterator[NDArray[np.uint8]]:
    observation, _ = env.reset(seed=seed)
    for step in range(_FILMED_STEPS):
        if step % 2 == 0:
            frame: Any = env.render()
            yield frame
        observation, _, terminated, truncated, _ = env.step(act(observation[None])[0])
        if terminated or truncated:
            return


def _best_actions(algorithm: Algorithm, action_space: gym.Space[Any]) -> Act:
    """Return the policy of the most likely actions, for observations `(N, …)` that no connector piece changes."""
    module = algorithm.get_module()

    @torch.no_grad()
    def act(observations: NDArray[Any]) -> NDArray[Any]:
        outputs = module.forward_inference({Columns.OBS: torch.from_numpy(np.asarray(observations)).float()})
        kind = module.get_inference_action_dist_cls()
        distribution = kind.from_logits(outputs[Columns.ACTION_DIST_INPUTS]).to_deterministic()
        return np.asarray(actions_for_env(distribution.sample().numpy(), action_space, algorithm.config))

    return act
