"""Connect Four and 2048 against games that were recorded with pgx; `record.py` made them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import envfleet
from envfleet.envs.board import ConnectFour, ConnectFourOne, Play2048
from envfleet.kernels import Kernel
from envfleet.kernels.kernel import read_kernel
from envfleet.kernels.plain import PlainEnv

DATA = Path(__file__).parent / "data"


@functools.cache
def load(name: str) -> dict[str, NDArray[Any]]:
    with np.load(DATA / f"{name}.npz") as file:
        return {key: file[key] for key in file.files}


def games(name: str) -> Iterator[slice]:
    """Rows of the steps of each recorded game."""
    begins, steps = load(name)["begins"], len(load(name)["actions"])
    return (slice(begin, end) for begin, end in zip(begins, [*begins[1:], steps], strict=True))


class Script:
    """Generator with the draws of a recorded game."""

    def __init__(self, *draws: float) -> None:
        self.draws = list(draws)

    def integers(self, low: int, high: int) -> int:
        value = int(self.draws.pop(0))
        assert low <= value < high
        return value

    def random(self) -> float:
        return self.draws.pop(0)


def make(kernel: type[Kernel]) -> Any:
    return PlainEnv(read_kernel(kernel))


def test_there_are_hundreds_of_games_of_every_ending() -> None:
    for name, num_games in (("connect_four", 400), ("2048", 240)):
        file = load(name)
        last = np.array([game.stop - 1 for game in games(name)])
        assert len(last) == num_games
        np.testing.assert_array_equal(np.flatnonzero(file["terminated"]), last)
        assert (~file["is_legal"][last]).sum() > 20
    assert {(1, -1), (-1, 1)} <= {tuple(rewards) for rewards in load("connect_four")["rewards"].tolist()}
    assert load("2048")["boards"].max() >= 8  # a tile of 256


def test_connect_four_compiled_plays_the_recorded_games() -> None:
    file = load("connect_four")
    rows = list(games("connect_four"))
    lengths = np.array([game.stop - game.start for game in rows])
    with envfleet.make(ConnectFour, len(rows), backend="kernel") as fleet:
        fleet.reset(seed=0)
        for step in range(int(lengths.max())):
            at = np.array([game.start for game in rows]) + np.minimum(step, lengths - 1)
            is_on = step < lengths
            observations, rewards, terminated, _, infos = fleet.step(file["actions"][at].astype(np.int64))
            played = is_on & file["is_legal"][at]  # an illegal disc would overwrite another in pgx
            np.testing.assert_array_equal(observations[played], file["observations"][at][played])
            found_rewards = np.stack([rewards, infos["reward_two"]], axis=1)
            np.testing.assert_array_equal(found_rewards[is_on], file["rewards"][at][is_on])
            np.testing.assert_array_equal(terminated[is_on], file["terminated"][at][is_on])
            np.testing.assert_array_equal(infos["action_mask"][is_on], file["masks"][at][is_on])
            np.testing.assert_array_equal(infos["player"][is_on], file["players"][at][is_on])


@pytest.mark.parametrize("seat", [0, 1])
def test_connect_four_for_one_plays_the_recorded_games(seat: int) -> None:
    file, env = load("connect_four"), make(ConnectFourOne)
    for game in games("connect_four"):
        actions, masks = file["actions"][game], [np.ones(7), *file["masks"][game]]
        is_last_legal = file["is_legal"][game][-1]
        ranks = [int(mask[:action].sum()) for mask, action in zip(masks, actions, strict=False)]
        is_mine = np.arange(len(actions)) % 2 == seat
        if not is_last_legal and not is_mine[-1]:
            continue  # the other player plays no illegal column
        env.rng = Script(seat, *(rank for rank, is_own in zip(ranks, is_mine, strict=True) if not is_own))
        env.reset()
        for step in np.flatnonzero(is_mine):
            observation, reward, terminated, _ = env.step(actions[step])
            seen: Any = min(step + 1, len(actions) - 1)  # after the other's disc
            if not file["terminated"][game][step] or is_last_legal:
                to_move = file["players"][game][seen]
                expected = file["observations"][game][seen]
                np.testing.assert_array_equal(observation, expected if to_move == seat else expected[..., ::-1])
            assert reward == file["rewards"][game][seen, seat]
            assert terminated == file["terminated"][game][seen]
            np.testing.assert_array_equal(env.state.action_mask, file["masks"][game][seen])
        assert terminated
        assert env.rng.draws == []


def test_2048_plays_the_recorded_games() -> None:
    file = load("2048")
    boards = file["boards"].T
    # Without PlainEnv: its typed fields would take a minute.
    state: Any = SimpleNamespace(cells=np.zeros(16, np.int64), action_mask=np.zeros(4, np.int64))
    out, params = np.zeros((4, 4, 31), np.bool_), Play2048.Params()
    for game, first in zip(games("2048"), file["first_boards"], strict=True):
        one, two = np.flatnonzero(first)
        script: Any = Script(int(one), first[one] / 2 - 0.1, int(two) - 1, first[two] / 2 - 0.1)
        Play2048.reset(state, script, params)
        np.testing.assert_array_equal(state.cells, first)
        for step in range(game.start, game.stop):
            board, place = boards[step], file["places"][step]
            script = Script((board[:place] == 0).sum(), board[place] / 2 - 0.1)
            reward, terminated = Play2048.step(state, int(file["actions"][step]), script, params)
            assert (reward, terminated) == (file["rewards"][step], file["terminated"][step])
            assert (state.action_mask == file["masks"][step]).all()
            if file["is_legal"][step]:  # pgx adds a tile after an illegal action, too
                Play2048.observe(state, out)
                assert (out == (np.arange(31) == board.reshape(4, 4, 1))).all()
