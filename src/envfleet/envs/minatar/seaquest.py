"""Seaquest: rescue divers by submarine, shoot what is in the way, and come up for air in time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from envfleet.envs.minatar.game import (
    DOWN,
    FIRE,
    LEFT,
    RIGHT,
    SIZE,
    UP,
    MinAtarGame,
    aside,
    board_space,
    clear,
    press,
    renderer,
)
from envfleet.envs.minatar.lists import HEADING, SHOT, WAIT, X, Y, add, advance, find, has_oncoming, remove, show
from envfleet.kernels import array

_BOTTOM = SIZE - 1  # the row of the gauges
_MAX_OXYGEN, _MAX_DIVERS = 200, 6
_SPAWN_INTERVAL, _DIVER_SPAWN_INTERVAL = 20, 30
_MOVE_INTERVAL, _LEAST_MOVE_INTERVAL, _DIVER_MOVE_INTERVAL = 5, 2, 5
_SHOT_INTERVAL, _ENEMY_SHOT_INTERVAL = 5, 10


class Seaquest(MinAtarGame):
    """MinAtar's Seaquest as a kernel.

    The submarine shoots to the side it faces; fish and enemy submarines, which shoot, come from both sides, and so do
    divers, which are rescued by contact. Reward 1 for each enemy that is shot. At the surface the oxygen, which
    lasts 200 steps, is filled up at the price of a diver, or for all of six, with a reward of the tenths of oxygen that
    are left; then enemies come and move faster. Terminated when an enemy or its bullet is touched, when the oxygen is
    used up, and at the surface without divers.

    Observation: planes bow, stern, own bullets, trail (behind everything else that moves), enemy bullets, fish, enemy
    submarines, oxygen and divers on board (both in the last row), divers.
    """

    observation_space = board_space(10)

    class State(MinAtarGame.State):
        """The submarine, intervals and timers, and lists of what crosses the board.

        An enemy stays for at most 30 steps where one comes in each, and shoots at most once in the ten that its bullet
        lasts: the lists never become longer.
        """

        x: int
        y: int
        is_right: bool
        is_at_surface: bool
        oxygen: int
        divers_on_board: int
        shot_timer: int
        spawn_interval: int
        spawn_timer: int
        diver_timer: int
        move_interval: int
        ramp_index: int
        bullets: NDArray[np.int8] = array((5, 3), np.int8)
        divers: NDArray[np.int8] = array((5, 4), np.int8)
        fish: NDArray[np.int8] = array((33, 4), np.int8)
        enemies: NDArray[np.int8] = array((33, 5), np.int8)
        enemy_bullets: NDArray[np.int8] = array((49, 3), np.int8)

    class Params(MinAtarGame.Params):
        """Sticky actions, and whether the game becomes faster."""

        difficulty_ramping: bool = True

    @staticmethod
    def reset(state: State, rng: np.random.Generator, params: Params) -> None:
        """Begin at the surface of an empty sea."""
        state.last_action = 0
        state.x = 5
        state.y = 0
        state.is_right = False
        state.is_at_surface = True
        state.oxygen = _MAX_OXYGEN
        state.divers_on_board = 0
        state.shot_timer = 0
        state.spawn_interval = _SPAWN_INTERVAL
        state.spawn_timer = _SPAWN_INTERVAL
        state.diver_timer = _DIVER_SPAWN_INTERVAL
        state.move_interval = _MOVE_INTERVAL
        state.ramp_index = 0
        state.bullets[:] = 0
        state.divers[:] = 0
        state.fish[:] = 0
        state.enemies[:] = 0
        state.enemy_bullets[:] = 0

    @staticmethod
    def step(state: State, action: int, rng: np.random.Generator, params: Params) -> tuple[float, bool]:
        """Let others come, act, and move everything: own bullets, divers, submarines, their bullets, fish."""
        pressed = press(state, action, rng, params)
        if state.spawn_timer == 0:
            _spawn_enemy(state, rng)
            state.spawn_timer = state.spawn_interval
        if state.diver_timer == 0:
            _spawn_diver(state, rng)
            state.diver_timer = _DIVER_SPAWN_INTERVAL
        _act(state, pressed)
        reward = _move_bullets(state)
        _move_divers(state)
        num_shot, is_caught = _move_enemies(state, state.enemies)
        is_hit = _move_enemy_bullets(state)
        num_fish_shot, is_bitten = _move_enemies(state, state.fish)
        reward += num_shot + num_fish_shot
        terminated = is_caught | is_hit | is_bitten | (state.oxygen <= 0)
        state.spawn_timer = max(state.spawn_timer - 1, 0)
        state.diver_timer = max(state.diver_timer - 1, 0)
        state.shot_timer = max(state.shot_timer - 1, 0)
        if state.y > 0:
            state.oxygen = state.oxygen - 1
            state.is_at_surface = False
        elif not state.is_at_surface:
            if state.divers_on_board == 0:
                terminated = True
            else:
                reward += _surface(state, params.difficulty_ramping)
        return float(reward), terminated

    @staticmethod
    def observe(state: State, out: NDArray[np.bool_]) -> None:
        """Write the planes."""
        clear(out)
        out[state.y, state.x, 0] = True
        out[state.y, state.x - 1 if state.is_right else state.x + 1, 1] = True
        for k in range(max(state.oxygen, 0) * SIZE // _MAX_OXYGEN):
            out[_BOTTOM, k, 7] = True
        for k in range(state.divers_on_board):
            out[_BOTTOM, _BOTTOM - 1 - k, 8] = True
        show(state.bullets, out, 2, 2)
        show(state.enemy_bullets, out, 4, 4)
        show(state.fish, out, 5, 3)
        show(state.enemies, out, 6, 3)
        show(state.divers, out, 9, 3)

    render = renderer(observe, 10)


def _spawn_enemy(state: Seaquest.State, rng: np.random.Generator) -> None:
    """Let a submarine or a fish into a row, unless something comes towards it there."""
    is_right = rng.random() < 0.5
    is_submarine = rng.random() < 1.0 / 3.0
    x, y, wait = 0 if is_right else SIZE - 1, int(rng.integers(1, SIZE - 1)), state.move_interval
    is_met = has_oncoming(state.enemies, y, is_right)
    if is_met or has_oncoming(state.fish, y, is_right):
        return
    if is_submarine:
        add(state.enemies, x, y, is_right, wait, _ENEMY_SHOT_INTERVAL)
    else:
        add(state.fish, x, y, is_right, wait)


def _spawn_diver(state: Seaquest.State, rng: np.random.Generator) -> None:
    """Let a diver into a row."""
    is_right = rng.random() < 0.5
    x, y = 0 if is_right else SIZE - 1, int(rng.integers(1, SIZE - 1))
    add(state.divers, x, y, is_right, _DIVER_MOVE_INTERVAL)


def _act(state: Seaquest.State, pressed: int) -> None:
    """Shoot or move."""
    if pressed == FIRE and state.shot_timer == 0:
        add(state.bullets, state.x, state.y, state.is_right)
        state.shot_timer = _SHOT_INTERVAL
    state.is_right = pressed == RIGHT or (state.is_right and pressed != LEFT)
    state.x = aside(state.x, pressed)
    state.y = min(max(state.y + (pressed == DOWN) * 1 - (pressed == UP) * 1, 0), _BOTTOM - 1)


def _is_here(state: Seaquest.State, things: NDArray[np.int8], index: int) -> bool:
    """Return whether a thing is where the submarine is."""
    return bool((things[index, X] == state.x) & (things[index, Y] == state.y))


def _move_bullets(state: Seaquest.State) -> int:
    """Move own bullets, and return how many hit; fish first."""
    num_hit = 0
    for index in range(state.bullets[0, 0], 0, -1):
        is_gone = advance(state.bullets, index)
        if not is_gone:
            x, y = state.bullets[index, X], state.bullets[index, Y]
            fish = find(state.fish, x, y)
            enemy = find(state.enemies, x, y)
            if fish > 0:
                remove(state.fish, fish)
            elif enemy > 0:
                remove(state.enemies, enemy)
            is_gone = fish > 0 or enemy > 0
            num_hit += is_gone
        if is_gone:
            remove(state.bullets, index)
    return num_hit


def _move_divers(state: Seaquest.State) -> None:
    """Move divers, and take them on board where the submarine is, before or after."""
    for index in range(state.divers[0, 0], 0, -1):
        has_room = state.divers_on_board < _MAX_DIVERS
        is_taken, is_out = has_room and _is_here(state, state.divers, index), False
        if not is_taken:
            if state.divers[index, WAIT] == 0:
                state.divers[index, WAIT] = _DIVER_MOVE_INTERVAL
                is_out = advance(state.divers, index)
                is_taken = has_room and _is_here(state, state.divers, index)
            else:
                state.divers[index, WAIT] -= 1
        if is_taken:
            state.divers_on_board = state.divers_on_board + 1
        if is_taken or is_out:
            remove(state.divers, index)


def _move_enemies(state: Seaquest.State, things: NDArray[np.int8]) -> tuple[int, bool]:
    """Move fish or submarines, which shoot.

    Returns:
        How many ran into bullets, and whether one was or is where the submarine is.
    """
    num_hit, is_caught = 0, False
    for index in range(things[0, 0], 0, -1):
        is_caught = is_caught | _is_here(state, things, index)
        is_moving, is_out = things[index, WAIT] == 0, False
        if is_moving:
            things[index, WAIT] = state.move_interval
            is_out = advance(things, index)
        else:
            things[index, WAIT] -= 1
        if things.shape[1] > SHOT:
            _shoot(state, things, index)
        if is_moving:
            target = find(state.bullets, things[index, X], things[index, Y])
            if is_out:
                remove(things, index)
            elif _is_here(state, things, index):
                is_caught = True
            elif target > 0:
                remove(things, index)
                remove(state.bullets, target)
                num_hit += 1
    return num_hit, is_caught


def _shoot(state: Seaquest.State, things: NDArray[np.int8], index: int) -> None:
    """Let a submarine shoot, if it is time."""
    if things[index, SHOT] == 0:
        x, y, is_right = things[index, X], things[index, Y], things[index, HEADING] != 0
        add(state.enemy_bullets, x, y, is_right)
        things[index, SHOT] = _ENEMY_SHOT_INTERVAL
    else:
        things[index, SHOT] -= 1


def _move_enemy_bullets(state: Seaquest.State) -> bool:
    """Move enemies' bullets; returns whether one was or is where the submarine is."""
    is_hit = False
    for index in range(state.enemy_bullets[0, 0], 0, -1):
        is_hit = is_hit | _is_here(state, state.enemy_bullets, index)
        is_out = advance(state.enemy_bullets, index)
        is_hit = is_hit | _is_here(state, state.enemy_bullets, index)
        if is_out:
            remove(state.enemy_bullets, index)
    return is_hit


def _surface(state: Seaquest.State, is_ramping: bool) -> int:
    """Take in air and let one diver go, or all six and one that is missing from then on; returns the reward."""
    state.is_at_surface = True
    reward = 0
    if state.divers_on_board == _MAX_DIVERS:
        state.divers_on_board = 0
        reward = state.oxygen * SIZE // _MAX_OXYGEN
    state.oxygen = _MAX_OXYGEN
    state.divers_on_board = state.divers_on_board - 1
    if is_ramping and (state.spawn_interval > 1 or state.move_interval > _LEAST_MOVE_INTERVAL):
        state.move_interval = max(state.move_interval - state.ramp_index % 2, _LEAST_MOVE_INTERVAL)
        state.spawn_interval = max(state.spawn_interval - 1, 1)
        state.ramp_index = state.ramp_index + 1
    return reward
