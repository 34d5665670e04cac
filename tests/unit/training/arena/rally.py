"""A tiny game for two with the face of hockey: every number in it says where it comes from."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from envfleet.envs.games import known_game
from envfleet.envs.hockey.entry import HockeyGame
from envfleet.training.arena.arena import Arena

HOCKEY = known_game("hockey")
SHAPING_TERMS = tuple(name for name, *_ in HOCKEY.terms.values())


class Rally(gymnasium.Env[Any, Any]):
    """Observations of both players are episode, step, player; an episode lasts as many steps as its generator says."""

    observation_space = spaces.Box(-np.inf, np.inf, (2, 3), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (2, 2), np.float32)
    metadata: ClassVar[dict[str, Any]] = {}  # type: ignore[misc]  # an instance variable in Gymnasium's Env

    def __init__(self) -> None:
        self.mode, self.keep_mode, self.player_two, self.starter = 0, True, 0, 0
        self.shooting_share = self.defense_share = 0.0
        self._episode, self._step, self._length = -1, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._episode, self._step, self._length = self._episode + 1, 0, int(self.np_random.integers(2, 9))
        return self._observe(), self._info(0, np.zeros((2, 2)))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        is_over = self._step == self._length
        winner = (1, 0, -1)[self._length % 3] if is_over else 0
        is_late = is_over and winner == 0
        return self._observe(), 1.0, is_over and not is_late, is_late, self._info(winner, action)

    def _observe(self) -> Any:
        return np.array([[self._episode, self._step, player] for player in (1, 2)], np.float32)

    def _info(self, winner: int, action: Any) -> dict[str, Any]:
        now = float(10 * self._episode + self._step)
        terms = dict.fromkeys(SHAPING_TERMS, now) | {f"{name}_two": -2 * now for name in SHAPING_TERMS}
        acted = {"one": float(action[0][0]), "two": float(action[1][0])}
        return {
            "winner": winner, "mode": self.mode, "script": self.player_two, "reward_two": now + 0.5, **acted, **terms,
        }  # fmt: skip


class RallyGame(HockeyGame):
    """The game for training."""

    observation_space: Any = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space: Any = spaces.Box(-1.0, 1.0, (2,), np.float32)


GAME = RallyGame()


def record_infos(arena: Arena) -> list[dict[str, Any]]:
    """Return a list that gets the infos of every step that the arena takes from now on."""
    recv, infos = arena.fleet.recv, list[dict[str, Any]]()

    def spy() -> Any:
        results = recv()
        infos.append(results[4])
        return results

    arena.fleet.recv = spy  # type: ignore[method-assign, assignment]
    return infos
