"""Training continues after a checkpoint, also with RLlib's vec, and after a failure."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core import DEFAULT_MODULE_ID, Columns
from ray.rllib.core.rl_module.rl_module import RLModule
from tests.rllib.configs import N, as_configured, config_of, echo_config
from tests.rllib.spaces import Echo

from envfleet.rllib import PackedEnvRunner, PackedPPO
from envfleet.rllib.dense import FusedSequential

pytestmark = pytest.mark.usefixtures("local_ray")


def test_what_was_saved_goes_on_here_and_with_vec(tmp_path: Path) -> None:
    def trained(algorithm: Algorithm, iteration: int, path: Path) -> Any:
        assert algorithm.train()["training_iteration"] == iteration
        algorithm.save_to_path(path)
        state = algorithm.get_module().get_state()
        algorithm.stop()
        return {name: weights.copy() for name, weights in state.items()}

    def assert_has(algorithm: Algorithm, state: Any) -> None:
        for name, weights in algorithm.get_module().get_state().items():
            np.testing.assert_array_equal(weights, state[name])

    packed, plain = (tmp_path / name for name in ("packed", "plain"))
    state = trained(config_of().build_algo(), 1, packed)
    vec = as_configured(PPOConfig(), "envfleet/CartPole-v1").env_runners(gym_env_vectorize_mode="vector_entry_point")
    algorithm = vec.build_algo()
    algorithm.restore_from_path(packed)
    assert_has(algorithm, state)
    state = trained(algorithm, 2, plain)
    restored = Algorithm.from_checkpoint(packed)
    assert type(restored) is PackedPPO
    restored.restore_from_path(plain)
    assert_has(restored, state)
    trained(restored, 3, packed)
    module = RLModule.from_checkpoint(plain / "learner_group" / "learner" / "rl_module" / DEFAULT_MODULE_ID)
    assert all(type(part) is not FusedSequential for part in module.modules())


class FailsOnce(Echo):
    """Raises in one step of all that are made."""

    steps_left: ClassVar[int]

    def step(self, action: Any) -> Any:
        type(self).steps_left -= 1
        if self.steps_left == 0:
            raise OSError("the simulator is gone")
        return super().step(action)


def test_a_sub_environment_that_failed_is_rebuilt() -> None:
    FailsOnce.steps_left = 7 * N
    config = echo_config("discrete", FailsOnce).packing(fleet_options={"backend": "serial", "on_failure": "restart"})
    runner = PackedEnvRunner(config=config, worker_index=0, num_workers=0)
    (rollout,) = runner.sample(num_episodes=2 * N)
    runner.stop()
    ends = rollout.valid & (rollout.columns[Columns.TERMINATEDS] | rollout.columns[Columns.TRUNCATEDS])
    assert FailsOnce.steps_left < 0
    assert ends.sum(0).tolist() == [2] * N
    assert len(rollout) == 2 * N * 5 - 3  # one episode ended with its second step
