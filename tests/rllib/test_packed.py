"""Training with packed sub-environments: spaces, modules, metrics, evaluation, what is refused."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core import DEFAULT_MODULE_ID, Columns
from ray.rllib.core.rl_module.apis import ValueFunctionAPI
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch import TorchRLModule
from ray.rllib.utils.spaces.space_utils import unsquash_action
from tests.fleets import adopted
from tests.rllib.configs import N, config_of, echo_config
from tests.rllib.spaces import ACTION_SPACES, Echo
from tests.waiting import PATIENCE_S

from envfleet.errors import InvalidArgument
from envfleet.rllib import FlattenObservations, PackedEnvRunner, PackedPPOConfig, PackedRollout
from envfleet.testing import mismatches

pytestmark = pytest.mark.usefixtures("local_ray")


@pytest.mark.parametrize("actions", ACTION_SPACES)
def test_dict_observations_and_every_kind_of_action(actions: str) -> None:
    algorithm = echo_config(actions).build_algo()
    result = algorithm.train()["env_runners"]
    algorithm.stop()
    assert result["num_env_steps_sampled"] == 20 * N
    assert result["num_episodes"] == 4 * N
    assert result["episode_return_mean"] == result["episode_len_mean"] == result["episode_len_max"] == 5.0


def test_samples_are_what_batch_sizes_count() -> None:
    algorithm = config_of().build_algo()
    result = algorithm.train()
    algorithm.stop()
    assert result["env_runners"]["num_env_steps_sampled"] == 20 * N
    assert result["learners"][DEFAULT_MODULE_ID]["module_train_batch_size_mean"] == 10 * N
    assert result["learners"][DEFAULT_MODULE_ID]["num_module_steps_trained"] == 2 * 20 * N
    assert result["env_runners"]["episode_return_mean"] == result["env_runners"]["episode_len_mean"] > 8


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_any_vector_environment_can_be_packed(mode: AutoresetMode) -> None:
    def create(settings: dict[str, Any]) -> Any:
        return SyncVectorEnv([lambda: Echo("discrete")] * settings["num_envs"], autoreset_mode=mode)

    config = config_of(create).env_runners(env_to_module_connector=lambda env, spaces, device: FlattenObservations())
    algorithm = config.build_algo()
    (rollout,) = algorithm.env_runner.sample(num_timesteps=20 * N)
    result = algorithm.train()["env_runners"]
    algorithm.stop()
    time = rollout.columns[Columns.OBS][..., -1]  # flattened: kind, place, time
    final_times = rollout.cut_episodes.observations[..., -1]
    assert (time[rollout.valid] < 5).all()
    assert (final_times == 5).all()
    assert len(final_times) == (rollout.columns[Columns.TRUNCATEDS].sum() if mode is AutoresetMode.SAME_STEP else 0)
    assert result["episode_len_mean"] == 5.0


def arrays_of(rollout: PackedRollout) -> dict[str, Any]:
    names = (
        "observations",
        "last_observations",
        "actions",
        "rewards",
        "terminated",
        "truncated",
        "is_reset",
        "outputs",
    )
    return {
        **{name: getattr(rollout.rollout, name) for name in names},
        "episodes": dataclasses.asdict(rollout.rollout.episodes),
    }


def rollout_of(make_fleet: Any) -> PackedRollout:
    def create(settings: dict[str, Any]) -> Any:
        return make_fleet(num_envs=settings["num_envs"], autoreset_mode="SAME_STEP", max_episode_steps=15)

    runner = PackedEnvRunner(config=config_of(create), worker_index=0, num_workers=0)
    (rollout,) = runner.sample(num_timesteps=40 * N)
    runner.stop()
    return rollout


def test_every_fleet_is_packed_alike(make_fleet: Any) -> None:
    """The same rollout, to the last bit, with the hidden last observations of episodes that were cut off."""
    expected, actual = rollout_of(adopted), rollout_of(make_fleet)
    assert len(actual.cut_episodes) > 3
    assert not mismatches(arrays_of(expected), arrays_of(actual))


def test_views_that_the_next_step_overwrites() -> None:
    """A vector environment without copies writes each step into the same arrays."""

    def create(settings: dict[str, Any]) -> Any:
        env_fns = [functools.partial(gymnasium.make, "CartPole-v1", max_episode_steps=15)] * settings["num_envs"]
        return SyncVectorEnv(env_fns, copy=False, autoreset_mode=AutoresetMode.SAME_STEP)

    runner = PackedEnvRunner(config=config_of(create), worker_index=0, num_workers=0)
    (rollout,) = runner.sample(num_timesteps=40 * N)
    runner.stop()
    assert not mismatches(arrays_of(rollout_of(adopted)), arrays_of(rollout))


class Counting(TorchRLModule, ValueFunctionAPI):
    """A user's module; notes the shapes it sees, and counts the steps it acts in."""

    seen: ClassVar[set[tuple[int, ...]]] = set()
    num_steps: ClassVar[int] = 0

    def setup(self) -> None:
        self.net = torch.nn.Linear(self.observation_space.shape[0], self.action_space.n + 1)

    def forward_exploration(self, batch: dict[str, Any], **kwargs: Any) -> Any:
        type(self).num_steps += 1
        return super().forward_exploration(batch, **kwargs)

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        self.seen.add(tuple(batch[Columns.OBS].shape[1:]))
        return {Columns.ACTION_DIST_INPUTS: self.net(batch[Columns.OBS])[..., :-1]}

    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> Any:
        return self.net(batch[Columns.OBS])[..., -1]


def test_a_module_of_yours_sees_flat_batches() -> None:
    Counting.seen.clear()
    Counting.num_steps = 0
    algorithm = config_of().rl_module(rl_module_spec=RLModuleSpec(module_class=Counting)).build_algo()
    algorithm.train()
    assert isinstance(algorithm.get_module(), Counting)
    algorithm.stop()
    assert (Counting.seen, Counting.num_steps) == ({(4,)}, 20)


def test_evaluation_plays_the_episodes_asked_for() -> None:
    config = config_of(max_episode_steps=30).evaluation(
        evaluation_interval=1, evaluation_duration=11, evaluation_config={"explore": False}
    )
    algorithm = config.build_algo()
    evaluated = algorithm.train()["evaluation"]["env_runners"]
    rollouts = algorithm.eval_env_runner.sample(num_episodes=11, explore=False)
    algorithm.stop()
    assert evaluated["num_episodes"] == 11
    ends = [r.columns[Columns.TERMINATEDS] | r.columns[Columns.TRUNCATEDS] for r in rollouts]
    per_sub_env = [(r.valid & ended).sum(0) for r, ended in zip(rollouts, ends, strict=True)]
    assert np.sum(per_sub_env, 0).tolist() == [2, 2, 2, 1, 1, 1, 1, 1]


def test_an_env_runner_in_a_process_of_its_own() -> None:
    config = config_of().env_runners(num_env_runners=1, num_cpus_per_env_runner=0.1, sample_timeout_s=PATIENCE_S)
    algorithm = config.build_algo()
    result = algorithm.train()["env_runners"]
    algorithm.stop()
    assert result["num_env_steps_sampled"] == 20 * N
    assert result["episode_return_mean"] > 8


def test_env_runners_start_apart() -> None:
    config = config_of().env_runners(num_env_runners=2)
    starts = []
    for worker_index in (1, 2):
        runner = PackedEnvRunner(config=config, worker_index=worker_index, num_workers=2)
        starts.append(runner.sample(num_timesteps=N)[0].columns[Columns.OBS][0])
        runner.stop()
    assert len(np.unique(np.concatenate(starts), axis=0)) == 2 * N


@pytest.mark.slow
def test_several_env_runners_and_learners() -> None:
    config = (
        config_of()
        .env_runners(num_env_runners=2, num_cpus_per_env_runner=0.1, sample_timeout_s=PATIENCE_S)
        .learners(num_learners=2, num_cpus_per_learner=0.1)
        .training(train_batch_size_per_learner=20 * N + 3, minibatch_size=10 * N, num_epochs=1)
        .packing(rows_per_pass=7 * N)
    )
    algorithm = config.build_algo()
    result = algorithm.train()
    learners = algorithm.learner_group.foreach_learner(lambda learner: learner.get_state()["rl_module"])
    algorithm.stop()
    assert 2 * (20 * N + 3) <= result["env_runners"]["num_env_steps_sampled"] <= 2 * 21 * N
    assert result["env_runners"]["episode_return_mean"] > 8
    first, second = (item.get()[DEFAULT_MODULE_ID] for item in learners)
    for name, weights in first.items():  # they exchanged gradients
        np.testing.assert_array_equal(weights, second[name])


def test_callbacks_per_sample_get_rollouts() -> None:
    class Watching(RLlibCallback):
        seen: ClassVar[list[Any]] = []

        def on_sample_end(self, *, samples: Any, **_: Any) -> None:
            self.seen.extend(samples)

    algorithm = config_of().callbacks(Watching).build_algo()
    algorithm.train()
    algorithm.stop()
    (rollout,) = Watching.seen
    assert isinstance(rollout, PackedRollout)
    assert rollout.shape == (20, N)


def test_what_cannot_be_packed_is_refused() -> None:
    class PerEpisode(RLlibCallback):
        def on_episode_end(self, **_: Any) -> None:
            pass

    with pytest.raises(InvalidArgument, match=r"on_episode_end .* use\s+on_sample_end"):
        config_of().callbacks(PerEpisode).validate()
    with pytest.raises(InvalidArgument, match=r"use_lstm=True .* train with vec"):
        config_of().rl_module(model_config={"use_lstm": True}).validate()
    with pytest.raises(InvalidArgument, match="one agent each"):
        config_of().multi_agent(policies={"a", "b"}, policy_mapping_fn=lambda *_: "a").validate()
    with pytest.raises(InvalidArgument, match='"on_failure": "restart"'):
        config_of().fault_tolerance(restart_failed_sub_environments=True).validate()
    with pytest.raises(ValueError, match="minibatch_size"):
        config_of().training(minibatch_size=21 * N).validate()
    with pytest.raises(InvalidArgument, match="rows_per_pass=0"):
        PackedPPOConfig().packing(rows_per_pass=0)
    with pytest.raises(InvalidArgument, match=r"num_envs=2 .* set config\.env_runners\(num_envs_per_env_runner=…\)"):
        PackedPPOConfig().packing(fleet_options={"num_envs": 2})


def test_a_piece_that_wants_episodes_is_told_what_to_do() -> None:
    class Reading(ConnectorV2):
        def __call__(self, *, batch: Any, episodes: Any, **_: Any) -> Any:
            return {**batch, Columns.OBS: episodes[0].get_observations(-1)}

    config = config_of().env_runners(env_to_module_connector=lambda env, spaces, device: Reading())
    algorithm = config.build_algo()
    with pytest.raises(InvalidArgument, match=r"use envfleet\.rllib\.FlattenObservations"):
        algorithm.train()
    algorithm.stop()


@pytest.mark.parametrize("normalizes", [False, True])
def test_a_piece_decides_actions_where_rllib_does_not(normalizes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Rest(ConnectorV2):
        def __call__(self, *, batch: Any, **_: Any) -> Any:
            return {**batch, Columns.ACTIONS_FOR_ENV: np.zeros_like(batch[Columns.ACTIONS])}

    config = echo_config("box").environment(normalize_actions=normalizes)
    config.env_runners(module_to_env_connector=lambda env, spaces: Rest())
    runner, played = PackedEnvRunner(config=config), list[Any]()
    step = runner.env.step

    def watched_step(actions: Any) -> Any:
        played.append(actions)
        return step(actions)

    monkeypatch.setattr(runner.env, "step", watched_step)
    (rollout,) = runner.sample(num_timesteps=2 * N)
    drawn, space = rollout.columns[Columns.ACTIONS], runner.env.single_action_space
    runner.stop()
    np.testing.assert_array_equal(played, unsquash_action(drawn, space) if normalizes else np.zeros((2, N, 2)))


def test_a_stateful_module_is_refused() -> None:
    class Stateful(Counting):
        def get_initial_state(self) -> Any:
            return {"memory": np.zeros(1, np.float32)}

    with pytest.raises(InvalidArgument, match="Stateful is stateful"):
        config_of().rl_module(rl_module_spec=RLModuleSpec(module_class=Stateful)).build_algo()


def test_other_sizes_of_vector_environments_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="a vector environment of 3 sub-environments"):
        config_of(lambda settings: SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 3)).build_algo()


def test_flattened_observations_are_gymnasiums() -> None:
    space = Echo("box").observation_space
    assert isinstance(space, spaces.Dict)
    items = [space.sample() for _ in range(4)]
    batch = {Columns.OBS: {key: np.stack([item[key] for item in items]) for key in space.spaces}}
    piece = FlattenObservations(space, spaces.Discrete(2))
    flat = piece(batch=batch)[Columns.OBS]
    np.testing.assert_array_equal(flat, [spaces.flatten(space, item) for item in items])
    assert piece.observation_space.shape == (6,)
