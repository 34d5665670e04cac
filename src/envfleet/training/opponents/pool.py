"""Earlier versions of the learner, kept to play against."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from envfleet.agents import Agent
from envfleet.training.evaluation.ratings import Rating
from envfleet.training.opponents.copies import as_player
from envfleet.training.opponents.matchmaking import move_rate


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

    @property
    def ratings(self) -> dict[str, Rating]:
        """Of those that may be drawn, by name."""
        return {one.name: one.rating for one in self.snapshots}

    def set_ratings(self, ratings: Iterable[Rating]) -> None:
        """Rate snapshots anew."""
        for rating in ratings:
            self._all[rating.name].rating = rating

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
