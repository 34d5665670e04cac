"""Connect Four and 2048: rules in small positions, frames, and compiled code against plain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector.utils import iterate
from tests.unit.envs.plain import begin

import envfleet
from envfleet.envs.board import ConnectFour, ConnectFourOne, MaskedConnectFourOne, MaskedPlay2048, Play2048
from envfleet.envs.frames import AGENT_COLOR, COLORS
from envfleet.errors import InvalidArgument
from envfleet.kernels import Kernel
from envfleet.kernels.plain import PlainEnv

KERNELS = (ConnectFour, MaskedConnectFourOne, MaskedPlay2048)  # the masked ones are the others, and more


def play(env: PlainEnv, columns: str) -> tuple[float, bool]:
    """Make moves; returns reward and terminated of the last."""
    for column in columns:
        reward, terminated = env.step(int(column))[1:3]
    return reward, terminated


@pytest.mark.parametrize("columns", ["0101010", "0011223", "01123223633", "65543443033"])
def test_four_in_any_direction_win(columns: str) -> None:
    env = begin(ConnectFour)
    assert play(env, columns[:-1]) == (0.0, False)
    assert play(env, columns[-1]) == (1.0, True)
    assert env.state.reward_two == -1.0


def test_a_win_of_player_two_is_a_loss_of_player_one() -> None:
    env = begin(ConnectFour)
    assert play(env, "60011223") == (-1.0, True)
    assert env.state.reward_two == 1.0


def test_a_full_board_is_a_draw() -> None:
    env = begin(ConnectFour)
    row, column = np.ogrid[:6, :7]
    env.state.cells[:] = 1 + (row + column // 2) % 2  # no four anywhere
    env.state.player = int(env.state.cells[0, 6]) - 1
    env.state.cells[0, 6] = 0
    env.state.action_mask[:6] = 0
    assert play(env, "6") == (0.0, True)


def test_a_full_column_loses_and_leaves_the_board() -> None:
    env = begin(ConnectFour)
    assert play(env, "000000") == (0.0, False)
    assert env.state.action_mask.tolist() == [0, 1, 1, 1, 1, 1, 1]
    before = env.state.cells.copy()
    assert play(env, "0") == (-1.0, True)
    np.testing.assert_array_equal(env.state.cells, before)
    assert env.state.action_mask.tolist() == [1] * 7


@pytest.mark.parametrize(("starter", "counts"), [(0, {0, 1}), (1, {0}), (2, {1})])
def test_the_starter_is_as_asked(starter: int, counts: set[int]) -> None:
    assert {int((begin(ConnectFourOne, seed, starter=starter).state.cells > 0).sum()) for seed in range(40)} == counts


def test_the_other_player_takes_all_columns_alike() -> None:
    firsts = [begin(ConnectFourOne, seed, starter=2).state.cells.any(axis=0).argmax() for seed in range(1400)]
    counts = np.bincount(firsts, minlength=7)
    assert ((counts - 200) ** 2 / 200).sum() < 6 + 5 * np.sqrt(2 * 6)  # five standard deviations


def test_a_starter_that_nobody_is_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"starter is \[3\], expected 0 to 2: 1 is the agent"):
        ConnectFourOne.check_params({"starter": np.array([3])})


def test_2048_ends_with_an_action_that_moves_no_tile() -> None:
    env = begin(Play2048)
    env.state.cells[:] = [1, 1, 1, 1, *[0] * 12]
    assert env.step(0)[1:3] == (8.0, False)
    assert env.state.cells[:2].tolist() == [2, 2]
    env.state.cells[:] = [1, 2, *[0] * 14]
    env.state.action_mask[:] = [0, 0, 1, 1]
    assert env.step(0)[1:3] == (-1.0, True)
    assert env.state.cells.tolist() == [1, 2, *[0] * 14]


def test_frames_show_the_boards() -> None:
    env = begin(ConnectFour)
    play(env, "34")
    render: Any = env.spec.render
    middles = render(env.state, env.params)[16::32, 16::32]
    assert middles.shape == (6, 7, 3)
    for place, color in (((5, 3), AGENT_COLOR), ((5, 4), COLORS[2]), ((0, 0), COLORS[0])):
        assert tuple(middles[place]) == color
    env = begin(Play2048)
    env.state.cells[:] = range(16)
    render = env.spec.render
    brightness = render(env.state, env.params)[16::32, 16::32].sum(axis=-1, dtype=int).ravel()
    assert (np.diff(brightness[:12]) < 0).all()


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_compiled_is_as_plain(kernel: type[Kernel]) -> None:
    num_envs = 6
    envs = [begin(kernel, 70 + row) for row in range(num_envs)]
    rng = np.random.default_rng(0)
    with envfleet.make(kernel, num_envs, backend="kernel", autoreset_mode="same_step") as fleet:
        observations, infos = fleet.reset(seed=70)
        for _ in range(100):
            for row, env in zip(iterate(fleet.observation_space, observations), envs, strict=True):
                assert kernel.observation_space.contains(row)
                assert data_equivalence(row, env.observe())
            np.testing.assert_array_equal(infos["action_mask"], [env.state.action_mask for env in envs])
            if kernel is not ConnectFour:
                np.testing.assert_array_equal(infos["action_mask"], observations["action_mask"])
            actions = np.array([rng.choice(np.flatnonzero(mask)) for mask in infos["action_mask"]])
            observations, rewards, terminated, _, infos = fleet.step(actions)
            for row, env in enumerate(envs):
                assert env.step(actions[row])[1:3] == (rewards[row], terminated[row])
                if terminated[row]:
                    env.reset()
