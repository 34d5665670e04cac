"""Compiled games put where a recording begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.golden.hockey.recordings import Game

from envfleet.envs.hockey import constants as c
from envfleet.envs.hockey.kernel.bodies import teleport
from envfleet.envs.hockey.kernel.game import Hockey
from envfleet.envs.hockey.kernel.play import set_velocity
from envfleet.envs.hockey.kernel.shapes import PUCK, RACKET_ONE, RACKET_TWO, F
from envfleet.kernels.env import KernelEnv

TERMS = ("reward_closeness_to_puck", "reward_touch_puck", "reward_puck_direction")
COMPILE_TIMEOUT_S = 1200  # when nothing is cached, on a busy machine
_POSE = 6  # numbers of one body


class State:
    """The record of the one game of an environment, with its fields as attributes."""

    def __init__(self, env: KernelEnv) -> None:
        vars(self)["_env"] = env

    def __getattr__(self, name: str) -> Any:
        return self._env.get_wrapper_attr(name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._env.set_wrapper_attr(name, value)


class CompiledGames:
    """One compiled environment that plays recorded games with the public game's behavior between games."""

    def __init__(self) -> None:
        self.env = KernelEnv(Hockey)
        self.state: Any = State(self.env)
        self._is_one_starting = self._is_first_order = True

    def begin(self, game: Game) -> NDArray[np.float32]:
        """Begin a game as it was recorded, and return both first observations."""
        holds = self.state.holds.copy() if game.continues else np.zeros(2, np.int32)
        if not game.continues:
            self._is_one_starting, self._is_first_order = True, game.prior_resets % 2 == 0
        self._is_first_order = not self._is_first_order
        is_one_starting = game.one_starting
        if is_one_starting is None:
            is_one_starting = not self._is_one_starting if game.mode == 0 else self._is_one_starting
        if game.mode == 0:
            self._is_one_starting = is_one_starting
        self.state.is_first_order = self._is_first_order
        self._reset(game, game.seed, is_one_starting)
        self.state.holds[:] = holds
        if game.is_placed:
            place(self.state, game.state.tolist(), game.keep_mode)
        return self.observe()

    def begin_elsewhere(self, game: Game) -> NDArray[np.float32]:
        """Begin from another seed, then put everything where the recording says."""
        self.state.is_first_order = game.prior_resets % 2 == 1
        self._reset(game, 0, True)
        for body, pose in enumerate(game.bodies.reshape(3, 6)):
            place_body(self.state, body, pose.tolist())
        self.state.holds[:] = game.state[16:18] if game.keep_mode else 0
        self.state.force_x[:], self.state.force_y[:] = 0, 0
        if not game.is_placed:
            self.state.force_x[2], self.state.force_y[2] = game.puck_force
        return self.observe()

    def _reset(self, game: Game, seed: int, is_one_starting: bool) -> None:
        params = {"mode": game.mode, "keep_mode": game.keep_mode, "starter": 1 if is_one_starting else 2}
        self.env.reset(seed=seed, options={"params": params})

    def step(self, action: NDArray[Any]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step; recordings continue past the end of a game, where an environment of a kernel stays as it is."""
        self.env._awaiting[0] = 0
        return self.env.step(both(action))

    def observe(self) -> NDArray[np.float32]:
        """Return the observations of both players, `(2, 18)`."""
        out = np.zeros((2, 18), np.float32)
        Hockey.observe(self.state, out)
        return out


def both(action: NDArray[Any]) -> NDArray[np.float32]:
    """A recorded action of 8 or 6 numbers as `(2, 4)`."""
    rows = np.asarray(action, np.float32).reshape(2, -1)
    return np.pad(rows, ((0, 0), (0, 4 - rows.shape[1])))


def place(state: Any, observation: Sequence[float], keep_mode: bool) -> None:
    """Put everything where an observation of player one says, as `HockeyEnv.set_state` does.

    Args:
        state: A record of the kernel's state; it is changed, uncompiled.
        observation: 18 numbers, 16 without `keep_mode`.
        keep_mode: True if the hold counters are among them.
    """
    for racket, first in ((RACKET_ONE, 0), (RACKET_TWO, _POSE)):
        x, y, *others = observation[first : first + _POSE]
        place_body(state, racket, (x + c.CENTER_X, y + c.CENTER_Y, *others))
    x, y, velocity_x, velocity_y = observation[2 * _POSE : 2 * _POSE + 4]
    teleport(state, PUCK, F(x + c.CENTER_X), F(y + c.CENTER_Y), state.angle[PUCK])
    set_velocity(state, PUCK, F(velocity_x), F(velocity_y))
    if keep_mode:
        state.holds[:] = np.asarray(observation[16:18], np.int64)


def place_body(state: Any, body: int, pose: Sequence[float]) -> None:
    """Set x, y, angle, both velocity components and the spin of a body, in world coordinates."""
    x, y, angle, velocity_x, velocity_y, spin = (F(number) for number in pose)
    teleport(state, body, x, y, state.angle[body])
    teleport(state, body, x, y, angle)
    set_velocity(state, body, velocity_x, velocity_y)
    state.spin[body] = spin
