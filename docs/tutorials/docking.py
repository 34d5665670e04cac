"""Docking: bring a spacecraft to rest at a station that turns it away, with a thruster for each direction.

The kernel of the tutorial "Write a kernel". Lengths are in metres, times in seconds.
"""

from __future__ import annotations

import math

import numpy as np
from gymnasium import spaces

from envfleet.kernels import Kernel


class Docking(Kernel):
    """A spacecraft near a station in orbit.

    Observation: position along the orbit and away from the Earth (km), velocity (10 m/s), fuel left (0 to 1).
    Action: thrust along both axes, -1 to 1. Terminated when it docks, drifts off, or touches the station too fast.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (5,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    max_episode_steps = 300
    info_fields = ("has_docked",)

    class State(Kernel.State):
        """One spacecraft."""

        x: float  # along the orbit
        y: float  # away from the Earth
        vx: float
        vy: float
        fuel: float
        has_docked: bool

    class Params(Kernel.Params):
        """Parameters of one spacecraft."""

        thrust: float = 0.1  # m/s², at full throttle
        orbit: float = 0.0011  # rad/s, as the station's
        distance: float = 400.0  # m, at the start
        radius: float = 10.0  # m, of the port
        speed_limit: float = 0.5  # m/s, at the port
        burn: float = 0.005  # of the fuel, per second at full throttle

    @staticmethod
    def reset(state, rng, params):
        """Begin anywhere on a circle, nearly at rest."""
        direction = rng.uniform(-math.pi, math.pi)
        state.x = params.distance * math.cos(direction)
        state.y = params.distance * math.sin(direction)
        state.vx = rng.uniform(-0.2, 0.2)
        state.vy = rng.uniform(-0.2, 0.2)
        state.fuel = 1.0
        state.has_docked = False

    @staticmethod
    def step(state, action, rng, params):
        """Burn and drift for one second."""
        before = math.sqrt(state.x * state.x + state.y * state.y)
        power = params.thrust if state.fuel > 0.0 else 0.0
        burnt_x = min(max(action[0], -1.0), 1.0)
        burnt_y = min(max(action[1], -1.0), 1.0)
        # Clohessy and Wiltshire (1960): motion near a station in orbit, which turns around the Earth.
        ax = power * burnt_x - 2.0 * params.orbit * state.vy
        ay = power * burnt_y + 2.0 * params.orbit * state.vx + 3.0 * params.orbit * params.orbit * state.y
        state.vx += ax
        state.vy += ay
        state.x += state.vx
        state.y += state.vy
        state.fuel -= params.burn * (abs(burnt_x) + abs(burnt_y))

        distance = math.sqrt(state.x * state.x + state.y * state.y)
        speed = math.sqrt(state.vx * state.vx + state.vy * state.vy)
        is_at_port = distance < params.radius
        state.has_docked = is_at_port & (speed < params.speed_limit)
        is_lost = distance > 3.0 * params.distance
        reward = 0.01 * (before - distance)
        reward += 10.0 if state.has_docked else 0.0
        reward -= 5.0 if is_lost | (is_at_port & (speed >= params.speed_limit)) else 0.0
        return reward, is_at_port | is_lost

    @staticmethod
    def observe(state, out):
        """Numbers of about 1, which networks like."""
        out[0] = state.x * 0.001
        out[1] = state.y * 0.001
        out[2] = state.vx * 0.1
        out[3] = state.vy * 0.1
        out[4] = state.fuel


def pilot(observations):
    """Head for the port, the slower the nearer; no one taught it to save fuel."""
    wanted_speed = np.clip(-20.0 * observations[:, :2], -3.0, 3.0)  # m/s
    return np.clip(2.0 * (wanted_speed - 10.0 * observations[:, 2:4]), -1.0, 1.0)
