"""One compiled game: start, step, observations and scripted player, by the rules in `envfleet.envs.hockey.rules`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from envfleet.envs.hockey import constants as c
from envfleet.envs.hockey import rules
from envfleet.envs.hockey.constants import Mode
from envfleet.envs.hockey.kernel import shapes as s
from envfleet.envs.hockey.kernel.bodies import add_body, teleport, wake
from envfleet.envs.hockey.kernel.physics import step_physics
from envfleet.envs.hockey.kernel.shapes import NUM_BODIES, NUM_MOVING, ONE, PUCK, RACKET_ONE, RACKET_TWO, ZERO, F
from envfleet.kernels import outlined

_DEFENSE = int(Mode.TRAIN_DEFENSE)
_LIMITS = np.array([c.TIME_LIMIT_STEPS[mode] for mode in Mode])


@outlined
def begin(state: Any, rng: Any, mode: int, starter: int, keep_mode: bool) -> None:
    """Begin a game; draws where everything is, then how the scripted players' rackets swing."""
    for body in range(NUM_MOVING, NUM_BODIES):
        add_body(state, body, s.STATIC_X[body], s.STATIC_Y[body])
    racket_x, racket_y, puck_x, puck_y, aim_y = rules.draw_start(mode, starter, rng)
    add_body(state, RACKET_ONE, F(c.RACKET_POSITIONS[0][0]), F(c.RACKET_POSITIONS[0][1]))
    add_body(state, RACKET_TWO, F(racket_x), F(racket_y))
    add_body(state, PUCK, F(puck_x), F(puck_y))
    if mode == _DEFENSE:
        queue(state, PUCK, *rules.serve_force(np.float64(state.x[PUCK]), np.float64(state.y[PUCK]), aim_y))
    state.can_hold = keep_mode
    state.winner = 0
    state.clock = 0
    state.limit = _LIMITS[mode]
    # For any controller, since it can change during the game.
    state.phases[0] = rng.uniform(0.0, c.PHASE_RANGE)
    state.phases[1] = rng.uniform(0.0, c.PHASE_RANGE)
    _inform(state)


@outlined
def play(state: Any) -> None:
    """Play one step with the actions in the state."""
    for player in range(2):
        _drive(state, player)
    velocity_x, velocity_y = np.float64(state.velocity_x[PUCK]), np.float64(state.velocity_y[PUCK])
    state.linear_damping[PUCK] = rules.puck_damping(velocity_x, velocity_y)
    if state.can_hold:
        for player in range(2):
            if state.holds[player] > 1:
                _hold(state, player)
    step_physics(state)
    state.clock += 1
    _inform(state)


def _drive(state: Any, player: int) -> None:
    """Let a player's action act on its racket."""
    damping, force_x, force_y, is_leaving_x, is_leaving_y = rules.push(
        player,
        np.float64(state.x[player]),
        np.float64(state.y[player]),
        np.float64(state.velocity_x[player]),
        np.float64(state.velocity_y[player]),
        state.actions[4 * player],
        state.actions[4 * player + 1],
    )
    if is_leaving_x:
        state.velocity_x[player] = ZERO
    if is_leaving_y:
        state.velocity_y[player] = ZERO
    state.linear_damping[player] = damping
    queue(state, player, force_x, force_y)
    angle, spin = np.float64(state.angle[player]), np.float64(state.spin[player])
    torque, damping = rules.turn(player, angle, spin, state.actions[4 * player + 2])
    state.angular_damping[player] = damping
    state.torque[player] += torque


def queue(state: Any, body: int, force_x: np.float32, force_y: np.float32) -> None:
    """Let a force (N) act on a body in the next physics step."""
    wake(state, body)
    state.force_x[body] += force_x
    state.force_y[body] += force_y


def _hold(state: Any, player: int) -> None:
    """Keep the puck at a racket for one more step, or shoot it."""
    teleport(state, PUCK, state.x[player], state.y[player], state.angle[PUCK])
    set_velocity(state, PUCK, state.velocity_x[player], state.velocity_y[player])
    state.holds[player] -= 1
    if state.holds[player] == 1 or state.actions[4 * player + 3] > c.SHOOT_THRESHOLD:
        queue(state, PUCK, *rules.shot_force(player, np.float64(state.angle[player])))
        state.holds[player] = 0


def set_velocity(state: Any, body: int, x: np.float32, y: np.float32) -> None:
    """Give a body a velocity, which wakes it if there is any."""
    if x * x + y * y > ZERO:
        wake(state, body)
    state.velocity_x[body] = x
    state.velocity_y[body] = y


def command(state: Any, player: int, number: int, action: np.float32) -> None:
    """Keep one number of a player's action, clipped to [-1, 1]."""
    state.actions[4 * player + number] = max(-ONE, min(action, ONE))


def see(state: Any, player: int, number: int) -> float:
    """Return one of the 18 numbers that a player sees."""
    sign = -1.0 if player else 1.0
    body = (player if number < 6 else 1 - player) if number < 12 else PUCK
    quantity = number % 6
    value = 0.0
    if number >= 16:
        if state.can_hold:
            value = float(state.holds[player if number == 16 else 1 - player])
    elif quantity == 0:
        value = sign * (np.float64(state.x[body]) - c.CENTER_X)
    elif quantity == 1:
        value = sign * (np.float64(state.y[body]) - c.CENTER_Y)
    elif quantity == 2 and body != PUCK:
        value = np.float64(state.angle[body])
    elif quantity == 5:
        value = np.float64(state.spin[body])
    else:
        is_x = quantity == (2 if body == PUCK else 3)
        value = sign * np.float64(state.velocity_x[body] if is_x else state.velocity_y[body])
    return value


def _inform(state: Any) -> None:
    """Compute the terms of both players' rewards."""
    closeness, touch, direction = _terms(state, 0)
    state.reward_closeness_to_puck, state.reward_touch_puck, state.reward_puck_direction = closeness, touch, direction
    closeness, touch, direction = _terms(state, 1)
    state.reward_closeness_to_puck_two, state.reward_touch_puck_two = closeness, touch
    state.reward_puck_direction_two = direction
    state.reward_two = -c.WIN_REWARD * state.winner + closeness


def _terms(state: Any, player: int) -> tuple[float, float, float]:
    return rules.reward_terms(
        player,
        np.float64(state.x[player]),
        np.float64(state.y[player]),
        np.float64(state.x[PUCK]),
        np.float64(state.y[PUCK]),
        np.float64(state.velocity_x[PUCK]),
        state.holds[player],
        state.limit,
    )


@outlined
def swing(state: Any, rng: Any, player: int, strength: int) -> None:
    """Let the scripted player choose a player's action; its strength is `c.WEAK` or `c.STRONG`."""
    state.phases[player] += rng.uniform(0.0, c.PHASE_GROWTH)
    for number in range(18):
        state.seen[number] = F(see(state, player, number))
    forces = rules.scripted_forces(state.seen, strength == c.WEAK, math.sin(state.phases[player]))
    for number in range(3):
        command(state, player, number, F(forces[number]))
    command(state, player, 3, F(rules.scripted_shot(state.seen[16])))
