"""Where opponents come from: the environment's scripts, classes, the learner itself, its snapshots, files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.agents import Agent, load_agent
from envfleet.envs.games import Game
from envfleet.errors import InvalidArgument
from envfleet.training.config import Phase, shares_of
from envfleet.training.config.opponents import (
    SCRIPT,
    Matchmaking,
    MixedOpponent,
    NamedOpponent,
    SelfPlayOpponent,
    Single,
    SnapshotOpponent,
)
from envfleet.training.folder import agents_in
from envfleet.training.games.players import OwnPlayer, find_class, seat_player
from envfleet.training.opponents.opponents import Always, Entry, Source, draw_seed
from envfleet.training.opponents.pool import SnapshotPool, as_player, move_rate, pick


def myself(learner: Agent[Any]) -> Source:
    """Return the learner as it is at every moment: its opponent improves while they play."""
    return Always(
        "self", make=lambda seed: as_player(learner, num_envs=learner.num_envs, seed=seed, shares_weights=True)
    )


class Snapshots(Source):
    """Earlier versions of the learner.

    Args:
        pool: The snapshots.
        matchmaking: Which of them.
    """

    def __init__(self, pool: SnapshotPool, matchmaking: Matchmaking) -> None:
        self._pool, self._matchmaking = pool, matchmaking

    def draw(self, count: int, rng: np.random.Generator) -> list[str]:
        """Return the names of snapshots for `count` episodes."""
        return pick({one.name: one.win_rate for one in self._pool.snapshots}, self._matchmaking, count, rng)

    def load(self, name: str, rng: np.random.Generator) -> Agent[Any]:
        """Return a player with the weights of a snapshot."""
        return self._pool.player(name, draw_seed(rng))

    def report(self, name: str, scores: NDArray[np.float64]) -> None:
        """Move the pool's win rate."""
        self._pool.report(name, scores)

    def retain(self, names: set[str]) -> None:
        """Forget old snapshots that nobody plays against."""
        self._pool.retain(names)


class Files(Source):
    """Agents in files.

    Args:
        path: Of one written by `Agent.save`, or of a folder with some, such as that of a run; the last by name is the
            latest, numbers coming after `best`.
        matchmaking: Which of a folder.
        learner: They play in as many sub-environments, on the same device.

    Raises:
        InvalidArgument: There is no such file, or none in the folder.
    """

    def __init__(self, path: str | Path, matchmaking: Matchmaking, learner: Agent[Any]) -> None:
        self._paths = _agents_in(Path(path))
        self._matchmaking, self._learner = matchmaking, learner
        self._rates = dict.fromkeys(self._paths, 0.5)

    def draw(self, count: int, rng: np.random.Generator) -> list[str]:
        """Return the names of agents for `count` episodes."""
        return pick(self._rates, self._matchmaking, count, rng)

    def load(self, name: str, rng: np.random.Generator) -> Agent[Any]:
        """Return the agent in a file."""
        agent = load_agent(self._paths[name], num_envs=1, device=self._learner.device)
        return as_player(agent, num_envs=self._learner.num_envs, seed=draw_seed(rng))

    def report(self, name: str, scores: NDArray[np.float64]) -> None:
        """Move the win rate against a file."""
        self._rates[name] = move_rate(self._rates[name], scores)

    def state_dict(self) -> dict[str, Any]:
        """Return the win rates."""
        return {"rates": dict(self._rates)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the same files, whatever else is in the folder now."""
        self._rates = dict(state["rates"])


def _agents_in(path: Path) -> dict[str, Path]:
    """Return the files of agents by name, the latest last."""
    found = {path.stem: path} if path.is_file() else agents_in(path)
    if not found:
        raise InvalidArgument(
            f"opponents are to come from {path}, where there is no saved agent: pass a file that an agent's save() "
            "wrote, or a folder with some (*.pt)"
        )
    return found


def check_opponents(phases: Iterable[Phase], game: Game) -> None:
    """Look at all files and classes that opponents come from.

    Raises:
        InvalidArgument: One is missing, or does not play the game.
    """
    for opponent in (one for phase in phases for one, _ in shares_of(phase.opponent)):
        place = _place_of(opponent)
        for file in [] if place is None else _agents_in(Path(place)).values():
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
    place = _place_of(one)
    if isinstance(one, (SelfPlayOpponent, SnapshotOpponent)) and place is not None:
        matchmaking = one.matchmaking if isinstance(one, SnapshotOpponent) else "uniform"
        return Entry(Files(place, matchmaking, learner), share, one.deterministic)
    if isinstance(one, SelfPlayOpponent):
        return Entry(myself(learner), share, one.deterministic, is_learner=one.is_learner)
    if isinstance(one, SnapshotOpponent):
        return Entry(Snapshots(pool, one.matchmaking), share, one.deterministic)
    if one.is_class:
        kind, kwargs = find_class(one.type), one.kwargs
        source = Always(one.type, make=lambda seed: OwnPlayer(kind, game, seed, **kwargs))
        return Entry(source, share, is_deterministic=False)
    return Entry(Always(one.type, game.scripts.get(one.type.removeprefix(SCRIPT), 0)), share)


def needs_pool(opponent: Single | MixedOpponent | None) -> bool:
    """Return whether snapshots of the learner are drawn from."""
    return any(isinstance(one, SnapshotOpponent) and one.folder is None for one, _ in shares_of(opponent))


def needs_learner(opponent: Single | MixedOpponent | None) -> bool:
    """Return whether the learner plays against itself as it is now, exploring on either side."""
    return any(isinstance(one, SelfPlayOpponent) and one.is_learner for one, _ in shares_of(opponent))
