"""Hockey as a PettingZoo environment, by PettingZoo's own tests and next to the game it is made of."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from envfleet.envs.hockey import HockeyTwoEnv
from envfleet.envs.hockey.parallel import HockeyParallelEnv
from envfleet.errors import InvalidArgument


def test_pettingzoo_has_nothing_to_say() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it imports its environments in a deprecated way
        from pettingzoo.test import parallel_api_test, parallel_seed_test
    parallel_api_test(HockeyParallelEnv(), num_cycles=600)
    parallel_seed_test(HockeyParallelEnv, num_cycles=100)


def play(env: Any, wrap: Any) -> list[Any]:
    rng = np.random.default_rng(2)
    played, ended = [env.reset(seed=3)], False
    while not ended:
        played.append(env.step(wrap(rng.uniform(-1, 1, (2, 4)).astype(np.float32))))
        flags = played[-1][2:4]
        ended = any(any(flag.values()) if isinstance(flag, dict) else flag for flag in flags)
    return played


def test_both_agents_get_their_own_side_of_the_game() -> None:
    env, game = HockeyParallelEnv(player_two=2), HockeyTwoEnv(player_two=2)
    agents = env.possible_agents
    split = play(env, lambda actions: dict(zip(agents, actions, strict=True)))
    whole = play(game, lambda actions: actions)
    assert env.agents == []
    for one, both in zip(split, whole, strict=True):
        np.testing.assert_array_equal([one[0][agent] for agent in agents], both[0])
        own, other = one[-1].values()
        assert own["winner"] == -other["winner"] == both[-1]["winner"]
        assert other["reward_touch_puck"] == both[-1]["reward_touch_puck_two"]
        if len(one) == 5:
            assert list(one[1].values()) == [both[1], both[-1]["reward_two"]]
            assert set(one[2].values()) == {both[2]}


def test_a_missing_action_is_told() -> None:
    env = HockeyParallelEnv()
    env.reset(seed=0)
    with pytest.raises(InvalidArgument, match=r"actions lack \['player_two'\]"):
        env.step({"player_one": np.zeros(4, np.float32)})
