"""From the `opponent` of a phase to entries to draw from: scripts, classes, the learner, its snapshots, files."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from envfleet.agents import Agent
from envfleet.envs.games import Game
from envfleet.training.config import Phase
from envfleet.training.config.opponents import (
    SCRIPT,
    MixedOpponent,
    NamedOpponent,
    SelfPlayOpponent,
    Single,
    SnapshotOpponent,
    shares_of,
)
from envfleet.training.folder import agents_in
from envfleet.training.games.players import OwnPlayer, find_class, seat_player
from envfleet.training.opponents.opponents import Entry
from envfleet.training.opponents.pool import Files, SnapshotPool, as_player


def myself(learner: Agent[Any], weight: float = 1.0, *, is_deterministic: bool, is_learner: bool = False) -> Entry:
    """Return the learner as it is at every moment: its opponent improves while they play."""

    def make(seed: int) -> Agent[Any]:
        return as_player(learner, num_envs=learner.num_envs, seed=seed, shares_weights=True)

    return Entry(name="self", make=make, weight=weight, is_deterministic=is_deterministic, is_learner=is_learner)


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
            OwnPlayer(find_class(opponent.type), game, 0, **opponent.kwargs)


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
        make = functools.partial(OwnPlayer, find_class(one.type), game, **one.kwargs)
        return Entry(name=one.type, make=make, weight=share, is_deterministic=False)
    place = _place_of(one)
    if isinstance(one, SelfPlayOpponent) and place is None:
        return myself(learner, share, is_deterministic=one.deterministic, is_learner=one.is_learner)
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
