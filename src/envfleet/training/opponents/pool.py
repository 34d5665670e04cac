"""Players with networks: copies of the learner, earlier versions of it, files; and which of these is drawn."""

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
from envfleet.training.evaluation import Rating
from envfleet.training.folder import agents_in
from envfleet.training.phases import Matchmaking

_MEMORY = 0.95  # of a win rate, per game
_FLOOR = 0.01  # of a weight, so that even an opponent that always loses is met now and then


def chances(win_rates: Sequence[float], matchmaking: Matchmaking) -> NDArray[np.float64]:
    """Return the chance of each opponent, the oldest first.

    Args:
        win_rates: The learner's running scores p against them, at least one.
        matchmaking: `"uniform"`; `"latest"`: only the newest; `"prioritized"`: by p (1 - p), those it neither always
            beats nor never; `"hardest"`: by (1 - p)^2 (both: Vinyals et al. 2019, doi:10.1038/s41586-019-1724-z,
            "prioritized fictitious self-play").

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
"""Of all networks of an agent, as `Agent.weights` returns them."""


def experienced(config: Config, **more: Any) -> Config:
    """Return the hyperparameters of a trained agent: it explores as such a one does, from its first step.

    Args:
        config: Of an agent of the same kind that begins with nothing.
        **more: Further changes; those that agents of its kind do not have are left out.

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
    """Copy an agent that only plays: it has no memory, and its exploration is that of a trained one.

    Args:
        agent: Whose form it takes over.
        seed: Of its draws.
        num_envs: Sub-environments it will play in.
        weights: What it acts by.
    """
    config = experienced(agent.config, capacity=1, noise_exponent=0.0, prioritized=False)
    player = type(agent)(
        agent.observation_space, agent.action_space, config, num_envs=num_envs, seed=seed, device=agent.device
    )
    player.set_weights(weights)
    return player


class Shelf(abc.ABC):
    """Players to draw from.

    Attributes:
        rates: The learner's running score against each by name, the oldest first; draws count half, 0.5 at first.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.rates = dict.fromkeys(names, 0.5)

    @abc.abstractmethod
    def player(self, name: str, seed: int = 0) -> Agent[Any]:
        """Return the player of a name; its draws derive from `seed`."""

    def report(self, name: str, scores: NDArray[np.float64]) -> None:
        """Move the score against a name by more games, 1 for a win, 0.5 for a draw, 0 for a loss, in their order."""
        for score in scores.tolist() if name in self.rates else ():
            self.rates[name] = _MEMORY * self.rates[name] + (1 - _MEMORY) * score

    def retain(self, names: set[str]) -> None:
        """Take notice of who plays now: all others that cannot be drawn may be forgotten."""
        return


class Files(Shelf):
    """Agents in files.

    Code that they name is executed, as it is for other names in a configuration.

    Args:
        path: Of one written by `Agent.save`, or of a folder with some, such as that of a run; the last by name is the
            latest, numbers coming after `best`.
        learner: They play in as many sub-environments, on the same device.

    Raises:
        InvalidArgument: There is no such file, or none in the folder.
    """

    def __init__(self, path: str | Path, learner: Agent[Any]) -> None:
        self._paths, self._learner = agents_in(Path(path)), learner
        super().__init__(self._paths)

    def player(self, name: str, seed: int = 0) -> Agent[Any]:
        """Return the agent in a file."""
        agent = load_agent(self._paths[name], num_envs=1, device=self._learner.device, trust=True)
        return as_player(agent, seed, num_envs=self._learner.num_envs, weights=agent.weights())


class SnapshotPool(Shelf):
    """The last snapshots of a learner, named after the transitions it had learned from.

    Args:
        learner: Whose snapshots these are.
        size: How many, at least 1; of more the oldest goes, once its network is not kept for games any more.

    Attributes:
        ratings: Of those that may be drawn, by name, from games that were played to rate them, never from training.
    """

    def __init__(self, learner: Agent[Any], size: int) -> None:
        super().__init__()
        self._learner, self._size = learner, size
        self.ratings: dict[str, Rating] = {}
        self._weights: dict[str, Weights] = {}  # also of those that are only played to the end

    def add(self) -> None:
        """Take a snapshot of the learner as it is, unless it has seen nothing new since the last one."""
        name = f"snapshot_{self._learner.num_transitions:09d}"
        if name in self._weights:
            return
        self.rates[name], self.ratings[name], self._weights[name] = 0.5, Rating(name), self._learner.weights()
        for old in [*self.rates][: -self._size]:
            del self.rates[old], self.ratings[old]

    def retain(self, names: set[str]) -> None:
        """Forget the networks of those that are neither among the last ones nor among these."""
        kept = self.rates.keys() | names
        self._weights = {name: weights for name, weights in self._weights.items() if name in kept}

    def player(self, name: str, seed: int = 0) -> Agent[Any]:
        """Return a player with the weights of a snapshot."""
        return as_player(self._learner, seed, num_envs=self._learner.num_envs, weights=self._weights[name])

    def unsure(self, count: int) -> list[str]:
        """Return those that were rated by the fewest games, of equals the newest."""
        newest_first = [*self.ratings][::-1]
        return sorted(newest_first, key=lambda name: self.ratings[name].games)[:count]

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` takes."""
        return {"rates": dict(self.rates), "ratings": dict(self.ratings), "weights": dict(self._weights)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hold what another pool held."""
        self.rates, self.ratings, self._weights = (dict(state[name]) for name in ("rates", "ratings", "weights"))
