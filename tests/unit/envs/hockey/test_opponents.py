"""Actions by number, the scripted player, and the keyboard."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest

from envfleet.envs.hockey import BasicOpponent, HumanOpponent, action_table
from envfleet.envs.hockey.discrete import discrete_action
from envfleet.errors import InvalidArgument


def test_the_public_table() -> None:
    slots = [(0, 0), (0, -1), (0, 1), (1, -1), (1, 1), (2, -1), (2, 1), (3, 1)]
    for number, (slot, value) in enumerate(slots):
        expected = np.zeros(4, np.float32)
        expected[slot] = value
        np.testing.assert_array_equal(discrete_action(number), expected)
    np.testing.assert_array_equal(action_table(keep_mode=False), action_table()[:7, :3])


@pytest.mark.parametrize("number", [-1, 8])
def test_numbers_outside_the_table_are_refused(number: int) -> None:
    with pytest.raises(InvalidArgument, match="from 0 to 7"):
        discrete_action(number)
    with pytest.raises(InvalidArgument, match="1 or more"):
        action_table(0)


@pytest.mark.parametrize("keep_mode", [True, False])
@pytest.mark.parametrize("fineness", [1, 2, 3])
def test_finer_tables(fineness: int, keep_mode: bool) -> None:
    single, combined = (action_table(fineness, keep_mode=keep_mode, combined=one) for one in (False, True))
    assert len(single) == 1 + 6 * fineness + keep_mode
    assert len(combined) == (2 * fineness + 1) ** 3 * (2 if keep_mode else 1)
    for table in (single, combined):
        assert len(np.unique(table, axis=0)) == len(table)
        assert not table[0].any()
        assert np.abs(table).max() == 1
        assert set(np.round(np.abs(table[:, 0]) * fineness, 5)) == set(range(fineness + 1))
    rows = {tuple(row) for row in combined.tolist()}
    assert {tuple(row) for row in single.tolist()} <= rows
    assert not single.flags.writeable


def test_a_scripted_player_swings_by_its_own_seed() -> None:
    view = np.zeros(18)

    def swings(seed: int) -> list[float]:
        player = BasicOpponent(seed=seed)
        return [player.act(view)[2] for _ in range(20)]

    assert swings(1) == swings(1) != swings(2)


def test_every_row_of_a_batch_swings_by_itself() -> None:
    player = BasicOpponent(weak=True, seed=1)
    torques = np.array([player.act_batch(np.zeros((4, 18)), deterministic=True)[:, 2] for _ in range(30)])
    assert len(np.unique(torques[0])) == 4
    assert np.abs(np.diff(torques, axis=0)).max() < 0.06  # 0.25 * pi / 3 * 0.2 at most
    assert player.act_batch(np.zeros((2, 18))).shape == (2, 4)
    assert BasicOpponent(keep_mode=False, seed=1).act_batch(np.zeros((2, 16))).shape == (2, 3)


@pytest.mark.parametrize("keep_mode", [True, False])
def test_observations_of_another_shape_are_refused(keep_mode: bool) -> None:
    player, numbers = BasicOpponent(keep_mode=keep_mode, seed=1), 18 if keep_mode else 16
    for shape in ((17,), (1, numbers), ()):
        with pytest.raises(InvalidArgument, match=rf"keep_mode={keep_mode}\) .*expected \({numbers},\): make it with"):
            player.act(np.zeros(shape))
    for shape in ((2, 17), (numbers,)):
        with pytest.raises(InvalidArgument, match=rf"expected \(N, {numbers}\): make it with"):
            player.act_batch(np.zeros(shape))
    assert BasicOpponent(keep_mode=False).act(np.zeros(18)).shape == (3,)  # as of HockeyTwoEnv


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A hidden window, and the pressed keys."""
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    import pygame

    pressed = collections.defaultdict[int, bool](bool)
    pygame.display.init()
    pygame.display.set_mode((60, 48))
    monkeypatch.setattr(pygame.key, "get_pressed", lambda: pressed)
    yield pygame, pressed
    pygame.display.quit()


class Env:
    keep_mode = True

    @property
    def unwrapped(self) -> Env:
        return self


@pytest.mark.parametrize(
    ("key", "action"),
    [
        ("LEFT", [-1, 0, 0, 0]),
        ("RIGHT", [1, 0, 0, 0]),
        ("UP", [0, 1, 0, 0]),
        ("DOWN", [0, -1, 0, 0]),
        ("w", [0, 0, -1, 0]),
        ("s", [0, 0, 1, 0]),
        ("SPACE", [0, 0, 0, 1]),
    ],
)
def test_keys(keyboard: Any, key: str, action: list[float]) -> None:
    pygame, pressed = keyboard
    one, two = HumanOpponent(Env()), HumanOpponent(Env(), player=2)
    assert one.act(np.zeros(18)).tolist() == [0, 0, 0, 0]
    pressed[getattr(pygame, f"K_{key}")] = True
    assert one.act(np.zeros(18)).tolist() == action
    turned = [-action[0], -action[1], *action[2:]]
    assert two.act(np.zeros(18)).tolist() == turned


def test_the_last_key_in_order_counts(keyboard: Any) -> None:
    pygame, pressed = keyboard
    pressed[pygame.K_DOWN] = pressed[pygame.K_LEFT] = pressed[pygame.K_RIGHT] = True
    player = HumanOpponent(Env())
    player.act(np.zeros(18))[:] = 9  # a new array
    assert player.act(np.zeros(18)).tolist() == [0, -1, 0, 0]


def test_without_a_window_there_is_no_keyboard() -> None:
    import pygame

    pygame.display.quit()
    with pytest.raises(InvalidArgument, match="render_mode='human'"):
        HumanOpponent(Env()).act(np.zeros(18))
    with pytest.raises(InvalidArgument, match="player=3"):
        HumanOpponent(Env(), player=3)
