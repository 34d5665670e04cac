"""Opponents of sub-environments: drawn for each episode, and acting in groups of rows."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.agents import Agent
from envfleet.envs.games import Game
from envfleet.training.folder import agents_in
from envfleet.training.games.players import UserPlayer, idle_actions, load_player
from envfleet.training.opponents.pool import FilePlayers, PlayerSource, SnapshotPool, chances
from envfleet.training.phases import (
    SCRIPT,
    Matchmaking,
    NamedOpponent,
    SelfPlayOpponent,
    Single,
    SnapshotOpponent,
)
from envfleet.training.plan import RunPlan

Player = Agent[Any] | UserPlayer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """Opponent, or a source of players that one is drawn from for each episode.

    Attributes:
        name: Name in records; players of a source have their own names.
        script: Number of a scripted player inside the environment; 0 for none.
        make: Function from a seed to the player; `None` if it plays inside the environment.
        source: Source to draw players from, instead of one opponent.
        matchmaking: Distribution of the draws from the source.
        weight: Share of all episodes, relative to the weights of other entries.
        is_deterministic: True if networks act without exploration.
        is_learner: True if the learner plays this side too, with exploration.
    """

    name: str = ""
    script: int = 0
    make: Callable[[int], Player] | None = None
    source: PlayerSource | None = None
    matchmaking: Matchmaking = "uniform"
    weight: float = 1.0
    is_deterministic: bool = True
    is_learner: bool = False

    def draw(self, count: int, rng: np.random.Generator) -> list[str]:
        """Return the names of opponents for `count` episodes."""
        if self.source is None:
            return [self.name] * count
        names = [*self.source.rates]
        drawn = rng.choice(len(names), size=count, p=chances([*self.source.rates.values()], self.matchmaking))
        return [names[place] for place in drawn.tolist()]

    def load(self, name: str, rng: np.random.Generator) -> Player | None:
        """Return the named player, seeded from `rng`; `None` if it plays inside the environment."""
        make = self.make if self.source is None else functools.partial(self.source.player, name)
        return None if make is None else make(int(rng.integers(2**32)))


_Place = tuple[int, str]  # number of the entry, and the name of the opponent


MAX_LOADED = 8
"""Number of networks to cache; more are kept only while all of them play."""


class Opponents:
    """Opponents of N sub-environments.

    An opponent is drawn when an episode begins, and stays until it ends. Each network acts once per step for all of its
    rows; idle networks are dropped once there are more than `MAX_LOADED`.

    Args:
        num_envs: Number of sub-environments, N.
        action_space: Action space of one player.
        seed: Seed of all draws.

    Attributes:
        scripts: Number of the scripted player inside each sub-environment, int64 `(N,)`.
        own_rows: Rows in which the learner plays both sides, int64, ascending.
        groups: Rows of each network, by number of the entry and name of the player.
    """

    def __init__(self, num_envs: int, action_space: spaces.Space[Any], *, seed: np.random.SeedSequence) -> None:
        self._rng = np.random.default_rng(seed)
        self._action_space = action_space
        self._entries: tuple[Entry, ...] = ()
        self._shares: NDArray[np.float64] = np.zeros(0)
        self._numbers: dict[_Place, int] = {}  # numbers of all drawn players, from 0
        self._who = np.full(num_envs, -1)  # these numbers; -1 before the first draw
        self._players: dict[_Place, Player] = {}
        self.groups: dict[_Place, NDArray[np.int64]] = {}
        self.scripts, self.own_rows = np.zeros(num_envs, np.int64), np.zeros(0, np.int64)

    # ------------------------------------------------------------------ drawing

    def set_entries(self, entries: Sequence[Entry]) -> None:
        """Replace the entries to draw from; at least one. Call `draw` for all rows next."""
        weights = np.array([entry.weight for entry in entries])
        self._entries, self._shares = tuple(entries), weights / weights.sum()
        self._players.clear()
        self._numbers.clear()
        self._who[:], self.scripts[:], self.own_rows, self.groups = -1, 0, np.zeros(0, np.int64), {}

    def draw(self, rows: NDArray[np.int64]) -> bool:
        """Draw opponents for episodes that begin.

        Args:
            rows: Rows of the episodes.

        Returns:
            True if `scripts` changed.
        """
        chosen = self._rng.choice(len(self._entries), size=len(rows), p=self._shares)
        who = np.zeros(len(rows), np.int64)
        for entry in np.unique(chosen).tolist():
            places = np.flatnonzero(chosen == entry)
            drawn = self._entries[entry].draw(len(places), self._rng)
            who[places] = [self._numbers.setdefault((entry, name), len(self._numbers)) for name in drawn]
        before = self.scripts.copy()
        if not np.array_equal(self._who[rows], who):
            self._who[rows] = who
            self._group()
        self._begin_episodes(rows)
        return not np.array_equal(before, self.scripts)

    def _begin_episodes(self, rows: NDArray[np.int64]) -> None:
        for place, group in self.groups.items():
            if isinstance(player := self._players[place], UserPlayer):
                player.begin_episodes(np.intersect1d(rows, group))

    def _group(self) -> None:
        """Update the rows of each network, and drop networks beyond the limit."""
        known, own = [*self._numbers], list[int]()
        self.groups = {}
        for number in np.unique(self._who).tolist():
            place, rows = known[number], np.flatnonzero(self._who == number)
            entry = self._entries[place[0]]
            self.scripts[rows] = entry.script
            if entry.is_learner:
                own.append(number)
            elif self._player(place) is not None:
                self.groups[place] = rows
        self.own_rows = np.flatnonzero(np.isin(self._who, own))
        if len(self._players) > MAX_LOADED:
            self._players = {place: self._players[place] for place in self.groups}
        for source in self._sources():
            source.retain({name for _, name in self._players})

    def _sources(self) -> list[PlayerSource]:
        return [entry.source for entry in self._entries if entry.source is not None]

    def _player(self, place: _Place) -> Player | None:
        entry, name = place
        if place not in self._players and (player := self._entries[entry].load(name, self._rng)) is not None:
            self._players[place] = player
        return self._players.get(place)

    # ------------------------------------------------------------------ playing

    def act(self, observations: NDArray[Any]) -> NDArray[Any]:
        """Return the actions of all networks, `(N, …)`; idle actions in rows without a network.

        Args:
            observations: Observations of the opponents, `(N, …)`.
        """
        actions = idle_actions(self._action_space, len(self._who))
        for place, rows in self.groups.items():
            is_deterministic = self._entries[place[0]].is_deterministic
            actions[rows] = self._players[place].act_batch(observations[rows], is_deterministic, env_indices=rows)
        return actions

    def names(self, rows: NDArray[np.int64]) -> tuple[str, ...]:
        """Return the names in records of the opponents of these rows."""
        known = [*self._numbers]
        return tuple(known[number][1] for number in self._who[rows].tolist())

    def report(self, rows: NDArray[np.int64], winners: NDArray[np.int64]) -> None:
        """Update the learner's running scores with finished episodes.

        Args:
            rows: Rows of the episodes.
            winners: 1 where the learner won, -1 where it lost, 0 for a draw, `(len(rows),)`.
        """
        known = [*self._numbers]
        for number in np.unique(self._who[rows]).tolist():
            entry, name = known[number]
            if (source := self._entries[entry].source) is not None:
                source.report(name, (winners[self._who[rows] == number] + 1) / 2)

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Return the state for checkpoints."""
        return {
            "rng": copy.deepcopy(self._rng),
            "known": [*self._numbers],
            "who": self._who.copy(),
            "players": [(place, player.random.state_dict()) for place, player in self._players.items()],
            "rates": [dict(source.rates) for source in self._sources()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state, after `set_entries` with equal entries."""
        for source, rates in zip(self._sources(), state["rates"], strict=True):
            source.rates = dict(rates)
        self._numbers = {place: number for number, place in enumerate(state["known"])}
        self._who[:] = state["who"]
        self._players.clear()
        for place, random in state["players"]:
            player = self._player(place)
            if player is not None:
                player.random.load_state_dict(random)
        self._group()
        self._begin_episodes(np.arange(len(self._who)))
        self._rng = copy.deepcopy(state["rng"])


# ---------------------------------------------------------------------- from a configuration


def current_learner(learner: Agent[Any], weight: float = 1.0, *, explores: bool) -> Entry:
    """Return the current learner as an opponent, which improves during training."""
    return Entry(name="self", make=None if explores else lambda _seed: learner, weight=weight, is_learner=explores)


def check_opponents(plan: RunPlan) -> None:
    """Check all files and classes of opponents.

    Raises:
        InvalidArgument: A file or class is missing, or is for another game.
    """
    for opponent, game in (
        (one, game)
        for opponents, game in zip(plan.opponents, plan.games, strict=True)
        if game is not None
        for one, _ in opponents
    ):
        place = _place_of(opponent)
        for file in [] if place is None else agents_in(Path(place)).values():
            load_player(file, str(file), game=game)
        if isinstance(opponent, NamedOpponent) and opponent.is_class:
            UserPlayer(opponent.type, game, 0, **opponent.kwargs)


def _place_of(opponent: Single) -> str | None:
    """Return the file or folder of an opponent; `None` without one."""
    return getattr(opponent, "folder", None) or getattr(opponent, "checkpoint", None)


def entries_of(
    opponents: Sequence[tuple[Single, float]], learner: Agent[Any], pool: SnapshotPool, game: Game | None
) -> tuple[Entry, ...]:
    """Return the opponents of a phase, ready to draw from.

    Args:
        opponents: Opponent sections that are not mixtures, each with its probability.
        learner: Agent that trains.
        pool: Snapshots of the learner.
        game: Game of the phase; `None` for a single-player environment.

    Raises:
        InvalidArgument: A file is missing.
    """
    return () if game is None else tuple(_entry(one, share, learner, pool, game) for one, share in opponents)


def _entry(one: Single, share: float, learner: Agent[Any], pool: SnapshotPool, game: Game) -> Entry:
    if isinstance(one, NamedOpponent):
        if not one.is_class:
            return Entry(name=one.type, script=game.scripts.get(one.type.removeprefix(SCRIPT), 0), weight=share)
        make = functools.partial(UserPlayer, one.type, game, **one.kwargs)
        return Entry(name=one.label, make=make, weight=share, is_deterministic=False)
    place = _place_of(one)
    if isinstance(one, SelfPlayOpponent) and place is None:
        return current_learner(learner, share, explores=one.is_learner)
    return Entry(
        source=pool if place is None else FilePlayers(place, learner),
        matchmaking=one.matchmaking if isinstance(one, SnapshotOpponent) else "uniform",
        weight=share,
        is_deterministic=one.deterministic,
    )
