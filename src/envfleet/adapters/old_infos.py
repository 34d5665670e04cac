"""Infos of the end of an episode in the form of Gymnasium 0.29, for scripts in the manner of CleanRL's.

Gymnasium 1.0 renamed `final_observation` to `final_obs` and made a dict of arrays of `final_info`, which was an array
of dicts. Scripts that were written for 0.29 fail on this, or silently log no episodes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from envfleet.adapters.sb3_infos import spread_infos
from envfleet.errors import InvalidArgument
from envfleet.fleet.fleet import Fleet
from envfleet.same_step import in_mode, mode_of


class OldInfos(VectorWrapper):
    """Vector environment that reports ended episodes as Gymnasium 0.29 did.

    Episodes are reset in the step that ends them. Where some ended, infos of the step have:

    - `"final_observation"`: array of objects, shape `(num_envs,)`: last observations, `None` elsewhere.
    - `"final_info"`: array of objects, shape `(num_envs,)`: dicts of the last infos, `None` elsewhere. With
      `record_episodes=True` each has `"episode"`, as if its environment were in a `RecordEpisodeStatistics`.
    - `"_final_observation"`, `"_final_info"`: masks of the ended rows, shape `(num_envs,)`.

    Args:
        env: Fleet with `autoreset_mode="SAME_STEP"`, or a vector environment of another library. Those that reset in
            the next step, such as EnvPool's, are converted as by `envfleet.adopt(…, autoreset_mode="SAME_STEP")`.

    Raises:
        InvalidArgument: The fleet has another autoreset mode, or the vector environment cannot be converted.

    Examples:
        >>> import envfleet
        >>> options = {"autoreset_mode": "SAME_STEP", "record_episodes": True, "backend": "serial"}
        >>> envs = OldInfos(envfleet.make("CartPole-v1", 2, **options))
        >>> observations, infos = envs.reset(seed=0)
        >>> while "final_info" not in infos:
        ...     observations, rewards, terminations, truncations, infos = envs.step([1, 1])
        >>> [info and info["episode"]["l"] for info in infos["final_info"]]
        [8, None]
        >>> envs.close()
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        if isinstance(env, Fleet) and (mode := mode_of(env)) is not AutoresetMode.SAME_STEP:
            raise InvalidArgument(
                f"OldInfos got a fleet with autoreset_mode={mode.name!r}, but Gymnasium 0.29 resets in the step that "
                'ends an episode: make it with autoreset_mode="SAME_STEP"'
            )
        super().__init__(in_mode(env, AutoresetMode.SAME_STEP))

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step every sub-environment once."""
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        ended = np.logical_or(terminated, truncated)
        return observations, rewards, terminated, truncated, self._rename(infos, ended) if ended.any() else infos

    def _rename(self, infos: dict[str, Any], ended: Any) -> dict[str, Any]:
        if "final_obs" not in infos:
            raise InvalidArgument(
                "an episode ended without infos['final_obs']: make the fleet without final_infos=False, because "
                "OldInfos reports those observations"
            )
        old = {name: value for name, value in infos.items() if name.lstrip("_") not in {"final_obs", "episode"}}
        old["final_observation"], old["_final_observation"] = infos["final_obs"], ended
        old["final_info"], old["_final_info"] = np.full(self.num_envs, None, object), ended.copy()
        finals = spread_infos(infos.get("final_info", {}), self.num_envs)
        for row in np.flatnonzero(ended).tolist():
            if "_episode" in infos:  # of `record_episodes=True`
                finals[row] = {"episode": {key: of[row].item() for key, of in infos["episode"].items()}, **finals[row]}
            old["final_info"][row] = finals[row]
        return old
