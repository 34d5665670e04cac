"""Who plays against whom: found by a configuration, drawn for every episode, and asked for actions in groups."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.agents import Agent
from envfleet.envs.games import Game
from envfleet.training.folder import agents_in
from envfleet.training.games.players import OwnPlayer, idle_actions, seat_player
from envfleet.training.opponents.pool import Files, Shelf, SnapshotPool, chances
from envfleet.training.phases import (
    SCRIPT,
    Matchmaking,
    MixedOpponent,
    NamedOpponent,
    Phase,
    SelfPlayOpponent,
    Single,
    SnapshotOpponent,
    shares_of,
)

Player = Agent[Any] | OwnPlayer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """An opponent, or a shelf from which one is drawn for every episode.

    Attributes:
        name: What records call it; those of a shelf have names of their own.
        script: What plays inside the environment: number of a scripted player, 0 for none.
        make: Makes its player from a seed; `None` if it plays inside the environment.
        shelf: Whom to draw from, in place of one opponent.
        matchmaking: How.
        weight: Share of all episodes, in proportion to the other entries'.
        is_deterministic: Whether its networks play without exploration.
        is_learner: Whether the learner has this side, too, and explores as on its own.
    """

    name: str = ""
    script: int = 0
    make: Callable[[int], Player] | None = None
    shelf: Shelf | None = None
    matchmaking: Matchmaking = "uniform"
    weight: float = 1.0
    is_deterministic: bool = True
    is_learner: bool = False

    def draw(self, count: int, rng: np.random.Generator) -> list[str]:
        """Return the names of opponents for `count` episodes."""
        if self.shelf is None:
            return [self.name] * count
        names = [*self.shelf.rates]
        drawn = rng.choice(len(names), size=count, p=chances([*self.shelf.rates.values()], self.matchmaking))
        return [names[place] for place in drawn.tolist()]

    def load(self, name: str, rng: np.random.Generator) -> Player | None:
        """Return the player of a name, whose seed is drawn from `rng`; `None` if it plays inside the environment."""
        make = self.make if self.shelf is None else functools.partial(self.shelf.player, name)
        return None if make is None else make(int(rng.integers(2**32)))


_Place = tuple[int, str]  # number of the entry, and the name of the opponent


MAX_LOADED = 8
"""Networks to keep; more are kept only while all of them play."""


class Opponents:
    """The opponents of N sub-environments.

    An opponent is drawn when an episode begins, and stays until it ends. Networks act once per step for all rows they
    have; those that nobody plays against are let go of once there are more than `MAX_LOADED`.

    Args:
        num_envs: N.
        action_space: Of one player.
        seed: Of all draws.

    Attributes:
        scripts: What plays inside each sub-environment, int64 `(N,)`.
        own_rows: Where nobody acts, because the learner has both sides; int64, ascending.
        groups: The rows of each network, by the number of its entry and its name; it acts by `act`.
    """

    def __init__(self, num_envs: int, action_space: spaces.Space[Any], *, seed: np.random.SeedSequence) -> None:
        self._rng = np.random.default_rng(seed)
        self._action_space = action_space
        self._entries: tuple[Entry, ...] = ()
        self._shares: NDArray[np.float64] = np.zeros(0)
        self._numbers: dict[_Place, int] = {}  # of all who were drawn, from 0
        self._who = np.full(num_envs, -1)  # these numbers; -1 before the first draw
        self._players: dict[_Place, Player] = {}
        self.groups: dict[_Place, NDArray[np.int64]] = {}
        self.scripts, self.own_rows = np.zeros(num_envs, np.int64), np.zeros(0, np.int64)

    # ------------------------------------------------------------------ drawing

    def cast(self, entries: Sequence[Entry]) -> None:
        """Draw from other entries from now on, at least one; `draw` for all rows is to follow."""
        weights = np.array([entry.weight for entry in entries])
        self._entries, self._shares = tuple(entries), weights / weights.sum()
        self._players.clear()
        self._numbers.clear()
        self._who[:], self.scripts[:], self.own_rows, self.groups = -1, 0, np.zeros(0, np.int64), {}

    def draw(self, rows: NDArray[np.int64]) -> bool:
        """Draw opponents for episodes that begin.

        Args:
            rows: Of the episodes.

        Returns:
            Whether `scripts` changed.
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
            if isinstance(player := self._players[place], OwnPlayer):
                player.begin_episodes(np.intersect1d(rows, group))

    def _group(self) -> None:
        """Find the rows of every network, and let go of networks that are too many."""
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
        for shelf in self._shelves():
            shelf.retain({name for _, name in self._players})

    def _shelves(self) -> list[Shelf]:
        return [entry.shelf for entry in self._entries if entry.shelf is not None]

    def _player(self, place: _Place) -> Player | None:
        entry, name = place
        if place not in self._players and (player := self._entries[entry].load(name, self._rng)) is not None:
            self._players[place] = player
        return self._players.get(place)

    # ------------------------------------------------------------------ playing

    def act(self, observations: NDArray[Any]) -> NDArray[Any]:
        """Return actions of all networks, `(N, …)`; those of `idle_actions` where there is none.

        Args:
            observations: As the opponents see the game, `(N, …)`.
        """
        actions = idle_actions(self._action_space, len(self._who))
        for place, rows in self.groups.items():
            is_deterministic = self._entries[place[0]].is_deterministic
            actions[rows] = self._players[place].act_batch(observations[rows], is_deterministic, env_indices=rows)
        return actions

    def names(self, rows: NDArray[np.int64]) -> tuple[str, ...]:
        """Return what records call the opponents of these rows."""
        known = [*self._numbers]
        return tuple(known[number][1] for number in self._who[rows].tolist())

    def report(self, rows: NDArray[np.int64], winners: NDArray[np.int64]) -> None:
        """Move the learner's running scores by episodes that ended.

        Args:
            rows: Of the episodes.
            winners: 1 where the learner won, -1 where it lost, 0 for a draw, `(len(rows),)`.
        """
        known = [*self._numbers]
        for number in np.unique(self._who[rows]).tolist():
            entry, name = known[number]
            if (shelf := self._entries[entry].shelf) is not None:
                shelf.report(name, (winners[self._who[rows] == number] + 1) / 2)

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` takes."""
        return {
            "rng": copy.deepcopy(self._rng),
            "known": [*self._numbers],
            "who": self._who.copy(),
            "players": [(place, player.random.state_dict()) for place, player in self._players.items()],
            "rates": [dict(shelf.rates) for shelf in self._shelves()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the state of others, after `cast` with equal entries."""
        for shelf, rates in zip(self._shelves(), state["rates"], strict=True):
            shelf.rates = dict(rates)
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


def myself(learner: Agent[Any], weight: float = 1.0, *, explores: bool) -> Entry:
    """Return the learner as it is at every moment: its opponent improves while they play."""
    return Entry(name="self", make=None if explores else lambda _seed: learner, weight=weight, is_learner=explores)


def check_opponents(phases: Iterable[Phase], game: Game) -> None:
    """Look at all files and classes that opponents come from.

    Raises:
        InvalidArgument: One is missing, or does not play the game.
    """
    for opponent in (one for phase in phases for one, _ in shares_of(phase.opponent)):
        place = _place_of(opponent)
        for file in [] if place is None else agents_in(Path(place)).values():
            seat_player(file, str(file), game=game)
        if isinstance(opponent, NamedOpponent) and opponent.is_class:
            OwnPlayer(opponent.type, game, 0, **opponent.kwargs)


def _place_of(opponent: Single) -> str | None:
    """Return the file or folder that an opponent comes from, `None` if it comes from none."""
    return getattr(opponent, "folder", None) or getattr(opponent, "checkpoint", None)


def entries_of(
    opponent: Single | MixedOpponent | None, learner: Agent[Any], pool: SnapshotPool, game: Game | None
) -> tuple[Entry, ...]:
    """Return what the `opponent` of a phase says, made ready to draw from.

    Args:
        opponent: The section of the configuration.
        learner: Who trains.
        pool: Its snapshots.
        game: What is played; `None` in environments for one, where nobody is drawn.

    Raises:
        InvalidArgument: A file is missing.
    """
    if game is None:
        return ()
    return tuple(_entry(one, share, learner, pool, game) for one, share in shares_of(opponent))


def _entry(one: Single, share: float, learner: Agent[Any], pool: SnapshotPool, game: Game) -> Entry:
    if isinstance(one, NamedOpponent):
        if not one.is_class:
            return Entry(name=one.type, script=game.scripts.get(one.type.removeprefix(SCRIPT), 0), weight=share)
        make = functools.partial(OwnPlayer, one.type, game, **one.kwargs)
        return Entry(name=one.label, make=make, weight=share, is_deterministic=False)
    place = _place_of(one)
    if isinstance(one, SelfPlayOpponent) and place is None:
        return myself(learner, share, explores=one.is_learner)
    return Entry(
        shelf=pool if place is None else Files(place, learner),
        matchmaking=one.matchmaking if isinstance(one, SnapshotOpponent) else "uniform",
        weight=share,
        is_deterministic=one.deterministic,
    )


def needs_pool(opponent: Single | MixedOpponent | None) -> bool:
    """Return whether snapshots of the learner are drawn from."""
    return any(isinstance(one, SnapshotOpponent) and one.folder is None for one, _ in shares_of(opponent))


def needs_learner(opponent: Single | MixedOpponent | None) -> bool:
    """Return whether the learner plays against itself as it is now, exploring on either side."""
    return any(isinstance(one, SelfPlayOpponent) and one.is_learner for one, _ in shares_of(opponent))
