"""Evaluation of a trained module by its best actions: figures, and a GIF."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.core.columns import Columns

import envfleet
from envfleet.errors import InvalidArgument
from envfleet.files import replacing
from envfleet.rllib.connectors import PrepareActions

_EVERY = 2  # steps between frames
_MOST_STEPS = 100_000
_MOST_FRAMES = 1000  # of an episode that does not end by itself


class BestActions:
    """The most likely actions of an algorithm's module, as the environment takes them.

    For observations that no connector piece changes.

    Args:
        algorithm: Whose module.
        action_space: Of one sub-environment.
    """

    def __init__(self, algorithm: Algorithm, action_space: gym.Space[Any]) -> None:
        module = algorithm.get_module()
        if module is None:
            raise InvalidArgument("the algorithm has no module here: evaluate one that samples in this process")
        self._module = module
        config = algorithm.config
        self._prepare = PrepareActions(
            None, action_space, normalize_actions=config.normalize_actions, clip_actions=config.clip_actions
        )

    @torch.no_grad()
    def __call__(self, observations: NDArray[Any]) -> NDArray[Any]:
        """Choose.

        Args:
            observations: `(N, …)`.

        Returns:
            Actions, `(N, …)`.
        """
        outputs = self._module.forward_inference({Columns.OBS: torch.from_numpy(np.asarray(observations)).float()})
        kind = self._module.get_inference_action_dist_cls()
        distribution = kind.from_logits(outputs[Columns.ACTION_DIST_INPUTS]).to_deterministic()
        batch = self._prepare(batch={Columns.ACTIONS: distribution.sample().numpy()})
        actions: NDArray[Any] = batch[Columns.ACTIONS_FOR_ENV if Columns.ACTIONS_FOR_ENV in batch else Columns.ACTIONS]
        return actions


def evaluate(algorithm: Algorithm, env: str, num_episodes: int, seed: int) -> NDArray[np.float64]:
    """Play whole episodes with the best actions.

    Args:
        algorithm: Whose module plays.
        env: A Gymnasium id.
        num_episodes: All at once, each in a sub-environment of its own.
        seed: Of the first episode; the others have those that follow.

    Returns:
        Their returns, `(num_episodes,)`.

    Raises:
        InvalidArgument: An episode does not end.
    """
    with envfleet.make(env, num_episodes, autoreset_mode=AutoresetMode.SAME_STEP) as fleet:
        act = BestActions(algorithm, fleet.single_action_space)
        observations, _ = fleet.reset(seed=seed)
        returns, is_playing = np.zeros(num_episodes), np.ones(num_episodes, np.bool_)
        for _ in range(_MOST_STEPS):
            observations, rewards, terminated, truncated, _ = fleet.step(act(observations))
            returns += np.where(is_playing, rewards, 0.0)
            is_playing &= ~(terminated | truncated)
            if not is_playing.any():
                return returns
    raise InvalidArgument(
        f"an episode of {env} goes on after {_MOST_STEPS:,} steps: register the environment with max_episode_steps"
    )


def record(algorithm: Algorithm, env: str, file: Path, *, seed: int) -> None:
    """Write an episode with the best actions to a GIF: every second frame of its first 2,000 steps.

    Args:
        algorithm: Whose module plays.
        env: A Gymnasium id that renders `rgb_array`.
        file: Where to.
        seed: Of the episode.
    """
    import imageio.v3 as imageio

    frames, is_ended = list[NDArray[Any]](), False
    with gym.make(env, render_mode="rgb_array") as single:
        act = BestActions(algorithm, single.action_space)
        observation, _ = single.reset(seed=seed)
        while not is_ended and len(frames) < _MOST_FRAMES:
            frames.append(np.asarray(single.render()))
            for _ in range(_EVERY):
                observation, _, terminated, truncated, _ = single.step(act(observation[None])[0])
                is_ended = bool(terminated or truncated)
                if is_ended:
                    break
        fps = (single.metadata.get("render_fps") or 30) / _EVERY
    with replacing(file) as unfinished:
        imageio.imwrite(unfinished, frames, extension=".gif", duration=1000 / fps, loop=0)
