"""Hockey plays every recorded game of the public environment again, to the last bit."""

from __future__ import annotations

import collections
import platform
import sys
from typing import Any

import numpy as np
import pytest
from tests.golden.hockey.recordings import GAMES, Game, games, load

from envfleet.envs.hockey import BasicOpponent, HockeyEnv, compat
from envfleet.envs.hockey.opponents import scripted_action, scripted_actions

pytestmark = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="the last bits are those of one platform"
)

TERMS = ("reward_closeness_to_puck", "reward_touch_puck", "reward_puck_direction")


def begin(game: Game, before: Any) -> Any:
    """Begin a game as it was recorded."""
    env = before if game.continues else compat.HockeyEnv(game.keep_mode, game.mode)
    for _ in range(game.prior_resets):
        env.reset(one_starting=True, seed=0)
    env.reset(one_starting=game.one_starting, seed=game.seed)
    if game.is_placed:
        env.set_state(game.state)
    return env


def begin_elsewhere(game: Game, before: Any) -> Any:
    """Begin a game from another seed, then put everything where the recording says."""
    env = compat.HockeyEnv(game.keep_mode, game.mode)
    for _ in range(game.prior_resets):
        env.reset(one_starting=True, seed=0)
    env.reset(one_starting=True, seed=0)
    world = env._game.world
    for body, pose in zip((*world.rackets, world.puck), game.bodies.reshape(3, 6).tolist(), strict=True):
        body.place(pose)
    world.holds[:] = game.state[16:18].astype(int).tolist() if game.keep_mode else [0, 0]
    world._world.ClearForces()
    env._game._look()
    if not game.is_placed and game.puck_force.any():
        world.puck.push(*game.puck_force.tolist())
    return env


def play(env: Any, game: Game) -> None:
    """Play the recorded actions; everything must be what was recorded."""
    played = collections.defaultdict[str, list[Any]](list)
    seen = [env.obs_agent_two()]
    for action in game.actions:
        observation, reward, terminated, truncated, info = env.step(action)
        info_two = env.get_info_agent_two()
        played["one"].append(observation)
        seen.append(env.obs_agent_two())
        played["rewards"].append((reward, env.get_reward_agent_two(info_two)))
        played["infos"].append([one[term] for one in (info, info_two) for term in TERMS])
        played["winners"].append((info["winner"], info_two["winner"]))
        played["ended"].append(terminated)
        assert not truncated
    np.testing.assert_array_equal(played["one"], game.observations[0][1:], game.name)
    np.testing.assert_array_equal(seen, game.observations[1], game.name)
    for name in ("rewards", "infos", "winners", "ended"):
        np.testing.assert_array_equal(played[name], getattr(game, name), f"{game.name}: {name}")


@pytest.mark.parametrize("name", GAMES)
def test_games_are_played_again(name: str) -> None:
    env, count = None, 0
    for count, game in enumerate(games(name), 1):  # noqa: B007
        env = begin(game, env)
        play(env, game)
    assert count >= 10


@pytest.mark.parametrize("name", ["train_modes", "edge_cases", "nokeep"])
def test_games_are_played_again_from_where_the_bodies_were(name: str) -> None:
    for game in games(name):
        play(begin_elsewhere(game, None), game)


def test_single_steps() -> None:
    steps = load("onestep")
    env = HockeyEnv()
    for state, action, observed, reward, winner in zip(
        *(steps[key] for key in ("state", "action", "next_obs1", "reward1", "winner")), strict=True
    ):
        # A fresh environment behaves like one that was just reset: that is what the recordings were made with.
        env.reset(one_starting=True, seed=0)
        env.set_state(state)
        observation, got, _, _, info = env.step(action)
        np.testing.assert_array_equal(observation, observed)
        assert (got, info["winner"]) == (reward, winner)


def test_resets() -> None:
    resets = load("resets")
    env = HockeyEnv()
    keys = ("mode", "one_starting", "seed", "obs1")
    for mode, is_one_starting, seed, observed in zip(*(resets[key] for key in keys), strict=True):
        observation, _ = env.reset(bool(is_one_starting), int(mode), int(seed))
        np.testing.assert_array_equal(observation, observed)


def test_without_quirks_games_differ_only_in_truncation() -> None:
    for game in games("normal_random"):
        if game.prior_resets or game.is_placed:
            continue
        env = HockeyEnv()
        env.reset(game.one_starting, seed=game.seed)
        steps = [env.step(action) for action in game.actions]
        np.testing.assert_array_equal([step[0] for step in steps], game.observations[0][1:], game.name)
        np.testing.assert_array_equal([step[2] for step in steps], game.winners[:, 0] != 0, game.name)
        np.testing.assert_array_equal([step[2] or step[3] for step in steps], game.ended, game.name)


def test_scripted_actions() -> None:
    file = load("opponent_actions")
    for weak in (False, True):
        for keep_mode in (False, True):
            rows = (file["weak"] == weak) & (file["keep_mode"] == keep_mode)
            observations, phases, expected = file["obs"][rows], file["phase_after"][rows], file["action"][rows]
            expected = expected[:, : 4 if keep_mode else 3]
            actions = [
                scripted_action(observation.tolist(), weak, keep_mode, phase)
                for observation, phase in zip(observations, phases, strict=True)
            ]
            np.testing.assert_array_equal(actions, expected)
            np.testing.assert_array_equal(scripted_actions(observations, weak, keep_mode, phases), expected)
            assert len(expected) > 100


def test_one_player_or_many_act_alike() -> None:
    observations = load("opponent_actions")["obs"]
    one, many = BasicOpponent(weak=False, seed=3), BasicOpponent(weak=False, seed=3)
    for row in observations[:50]:
        np.testing.assert_array_equal(one.act(row), many.act_batch(row[np.newaxis])[0])
