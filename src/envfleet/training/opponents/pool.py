"""Players made of the learner: copies, earlier versions of it, and which of these is drawn."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from envfleet.agents import Agent
from envfleet.training.config.opponents import Matchmaking
from envfleet.training.evaluation.ratings import Rating

_MEMORY = 0.95  # of a win rate, per game
_FLOOR = 0.01  # of a weight, so that even an opponent that always loses is met now and then


def chances(win_rates: Sequence[float], matchmaking: Matchmaking) -> NDArray[np.float64]:
    """Return the chance of each opponent, the oldest first.

    Args:
        win_rates: The learner's running scores p against them, at least one.
        matchmaking: `"uniform"`; `"latest"`: only the newest; `"prioritised"`: by p (1 - p), those it neither always
            beats nor never; `"hardest"`: by (1 - p)^2 (both: Vinyals et al. 2019, doi:10.1038/s41586-019-1724-z,
            "prioritised fictitious self-play").

    Examples:
        >>> chances([0.9, 0.5, 0.1], "prioritised").round(2)
        array([0.22, 0.57, 0.22])
        >>> chances([0.9, 0.5, 0.1], "hardest").round(2)
        array([0.02, 0.24, 0.75])
    """
    rates = np.asarray(win_rates, np.float64)
    match matchmaking:
        case "uniform":
            weights = np.ones(len(rates))
        case "latest":
            weights = np.zeros(len(rates))
            weights[-1] = 1.0
        case "prioritised":
            weights = _FLOOR + rates * (1 - rates)
        case "hardest":
            weights = _FLOOR + (1 - rates) ** 2
    spread: NDArray[np.float64] = weights / weights.sum()
    return spread


def pick(rates: Mapping[str, float], matchmaking: Matchmaking, count: int, rng: np.random.Generator) -> list[str]:
    """Draw `count` names; `rates` has the learner's running score against each, the oldest first."""
    names = [*rates]
    drawn = rng.choice(len(names), size=count, p=chances([*rates.values()], matchmaking))
    return [names[place] for place in drawn.tolist()]


def move_rate(rate: float, scores: NDArray[np.float64]) -> float:
    """Return a running score after more games, 1 for a win, 0.5 for a draw, 0 for a loss, in their order.

    >>> move_rate(0.5, np.array([1.0]))
    0.525
    """
    for score in scores.tolist():
        rate = _MEMORY * rate + (1 - _MEMORY) * score
    return rate


Config = TypeVar("Config")


def experienced(config: Config) -> Config:
    """Return the hyperparameters of a trained agent: it explores as such a one does, from its first step.

    Args:
        config: Of an agent of the same kind that begins with nothing.

    Examples:
        >>> from envfleet.agents import DDDQNConfig
        >>> config = experienced(DDDQNConfig(warmup=500, epsilon_start=1.0, epsilon_end=0.05))
        >>> config.warmup, config.epsilon_start
        (0, 0.05)
    """
    return _replace(config, {"warmup": 0, "epsilon_start": getattr(config, "epsilon_end", None)})


def as_player(agent: Agent[Any], *, num_envs: int, seed: int, shares_weights: bool = False) -> Agent[Any]:
    """Copy an agent that only plays: it has no memory, and its exploration is that of a trained one.

    Args:
        agent: Whose form and weights it takes over.
        num_envs: Sub-environments it will play in.
        seed: Of its draws.
        shares_weights: Whether it goes on to have the agent's weights when those change.
    """
    config = _replace(experienced(agent.config), {"capacity": 1, "noise_exponent": 0.0, "prioritised": False})
    player = type(agent)(
        agent.observation_space, agent.action_space, config, num_envs=num_envs, seed=seed, device=agent.device
    )
    if shares_weights:
        player.share_weights(agent)
    else:
        player.set_weights(agent.weights())
    return player


def _replace(config: Config, changes: dict[str, Any]) -> Config:
    """Return a configuration with those of the changes that agents of its kind have."""
    names = {field.name for field in dataclasses.fields(config)}  # type: ignore[arg-type]  # all are dataclasses
    changed: Any = dataclasses.replace(config, **{name: changes[name] for name in changes.keys() & names})  # type: ignore[type-var]
    return changed  # type: ignore[no-any-return]


@dataclasses.dataclass(eq=False)
class Snapshot:
    """The learner as it was.

    Attributes:
        name: Its name, with the number of transitions it had learned from.
        weights: Of its networks.
        transitions: That it had learned from.
        rating: From games that were played to rate it, never from training.
        win_rate: The learner's running score against it, draws counting half; 0.5 at first.
    """

    name: str
    weights: dict[str, dict[str, Tensor]]
    transitions: int
    rating: Rating
    win_rate: float = 0.5


class SnapshotPool:
    """The last snapshots of a learner.

    Args:
        learner: Whose snapshots these are.
        size: How many, at least 1; of more the oldest goes, once its network is not kept for games any more.
    """

    def __init__(self, learner: Agent[Any], size: int) -> None:
        self._learner, self._size = learner, size
        self._all: dict[str, Snapshot] = {}  # the oldest first; also those that are only played to the end

    @property
    def snapshots(self) -> tuple[Snapshot, ...]:
        """Return those that may be drawn, the oldest first."""
        return tuple(self._all.values())[-self._size :]

    def add(self) -> Snapshot:
        """Take a snapshot of the learner as it is; if it has seen nothing new since the last one, that is it."""
        transitions = self._learner.num_transitions
        name = f"snapshot_{transitions:09d}"
        if name not in self._all:
            self._all[name] = Snapshot(name, self._learner.weights(), transitions, Rating(name))
        return self._all[name]

    def retain(self, names: set[str]) -> None:
        """Forget those that are neither among the last ones nor among these."""
        kept = {snapshot.name for snapshot in self.snapshots} | names
        self._all = {name: snapshot for name, snapshot in self._all.items() if name in kept}

    def player(self, name: str, seed: int = 0) -> Agent[Any]:
        """Return a player with the weights of a snapshot; its draws derive from `seed`."""
        player = as_player(self._learner, num_envs=self._learner.num_envs, seed=seed)
        player.set_weights(self._all[name].weights)
        return player

    def unsure(self, count: int) -> tuple[Snapshot, ...]:
        """Return those that were rated by the fewest games, of equals the newest."""
        newest_first = self.snapshots[::-1]
        return tuple(sorted(newest_first, key=lambda snapshot: snapshot.rating.games)[:count])

    def report(self, name: str, scores: NDArray[np.float64]) -> None:
        """Move the win rate against a snapshot; see `Source.report`."""
        snapshot = self._all[name]
        snapshot.win_rate = move_rate(snapshot.win_rate, scores)

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` takes."""
        return {name: copy.copy(one) for name, one in self._all.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hold what another pool held."""
        self._all = dict(state)
