"""Rollouts of engines without compiled ones: steps in a loop, with random actions, an array of actions or a policy."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from envfleet.errors import InvalidArgument
from envfleet.fleet.checks import check_whole
from envfleet.fleet.engine import Engine, Traits
from envfleet.fleet.layout import SpaceLayout
from envfleet.fleet.outcomes import final_observations
from envfleet.fleet.rollout import Rollout
from envfleet.fleet.rollout_recorder import RolloutRecorder


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
        out: Earlier rollout of the same shape; its arrays are overwritten.
    """
    traits = engine.traits
    count, seed = check_rollout(traits.autoreset_mode, num_steps, seed, out)
    layouts = SpaceLayout(traits.single_observation_space), SpaceLayout(traits.single_action_space)
    if any(layout.num_objects for layout in layouts):
        raise InvalidArgument("rollout of spaces without a fixed shape (Text, Sequence, Graph): call step() in a loop")
    forms = [tuple((leaf.path, leaf.shape, str(leaf.dtype)) for leaf in layout.leaves) for layout in layouts]
    form = (*forms, count, traits.num_envs, traits.reward_shape)
    if out is not None and out.memory[0] != form:
        raise InvalidArgument(
            f"out is not a rollout of this fleet with (T, N) = {(count, traits.num_envs)}: pass one that is, or None"
        )
    recorder = RolloutRecorder(count, traits.num_envs, None if out is None else out.memory[1])
    recorder.reserve(_one_step(layouts, traits))
    columns = recorder.columns
    choose = _chooser(policy, layouts[1], count, traits.num_envs, seed)
    is_next_step = traits.autoreset_mode is AutoresetMode.NEXT_STEP
    is_reset = engine.episodes().ended if is_next_step else np.zeros(traits.num_envs, np.bool_)
    observations = engine.observe()
    for t in range(count):
        recorder.begin(observations)
        actions = choose(t, recorder.observations)
        observations, rewards, terminated, truncated, infos = engine.step(actions)
        flags = {"terminated": terminated, "truncated": truncated, "is_reset": is_reset}
        recorder.end({"actions": layouts[1].batch(layouts[1].apart(actions)), "rewards": rewards, **flags})
        recorder.add_infos(infos)
        has_ended = columns["terminated"][t] | columns["truncated"][t]
        if is_next_step:
            is_reset = has_ended
        if has_ended.any():
            episodes = engine.ended_episodes()
            if traits.autoreset_mode is AutoresetMode.SAME_STEP:
                infos = infos.get("final_info", {})
            recorder.end_episodes(episodes, final_observations(engine, observations, episodes.rows), infos)
    return dataclasses.replace(recorder.take(observations), memory=(form, columns))


def _one_step(layouts: tuple[SpaceLayout, SpaceLayout], traits: Traits) -> dict[str, Any]:
    """Return values of one row in the form of those that a step has."""
    observations, actions = (
        layout.batch([np.zeros((1, *leaf.shape), leaf.dtype) for leaf in layout.leaves]) for layout in layouts
    )
    flags = {name: np.zeros(1, np.bool_) for name in ("terminated", "truncated", "is_reset")}
    rewards = np.zeros((1, *traits.reward_shape))
    return {"observations": observations, "actions": actions, "rewards": rewards, **flags}


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
