"""Rock, paper and scissors: nobody sees anything; `Broken` raises in its second step."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces


class Duel:
    """A parallel game for two, as PettingZoo has them."""

    metadata: dict[str, Any] = {"name": "duel"}  # noqa: RUF012  # as PettingZoo's
    render_mode = None
    possible_agents = ("one", "two")

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(0, 1, (1,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = [*self.possible_agents]
        return self._all(np.zeros(1, np.float32)), self._all({})

    def _all(self, value: Any) -> dict[str, Any]:
        return dict.fromkeys(self.possible_agents, value)

    def step(self, actions: dict[str, Any]) -> Any:
        self.agents = []
        gain = (0.0, 1.0, -1.0)[(int(actions["one"]) - int(actions["two"])) % 3]
        rewards = {"one": gain, "two": -gain}
        return self._all(np.zeros(1, np.float32)), rewards, self._all(True), self._all(False), self._all({})

    def close(self) -> None:
        pass


class Broken(Duel):
    """Every game ends by an error."""

    def step(self, actions: dict[str, Any]) -> Any:
        raise RuntimeError("broken")
