"""Hockey as a PettingZoo `ParallelEnv`; imported on use, because PettingZoo is an extra."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium
import numpy as np
from numpy.typing import NDArray

from envfleet.envs.hockey import constants as c
from envfleet.envs.hockey.rendering import METADATA
from envfleet.envs.hockey.two_player import HockeyTwoEnv
from envfleet.errors import InvalidArgument, MissingDependency

try:
    from pettingzoo import ParallelEnv
except ImportError as error:
    raise MissingDependency(f"PettingZoo cannot be imported ({error}): pip install 'envfleet[hockey]'") from error

_Seen = dict[str, NDArray[np.float32]]  # by agent, as everything
_Infos = dict[str, dict[str, Any]]
_AGENTS = ("player_one", "player_two")


class HockeyParallelEnv(ParallelEnv):  # type: ignore[misc]  # PettingZoo has no types
    """Two-player hockey with an agent for each player.

    Each agent sees the field from its side: observations `(18,)`, actions `(4,)`, as in `HockeyTwoEnv`. Rewards and
    infos are those of the agent: `winner` is 1 for the agent that has won, -1 for the other one.

    Args:
        render_mode: `"rgb_array"`, `"human"` or `None`.
        **settings: Settings of `HockeyTwoEnv`: `mode`, `keep_mode`, `starter`, and so on. Actions of an agent that is
            replaced by a scripted player are ignored.

    Attributes:
        env: Environment of the game; its settings can be changed.

    Raises:
        InvalidArgument: A setting has a wrong value.

    Examples:
        >>> env = HockeyParallelEnv(mode="TRAIN_DEFENSE")
        >>> observations, infos = env.reset(seed=1)
        >>> actions = {agent: env.action_space(agent).sample() for agent in env.agents}
        >>> observations, rewards, terminations, truncations, infos = env.step(actions)
        >>> sorted(observations), observations["player_one"].shape
        (['player_one', 'player_two'], (18,))
    """

    metadata: ClassVar[dict[str, Any]] = {**METADATA, "name": "hockey_v0", "is_parallelizable": True}

    def __init__(self, render_mode: str | None = None, **settings: Any) -> None:
        self.env = HockeyTwoEnv(**settings, render_mode=render_mode)
        self.render_mode = render_mode
        self.possible_agents = [*_AGENTS]
        self.agents: list[str] = []
        box = gymnasium.spaces.Box
        self.observation_spaces = {
            agent: box(-np.inf, np.inf, (c.OBSERVATION_SIZE,), np.float32) for agent in self.possible_agents
        }
        self.action_spaces = {agent: box(-1.0, 1.0, (c.ACTION_SIZE,), np.float32) for agent in self.possible_agents}

    def observation_space(self, agent: str) -> gymnasium.spaces.Box:
        """Return the observation space of one agent."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> gymnasium.spaces.Box:
        """Return the action space of one agent; always the same object, which can be seeded."""
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[_Seen, _Infos]:
        """Begin a game.

        Args:
            seed: Seed of the generator; without a seed the generator continues.
            options: Dict with `"params"`: new settings by name. Other options are ignored, as in PettingZoo.

        Returns:
            Observations and infos by agent.
        """
        known = {name: value for name, value in (options or {}).items() if name == "params"}
        seen, info = self.env.reset(seed=seed, options=known)
        self.agents = [*self.possible_agents]
        return self._split(seen), self._inform(info)

    def step(
        self, actions: Mapping[str, NDArray[np.float32]]
    ) -> tuple[_Seen, dict[str, float], dict[str, bool], dict[str, bool], _Infos]:
        """Play one step, 1/50 s.

        Args:
            actions: Actions by agent, each of shape `(4,)`.

        Returns:
            Observations, rewards, terminations, truncations and infos by agent; empty dicts once the game is over.

        Raises:
            InvalidArgument: An agent's action is missing or has a wrong shape.
        """
        if not self.agents:
            return {}, {}, {}, {}, {}
        missing = [agent for agent in self.agents if agent not in actions]
        if missing:
            raise InvalidArgument(f"actions lack {missing} (got {sorted(actions)}): pass one action for each agent")
        both = np.array([actions[agent] for agent in self.possible_agents], np.float32)
        seen, reward, terminated, truncated, info = self.env.step(both)
        agents = self.agents
        if terminated or truncated:
            self.agents = []
        rewards = dict(zip(agents, (reward, info["reward_two"]), strict=True))
        flags = (dict.fromkeys(agents, terminated), dict.fromkeys(agents, truncated))
        return self._split(seen), rewards, *flags, self._inform(info)

    def _split(self, seen: NDArray[np.float32]) -> _Seen:
        return dict(zip(self.possible_agents, seen, strict=True))

    def _inform(self, info: dict[str, Any]) -> _Infos:
        """Return the infos of each agent, under the names of player one's infos."""
        return {
            agent: {
                "mode": info["mode"],
                "winner": info["winner"] * (-1 if suffix else 1),
                **{term: info[term + suffix] for term in c.REWARD_TERMS},
            }
            for agent, suffix in zip(self.possible_agents, ("", "_two"), strict=True)
        }

    def render(self) -> Any:
        """Draw the game: `(480, 600, 3)`, uint8, if `render_mode` is `"rgb_array"`."""
        return self.env.render()

    def close(self) -> None:
        """Close the window, if there is one."""
        self.env.close()
