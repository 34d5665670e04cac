"""Compiled hockey plays every recorded game of the public environment again, to the last bit."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest
from tests.golden.hockey.compiled import COMPILE_TIMEOUT_S, TERMS, CompiledGames, place
from tests.golden.hockey.recordings import GAMES, Game, games, load

pytestmark = pytest.mark.timeout(COMPILE_TIMEOUT_S)


@pytest.fixture(scope="module")
def compiled() -> CompiledGames:
    return CompiledGames()


def play(compiled: CompiledGames, game: Game, first: np.ndarray) -> None:
    """Play the recorded actions; everything must be what was recorded."""
    played = collections.defaultdict[str, list[Any]](list)
    seen = [first]
    for action in game.actions:
        observation, reward, _, _, info = compiled.step(action)
        seen.append(observation)
        played["rewards"].append((reward, info["reward_two"]))
        played["infos"].append([info[term + player] for player in ("", "_two") for term in TERMS])
        played["winners"].append((info["winner"], -info["winner"]))
    width = game.observations[0].shape[1]
    for player in range(2):
        got = np.array(seen)[:, player, :width]
        np.testing.assert_array_equal(got, game.observations[player], f"{game.name}: player {player + 1}")
    for name in ("rewards", "infos", "winners"):
        np.testing.assert_array_equal(played[name], getattr(game, name), f"{game.name}: {name}")


@pytest.mark.parametrize("name", GAMES)
def test_games_are_played_again(compiled: CompiledGames, name: str) -> None:
    count = 0
    for count, game in enumerate(games(name), 1):  # noqa: B007
        play(compiled, game, compiled.begin(game))
    assert count >= 10


@pytest.mark.parametrize("name", ["train_modes", "edge_cases", "nokeep"])
def test_games_are_played_again_from_where_the_bodies_were(compiled: CompiledGames, name: str) -> None:
    for game in games(name):
        play(compiled, game, compiled.begin_elsewhere(game))


def test_single_steps(compiled: CompiledGames) -> None:
    steps = load("onestep")
    compiled.state.is_first_order = False
    params = {"mode": 0, "keep_mode": True, "starter": 1}
    for state, action, observed, reward, winner in zip(
        *(steps[key] for key in ("state", "action", "next_obs1", "reward1", "winner")), strict=True
    ):
        compiled.env.reset(seed=0, options={"params": params})
        place(compiled.state, state.tolist(), keep_mode=True)
        observation, got, _, _, info = compiled.step(action)
        np.testing.assert_array_equal(observation[0], observed)
        assert (got, info["winner"]) == (reward, winner)


def test_resets(compiled: CompiledGames) -> None:
    resets = load("resets")
    for mode, is_one_starting, seed, observed in zip(
        *(resets[key] for key in ("mode", "one_starting", "seed", "obs1")), strict=True
    ):
        params = {"mode": int(mode), "keep_mode": True, "starter": 1 if is_one_starting else 2}
        observation, _ = compiled.env.reset(seed=int(seed), options={"params": params})
        np.testing.assert_array_equal(observation[0], observed)
