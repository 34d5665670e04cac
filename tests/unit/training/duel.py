"""Rock, paper and scissors with constant observations; `Broken` raises in its second step."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from envfleet.envs.games import Game


class Duel:
    """A parallel game for two, as PettingZoo has them."""

    metadata: dict[str, Any] = {"name": "duel"}  # noqa: RUF012  # as PettingZoo's
    render_mode = None
    possible_agents = ("one", "two")
    view: Any = spaces.Box(0, 1, (1,), np.float32)
    seen: Any = np.zeros(1, np.float32)

    def observation_space(self, agent: str) -> Any:
        return self.view

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = [*self.possible_agents]
        return self._all(self.seen), self._all({})

    def _all(self, value: Any) -> dict[str, Any]:
        return dict.fromkeys(self.possible_agents, value)

    def step(self, actions: dict[str, Any]) -> Any:
        self.agents = []
        gain = (0.0, 1.0, -1.0)[(int(actions["one"]) - int(actions["two"])) % 3]
        rewards = {"one": gain, "two": -gain}
        return self._all(self.seen), rewards, self._all(True), self._all(False), self._all({})

    def close(self) -> None:
        pass


class Broken(Duel):
    """Every game ends by an error."""

    def step(self, actions: dict[str, Any]) -> Any:
        raise RuntimeError("broken")


class Numbered(Duel):
    """Both see the largest of many numbers that do not begin with 0."""

    view = spaces.Discrete(70, start=5)
    seen = 74


class Shifted(Duel):
    """Choices are numbered from 1."""

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(3, start=1)


class Scripted(Duel):
    """A duel in which the second player can be one that always plays rock."""

    player_one = player_two = 0

    def get_keys_to_action(self) -> dict[Any, int]:
        return {(): 0, "p": 1}

    def step(self, actions: dict[str, Any]) -> Any:
        first = actions["one"]
        results = super().step({"one": first, "two": 0} if self.player_two else actions)
        return (*results[:-1], {"one": {"choice": int(first)}, "two": {"choice": -1}})


class Rocks(Game):
    """The game of it, with that player."""

    scripts = {"rock": 1}  # noqa: RUF012  # as in `Game`

    def __init__(self, env: Any = Scripted) -> None:
        super().__init__("rocks", env)
