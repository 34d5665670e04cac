"""Rollouts: T steps of N sub-environments as arrays `(T, N, …)`, with random actions, an array of actions or a policy.

`Rollout` is the only type for them: of this loop, of compiled rollouts (`envfleet.kernels.rollout`), and of recorded
transitions (`envfleet.agents.rollouts`).
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument, OutOfMemory
from envfleet.fleet.checks import check_whole
from envfleet.fleet.engine import Engine
from envfleet.fleet.episodes import EndedEpisodes
from envfleet.fleet.layout import SpaceLayout
from envfleet.fleet.nested import map_arrays
from envfleet.fleet.outcomes import final_observations
from envfleet.html import html_table

_NOT_STACKED = frozenset({"final_obs", "final_info", "episode"})


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


class RolloutMemory(NamedTuple):
    """Memory of a rollout: one array per leaf of observations and actions, then the results of steps."""

    observations: list[NDArray[Any]]
    actions: list[NDArray[Any]]
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    is_reset: NDArray[np.bool_]


def check_rollout(mode: AutoresetMode, num_steps: Any, seed: Any, out: Any) -> tuple[int, int | None]:
    """Check the arguments of a rollout; return the number of steps and the seed."""
    if mode is AutoresetMode.DISABLED:
        raise InvalidArgument(
            "rollout in AutoresetMode.DISABLED: an ended episode would not be reset; make the fleet with NEXT_STEP or "
            "SAME_STEP, or call step()"
        )
    if out is not None and not isinstance(out, Rollout):
        raise InvalidArgument(f"out is a {type(out).__name__}, expected an earlier rollout, or None")
    word = None if seed is None else check_whole("seed", seed, 0, 2**32 - 1, most_name="2**32 - 1")
    return check_whole("num_steps", num_steps, 1), word


def step_rollout(engine: Engine, policy: Any, num_steps: int, seed: int | None, out: Rollout | None) -> Rollout:
    """Step an engine `num_steps` times in a loop.

    Args:
        engine: Engine of a fleet that is ready.
        policy: `"random"`, actions `(T, N, …)`, or a function of a batch of observations that returns actions.
        num_steps: T.
        seed: Seed of random actions.
        out: Earlier rollout of the same shape, whose arrays are overwritten.
    """
    traits = engine.traits
    count, seed = check_rollout(traits.autoreset_mode, num_steps, seed, out)
    layouts = SpaceLayout(traits.single_observation_space), SpaceLayout(traits.single_action_space)
    if any(layout.num_objects for layout in layouts):
        raise InvalidArgument("rollout of spaces without a fixed shape (Text, Sequence, Graph): call step() in a loop")
    memory = _allocate(layouts, (count, traits.num_envs), traits.reward_shape, out)
    choose = _chooser(policy, layouts[1], count, traits.num_envs, seed)
    is_next_step = traits.autoreset_mode is AutoresetMode.NEXT_STEP
    is_reset = engine.episodes().ended if is_next_step else np.zeros(traits.num_envs, np.bool_)
    for array, leaf in zip(memory.observations, layouts[0].apart(engine.observe()), strict=True):
        array[0] = leaf
    ended: list[tuple[int, EndedEpisodes, list[NDArray[Any]], dict[str, Any]]] = []
    stacked: dict[str, Any] = {}
    for t in range(count):
        memory.is_reset[t] = is_reset
        actions = choose(t, layouts[0].batch([array[t] for array in memory.observations]))
        observations, rewards, terminated, truncated, step_infos = engine.step(actions)
        leaves = layouts[0].apart(observations)
        for array, leaf in zip(memory.observations, leaves, strict=True):
            array[t + 1] = leaf
        for array, leaf in zip(memory.actions, layouts[1].apart(actions), strict=True):
            array[t] = leaf
        memory.rewards[t], memory.terminated[t], memory.truncated[t] = rewards, terminated, truncated
        _stack_infos(stacked, step_infos, t, count)
        has_ended = memory.terminated[t] | memory.truncated[t]
        if is_next_step:
            is_reset = has_ended
        if has_ended.any():
            episodes = engine.ended_episodes()
            if traits.autoreset_mode is AutoresetMode.SAME_STEP:
                step_infos = step_infos.get("final_info", {})
            leaves = layouts[0].apart(final_observations(engine, observations, episodes.rows))
            ended.append((t, episodes, [np.asarray(leaf) for leaf in leaves], step_infos))
    all_observations, all_actions = layouts[0].batch(memory.observations), layouts[1].batch(memory.actions)
    infos = {name: array for name, array in stacked.items() if array is not None}
    ended_episodes = _join_episodes(ended, layouts[0], infos, traits.reward_shape)
    return Rollout(all_observations, all_actions, *memory[2:], infos, lambda: ended_episodes, memory)


def _allocate(
    layouts: tuple[SpaceLayout, SpaceLayout], form: tuple[int, int], reward_shape: tuple[int, ...], out: Rollout | None
) -> RolloutMemory:
    num_steps, num_envs = form
    forms = [[(leaf.shape, leaf.dtype) for leaf in layout.leaves] for layout in layouts]
    if out is not None:
        memory: Any = out.memory
        if isinstance(memory, RolloutMemory) and memory.rewards.shape == (*form, *reward_shape):
            actual_forms = [[(array.shape[2:], array.dtype) for array in arrays] for arrays in memory[:2]]
            if actual_forms == forms:
                return memory
        raise InvalidArgument(
            f"out is not a rollout of this fleet with (T, N) = {(num_steps, num_envs)}: pass one that is, or None"
        )
    try:
        observations = [np.empty((num_steps + 1, num_envs, *shape), dtype) for shape, dtype in forms[0]]
        actions = [np.empty((num_steps, num_envs, *shape), dtype) for shape, dtype in forms[1]]
        flags = [np.empty((num_steps, num_envs), np.bool_) for _ in range(3)]
        return RolloutMemory(observations, actions, np.empty((*form, *reward_shape)), *flags)
    except MemoryError as error:
        raise OutOfMemory(
            f"not enough memory for {num_steps} steps of {num_envs} sub-environments: pass fewer steps"
        ) from error


def _chooser(
    policy: Any, layout: SpaceLayout, num_steps: int, num_envs: int, seed: int | None
) -> Callable[[int, Any], Any]:
    """Return a function of the step and the observations that returns actions."""
    if isinstance(policy, str):
        if policy != "random":
            raise InvalidArgument(f"policy={policy!r}: pass 'random', actions (T, N, …), or a callable")
        if isinstance(layout.space, gym.spaces.Box) and not layout.space.is_bounded():
            raise InvalidArgument(f"random actions need a bounded space (got {layout.space}): pass actions or a policy")
        space = batch_space(layout.space, num_envs)
        space.seed(seed)
        return lambda t, observations: space.sample()
    if callable(policy):
        if not is_batched(policy):
            name = getattr(policy, "__name__", type(policy).__name__)
            raise InvalidArgument(
                f"the policy {name!r} takes more than a batch of observations: pass a callable policy(observations) -> "
                "actions"
            )
        return lambda t, observations: policy(observations)
    if not hasattr(policy, "__getitem__"):
        raise InvalidArgument(
            f"policy is of type {type(policy).__name__}: pass 'random', actions (T, N, …), or a callable; only kernels "
            "take an MLP"
        )
    leaves = layout.apart(policy)
    for leaf, array in zip(layout.leaves, leaves, strict=True):
        expected = (num_steps, num_envs, *leaf.shape)
        if np.shape(array) != expected:
            raise InvalidArgument(f"actions have shape {np.shape(array)}, expected (T, N, …) = {expected}")
    return lambda t, observations: layout.batch([np.asarray(array)[t] for array in leaves])


def is_batched(policy: Any) -> bool:
    """Return whether a callable takes one argument, a batch of observations."""
    try:
        parameters = inspect.signature(policy).parameters.values()
    except (TypeError, ValueError):  # some callables written in C have no signature
        return True
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return len([one for one in parameters if one.kind in kinds and one.default is one.empty]) <= 1


def _describe(value: Any) -> str:
    """Return shapes and dtypes of a nested value."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {_describe(part)}' for key, part in value.items())}}}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_describe, value))})"
    return f"{tuple(value.shape)} {value.dtype}"


def _is_numeric(values: Any, shape: tuple[int, ...]) -> bool:
    return isinstance(values, np.ndarray) and values.dtype.kind in "biufc" and values.shape == shape


def _stack_infos(stacked: dict[str, Any], infos: dict[str, Any], t: int, num_steps: int) -> None:
    """Add the infos of a step; the value of an omitted name is `None`."""
    for name, values in infos.items():
        if str(name)[:1] == "_" or name in _NOT_STACKED:
            continue
        if name not in stacked and isinstance(values, np.ndarray):
            stacked[name] = np.zeros((num_steps, *values.shape), values.dtype)
        array = stacked.get(name)
        if array is None or not _is_numeric(values, array.shape[1:]):
            stacked[name] = None
        else:
            stacked[name] = array.astype(np.result_type(array, values), copy=False)
            stacked[name][t] = values


def _join_episodes(
    ended: list[tuple[int, EndedEpisodes, list[NDArray[Any]], dict[str, Any]]],
    layout: SpaceLayout,
    infos: dict[str, NDArray[Any]],
    reward_shape: tuple[int, ...],
) -> RolloutEpisodes:
    none = EndedEpisodes(*(np.zeros(0, dtype) for dtype in (np.int64, float, np.int64, float, np.int64)))
    none = none._replace(returns=np.zeros((0, *reward_shape)))
    columns = [none, *(one for _, one, _, _ in ended)]
    rows, returns, lengths, _, ids = map(np.concatenate, zip(*columns, strict=True))
    steps = np.concatenate([none.rows, *(np.full(len(one.rows), t) for t, one, _, _ in ended)])
    last = [
        np.concatenate([np.zeros((0, *leaf.shape), leaf.dtype), *(leaves[k] for _, _, leaves, _ in ended)])
        for k, leaf in enumerate(layout.leaves)
    ]
    last_infos = {}
    for name, array in infos.items():
        empty = np.zeros(array.shape[1:], array.dtype)
        values_and_rows = [(step_infos.get(name, empty), one.rows) for _, one, _, step_infos in ended]
        if all(_is_numeric(values, empty.shape) for values, _ in values_and_rows):
            parts = [values[ended_rows] for values, ended_rows in values_and_rows]
            last_infos[name] = np.concatenate([empty[:0], *parts])
    return RolloutEpisodes(steps, rows, returns, lengths, ids, layout.batch(last), last_infos)
