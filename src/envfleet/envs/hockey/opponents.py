"""Players without learning: the scripted player (weak or strong), and a human at the keyboard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from envfleet.envs.hockey import constants as c
from envfleet.envs.hockey.discrete import discrete_action
from envfleet.envs.hockey.rules import scripted_forces, scripted_shot
from envfleet.envs.keyboard import load_pygame, pressed_keys
from envfleet.errors import InvalidArgument


def scripted_action(observation: Sequence[float], weak: bool, keep_mode: bool, phase: float) -> list[float]:
    """Compute one action of the scripted player.

    Args:
        observation: Observation of the player, 16 or 18 numbers.
        weak: True for the weak player.
        keep_mode: True if players can hold the puck.
        phase: Phase of the swing in radians.

    Returns:
        Force x, force y, torque and, in `keep_mode`, shoot.
    """
    forces = scripted_forces(observation, weak, float(np.sin(phase)))
    return [*forces, scripted_shot(observation[16])] if keep_mode else [*forces]


def scripted_actions(
    observations: NDArray[np.floating], weak: bool, keep_mode: bool, phases: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Compute the actions of many scripted players, each by `scripted_action`.

    Args:
        observations: Observations of the players, `(N, 18)` or `(N, 16)`.
        weak: True for the weak player.
        keep_mode: True if players can hold the puck.
        phases: Phases of their swings in radians, `(N,)`.

    Returns:
        Actions, shape `(N, 4)`, or `(N, 3)` without `keep_mode`.
    """
    rows = zip(np.asarray(observations, np.float64).tolist(), phases.tolist(), strict=True)
    actions = np.array([scripted_action(row, weak, keep_mode, phase) for row, phase in rows])
    return actions.reshape(-1, c.ACTION_SIZE if keep_mode else c.ACTION_SIZE - 1)


class BasicOpponent:
    """Scripted player.

    The phase of its racket's swing is drawn from a separate generator and continues over episodes. `act_batch` has a
    phase for every row; `act` uses that of the first row.

    Args:
        weak: True for the weak player.
        keep_mode: True if players can hold the puck.
        seed: Seed of the swings; random by default.

    Examples:
        >>> player = BasicOpponent(weak=False, seed=1)
        >>> player.act(np.zeros(18)).shape, player.act_batch(np.zeros((5, 18))).shape
        ((4,), (5, 4))
    """

    def __init__(
        self, weak: bool = True, keep_mode: bool = True, seed: int | np.random.SeedSequence | None = None
    ) -> None:
        self.weak = weak
        self.keep_mode = keep_mode
        self.seed(seed)

    @property
    def script(self) -> str:
        """Name of the equal scripted player inside the environment."""
        return "weak" if self.weak else "strong"

    def seed(self, seed: int | np.random.SeedSequence | None) -> None:
        """Restart the generator with this seed."""
        self._rng = np.random.default_rng(seed)
        self._phases = self._rng.uniform(0, c.PHASE_RANGE, 1)

    def act(self, observation: ArrayLike) -> NDArray[np.float64]:
        """Choose an action.

        Args:
            observation: Observation of the player, shape `(18,)`, or `(16,)` without keep mode.

        Returns:
            Action, shape `(4,)`, or `(3,)` without keep mode.

        Raises:
            InvalidArgument: The observation has another shape.
        """
        numbers = self._check(np.asarray(observation, np.float64), 1).tolist()
        self._phases[0] += self._rng.uniform(0, c.PHASE_GROWTH)
        return np.array(scripted_action(numbers, self.weak, self.keep_mode, float(self._phases[0])))

    def act_batch(self, observations: ArrayLike, deterministic: bool = False) -> NDArray[np.float64]:
        """Choose actions in many games.

        Args:
            observations: Observations of the player, shape `(N, 18)`, or `(N, 16)` without keep mode. A row should be
                the same game in each call, since every row has a phase of the swing.
            deterministic: Ignored, because the random swing is part of the player; pass a seed instead.

        Returns:
            Actions, shape `(N, 4)`, or `(N, 3)` without keep mode.

        Raises:
            InvalidArgument: The observations have another shape.
        """
        rows = self._check(np.asarray(observations, np.float64), 2)
        missing = len(rows) - len(self._phases)
        if missing > 0:
            self._phases = np.append(self._phases, self._rng.uniform(0, c.PHASE_RANGE, missing))
        phases = self._phases[: len(rows)]
        phases += self._rng.uniform(0, c.PHASE_GROWTH, len(rows))
        return scripted_actions(rows, self.weak, self.keep_mode, phases)

    def _check(self, observations: NDArray[np.float64], ndim: int) -> NDArray[np.float64]:
        if observations.ndim != ndim or observations.shape[-1] not in ((18,) if self.keep_mode else (16, 18)):
            numbers = "18" if self.keep_mode else "16"
            expected = f"({numbers},)" if ndim == 1 else f"(N, {numbers})"
            raise InvalidArgument(
                f"{self!r} got observations of shape {observations.shape}, expected {expected}: make it with the "
                "game's keep_mode, and call act for one game, act_batch for many"
            )
        return observations

    def __repr__(self) -> str:
        return f"BasicOpponent(weak={self.weak}, keep_mode={self.keep_mode})"


class HumanOpponent:
    """Human at the keyboard: arrows push, W and S turn, space shoots.

    If several keys are pressed, the last one in the order left, up, right, down, W, S, space is used. The window of the
    environment, which has `render_mode="human"`, must have the focus.

    Args:
        env: Environment of the game; only its `keep_mode` is read.
        player: 1 for the left side, 2 for the right side. Arrow keys are directions on the screen.

    Raises:
        InvalidArgument: The player is unknown.
    """

    def __init__(self, env: Any, player: int = 1) -> None:
        if player not in (1, 2):
            raise InvalidArgument(f"player={player!r}: pass 1 (left) or 2 (right)")
        pygame = load_pygame()
        self._keep_mode = bool(env.unwrapped.keep_mode)
        left, right, down, up = (1, 2, 3, 4) if player == 1 else (2, 1, 4, 3)
        self._numbers = {pygame.K_LEFT: left, pygame.K_UP: up, pygame.K_RIGHT: right, pygame.K_DOWN: down}
        self._numbers |= {pygame.K_w: 5, pygame.K_s: 6}
        if self._keep_mode:
            self._numbers[pygame.K_SPACE] = 7

    def act(self, observation: Any) -> NDArray[np.float32]:
        """Return the action of the pressed key, or that of no key.

        Raises:
            InvalidArgument: The window is not open yet, or the machine lacks a display.
        """
        pressed = pressed_keys(self._numbers)
        return discrete_action(self._numbers[pressed[-1]] if pressed else 0, keep_mode=self._keep_mode)
