"""Rollouts: T steps of N sub-environments as arrays `(T, N, …)`.

`Rollout` is the only type for them: `RolloutRecorder` fills it step by step, for fleets, agents and RLlib, and compiled
rollouts of kernels fill it in one call (`envfleet.kernels.rollout`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument
from envfleet.fleet.nested import map_arrays
from envfleet.html import html_table


@dataclasses.dataclass(frozen=True, eq=False)
class RolloutEpisodes:
    """The E episodes that ended in a rollout, by step, then by sub-environment; always new arrays.

    Attributes:
        steps: Step of the rollout in which the episode ended, int64 `(E,)`.
        env_indices: Sub-environment of the episode, int64 `(E,)`.
        returns: Sum of rewards, including those before the rollout, float64 `(E,)`, or `(E, k)` if rewards are vectors.
        lengths: Number of steps, including those before the rollout, int64 `(E,)`.
        ids: Number of the episode, unique in the fleet, int64 `(E,)`.
        observations: Last observation of the episode, `(E, …)`, in every autoreset mode.
        infos: Last infos of the episode by name, `(E, …)`.
    """

    steps: NDArray[np.int64]
    env_indices: NDArray[np.int64]
    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    ids: NDArray[np.int64]
    observations: Any
    infos: dict[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(self.steps)

    def select(self, chosen: NDArray[np.bool_]) -> RolloutEpisodes:
        """Return some of the episodes, by a mask `(E,)`."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return RolloutEpisodes(**map_arrays(values, lambda column: column[chosen]))

    def of_envs(self, start: int, stop: int) -> RolloutEpisodes:
        """Return the episodes of sub-environments `start` to `stop`, which are numbered from 0 then."""
        episodes = self.select((self.env_indices >= start) & (self.env_indices < stop))
        return dataclasses.replace(episodes, env_indices=episodes.env_indices - start)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Rollout:
    """T steps of N sub-environments; entry t of every array belongs to step t.

    If an episode ends at step t, `SAME_STEP` has the first observation of the next episode at t + 1, and the last
    observation of the ended one in `episodes`. `NEXT_STEP` has the last observation at t + 1, and step t + 1 only
    resets the row: it is marked in `is_reset` and is not a transition.

    Attributes:
        all_observations: Observations before, between and after the steps, `(T + 1, N, …)`, nested as their space.
        actions: Actions, `(T, N, …)`.
        rewards: Rewards, float64 `(T, N)`, or `(T, N, k)` if they are vectors.
        terminated: Ends by termination, bool `(T, N)`.
        truncated: Ends by truncation, bool `(T, N)`.
        is_reset: Steps that only reset the row (`NEXT_STEP`), bool `(T, N)`.
        infos: Numbers from the infos by name, `(T, N, …)`, with one dtype for all steps; 0 where a value is missing. A
            name is omitted, here or in `episodes`, if its shape changes or a value is not a number.
        gather: Function that returns `episodes`; private to the engine.
        memory: Memory for `out`; private to the engine.
        log_probs: Logarithm of the probability (`Discrete`) or density (`Box`) of each action, float32 `(T, N)`; `None`
            unless a compiled network drew it.
        values: Values of `observations` by a compiled network's critic, float32 `(T, N)`; `None` without a critic.
        next_values: Values of the observations that the actions led to, float32 `(T, N)`. At the end of an episode it
            is the value of its last observation, in every autoreset mode.
        outputs: Further columns of a recorder by name, such as outputs of a policy, `(T, N, …)`, nested or not.
    """

    all_observations: Any
    actions: Any
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    is_reset: NDArray[np.bool_]
    infos: dict[str, NDArray[Any]]
    gather: Callable[[], RolloutEpisodes]
    memory: Any = None
    log_probs: NDArray[np.float32] | None = None
    values: NDArray[np.float32] | None = None
    next_values: NDArray[np.float32] | None = None
    outputs: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        num_steps, num_envs = self.rewards.shape[:2]
        count = f"{num_steps:,} steps of {num_envs:,} sub-environments"
        return f"<Rollout of {count}: {', '.join(f'{name} {form}' for name, form in self._forms())}>"

    def _repr_html_(self) -> str:
        num_steps, num_envs = self.rewards.shape[:2]
        title = f"Rollout of {num_steps:,} steps of {num_envs:,} sub-environments"
        return html_table(self._forms(), ("array", "shape and dtype"), title)

    def _forms(self) -> list[tuple[str, str]]:
        """Return name, shape and dtype of every array; nothing is copied from a GPU."""
        names = ("all_observations", "actions", "rewards", "terminated", "truncated", "is_reset")
        named = [(name, getattr(self, name)) for name in (*names, "log_probs", "values", "next_values")]
        named += [(f"infos[{name!r}]", array) for name, array in self.infos.items()]
        return [(name, _describe(value)) for name, value in named if value is not None]

    @functools.cached_property
    def episodes(self) -> RolloutEpisodes:
        """The episodes that ended; copied from a GPU on first access, which must precede the next use of `out`."""
        return self.gather()

    def of_envs(self, start: int, stop: int) -> Rollout:
        """Return views of sub-environments `start` to `stop`, which are numbered from 0 then.

        The result cannot be passed as `out`. Episodes are copied from a GPU at once.
        """
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del values["gather"], values["memory"]
        cut = map_arrays(values, lambda array: None if array is None else array[:, start:stop])
        return Rollout(**cut, gather=functools.partial(RolloutEpisodes.of_envs, self.episodes, start, stop))

    def advantages(self, gamma: float, gae_lambda: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Estimate advantages of the actions, and returns, from `values`.

        The value after a termination is 0; after a truncation, and at the end of the rollout, it is that of the last
        observation. Steps that only reset a row have the advantage 0.

        Args:
            gamma: Discount per step.
            gae_lambda: Weight of longer estimates.

        Returns:
            Advantages and returns, float32 `(T, N)`, on the host.

        Raises:
            InvalidArgument: Values are missing, or an argument is not between 0 and 1.
        """
        if not (0 <= gamma <= 1 and 0 <= gae_lambda <= 1):
            raise InvalidArgument(f"gamma={gamma}, gae_lambda={gae_lambda}: pass numbers from 0 to 1")
        if self.values is None or self.next_values is None:
            raise InvalidArgument("the rollout has no values: roll out a network with a critic, MLP(…, critic=…)")
        names = ("values", "next_values", "terminated", "truncated", "is_reset")
        arrays = [np.asarray(getattr(self, name)) for name in names]
        rewards = np.asarray(self.rewards).astype(np.float32)
        return generalized_advantages(rewards, *arrays, gamma=gamma, gae_lambda=gae_lambda)

    @property
    def observations(self) -> Any:
        """Observations before the steps, `(T, N, …)`; a view."""
        return map_arrays(self.all_observations, lambda array: array[:-1])

    @property
    def last_observations(self) -> Any:
        """Observations after the last step, `(N, …)`; a view."""
        return map_arrays(self.all_observations, lambda array: array[-1])


def generalized_advantages(
    rewards: NDArray[Any],
    values: NDArray[Any],
    next_values: NDArray[Any],
    terminated: NDArray[np.bool_],
    truncated: NDArray[np.bool_],
    is_reset: NDArray[np.bool_],
    *,
    gamma: float,
    gae_lambda: float,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Estimate advantages by GAE (Schulman et al. 2016, arXiv:1506.02438, equation 16).

    The value after a termination is 0; after a truncation it is that of the last observation. Rewards and values of the
    next episode are never used.

    Args:
        rewards: Rewards, `(T, N)`, of the dtype of `values`.
        values: Values of the observations before the steps, `(T, N)`.
        next_values: Values of the observations that the actions led to, `(T, N)`; at the end of an episode the value of
            its last observation, not of the first one of the next episode.
        terminated: Ends by termination, `(T, N)`.
        truncated: Ends by truncation, `(T, N)`.
        is_reset: Steps that only reset a row, `(T, N)`; their advantage is 0.
        gamma: Discount per step.
        gae_lambda: Weight of longer estimates: 0 uses values only, 1 rewards only.

    Returns:
        Advantages and returns, `(T, N)` each.
    """
    advantages = rewards + np.where(terminated, 0, values.dtype.type(gamma) * next_values) - values
    advantages[is_reset] = 0
    continues, weight = ~(terminated | truncated | is_reset), values.dtype.type(gamma * gae_lambda)
    for t in range(len(advantages) - 2, -1, -1):
        advantages[t] += np.where(continues[t], weight * advantages[t + 1], 0)
    return advantages, advantages + values


def _describe(value: Any) -> str:
    """Return shapes and dtypes of a nested value."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {_describe(part)}' for key, part in value.items())}}}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_describe, value))})"
    return f"{tuple(value.shape)} {value.dtype}"
