"""`validate()` rejects everything that packing does not support, before anything starts."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from ray.rllib.connectors.env_to_module import FlattenObservations as RLlibFlattenObservations
from ray.rllib.connectors.env_to_module import MeanStdFilter
from tests.rllib.configs import config_of, echo_config
from tests.rllib.spaces import ACTION_SPACES, Echo

from envfleet.envs.hockey.two_player import HockeyTwoEnv
from envfleet.errors import InvalidArgument
from envfleet.rllib import FlattenObservations

pytestmark = pytest.mark.usefixtures("local_ray")


class Plain(gym.Env[Any, Any]):
    """Of given spaces; it is never stepped."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        self.observation_space, self.action_space = observation_space, action_space


BOX = spaces.Box(-1, 1, (3,), np.float32)


def with_piece(make_piece: Any) -> Any:
    return config_of().env_runners(env_to_module_connector=lambda env, spaces, device: make_piece())


def test_pieces_of_rllib_that_read_episodes() -> None:
    with pytest.raises(InvalidArgument, match=r"MeanStdFilter of RLlib .*NormalizeObservation"):
        with_piece(MeanStdFilter).validate()
    with pytest.raises(InvalidArgument, match=r"FlattenObservations of RLlib .*envfleet\.rllib\.FlattenObservations"):
        with_piece(RLlibFlattenObservations).validate()
    with_piece(FlattenObservations).validate()


def test_agent_ids() -> None:
    """RLlib's piece takes them for several agents."""
    with pytest.raises(InvalidArgument, match="it has no agent_ids, since there is one agent"):
        with_piece(lambda: RLlibFlattenObservations(multi_agent=True, agent_ids={"a"})).validate()


def test_observation_filter() -> None:
    with pytest.raises(InvalidArgument, match=r"observation_filter='MeanStdFilter' .* has no effect"):
        config_of().env_runners(observation_filter="MeanStdFilter").validate()


def test_multi_binary_actions() -> None:
    actions = spaces.Dict({"keys": spaces.MultiBinary(3), "turn": BOX})
    with pytest.raises(InvalidArgument, match=r"has MultiBinary, .*MultiDiscrete"):
        config_of(lambda settings: Plain(BOX, actions)).validate()
    config_of(lambda settings: Plain(BOX, ACTION_SPACES["multidiscrete"])).validate()


@pytest.mark.parametrize(
    "space",
    [spaces.Dict({"place": BOX}), spaces.Discrete(4), spaces.Box(-1, 1, (4, 4))],
    ids=["dict", "discrete", "2d"],
)
def test_observations_without_an_encoder(space: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"no encoder for observations .*envfleet\.rllib\.FlattenObservations"):
        config_of(lambda settings: Plain(space, BOX)).validate()
    with pytest.raises(InvalidArgument, match="no encoder"):
        config_of(lambda settings: Echo("box")).validate()
    echo_config("box").validate()  # it flattens


def test_games_of_two_players() -> None:
    with pytest.raises(InvalidArgument, match="HockeyTwoEnv is a game of several players"):
        config_of(lambda settings: HockeyTwoEnv()).validate()


def test_more_env_runners_than_cpus() -> None:
    with pytest.raises(InvalidArgument, match=r"num_env_runners=64 .* ask for 64 CPUs, but the cluster has 1"):
        config_of().env_runners(num_env_runners=64).validate()
    config = config_of().env_runners(num_env_runners=64, num_cpus_per_env_runner=0.001)
    config.training(train_batch_size=64 * 8, minibatch_size=64).validate()


def test_batches_that_are_too_small() -> None:
    with pytest.raises(InvalidArgument, match=r"minibatch_size=168 is above train_batch_size=160.*count samples"):
        config_of().training(minibatch_size=21 * 8).validate()
    with pytest.raises(InvalidArgument, match=r"less than one step of 8 sub-environments .*count samples"):
        config_of().training(train_batch_size=7, minibatch_size=7).validate()
