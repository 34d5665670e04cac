"""Sources of players with networks: snapshots of the learner and files; and matchmaking."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from envfleet.agents import Agent, load_agent
from envfleet.errors import InvalidArgument
from envfleet.training.evaluation import Rating
from envfleet.training.folder import agents_in
from envfleet.training.phases import Matchmaking

_MEMORY = 0.95  # decay of a win rate, per game
_FLOOR = 0.01  # of a weight, so that opponents that always lose are still drawn sometimes


def chances(win_rates: Sequence[float], matchmaking: Matchmaking) -> NDArray[np.float64]:
    """Return the probability of each opponent, the oldest first.

    Args:
        win_rates: Running scores p of the learner against the opponents, at least one.
        matchmaking: `"uniform"`; `"latest"`: only the newest; `"prioritized"`: by p (1 - p), opponents of similar
            strength; `"hardest"`: by (1 - p)^2 (both: Vinyals et al. 2019, doi:10.1038/s41586-019-1724-z, "prioritized
            fictitious self-play").

    Examples:
        >>> chances([0.9, 0.5, 0.1], "prioritized").round(2)
        array([0.22, 0.57, 0.22])
        >>> chances([0.9, 0.5, 0.1], "hardest").round(2)
        array([0.02, 0.24, 0.75])
    """
    rates = np.asarray(win_rates, np.float64)
    weights: NDArray[np.float64] = {
        "uniform": np.ones(len(rates)),
        "latest": 1.0 * (np.arange(len(rates)) == len(rates) - 1),
        "prioritized": _FLOOR + rates * (1 - rates),
        "hardest": _FLOOR + (1 - rates) ** 2,
    }[matchmaking]
    return weights / float(weights.sum())


Config = TypeVar("Config")
Weights = Mapping[str, Mapping[str, Tensor]]
"""Weights of all networks of an agent, as `Agent.weights` returns them."""


def experienced(config: Config, **more: Any) -> Config:
    """Return the hyperparameters of a trained agent: without warm-up, and with its final exploration.

    Args:
        config: Hyperparameters of an untrained agent of the same class.
        **more: Further changes; names that the class does not have are ignored.

    Examples:
        >>> from envfleet.agents import DDDQNConfig
        >>> config = experienced(DDDQNConfig(warmup=500, epsilon_start=1.0, epsilon_end=0.05))
        >>> config.warmup, config.epsilon_start
        (0, 0.05)
    """
    changes = {"warmup": 0, "epsilon_start": getattr(config, "epsilon_end", None), **more}
    names = {field.name for field in dataclasses.fields(config)}  # type: ignore[arg-type]  # all are dataclasses
    changed: Any = dataclasses.replace(config, **{name: changes[name] for name in changes.keys() & names})  # type: ignore[type-var]
    return changed  # type: ignore[no-any-return]


def as_player(agent: Agent[Any], seed: int, *, num_envs: int, weights: Weights) -> Agent[Any]:
    """Return a copy of an agent that only plays: without replay buffer, and with a trained agent's exploration.

    Args:
        agent: Agent to copy the class, spaces and hyperparameters of.
        seed: Seed of its draws.
        num_envs: Number of sub-environments it will play in.
        weights: Weights of its networks.
    """
    config = experienced(agent.config, capacity=1, noise_exponent=0.0, prioritized=False)
    player = type(agent)(
        agent.observation_space, agent.action_space, config, num_envs=num_envs, seed=seed, device=agent.device
    )
    player.set_weights(weights)
    return player


class PlayerSource(abc.ABC):
    """Source of players to draw from.

    Attributes:
        rates: Running score of the learner against each player by name, the oldest first; draws count half, initially
            0.5.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.rates = dict.fromkeys(names, 0.5)

    @abc.abstractmethod
    def player(self, name: str, seed: int = 0) -> Agent[Any]:
        """Return the named player; its draws derive from `seed`."""

    def report(self, name: str, scores: NDArray[np.float64]) -> None:
        """Update the score against a player with games in order: 1 for a win, 0.5 for a draw, 0 for a loss."""
        for score in scores.tolist() if name in self.rates else ():
            self.rates[name] = _MEMORY * self.rates[name] + (1 - _MEMORY) * score

    def retain(self, names: set[str]) -> None:
        """Drop cached opponents that are neither playing nor eligible to be drawn."""
        return


class FilePlayers(PlayerSource):
    """Agents from files.

    Code that the files name is executed, as for other names in a configuration.

    Args:
        path: File written by `Agent.save`, or a folder with such files, such as that of a run; the last by name is the
            latest, numbers after `best`.
        learner: Agent with the device and the number of sub-environments that the players use.

    Raises:
        InvalidArgument: Missing file, or a folder without agents.
    """

    def __init__(self, path: str | Path, learner: Agent[Any]) -> None:
        self._folder, self._paths, self._learner = path, agents_in(Path(path)), learner
        super().__init__(self._paths)

    def player(self, name: str, seed: int = 0) -> Agent[Any]:
        """Return the agent in a file.

        Raises:
            InvalidArgument: The file is gone, or is not that of an agent.
        """
        if name not in self._paths:  # but it was when the run was saved
            raise InvalidArgument(f"the opponent {name!r} of this run is no longer in {self._folder}: restore its file")
        agent = load_agent(self._paths[name], num_envs=1, device=self._learner.device, trust=True)
        return as_player(agent, seed, num_envs=self._learner.num_envs, weights=agent.weights())


class SnapshotPool(PlayerSource):
    """Latest snapshots of a learner, named by its number of transitions.

    Args:
        learner: Agent to take snapshots of.
        size: Number of snapshots, at least 1; the oldest is dropped first, once no running game uses it.

    Attributes:
        ratings: Ratings by name of the snapshots that may be drawn, from evaluation games only.
    """

    def __init__(self, learner: Agent[Any], size: int) -> None:
        super().__init__()
        self._learner, self._size = learner, size
        self.ratings: dict[str, Rating] = {}
        self._weights: dict[str, Weights] = {}  # including dropped snapshots that running games still use

    def add(self) -> None:
        """Take a snapshot of the learner, unless it has the same number of transitions as the last one."""
        name = f"snapshot_{self._learner.num_transitions:09d}"
        if name in self._weights:
            return
        self.rates[name], self.ratings[name], self._weights[name] = 0.5, Rating(name), self._learner.weights()
        for old in [*self.rates][: -self._size]:
            del self.rates[old], self.ratings[old]

    def retain(self, names: set[str]) -> None:
        """Drop the networks of snapshots that are neither among the latest nor in `names`."""
        kept = self.rates.keys() | names
        self._weights = {name: weights for name, weights in self._weights.items() if name in kept}

    def player(self, name: str, seed: int = 0) -> Agent[Any]:
        """Return a player with the weights of a snapshot."""
        return as_player(self._learner, seed, num_envs=self._learner.num_envs, weights=self._weights[name])

    def unsure(self, count: int) -> list[str]:
        """Return the snapshots with the fewest rated games, the newest first among equals."""
        newest_first = [*self.ratings][::-1]
        return sorted(newest_first, key=lambda name: self.ratings[name].games)[:count]

    def state_dict(self) -> dict[str, Any]:
        """Return the state for checkpoints."""
        return {"rates": dict(self.rates), "ratings": dict(self.ratings), "weights": dict(self._weights)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state."""
        self.rates, self.ratings, self._weights = (dict(state[name]) for name in ("rates", "ratings", "weights"))
