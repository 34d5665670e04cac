"""PettingZoo games as ordinary Gymnasium environments, which every backend can run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from envfleet.errors import InvalidArgument

SCRIPT_ATTRIBUTES = frozenset({"player_one", "player_two"})
"""Attributes of games with built-in players."""


class ParallelGame(gym.Env[Any, Any]):
    """A PettingZoo `ParallelEnv` as a `gymnasium.Env`; the first axis of observations and actions is the agent.

    Agents are those of `possible_agents`, in that order, and must share their spaces. The episode continues until all
    agents have ended. An agent that ended before has observations of zeros and the reward 0, and its actions are
    ignored.

    The reward is the sum over the agents. Infos have each agent's part under its name and a dot, as in
    `"player_0.reward"`: `reward`, `terminated`, `truncated`, `is_active` (the agent took part in this step), and the
    agent's own infos.

    Args:
        make_env: Function that makes the `ParallelEnv`.

    Attributes:
        agent_names: Names of the agents, in order.
        agent_observation_space: Space of one agent's observations.
        agent_action_space: Space of one agent's actions.

    Raises:
        InvalidArgument: `make_env` does not make a `ParallelEnv`, or the agents' spaces differ.
    """

    def __init__(self, make_env: Any) -> None:
        game: Any = make_env() if callable(make_env) else None  # one instance cannot be several games
        if not hasattr(game, "possible_agents") or hasattr(game, "agent_iter"):
            raise InvalidArgument(
                f"{make_env!r} does not make a PettingZoo ParallelEnv: pass a callable that does, as parallel_env; "
                "pettingzoo.utils.aec_to_parallel makes one of a turn-based game in which all may act at once"
            )
        self._game, self._inner = game, getattr(game, "unwrapped", game)  # without PettingZoo's wrappers
        self.agent_names: tuple[str, ...] = tuple(game.possible_agents)
        self.agent_observation_space = self._shared_space("observation_space", game.observation_space)
        self.agent_action_space = self._shared_space("action_space", game.action_space)
        self.observation_space = batch_space(self.agent_observation_space, len(self.agent_names))
        self._nothing = next(
            iter(iterate(self.observation_space, self._empty_batch()))
        )  # observation of agents that ended
        self.action_space = batch_space(self.agent_action_space, len(self.agent_names))
        self.render_mode = getattr(game, "render_mode", None)
        self.metadata = dict(game.metadata)

    def _shared_space(self, name: str, space_of: Callable[[str], gym.Space[Any]]) -> gym.Space[Any]:
        first, *others = self.agent_names
        space = space_of(first)
        for agent in others:
            if space_of(agent) != space:
                raise InvalidArgument(
                    f"{name} of {agent!r} is {space_of(agent)}, that of {first!r} {space}: agents are rows of one "
                    "array, so give them the same space, for example by padding (supersuit.pad_observations_v0, "
                    "pad_action_space_v0)"
                )
        return space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin a game; both arguments are passed to the game."""
        super().reset(seed=seed)
        observations, infos = self._game.reset(seed=seed, options=options)
        return self._batch(observations), self._inform(infos)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step all agents that have not ended.

        Args:
            action: Actions of all agents, in the form of `action_space`.

        Returns:
            Observations of all agents; the sum of rewards; terminated and truncated; infos. A game that is over is
            truncated if all remaining agents are, else terminated.
        """
        playing = [*self._game.agents]
        pairs = zip(self.agent_names, iterate(self.action_space, action), strict=True)
        actions = {agent: one for agent, one in pairs if agent in playing}
        observations, rewards, terminations, truncations, infos = self._game.step(actions)
        info = self._inform(infos)
        for agent in self.agent_names:
            info[f"{agent}.reward"] = float(rewards.get(agent, 0.0))
            info[f"{agent}.terminated"] = bool(terminations.get(agent, False))
            info[f"{agent}.truncated"] = bool(truncations.get(agent, False))
            info[f"{agent}.is_active"] = agent in playing
        is_over = not self._game.agents
        is_late = is_over and all(truncations.get(agent, False) for agent in playing)
        total = float(sum(rewards.values()))
        return self._batch(observations), total, is_over and not is_late, is_late, info

    def _batch(self, observations: dict[str, Any]) -> Any:
        """Stack the observations of all agents; zeros for those that have ended."""
        parts = [observations.get(agent, self._nothing) for agent in self.agent_names]
        return concatenate(self.agent_observation_space, parts, self._empty_batch())

    def _empty_batch(self) -> Any:
        return create_empty_array(self.agent_observation_space, n=len(self.agent_names), fn=np.zeros)

    def _inform(self, infos: dict[str, dict[str, Any]]) -> dict[str, Any]:
        self._agent_infos = infos
        return {f"{agent}.{name}": value for agent, own in infos.items() for name, value in own.items()}

    def has_wrapper_attr(self, name: str) -> bool:
        """Return whether this wrapper or the game has an attribute."""
        return hasattr(self, name) or hasattr(self._inner, name)

    def get_wrapper_attr(self, name: str) -> Any:
        """Return an attribute of this wrapper or, if it is missing here, of the game."""
        return getattr(self if hasattr(self, name) else self._inner, name)

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        """Set an attribute; of the game if only the game has it."""
        owner: Any = self if hasattr(self, name) or not hasattr(self._inner, name) else self._inner
        return gym.Env.set_wrapper_attr(owner, name, value, force=force)

    def render(self) -> Any:
        """Render the game."""
        return self._game.render()

    def close(self) -> None:
        """Close the game."""
        self._game.close()


class DuelGame(ParallelGame):
    """A `ParallelGame` of two agents, with the interface of two-player games in training.

    The reward is that of the first agent; `infos["reward_two"]` is that of the second. `infos["winner"]` is 0 until the
    game is over, then 1, -1 or 0 if the first agent's return is greater than, less than or equal to the second's. Infos
    of the first agent keep their names; those of the second have `_two` appended.

    The options `player_one` and `player_two` of a reset are set as attributes of the game: numbers of its built-in
    scripts.

    Args:
        make_env: Function that makes the `ParallelEnv`.

    Raises:
        InvalidArgument: `make_env` does not make a `ParallelEnv` of two agents, or their spaces differ.
    """

    def __init__(self, make_env: Callable[[], Any]) -> None:
        super().__init__(make_env)
        if len(self.agent_names) != 2:
            raise InvalidArgument(
                f"the game has the agents {', '.join(self.agent_names)}, expected 2: use AgentFleet, whose rows are "
                "agents, for other games"
            )
        self._lead = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin a game; both arguments are passed to the game."""
        for name in SCRIPT_ATTRIBUTES & {*(options or {})}:
            self.set_wrapper_attr(name, (options or {})[name])
        observations, _ = super().reset(seed=seed, options=options)
        self._lead = 0.0
        return observations, {**self._own(), "reward_two": 0.0, "winner": 0}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step both agents; the reward is that of the first agent."""
        observations, _, terminated, truncated, info = super().step(action)
        one, two = (info[f"{agent}.reward"] for agent in self.agent_names)
        self._lead += one - two
        winner = int(np.sign(self._lead)) if terminated or truncated else 0
        return observations, one, terminated, truncated, {**self._own(), "reward_two": two, "winner": winner}

    def _own(self) -> dict[str, Any]:
        """Return the infos that the game itself gave."""
        agents = zip(self.agent_names, ("", "_two"), strict=True)
        return {
            name + suffix: value for agent, suffix in agents for name, value in self._agent_infos.get(agent, {}).items()
        }
