"""Advantages of packed rollouts against RLlib's own learner pipeline on the same rollout."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core import DEFAULT_MODULE_ID, Columns
from ray.rllib.evaluation.postprocessing import Postprocessing
from ray.rllib.utils.minibatch_utils import ShardEpisodesIterator

import envfleet
from envfleet.rllib import PackedEnvRunner, PackedPPOConfig, PackedRollout

NUM_ENVS = 6
GAMMA, LAMBDA = 0.97, 0.9
MODEL = {"fcnet_hiddens": [32, 32]}


def cartpoles(autoreset_mode: AutoresetMode) -> Any:
    """CartPoles that are cut off after 15 steps and fall after about 20: both ends happen in 40 steps."""

    def create(settings: dict[str, Any]) -> Any:
        return envfleet.make(
            "envfleet/CartPole-v1", settings["num_envs"], autoreset_mode=autoreset_mode, max_episode_steps=15
        )

    return create


def packed_config(autoreset_mode: AutoresetMode = AutoresetMode.SAME_STEP) -> PackedPPOConfig:
    return (
        PackedPPOConfig()
        .environment(cartpoles(autoreset_mode))
        .env_runners(num_env_runners=0, num_envs_per_env_runner=NUM_ENVS)
        .rl_module(model_config=MODEL)
        .training(
            train_batch_size=NUM_ENVS * 40, minibatch_size=NUM_ENVS * 40, num_epochs=1, gamma=GAMMA, lambda_=LAMBDA
        )
        .debugging(seed=3)
    )


@pytest.fixture(params=[AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP], ids=lambda mode: mode.name.lower())
def runner(request: pytest.FixtureRequest) -> Any:
    runner = PackedEnvRunner(config=packed_config(request.param), worker_index=0, num_workers=0)
    yield runner
    runner.stop()


@pytest.fixture(scope="module")
def learner() -> Any:
    runner = PackedEnvRunner(config=packed_config(), worker_index=0, num_workers=0)
    runner.stop()
    return packed_config().build_learner(spaces=runner.get_spaces())


def rllib_advantages(runner: PackedEnvRunner, rollouts: list[PackedRollout], state: Any) -> tuple[Any, Any, Any]:
    """Return observations, advantages before standardizing and value targets of RLlib's pipeline."""
    config = PPOConfig().environment("CartPole-v1").rl_module(model_config=MODEL)
    config = config.training(gamma=GAMMA, lambda_=LAMBDA, train_batch_size=128, minibatch_size=128)
    learner = config.build_learner(env=gym.make("CartPole-v1"))
    learner.module[DEFAULT_MODULE_ID].set_state(state)
    space = runner.env.single_observation_space
    episodes = [e for r in rollouts for e in r.to_episodes(space, runner.env.single_action_space)]
    batch = learner._learner_connector(
        rl_module=learner.module, batch={}, episodes=copy.deepcopy(episodes), shared_data={}
    )[DEFAULT_MODULE_ID]
    real = batch[Columns.LOSS_MASK]
    with torch.no_grad():
        values = learner.module[DEFAULT_MODULE_ID].compute_values({Columns.OBS: batch[Columns.OBS]})
    targets = batch[Postprocessing.VALUE_TARGETS]
    return batch[Columns.OBS][real], (targets - values)[real], targets[real]


def packed_advantages(learner: Any, rollouts: list[PackedRollout]) -> dict[str, Any]:
    batch = learner._learner_connector(rl_module=learner.module, batch={}, episodes=rollouts, shared_data={})
    return batch[DEFAULT_MODULE_ID]


def in_order(observations: Any, *columns: Any) -> list[Any]:
    """Columns sorted by their observations, since the two sides lay samples out differently."""
    order = np.lexsort(np.asarray(observations).T)
    return [np.asarray(column)[order] for column in (observations, *columns)]


def test_advantages_are_rllibs(runner: PackedEnvRunner, learner: Any) -> None:
    rollouts = [*runner.sample(), *runner.sample()]
    assert any(r.columns[Columns.TERMINATEDS].any() for r in rollouts)
    assert any(r.columns[Columns.TRUNCATEDS].any() for r in rollouts)
    ours = packed_advantages(learner, rollouts)
    state = learner.module[DEFAULT_MODULE_ID].get_state()
    observations, advantages, targets = in_order(*rllib_advantages(runner, rollouts, state))
    seen, standardised, value_targets = in_order(
        ours[Columns.OBS], ours[Postprocessing.ADVANTAGES], ours[Postprocessing.VALUE_TARGETS]
    )
    np.testing.assert_array_equal(seen, observations)
    np.testing.assert_allclose(value_targets, targets, atol=1e-5)
    np.testing.assert_allclose(standardised, (advantages - advantages.mean()) / advantages.std(), atol=1e-5)


def test_no_reset_reaches_the_batch(runner: PackedEnvRunner, learner: Any) -> None:
    (rollout,) = runner.sample()
    episodes = rollout.to_episodes(runner.env.single_observation_space, runner.env.single_action_space)
    assert sum(map(len, episodes)) == len(rollout) >= NUM_ENVS * 40
    assert any(episode.is_done for episode in episodes)
    for episode in episodes:
        assert len(episode) <= 15
        # CartPole moves by its velocity, 0.02 s a step, so an observation of another episode would show.
        seen = episode.get_observations()[: len(episode) if episode.is_terminated else None]
        np.testing.assert_allclose(seen[1:, 0], seen[:-1, 0] + 0.02 * seen[:-1, 1], atol=1e-5)
    assert len(packed_advantages(learner, [rollout])[Postprocessing.ADVANTAGES]) == len(rollout)


@pytest.mark.parametrize("num_parts", [2, 7])
def test_advantages_do_not_depend_on_the_cut(runner: PackedEnvRunner, learner: Any, num_parts: int) -> None:
    (rollout,) = runner.sample()
    parts = [part for shard in ShardEpisodesIterator([rollout], num_parts) for part in shard]  # as for Learners
    assert len(parts) == num_parts
    assert sum(map(len, parts)) == len(rollout)
    whole, cut = packed_advantages(learner, [rollout]), packed_advantages(learner, parts)
    for name in (Columns.ACTION_LOGP, Postprocessing.VALUE_TARGETS, Postprocessing.ADVANTAGES):
        (_, a), (_, b) = (in_order(batch[Columns.OBS], batch[name]) for batch in (whole, cut))
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_large_minibatches_in_parts_give_the_same_update() -> None:
    runner = PackedEnvRunner(config=packed_config(), worker_index=0, num_workers=0)
    rollouts = runner.sample()
    states: list[Any] = []
    results = []
    for rows in (None, 37):
        learner = packed_config().packing(rows_per_pass=rows).build_learner(spaces=runner.get_spaces())
        if states:
            learner.module[DEFAULT_MODULE_ID].set_state(states[0])
        else:
            states.append({k: v.copy() for k, v in learner.module[DEFAULT_MODULE_ID].get_state().items()})
        result = learner.update(episodes=rollouts, minibatch_size=NUM_ENVS * 40, num_epochs=2)
        results.append({name: result[DEFAULT_MODULE_ID][name].peek() for name in ("policy_loss", "vf_loss", "entropy")})
        states.append({k: v.copy() for k, v in learner.module[DEFAULT_MODULE_ID].get_state().items()})
    runner.stop()
    start, whole, parts = states
    for name in (name for name in start if not name.endswith("const")):
        assert np.abs(whole[name] - start[name]).max() > 1e-6, name
        np.testing.assert_allclose(parts[name], whole[name], atol=2e-6)
    assert results[0] == pytest.approx(results[1], rel=1e-4, abs=1e-5)
