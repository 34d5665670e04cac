"""The vectorized environment of the turbofan's student client: several engines of a service."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from envfleet.envs.turbofan import NAMES
from envfleet.errors import InvalidArgument, WireError
from envfleet.fleet.checks import check_whole
from envfleet.user_settings import find_setting
from student_client.episode_protocol import StudentLink

NUM_SENSORS = len(NAMES)


class StudentGymEnvVectorized(contextlib.AbstractContextManager["StudentGymEnvVectorized"]):
    """Several engines of a service, stepped together.

    No `gymnasium.vector.VectorEnv`: observations of a step are a list, one array per engine, since blocks of flights
    that end early are shorter; infos are a list of dicts. Engines are not stepped after the end of their episode:
    their rows are empty, their rewards 0, until `reset_specific_envs` or `reset`.

    Args:
        server_url: Where the service is; `SERVER_URL` of the environment or of a file `.env` if not given, else port
            8001 of this machine.
        user_token: The user's token; `USER_TOKEN` if not given.
        env_type: What to fly; `ENV_TYPE` if not given, else `DegradationEnv`.
        num_envs: Number of engines.
        timeout: Seconds to wait for an answer.
        step_size: Flights per decision.
        max_steps_per_episode: Decisions, at most.
        return_all_states: True if steps return all rows of a block; otherwise they return the last row only.
        session_id: Id of a session to continue; by default a new one is created.
        ranked: Whether this is a ranked attempt: its episodes count for the scoreboard, and the service draws their
            seeds. Each engine plays its share of the attempt; a reset then leaves it ended, so that the attempt is
            complete when `get_active_count()` is 0.
        **unused: `prod` and `auto_reset`, which change nothing: a service sends only what is meant for participants,
            and engines are reset by `reset_specific_envs`.

    Attributes:
        num_envs: Number of engines.
        step_size: Flights per decision.
        episode_ids: The service's id of each engine's episode.
        session_id: Id of this session.
    """

    def __init__(
        self,
        server_url: str | None = None,
        user_token: str | None = None,
        env_type: str | None = None,
        num_envs: int = 4,
        *,
        timeout: float = 30.0,
        step_size: int = 10,
        max_steps_per_episode: int = 1000,
        return_all_states: bool = True,
        session_id: str | None = None,
        ranked: bool = False,
        **unused: bool,
    ) -> None:
        if unused.keys() - {"prod", "auto_reset"}:
            raise TypeError(f"unknown arguments: {', '.join(sorted(unused))}")
        self.num_envs = num_envs = check_whole("num_envs", num_envs, 1)
        self.step_size, self._return_all_states, self._is_ranked = step_size, return_all_states, ranked
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (NUM_SENSORS,), np.float32)
        self.single_action_space: Any = spaces.Discrete(3)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._link = StudentLink(server_url, user_token, timeout=timeout)
        config = {
            "env_type": env_type or find_setting("ENV_TYPE") or "DegradationEnv",
            "max_steps_per_episode": max_steps_per_episode,
            "auto_reset": True,
            "step_size": step_size,
            "reward_config": {},
            "ranked": ranked,
        }
        try:
            self.session_id = self._link.open_session(session_id)
            body = {"env_config": config, "num_envs": num_envs}
            reply = self._link.call("POST", "/vectorized/episodes/create", body)
            self.episode_ids = [str(each) for (each,) in _rows_of(reply, ("episode_ids",), num_envs)]
        except BaseException:
            self._link.close()
            raise
        self._terminated, self._truncated = np.zeros(num_envs, np.bool_), np.zeros(num_envs, np.bool_)

    def get_terminated_env_indices(self) -> list[int]:
        """Return the engines that await a reset after a sale, a failure or the time limit."""
        ended: list[int] = np.flatnonzero(self._terminated | self._truncated).tolist()
        return ended

    def get_active_count(self) -> int:
        """Return how many engines fly."""
        return self.num_envs - len(self.get_terminated_env_indices())

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], list[dict[str, Any]]]:
        """Take a new engine everywhere.

        Args:
            seed: Engine `i` gets `seed + i`; refused in a ranked attempt.
            options: Ignored.

        Returns:
            Observations, `(num_envs, 9)`, and an info each.
        """
        seeds = None if seed is None else [seed + index for index in range(self.num_envs)]
        return self.reset_specific_envs(list(range(self.num_envs)), seeds)

    def reset_specific_envs(
        self, env_indices: Sequence[int], seeds: Sequence[int | None] | None = None
    ) -> tuple[NDArray[np.float32], list[dict[str, Any]]]:
        """Reset some of the engines.

        Args:
            env_indices: Indices of the engines.
            seeds: One for each, or `None`.

        Returns:
            Observations, `(len(env_indices), 9)`, and an info each.

        Raises:
            ServiceRefused: The service refused the reset.
        """
        indices = [int(index) for index in env_indices]
        if not indices:
            return np.zeros((0, NUM_SENSORS), np.float32), []
        if len(set(indices)) < len(indices) or not all(0 <= index < self.num_envs for index in indices):
            raise InvalidArgument(f"env_indices={indices}: pass different ones from 0 to {self.num_envs - 1}")
        episode_seeds = list(seeds) if seeds is not None else [None] * len(indices)
        if self._is_ranked and any(seed is not None for seed in episode_seeds):
            raise InvalidArgument(f"seeds={episode_seeds} in a ranked attempt: leave them out, the service draws them")
        body = {"episode_ids": [self.episode_ids[index] for index in indices], "seeds": episode_seeds}
        reply = self._link.call("POST", "/episode/vectorized_reset", body)
        results = _rows_of(reply, ("observations", "infos"), len(indices))
        new_ids = reply.get("new_episode_ids") or [None] * len(indices)
        rows, infos, self.episode_ids = np.zeros((len(indices), NUM_SENSORS), np.float32), [], self.episode_ids.copy()
        for k, (index, (observation, info)) in enumerate(zip(indices, results, strict=True)):
            self.episode_ids[index] = str(new_ids[k] or self.episode_ids[index])
            self._terminated[index], self._truncated[index] = not observation, False
            if observation:
                rows[k] = _block(observation)[-1]
            infos.append(self._flagged(info, index))
        return rows, infos

    def step(
        self, actions: Any, step_size: int | None = None, return_all_states: bool | None = None
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], list[dict[str, Any]]]:
        """Step all engines: action 0 flies, 1 repairs, 2 sells.

        Args:
            actions: One per engine.
            step_size: Flights, instead of the environment's.
            return_all_states: Value that replaces the environment's.

        Returns:
            Observations (a list of `(flights, 9)` arrays, or with `return_all_states=False` one array
            `(num_envs, 9)`), rewards, terminated, truncated, and an info each.

        Raises:
            ServiceUnreachable: No answer; it is not known whether the step was made.
        """
        chosen = np.asarray(actions)
        if chosen.shape != (self.num_envs,) or chosen.dtype.kind not in "iu":
            raise InvalidArgument(f"actions={actions!r:.100}: pass {self.num_envs} whole numbers from 0 to 2")
        is_all = self._return_all_states if return_all_states is None else return_all_states
        flights = self.step_size if step_size is None else step_size
        flying = np.flatnonzero(~(self._terminated | self._truncated)).tolist()
        requests = [
            {"episode_id": self.episode_ids[index], "action": int(chosen[index]), "step_size": flights,
             "return_all_states": is_all}
            for index in flying
        ]  # fmt: skip
        reply = self._link.call("POST", "/episode/vectorized_step", {"episode_actions": requests}) if requests else {}
        blocks, rewards = [_block([])] * self.num_envs, np.zeros(self.num_envs)
        infos = [{"message": "the episode has ended: reset it", "episode_id": each} for each in self.episode_ids]
        names = ("observations", "rewards", "terminateds", "truncateds", "infos") if requests else ()
        for index, result in zip(flying, _rows_of(reply, names, len(flying)), strict=True):
            rows, rewards[index], self._terminated[index], self._truncated[index], infos[index] = result
            blocks[index] = _block(rows)
        infos = [self._flagged(info, index) for index, info in enumerate(infos)]
        shown: Any = blocks
        if not is_all:
            shown = np.array([rows[-1] if len(rows) else np.zeros(NUM_SENSORS) for rows in blocks], np.float32)
        return shown, rewards, self._terminated.copy(), self._truncated.copy(), infos

    def _flagged(self, info: dict[str, Any], index: int) -> dict[str, Any]:
        return {**info, "terminated": bool(self._terminated[index]), "truncated": bool(self._truncated[index])}

    def close(self) -> None:
        """Drop the connection; the service closes the engines after their idle timeout."""
        self._link.close()

    def __exit__(self, *exc_info: object) -> None:
        """Close the environment."""
        self.close()


create_student_gym_env_vectorized = StudentGymEnvVectorized


def _rows_of(reply: dict[str, Any], names: Sequence[str], length: int) -> list[tuple[Any, ...]]:
    """Return the entries of some lists of an answer, engine by engine."""
    for name in names:
        if not isinstance(reply.get(name), list) or len(reply[name]) != length:
            raise WireError(f"the service's answer has {name}={reply.get(name)!r:.100}, expected a list of {length}")
    return list(zip(*(reply[name] for name in names), strict=True))


def _block(values: Any) -> NDArray[np.float32]:
    """Return rows of 9, from rows, from one row or from the numbers of several."""
    return np.asarray(values if values is not None else [], np.float32).reshape(-1, NUM_SENSORS)
