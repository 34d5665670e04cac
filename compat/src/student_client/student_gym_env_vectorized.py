"""The vectorized environment of the turbofan's student client: several engines of a service."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from envfleet.envs.turbofan import NAMES
from envfleet.errors import InvalidArgument, WireError
from student_client.episode_protocol import StudentLink, StudentSettings

NUM_SENSORS = len(NAMES)
_HIDDEN = ("degradation", "max_degradation")


class StudentGymEnvVectorized:
    """Several engines of a service, stepped together; see `create_student_gym_env_vectorized`.

    No `gymnasium.vector.VectorEnv`: observations of a step are a list, one array per engine, since blocks of flights
    that end early are shorter; infos are a list of dicts. Engines whose episode has ended are not stepped: their rows
    are empty, their rewards 0, until `reset_specific_envs` or `reset`.

    Args:
        settings: Where the service is.
        num_envs: How many engines.
        step_size: Flights per decision.
        max_steps_per_episode: Decisions, at most.
        return_all_states: Whether steps return all rows of a block, or the last alone.
        prod: Whether infos keep only what is meant for participants.

    Attributes:
        num_envs: How many engines.
        step_size: Flights per decision.
    """

    def __init__(
        self,
        settings: StudentSettings,
        num_envs: int,
        *,
        step_size: int = 10,
        max_steps_per_episode: int = 1000,
        return_all_states: bool = True,
        prod: bool = True,
        session_id: str | None = None,
        auto_reset: bool = True,
    ) -> None:
        if num_envs < 1:
            raise InvalidArgument(f"num_envs={num_envs}: pass 1 or more")
        self.num_envs, self.step_size = num_envs, step_size
        self._return_all_states, self._prod = return_all_states, prod
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (NUM_SENSORS,), np.float32)
        self.single_action_space: Any = spaces.Discrete(3)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._link = StudentLink(settings, session_id)
        config = {
            "env_type": settings.env_type or "DegradationEnv",
            "max_steps_per_episode": max_steps_per_episode,
            "auto_reset": auto_reset,
            "step_size": step_size,
            "reward_config": {},
        }
        try:
            reply = self._link.call(
                "POST",
                "/vectorized/episodes/create",
                {"env_config": config, "num_envs": num_envs},
                has_session=True,
            )
            self._ids = [str(each) for each in _list(reply, "episode_ids", num_envs)]
        except BaseException:
            self._link.close()
            raise
        self._terminated, self._truncated = np.zeros(num_envs, np.bool_), np.zeros(num_envs, np.bool_)

    @property
    def episode_ids(self) -> list[str]:
        """The service's id of each engine's episode."""
        return list(self._ids)

    @property
    def session_id(self) -> str:
        """Of this visit."""
        return self._link.session_id

    def get_terminated_env_indices(self) -> list[int]:
        """Engines whose episode has ended, by sale, failure or time, and that await a reset."""
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
            seed: Engine `i` gets `seed + i`; its episodes are not ranked then.
            options: Ignored.

        Returns:
            Observations, `(num_envs, 9)`, and an info each.
        """
        seeds = None if seed is None else [seed + index for index in range(self.num_envs)]
        return self.reset_specific_envs(list(range(self.num_envs)), seeds)

    def reset_specific_envs(
        self, env_indices: Sequence[int], seeds: Sequence[int | None] | None = None
    ) -> tuple[NDArray[np.float32], list[dict[str, Any]]]:
        """Take a new engine in some places.

        Args:
            env_indices: Which.
            seeds: One for each, or `None`.

        Returns:
            Observations, `(len(env_indices), 9)`, and an info each.

        Raises:
            ServiceRefused: The service does not want to.
        """
        indices = [int(index) for index in env_indices]
        if not indices:
            return np.zeros((0, NUM_SENSORS), np.float32), []
        if len(set(indices)) < len(indices) or not all(0 <= index < self.num_envs for index in indices):
            raise InvalidArgument(f"env_indices={indices}: pass different ones from 0 to {self.num_envs - 1}")
        given = list(seeds) if seeds is not None else [None] * len(indices)
        body = {"episode_ids": [self._ids[index] for index in indices], "seeds": given}
        reply = self._link.call("POST", "/episode/vectorized_reset", body)
        observations = _list(reply, "observations", len(indices))
        infos = _list(reply, "infos", len(indices))
        ids = reply.get("new_episode_ids") or [None] * len(indices)
        rows = np.zeros((len(indices), NUM_SENSORS), np.float32)
        for k, index in enumerate(indices):
            self._ids[index] = str(ids[k] or self._ids[index])
            has_begun = bool(observations[k])
            if has_begun:
                rows[k] = _rows(observations[k])[-1]
            self._terminated[index], self._truncated[index] = not has_begun, False
        return rows, [self._filter(info, index) for info, index in zip(infos, indices, strict=True)]

    def step(
        self, actions: Any, step_size: int | None = None, return_all_states: bool | None = None
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], list[dict[str, Any]]]:
        """Decide for all engines: 0 flies, 1 repairs, 2 sells.

        Args:
            actions: One per engine.
            step_size: Flights, instead of the environment's.
            return_all_states: Instead of the environment's.

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
        before = self._terminated | self._truncated
        asked = [
            {"episode_id": self._ids[index], "action": int(chosen[index]), "step_size": flights,
             "return_all_states": is_all}
            for index in np.flatnonzero(~before)
        ]  # fmt: skip
        reply = self._link.call("POST", "/episode/vectorized_step", {"episode_actions": asked}) if asked else {}
        return self._take(reply, np.flatnonzero(~before), is_all=is_all)

    def _take(self, reply: dict[str, Any], stepped: NDArray[np.int64], *, is_all: bool) -> tuple[Any, ...]:
        observations = [np.zeros((0, NUM_SENSORS), np.float32) for _ in range(self.num_envs)]
        rewards = np.zeros(self.num_envs)
        infos: list[dict[str, Any]] = [
            {"message": "the episode has ended: reset it", "episode_id": each} for each in self._ids
        ]
        if len(stepped):
            names = ("observations", "rewards", "terminateds", "truncateds", "infos")
            columns = (_list(reply, name, len(stepped)) for name in names)
            for index, rows, reward, terminated, truncated, info in zip(stepped, *columns, strict=True):
                observations[index], rewards[index] = _rows(rows), reward
                self._terminated[index], self._truncated[index] = terminated, truncated
                infos[index] = info
        shown: Any = observations
        if not is_all:
            shown = np.array([rows[-1] if len(rows) else np.zeros(NUM_SENSORS) for rows in observations], np.float32)
        filtered = [self._filter(info, index) for index, info in enumerate(infos)]
        return shown, rewards, self._terminated.copy(), self._truncated.copy(), filtered

    def _filter(self, info: dict[str, Any], index: int) -> dict[str, Any]:
        flags = {"terminated": bool(self._terminated[index]), "truncated": bool(self._truncated[index])}
        info = {**info, **flags}
        return {name: value for name, value in info.items() if name not in _HIDDEN} if self._prod else info

    def close(self) -> None:
        """Drop the connection; the service closes the engines when they lie idle."""
        self._link.close()

    def __enter__(self) -> Self:
        """Return the environment itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close the environment."""
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.get_active_count()} of {self.num_envs} engines fly, at {self._link.url}>"


def create_student_gym_env_vectorized(
    server_url: str | None = None,
    user_token: str | None = None,
    env_type: str | None = None,
    num_envs: int = 4,
    *,
    timeout: float = 30.0,
    **options: Any,
) -> StudentGymEnvVectorized:
    """Make several engines at a service.

    Args:
        server_url: Where it is; `SERVER_URL` of the environment or of a file `.env` if not given, else port 8001 of
            this machine.
        user_token: The user's token; `USER_TOKEN` if not given.
        env_type: What to fly; `ENV_TYPE` if not given, else `DegradationEnv`.
        num_envs: Number of engines.
        timeout: Seconds to wait for an answer.
        **options: `step_size`, `max_steps_per_episode`, `return_all_states`, `prod`, `session_id`, `auto_reset`.
    """
    settings = StudentSettings(server_url, user_token, env_type, timeout)
    return StudentGymEnvVectorized(settings, num_envs, **options)


def _list(reply: dict[str, Any], name: str, length: int) -> list[Any]:
    values = reply.get(name)
    if not isinstance(values, list) or len(values) != length:
        raise WireError(f"the service's answer has {name}={values!r:.100}, expected a list of {length}")
    return values


def _rows(values: Any) -> NDArray[np.float32]:
    """Rows of 9, from rows, from one row or from the numbers of several."""
    return np.asarray(values if values is not None else [], np.float32).reshape(-1, NUM_SENSORS)
