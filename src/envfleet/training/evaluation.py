"""Evaluation of players: games on fixed seeds, confidence intervals, ratings and tournaments.

Players are frozen and do not explore. Ratings are computed from evaluation games: Weng and Lin 2011, "A Bayesian
approximation method for online ranking" (Bradley-Terry, full pairs), from `openskill`. Scripted players are anchors
with fixed ratings, so ratings of different tournaments are comparable.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from openskill.models import BradleyTerryFull

import envfleet
from envfleet.agents.loading import saved_spaces
from envfleet.envs.games import Game, check_spaces, known_games, spaces_of
from envfleet.errors import InvalidArgument
from envfleet.evaluation.episodes import BLOCK_ROWS, Policy
from envfleet.evaluation.intervals import wilson
from envfleet.fleet.evaluating import Progress
from envfleet.fleet.fleet import Fleet
from envfleet.sources import name_source
from envfleet.training.folder import agents_in
from envfleet.training.games.matches import MatchConfig, open_fleet, play
from envfleet.training.games.players import LoadedPlayer, Player, load_player
from envfleet.training.phases import SCRIPT

_ANCHOR_SIGMA = 0.1
_RANKS = {1: [0.0, 1.0], 0: [0.0, 0.0], -1: [1.0, 0.0]}


# ---------------------------------------------------------------------- games and episodes


@dataclasses.dataclass(frozen=True)
class Score:
    """Games won, drawn and lost.

    Attributes:
        wins: Games won.
        draws: Games drawn.
        losses: Games lost.

    Examples:
        >>> Score(90, 6, 4).win_rate, [round(bound, 3) for bound in Score(90, 6, 4).win_interval]
        (0.9, [0.826, 0.945])
    """

    wins: int
    draws: int
    losses: int

    @classmethod
    def of(cls, outcomes: Sequence[int]) -> Score:
        """Return the score of outcomes: 1 for a win, 0 for a draw, -1 for a loss."""
        return cls(*(outcomes.count(outcome) for outcome in (1, 0, -1)))

    @property
    def games(self) -> int:
        """Number of games."""
        return self.wins + self.draws + self.losses

    @property
    def win_rate(self) -> float:
        """Share of games won, not counting draws."""
        return self.wins / max(self.games, 1)

    @property
    def draw_rate(self) -> float:
        """Share of games drawn."""
        return self.draws / max(self.games, 1)

    @property
    def loss_rate(self) -> float:
        """Share of games lost."""
        return self.losses / max(self.games, 1)

    @property
    def win_interval(self) -> tuple[float, float]:
        """95 % confidence interval of the win rate (Wilson)."""
        return wilson(self.wins, self.games)

    def figures(self) -> dict[str, float]:
        """Return all metrics by name, for records."""
        low, high = self.win_interval
        return {
            "games": float(self.games),
            "win_rate": self.win_rate,
            "draw_rate": self.draw_rate,
            "loss_rate": self.loss_rate,
            "win_rate_low": low,
            "win_rate_high": high,
        }


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Result of a player against an opponent.

    Attributes:
        player: Name of the player.
        opponent: Name of the opponent.
        mode: Mode of the game; `""` without modes.
        seed: Seed that the seeds of all games derive from.
        score: Score over all games.
        outcomes: Outcome of each game, in order: 1 if the player won, -1 if the opponent won, 0 for a draw.
        sides: Score of the games on each of the game's two sides, by name of the side; sides without games are absent.
        mean_return: Mean return of the player.
        mean_length: Mean number of steps of a game.
    """

    player: str
    opponent: str
    mode: str
    seed: int
    score: Score
    outcomes: tuple[int, ...]
    sides: Mapping[str, Score]
    mean_return: float
    mean_length: float

    def figures(self) -> dict[str, float]:
        """Return all metrics by name, for records."""
        means = {"mean_return": self.mean_return, "mean_length": self.mean_length}
        return self.score.figures() | means | {f"win_rate_{side}": score.win_rate for side, score in self.sides.items()}


def evaluate(
    player: Player | LoadedPlayer,
    opponent: Player | LoadedPlayer | None = None,
    *,
    games: int = 200,
    seed: int = 0,
    side: str | None = None,
    match: MatchConfig | None = None,
    fleet: Fleet | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Play games against an opponent and return the score.

    The same seed gives the same games for any number of simultaneous games, unless a player is random; two players that
    are evaluated with the same seed get the same initial states.

    Args:
        player: Agent, path of a checkpoint, name of a player of the game, `"random"`, or `"my_package:MyPlayer"`.
        opponent: Opponent, in the same form; by default the game's strongest scripted player, or the random player.
        games: Number of games.
        seed: Seed of the games.
        side: One of the game's two sides, or `"both"` alternately; by default the usual one of the mode.
        match: Game, engine, mode and number of simultaneous games.
        fleet: Fleet from `match.open`, which stays open; by default one is opened and closed.
        progress: Called after games end with a text and the share of finished games.

    Raises:
        InvalidArgument: Unknown player, side, engine or mode.
    """
    match = match or MatchConfig()
    opponent = match.game.strongest if opponent is None else opponent
    one, two = (load_player(who, game=match.game, seed=2 * seed + k) for k, who in enumerate((player, opponent)))
    side = side or match.game.default_side(match.mode)
    played = play(one, two, games, seed=seed, side=side, match=match, fleet=fleet, progress=progress)
    sides = dict(zip(match.game.sides, (played.is_left, ~played.is_left), strict=True))
    return Evaluation(
        player=one.name,
        opponent=two.name,
        mode=match.mode,
        seed=seed,
        score=Score.of(played.outcomes.tolist()),
        outcomes=tuple(played.outcomes.tolist()),
        sides={name: Score.of(played.outcomes[where].tolist()) for name, where in sides.items() if where.any()},
        mean_return=float(played.returns.mean()),
        mean_length=float(played.lengths.mean()),
    )


@dataclasses.dataclass(frozen=True)
class MeanReturn:
    """Returns of a policy in a single-player environment.

    Attributes:
        env: Name of the environment.
        seed: Seed that the seeds of all episodes derive from.
        episodes: Number of episodes.
        mean: Mean return.
        interval: 95 % confidence interval of the mean by Student's t distribution.
        low: Lowest return.
        high: Highest return.
        mean_length: Mean number of steps of an episode.
    """

    env: str
    seed: int
    episodes: int
    mean: float
    interval: tuple[float, float]
    low: float
    high: float
    mean_length: float

    def figures(self) -> dict[str, float]:
        """Return all metrics by name, for records."""
        return {
            "games": float(self.episodes),
            "mean_return": self.mean,
            "mean_return_low": self.interval[0],
            "mean_return_high": self.interval[1],
            "mean_length": self.mean_length,
        }


def evaluate_returns(
    policy: Policy,
    env: str | Callable[..., Any],
    *,
    episodes: int = 50,
    seed: int = 0,
    num_envs: int = 64,
    options: Mapping[str, Any] | None = None,
    fleet: Fleet | None = None,
    progress: Progress | None = None,
    **env_kwargs: Any,
) -> MeanReturn:
    """Play whole episodes without exploration; they are the same for any number of simultaneous episodes.

    Args:
        policy: Agent, or any object with `act_batch`.
        env: Gymnasium id, or a callable that makes an environment.
        episodes: Number of episodes, at least 2.
        seed: Seed that the seeds of all episodes derive from.
        num_envs: Maximum number of simultaneous episodes.
        options: Options of `envfleet.make`, such as `backend` and `workers`; by default kernels are compiled and other
            environments run in this process.
        fleet: Fleet of these environments, which stays open; by default one is opened and closed.
        progress: Called after episodes end with a text and the share of finished episodes.
        **env_kwargs: Arguments of the environment. With `url`, the environment runs on that service, and these are
            arguments of `envfleet.connect`.

    Raises:
        InvalidArgument: Unknown environment, or fewer than two episodes.
    """
    if episodes < 2:
        raise InvalidArgument(f"{episodes} episodes, expected 2 or more: a confidence interval needs two")
    make: Any = functools.partial(open_fleet, options=options)
    if "url" in env_kwargs:
        make, num_envs = envfleet.connect, (options or {}).get("num_envs", num_envs)
    seeds = [int(each) for each in np.random.SeedSequence(seed).generate_state(episodes)]
    opening = contextlib.nullcontext(fleet) if fleet else make(env=env, num_envs=min(episodes, num_envs), **env_kwargs)
    with opening as opened:
        env_spaces = opened.single_observation_space, opened.single_action_space
        check_spaces(spaces_of(policy), "the agent", env_spaces, "the environment")
        evaluation = envfleet.evaluate(
            policy, opened, episodes=episodes, seeds=seeds, batch_rows=BLOCK_ROWS, repeat_failed=False,
            progress=progress,
        )  # fmt: skip
    low, high = float(evaluation.returns.min()), float(evaluation.returns.max())
    interval = evaluation.return_interval
    return MeanReturn(
        name_source(env), seed, episodes, evaluation.mean_return, interval, low, high, evaluation.mean_length
    )


# ---------------------------------------------------------------------- ratings


@dataclasses.dataclass(frozen=True)
class Rating:
    """Rating of a player.

    Attributes:
        name: Name of the player.
        mu: Rating; 25 for an unknown player.
        sigma: Standard deviation of the rating.
        games: Number of rated games.
        is_anchor: True if the rating is fixed.
    """

    name: str
    mu: float = 25.0
    sigma: float = 25.0 / 3
    games: int = 0
    is_anchor: bool = False


def rate(
    names: Iterable[str],
    outcomes: Mapping[tuple[str, str], Sequence[int]],
    anchors: Mapping[str, float],
    before: Mapping[str, Rating] | None = None,
) -> dict[str, Rating]:
    """Rate players.

    Players do not change between games, so sigma shrinks with each game. The order of games matters little, since pairs
    take turns.

    Args:
        names: Names of the players.
        outcomes: Outcomes of games by pair of names: 1 if the first won, -1 if the second won, 0 for a draw.
        anchors: Fixed ratings by name; names that are not among `names` are ignored.
        before: Ratings from earlier games by name, used as priors.

    Returns:
        Ratings by name, in the order of `names`.
    """
    model = BradleyTerryFull(tau=0.0)
    known = {name: (before or {}).get(name, Rating(name)) for name in names}
    known |= {name: Rating(name, mu, _ANCHOR_SIGMA, is_anchor=True) for name, mu in anchors.items() if name in known}
    for turn in itertools.zip_longest(*outcomes.values()):
        for pair, outcome in zip(outcomes, turn, strict=True):
            if outcome is None:  # this pair has played fewer games
                continue
            teams = [[model.rating(known[name].mu, known[name].sigma)] for name in pair]
            for name, (updated,) in zip(pair, model.rate(teams, ranks=_RANKS[outcome]), strict=True):
                one = known[name]
                mu, sigma = (one.mu, one.sigma) if one.is_anchor else (updated.mu, updated.sigma)
                known[name] = dataclasses.replace(one, mu=mu, sigma=sigma, games=one.games + 1)
    return known


def anchors_among(opponents: Collection[str]) -> dict[str, float]:
    """Return the fixed ratings of opponents that are anchors, by short name; for figures and reports."""
    short = {opponent.removeprefix(SCRIPT) for opponent in opponents}
    known = [Game.anchors, *(game.anchors for game in known_games())]
    return {name: mu for anchors in known for name, mu in anchors.items() if name in short}


# ---------------------------------------------------------------------- tournaments


@dataclasses.dataclass(frozen=True, eq=False)
class Tournament:
    """Tournament results; players sorted by rating, best first.

    Attributes:
        ratings: Ratings of the K players.
        wins: Games that the player of the row won against that of the column, int64 `(K, K)`.
        draws: Games that the two drew, int64 `(K, K)`.
        games: Number of games of each pair.
    """

    ratings: tuple[Rating, ...]
    wins: NDArray[np.int64]
    draws: NDArray[np.int64]
    games: int

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the players."""
        return tuple(rating.name for rating in self.ratings)

    def score(self, row: int) -> Score:
        """Return the score of a player over all games."""
        return Score(int(self.wins[row].sum()), int(self.draws[row].sum()), int(self.wins[:, row].sum()))


def find_checkpoints(folder: str | Path, observation_space: spaces.Space[Any]) -> dict[str, Path]:
    """Return the checkpoints in a folder of agents with the given observation space.

    Args:
        folder: Folder of files, of a run or of several runs.
        observation_space: Observation space of the environment; agents with another shape are left out.

    Returns:
        Files by name: the path within the folder, shortened where names stay unique.

    Raises:
        InvalidArgument: No checkpoint of such an agent, or a file that is not a checkpoint.
    """
    shape = observation_space.shape
    files = sorted(agents_in(Path(folder)).items())
    players = {name: path for name, path in files if saved_spaces(path)[0].shape == shape}
    if not players:
        raise InvalidArgument(
            f"no checkpoint in {folder} is of an agent with observations of shape {shape}: pass another folder, or the "
            "environment in which the agents were trained"
        )
    return players


def run_tournament(
    players: Mapping[str, Player | LoadedPlayer],
    *,
    games: int = 100,
    seed: int = 0,
    match: MatchConfig | None = None,
    progress: Progress | None = None,
) -> Tournament:
    """Play each player against every other, half of the games on either side.

    Args:
        players: Players by name; ratings of scripted players are fixed.
        games: Number of games of each pair.
        seed: Seed of the games; all pairs get the same initial states.
        match: Game, engine, mode and number of simultaneous games.
        progress: Called before each pairing with its name and the share of finished pairings.

    Raises:
        InvalidArgument: Fewer than two players, an invalid player, or a name that belongs to a scripted player.
    """
    if len(players) < 2:
        raise InvalidArgument(f"a tournament of {len(players)} players, expected 2 or more: add players")
    match = match or MatchConfig()
    for name in match.game.anchors.keys() & players.keys():
        if players[name] != name:
            raise InvalidArgument(f"a player is called {name!r}, but is not that scripted player: give it another name")
    names = [*players]
    loaded = [load_player(one, name, game=match.game, seed=k) for k, (name, one) in enumerate(players.items())]
    pairs = [*itertools.combinations(range(len(names)), 2)]
    wins, draws = np.zeros((2, len(names), len(names)), np.int64)
    outcomes: dict[tuple[str, str], list[int]] = {}
    with match.open(min(games, match.num_envs)) as fleet:
        for number, (one, two) in enumerate(pairs):
            if progress:
                progress(f"{names[one]} against {names[two]}", number / len(pairs))
            played = play(loaded[one], loaded[two], games, seed=seed, match=match, fleet=fleet).outcomes.tolist()
            wins[one, two], wins[two, one] = played.count(1), played.count(-1)
            draws[one, two] = draws[two, one] = played.count(0)
            outcomes[names[one], names[two]] = played
    ratings = [*rate(names, outcomes, match.game.anchors).values()]
    order = sorted(range(len(names)), key=lambda row: -ratings[row].mu)
    place = np.ix_(order, order)
    return Tournament(tuple(ratings[row] for row in order), wins[place], draws[place], games)
