"""Rollouts: many steps of a fleet as arrays of shape `(T, N, …)`, with actions given, drawn, or chosen by a policy."""

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

_NOT_STACKED = frozenset({"final_obs", "final_info", "episode"})


@dataclasses.dataclass(frozen=True, eq=False)
class RolloutEpisodes:
    """The episodes that ended in a rollout, E of them, by step, then by sub-environment; always new arrays.

    Attributes:
        steps: Step of the rollout in which each ended, int64 `(E,)`.
        env_indices: Its sub-environment, int64 `(E,)`.
        returns: Sum of its rewards, those before the rollout included, float64 `(E,)`, or `(E, k)` if they are vectors.
        lengths: Its steps, counted likewise, int64 `(E,)`.
        ids: Its number, unique in the fleet, int64 `(E,)`.
        observations: Its last observation, `(E, …)`, in every autoreset mode.
        infos: Its last infos by name, `(E, …)`.
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


@dataclasses.dataclass(frozen=True, eq=False)
class Rollout:
    """T steps of N sub-environments; row t of every array belongs to one step.

    Where an episode ends at step t, `SAME_STEP` has the first observation of the next episode at t + 1, and the last
    one of the old in `episodes`. In `NEXT_STEP` the last one is at t + 1, and step t + 1 is the reset: `is_reset` marks
    it, and it is no transition to learn from.

    Attributes:
        all_observations: Before, between and after the steps, `(T + 1, N, …)`, nested as the observation space.
        actions: What was done, `(T, N, …)`.
        rewards: float64 `(T, N)`, or `(T, N, k)` if they are vectors.
        terminated: bool `(T, N)`.
        truncated: bool `(T, N)`.
        is_reset: Steps that only reset the row (`NEXT_STEP`), bool `(T, N)`.
        infos: Numbers from the infos by name, `(T, N, …)`, of a dtype for all steps; 0 where a sub-environment gave
            none. A name is left out, here or in `episodes`, if its shape changes, or if it is no number in some step.
        gather: Finds `episodes`; private to the engine.
        memory: What `out` needs to use the arrays again; private to the engine.
        log_probs: Logarithm of the probability (`Discrete`) or density (`Box`) of each action, float32 `(T, N)`; `None`
            unless a compiled network drew it.
        values: What a compiled network's critic says of `observations`, float32 `(T, N)`; `None` without one.
        next_values: Likewise of the observation that each step led to, which at the end of an episode is its last one,
            in every autoreset mode: what a truncated episode is continued by.
    """

    all_observations: Any
    actions: Any
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    is_reset: NDArray[np.bool_]
    infos: dict[str, NDArray[Any]]
    gather: Callable[[], RolloutEpisodes] = dataclasses.field(repr=False)
    memory: Any = dataclasses.field(default=None, repr=False)
    log_probs: NDArray[np.float32] | None = None
    values: NDArray[np.float32] | None = None
    next_values: NDArray[np.float32] | None = None

    @functools.cached_property
    def episodes(self) -> RolloutEpisodes:
        """The episodes that ended; those of a GPU come to the host when one first looks, before `out` is used again."""
        return self.gather()

    def advantages(self, gamma: float, gae_lambda: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Estimate advantages of the actions, and returns, from `values`.

        Episodes that were terminated end with 0, those that were truncated, or go on, with the value of what they led
        to. Steps that only reset a row have advantage 0.

        Args:
            gamma: Discount of a step.
            gae_lambda: Weight of longer estimates.

        Returns:
            Advantages and returns, float32 `(T, N)`; on the host, whatever the device of the rollout.

        Raises:
            InvalidArgument: There are no values, or an argument is not from 0 to 1.
        """
        if not (0 <= gamma <= 1 and 0 <= gae_lambda <= 1):
            raise InvalidArgument(f"gamma={gamma}, gae_lambda={gae_lambda}: pass numbers from 0 to 1")
        if self.values is None or self.next_values is None:
            raise InvalidArgument("a rollout without values: roll out a network that has a critic, MLP(…, critic=…)")
        names = ("values", "next_values", "terminated", "truncated", "is_reset")
        arrays = [np.asarray(getattr(self, name)) for name in names]
        rewards = np.asarray(self.rewards).astype(np.float32)
        return generalised_advantages(rewards, *arrays, gamma=gamma, gae_lambda=gae_lambda)

    @property
    def observations(self) -> Any:
        """Observations that the actions were chosen on, `(T, N, …)`; a view."""
        return map_arrays(self.all_observations, lambda array: array[:-1])

    @property
    def last_observations(self) -> Any:
        """Observations after the last step, `(N, …)`; a view."""
        return map_arrays(self.all_observations, lambda array: array[-1])


def generalised_advantages(
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
    """Estimate how much better every action was than expected (Schulman et al. 2016, arXiv:1506.02438, equation 16).

    An episode that terminated has no value after its end; one that was truncated has the value of its last observation.
    Either way nothing of the episode that follows is counted.

    Args:
        rewards: `(T, N)`, of the dtype of `values`.
        values: Of the observations acted on, `(T, N)`.
        next_values: Of what every action led to, `(T, N)`: where an episode ended, of its last observation, not of the
            first one of the next episode.
        terminated: `(T, N)`.
        truncated: `(T, N)`.
        is_reset: Steps that only reset a row, `(T, N)`, whose advantage is 0.
        gamma: Discount per step.
        gae_lambda: 0 trusts the values alone, 1 the rewards alone.

    Returns:
        Advantages and returns, `(T, N)` each.
    """
    advantages = rewards + np.where(terminated, 0, values.dtype.type(gamma) * next_values) - values
    advantages[is_reset] = 0
    goes_on, weight = ~(terminated | truncated | is_reset), values.dtype.type(gamma * gae_lambda)
    for t in range(len(advantages) - 2, -1, -1):
        advantages[t] += np.where(goes_on[t], weight * advantages[t + 1], 0)
    return advantages, advantages + values


class Slabs(NamedTuple):
    """Memory of a rollout: one array per leaf of observations and actions, then the results of every step."""

    observations: list[NDArray[Any]]
    actions: list[NDArray[Any]]
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    is_reset: NDArray[np.bool_]


def check_rollout(mode: AutoresetMode, num_steps: Any, seed: Any, out: Any) -> tuple[int, int | None]:
    """Check the arguments that every rollout has; returns the number of steps and the seed."""
    if mode is AutoresetMode.DISABLED:
        raise InvalidArgument(
            "rollout in AutoresetMode.DISABLED: an episode that ends could not go on; make the fleet with NEXT_STEP or "
            "SAME_STEP, or call step()"
        )
    if out is not None and not isinstance(out, Rollout):
        raise InvalidArgument(f"out is a {type(out).__name__}, expected what an earlier rollout returned, or None")
    word = None if seed is None else check_whole("seed", seed, 0, 2**32 - 1, most_name="2**32 - 1")
    return check_whole("num_steps", num_steps, 1), word


def step_rollout(engine: Engine, policy: Any, num_steps: int, seed: int | None, out: Rollout | None) -> Rollout:
    """Step an engine `num_steps` times in a loop.

    Args:
        engine: Its fleet is ready.
        policy: `"random"`, actions `(T, N, …)`, or a callable that takes a batch of observations and returns actions.
        num_steps: T.
        seed: Of random actions.
        out: An earlier rollout of the same form, whose arrays are used again.
    """
    traits = engine.traits
    count, seed = check_rollout(traits.autoreset_mode, num_steps, seed, out)
    layouts = SpaceLayout(traits.single_observation_space), SpaceLayout(traits.single_action_space)
    if any(layout.num_objects for layout in layouts):
        raise InvalidArgument("rollout of spaces without a fixed shape (Text, Sequence, Graph): call step() in a loop")
    slabs = _slabs(layouts, (count, traits.num_envs), traits.reward_shape, out)
    choose = _chooser(policy, layouts[1], count, traits.num_envs, seed)
    is_next_step = traits.autoreset_mode is AutoresetMode.NEXT_STEP
    is_reset = engine.episodes().ended if is_next_step else np.zeros(traits.num_envs, np.bool_)
    for slab, leaf in zip(slabs.observations, layouts[0].apart(engine.observe()), strict=True):
        slab[0] = leaf
    ended: list[tuple[int, EndedEpisodes, list[NDArray[Any]], dict[str, Any]]] = []
    stacked: dict[str, Any] = {}
    for t in range(count):
        slabs.is_reset[t] = is_reset
        actions = choose(t, layouts[0].batch([slab[t] for slab in slabs.observations]))
        observations, rewards, terminated, truncated, step_infos = engine.step(actions)
        leaves = layouts[0].apart(observations)
        for slab, leaf in zip(slabs.observations, leaves, strict=True):
            slab[t + 1] = leaf
        for slab, leaf in zip(slabs.actions, layouts[1].apart(actions), strict=True):
            slab[t] = leaf
        slabs.rewards[t], slabs.terminated[t], slabs.truncated[t] = rewards, terminated, truncated
        _stack_infos(stacked, step_infos, t, count)
        has_ended = slabs.terminated[t] | slabs.truncated[t]
        if is_next_step:
            is_reset = has_ended
        if has_ended.any():
            found = engine.ended_episodes()
            if traits.autoreset_mode is AutoresetMode.SAME_STEP:
                step_infos = step_infos.get("final_info", {})
            leaves = layouts[0].apart(final_observations(engine, observations, found.rows))
            ended.append((t, found, [np.asarray(leaf) for leaf in leaves], step_infos))
    all_observations, all_actions = layouts[0].batch(slabs.observations), layouts[1].batch(slabs.actions)
    infos = {name: slab for name, slab in stacked.items() if slab is not None}
    told = _join_episodes(ended, layouts[0], infos, traits.reward_shape)
    return Rollout(all_observations, all_actions, *slabs[2:], infos, lambda: told, slabs)


def _slabs(
    layouts: tuple[SpaceLayout, SpaceLayout], form: tuple[int, int], reward_shape: tuple[int, ...], out: Rollout | None
) -> Slabs:
    num_steps, num_envs = form
    forms = [[(leaf.shape, leaf.dtype) for leaf in layout.leaves] for layout in layouts]
    if out is not None:
        slabs: Any = out.memory
        if isinstance(slabs, Slabs) and slabs.rewards.shape == (*form, *reward_shape):
            found = [[(array.shape[2:], array.dtype) for array in arrays] for arrays in slabs[:2]]
            if found == forms:
                return slabs
        raise InvalidArgument(f"out is another fleet's rollout, or of another form than {(num_steps, num_envs)}")
    try:
        observations = [np.empty((num_steps + 1, num_envs, *shape), dtype) for shape, dtype in forms[0]]
        actions = [np.empty((num_steps, num_envs, *shape), dtype) for shape, dtype in forms[1]]
        flags = [np.empty((num_steps, num_envs), np.bool_) for _ in range(3)]
        return Slabs(observations, actions, np.empty((*form, *reward_shape)), *flags)
    except MemoryError as error:
        raise OutOfMemory(
            f"there is no memory for {num_steps} steps of {num_envs} sub-environments: take fewer"
        ) from error


def _chooser(
    policy: Any, layout: SpaceLayout, num_steps: int, num_envs: int, seed: int | None
) -> Callable[[int, Any], Any]:
    """Return a function of the step and the observations that returns actions."""
    if isinstance(policy, str):
        if policy != "random":
            raise InvalidArgument(f"policy={policy!r}: pass 'random', actions (T, N, …), or a callable")
        if isinstance(layout.space, gym.spaces.Box) and not layout.space.is_bounded():
            raise InvalidArgument(f"random actions from {layout.space}, which is not bounded: pass actions or a policy")
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
    given = layout.apart(policy)
    for leaf, array in zip(layout.leaves, given, strict=True):
        expected = (num_steps, num_envs, *leaf.shape)
        if np.shape(array) != expected:
            raise InvalidArgument(f"actions have shape {np.shape(array)}, expected (T, N, …) = {expected}")
    return lambda t, observations: layout.batch([np.asarray(array)[t] for array in given])


def is_batched(policy: Any) -> bool:
    """Return whether a callable takes a batch of observations, and nothing else."""
    try:
        found = inspect.signature(policy).parameters.values()
    except (TypeError, ValueError):  # some callables written in C do not tell
        return True
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return len([one for one in found if one.kind in kinds and one.default is one.empty]) <= 1


def _is_numeric(values: Any, shape: tuple[int, ...]) -> bool:
    return isinstance(values, np.ndarray) and values.dtype.kind in "biufc" and values.shape == shape


def _stack_infos(stacked: dict[str, Any], infos: dict[str, Any], t: int, num_steps: int) -> None:
    """Add the infos of a step; a name that is to be left out stays as `None`."""
    for name, values in infos.items():
        if str(name)[:1] == "_" or name in _NOT_STACKED:
            continue
        if name not in stacked and isinstance(values, np.ndarray):
            stacked[name] = np.zeros((num_steps, *values.shape), values.dtype)
        slab = stacked.get(name)
        if slab is None or not _is_numeric(values, slab.shape[1:]):
            stacked[name] = None
        else:
            stacked[name] = slab.astype(np.result_type(slab, values), copy=False)
            stacked[name][t] = values


def _join_episodes(
    ended: list[tuple[int, EndedEpisodes, list[NDArray[Any]], dict[str, Any]]],
    layout: SpaceLayout,
    infos: dict[str, NDArray[Any]],
    reward_shape: tuple[int, ...],
) -> RolloutEpisodes:
    none = EndedEpisodes(*(np.zeros(0, dtype) for dtype in (np.int64, float, np.int64, float, np.int64)))
    none = none._replace(returns=np.zeros((0, *reward_shape)))
    found = [none, *(one for _, one, _, _ in ended)]
    rows, returns, lengths, _, ids = map(np.concatenate, zip(*found, strict=True))
    steps = np.concatenate([none.rows, *(np.full(len(one.rows), t) for t, one, _, _ in ended)])
    last = [
        np.concatenate([np.zeros((0, *leaf.shape), leaf.dtype), *(leaves[k] for _, _, leaves, _ in ended)])
        for k, leaf in enumerate(layout.leaves)
    ]
    last_infos = {}
    for name, slab in infos.items():
        empty = np.zeros(slab.shape[1:], slab.dtype)
        given = [(step_infos.get(name, empty), one.rows) for _, one, _, step_infos in ended]
        if all(_is_numeric(values, empty.shape) for values, _ in given):
            parts = [values[ended_rows] for values, ended_rows in given]
            last_infos[name] = np.concatenate([empty[:0], *parts])
    return RolloutEpisodes(steps, rows, returns, lengths, ids, layout.batch(last), last_infos)
