"""How good a player is: games on fixed seeds, how sure their shares are, ratings and tournaments.

Players are frozen and do not explore. Ratings come from games that were played to rate them: Weng and Lin 2011, "A
Bayesian approximation method for online ranking" (Bradley-Terry, full pairs), from `openskill`. Scripted players are
anchors: their ratings stand fixed, so that those of different tournaments can be compared.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from openskill.models import BradleyTerryFull

import envfleet
from envfleet.agents.loading import saved_spaces
from envfleet.envs.games import Game, known_games
from envfleet.errors import InvalidArgument
from envfleet.fleet.fleet import Fleet
from envfleet.sources import name_source
from envfleet.training.folder import agents_in
from envfleet.training.games.matches import Rink, Table, open_fleet, plan_episodes, play
from envfleet.training.games.players import Player, Policy, Seated, seat_player
from envfleet.training.phases import SCRIPT

_Z_95 = 1.959963984540054  # standard deviations that leave out 2.5 % on either side
_ANCHOR_SIGMA = 0.1
_RANKS = {1: [0.0, 1.0], 0: [0.0, 0.0], -1: [1.0, 0.0]}
Progress = Callable[[str, float], None]


# ---------------------------------------------------------------------- games and episodes


def wilson(successes: float, trials: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson 1927, "Probable inference, the law of succession", equation 4).

    Args:
        successes: How many of the trials went well.
        trials: All of them; with none, nothing is known.

    Returns:
        Lower and upper bound, from 0 to 1.

    Examples:
        >>> [round(bound, 4) for bound in wilson(90, 100)]
        [0.8256, 0.9448]
        >>> wilson(0, 0)
        (0.0, 1.0)
    """
    if trials == 0:
        return 0.0, 1.0
    share, square = successes / trials, _Z_95**2 / trials
    middle = (share + square / 2) / (1 + square)
    reach = _Z_95 / (1 + square) * math.sqrt(share * (1 - share) / trials + square / (4 * trials))
    return max(0.0, min(middle - reach, share)), min(1.0, max(middle + reach, share))


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
        """Count games by what they ended with: 1 for a win, 0 for a draw, -1 for a loss."""
        return cls(*(outcomes.count(outcome) for outcome in (1, 0, -1)))

    @property
    def games(self) -> int:
        """All of them."""
        return self.wins + self.draws + self.losses

    @property
    def win_rate(self) -> float:
        """Share of games won; a draw is not won."""
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
        """Return where the chance to win lies, 95 % sure (Wilson)."""
        return wilson(self.wins, self.games)

    def figures(self) -> dict[str, float]:
        """Return all numbers by name, for records."""
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
    """How a player did against an opponent.

    Attributes:
        player: Its name.
        opponent: The opponent's name.
        mode: Of the game; `""` if it has none.
        seed: That all games derive theirs from.
        score: Of all games.
        outcomes: Of every game, in order: 1 if the player won, -1 if the opponent did, 0 for a draw.
        sides: Of those in each of the game's two seats, by its name, as far as there were any.
        mean_return: Mean over games of the sum of the player's rewards.
        mean_length: Mean steps of a game.
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
        """Return all numbers by name, for records."""
        means = {"mean_return": self.mean_return, "mean_length": self.mean_length}
        return self.score.figures() | means | {f"win_rate_{side}": score.win_rate for side, score in self.sides.items()}


def evaluate(
    player: Player | Seated,
    opponent: Player | Seated | None = None,
    *,
    games: int = 200,
    seed: int = 0,
    side: str | None = None,
    rink: Rink | None = None,
    fleet: Fleet | None = None,
) -> Evaluation:
    """Play games against an opponent and count.

    The same seed gives the same games, however many are played at once, unless a player is random; two players that are
    evaluated with one seed meet the same starts.

    Args:
        player: An agent, the path of a checkpoint, a name that the game knows, `"random"`, or `"my_package:MyPlayer"`.
        opponent: Likewise; by default the game's strongest scripted player, or the random one if it has none.
        games: How many.
        seed: Of the games.
        side: One of the game's two seats, or `"both"` in turns; by default what is usual in the mode.
        rink: Where: the game, its engine and mode, how many games at once.
        fleet: Fleet from `rink.open`, which stays open; by default one is opened and closed.

    Raises:
        InvalidArgument: There is no such player, side, engine or mode.
    """
    rink = rink or Rink()
    opponent = rink.game.strongest if opponent is None else opponent
    one, two = (seat_player(who, game=rink.game, seed=2 * seed + k) for k, who in enumerate((player, opponent)))
    side = side or rink.game.usual_seat(rink.mode)
    played = play(one, two, games, seed=seed, side=side, rink=rink, fleet=fleet)
    sides = dict(zip(rink.game.seats, (played.is_left, ~played.is_left), strict=True))
    return Evaluation(
        player=one.name,
        opponent=two.name,
        mode=rink.mode,
        seed=seed,
        score=Score.of(played.outcomes.tolist()),
        outcomes=tuple(played.outcomes.tolist()),
        sides={name: Score.of(played.outcomes[where].tolist()) for name, where in sides.items() if where.any()},
        mean_return=float(played.returns.mean()),
        mean_length=float(played.lengths.mean()),
    )


@dataclasses.dataclass(frozen=True)
class MeanReturn:
    """How a policy did in an environment for one.

    Attributes:
        env: Its name.
        seed: That all episodes derive theirs from.
        episodes: How many.
        mean: Of their returns.
        interval: Where the expected return lies, 95 % sure, by the normal distribution.
        low: The worst of them.
        high: The best of them.
        mean_length: Mean steps of an episode.
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
        """Return all numbers by name, for records."""
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
    **env_kwargs: Any,
) -> MeanReturn:
    """Play whole episodes without exploration, the same for any number at once.

    Args:
        policy: Anything with `act_batch`; every agent.
        env: A Gymnasium id, or a callable that makes an environment.
        episodes: How many, from 2.
        seed: All episodes derive theirs from it.
        num_envs: Episodes at once, at most.
        options: Of `envfleet.make`, such as `backend` and `workers`; by default a kernel is compiled, and anything else
            runs in this process.
        fleet: Fleet of these environments, which stays open; by default one is opened and closed.
        **env_kwargs: Arguments of the environment. With `url`, the environment runs on that service, and these are
            arguments of `envfleet.connect`.

    Raises:
        InvalidArgument: There is no such environment, or fewer than two episodes.
    """
    if episodes < 2:
        raise InvalidArgument(f"{episodes} episodes, expected 2 or more: one alone does not tell how sure it is")
    make: Any = functools.partial(open_fleet, options=options)
    if "url" in env_kwargs:
        make, num_envs = envfleet.connect, (options or {}).get("num_envs", num_envs)
    played = plan_episodes(episodes, seed)
    num_envs = min(episodes, num_envs)
    with contextlib.nullcontext(fleet) if fleet else make(env=env, num_envs=num_envs, **env_kwargs) as opened:
        opened.engine.traits.refuse_vector_rewards("an evaluation")
        Table(opened, played, [Seated("", policy=policy)], None).play_all()
    returns, name = played.returns, name_source(env)
    mean, reach = float(returns.mean()), _Z_95 * float(returns.std(ddof=1)) / episodes**0.5
    low, high, length = float(returns.min()), float(returns.max()), float(played.lengths.mean())
    return MeanReturn(name, seed, episodes, mean, (mean - reach, mean + reach), low, high, length)


# ---------------------------------------------------------------------- ratings


@dataclasses.dataclass(frozen=True)
class Rating:
    """How strong a player is.

    Attributes:
        name: Of the player.
        mu: The rating; that of a player of whom nothing is known is 25.
        sigma: Its standard deviation.
        games: It is taken from.
        is_anchor: Whether it stands fixed.
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

    Players do not change between the games, so a rating becomes surer with each. The order of the games matters
    little, as pairs take turns.

    Args:
        names: Of the players.
        outcomes: Of the games of pairs of them, by their names: 1 if the first won, -1 if the second did, 0 for a draw.
        anchors: Fixed ratings by name; those of players that are not among `names` are not looked at.
        before: Ratings from earlier games, by name, which go on from there.

    Returns:
        A rating for each name, by it, in that order.
    """
    model = BradleyTerryFull(tau=0.0)
    known = {name: (before or {}).get(name, Rating(name)) for name in names}
    known |= {name: Rating(name, mu, _ANCHOR_SIGMA, is_anchor=True) for name, mu in anchors.items() if name in known}
    for turn in itertools.zip_longest(*outcomes.values()):
        for pair, outcome in zip(outcomes, turn, strict=True):
            if outcome is None:  # its games are over
                continue
            teams = [[model.rating(known[name].mu, known[name].sigma)] for name in pair]
            for name, (found,) in zip(pair, model.rate(teams, ranks=_RANKS[outcome]), strict=True):
                one = known[name]
                mu, sigma = (one.mu, one.sigma) if one.is_anchor else (found.mu, found.sigma)
                known[name] = dataclasses.replace(one, mu=mu, sigma=sigma, games=one.games + 1)
    return known


def anchors_among(opponents: Collection[str]) -> dict[str, float]:
    """Return the fixed ratings of those opponents that have one, by their short names; for figures and reports."""
    short = {opponent.removeprefix(SCRIPT) for opponent in opponents}
    known = [Game.anchors, *(game.anchors for game in known_games())]
    return {name: mu for anchors in known for name, mu in anchors.items() if name in short}


# ---------------------------------------------------------------------- tournaments


@dataclasses.dataclass(frozen=True, eq=False)
class Tournament:
    """What came of a tournament; players stand in the order of their ratings, best first.

    Attributes:
        ratings: Of the K players.
        wins: Games that the player of the row won against that of the column, int64 `(K, K)`.
        draws: Likewise games drawn.
        games: Of each pair.
    """

    ratings: tuple[Rating, ...]
    wins: NDArray[np.int64]
    draws: NDArray[np.int64]
    games: int

    @property
    def names(self) -> tuple[str, ...]:
        """Of the players."""
        return tuple(rating.name for rating in self.ratings)

    def score(self, row: int) -> Score:
        """Return all games of a player."""
        return Score(int(self.wins[row].sum()), int(self.draws[row].sum()), int(self.wins[:, row].sum()))


def find_checkpoints(folder: str | Path, observation_space: spaces.Space[Any]) -> dict[str, Path]:
    """Find the checkpoints of players in a folder of files, of a run or of several runs.

    Args:
        folder: Which.
        observation_space: Of the environment that they are to play; agents that see something else are left out.

    Returns:
        Their files by name: the path within the folder, as far as it tells them apart.

    Raises:
        InvalidArgument: There is no checkpoint of such a player, or a file there that is none.
    """
    shape = observation_space.shape
    files = sorted(agents_in(Path(folder)).items())
    players = {name: path for name, path in files if saved_spaces(path)[0].shape == shape}
    if not players:
        raise InvalidArgument(
            f"no checkpoint in {folder} is of an agent that sees observations of shape {shape}: pass "
            "another folder, or the environment in which they were trained"
        )
    return players


def run_tournament(
    players: Mapping[str, Player | Seated],
    *,
    games: int = 100,
    seed: int = 0,
    rink: Rink | None = None,
    progress: Progress | None = None,
) -> Tournament:
    """Let every player meet every other, half of the games on either side.

    Args:
        players: By name; the scripted ones stand fixed in the ratings.
        games: Of each pair.
        seed: Of the games; all pairs meet the same starts.
        rink: Where.
        progress: Told, before each pairing, which it is and the share of pairings played.

    Raises:
        InvalidArgument: There are fewer than two players, one of them is none, or a name belongs to a scripted player.
    """
    if len(players) < 2:
        raise InvalidArgument(f"a tournament of {len(players)} players, expected 2 or more: add some")
    rink = rink or Rink()
    for name in rink.game.anchors.keys() & players.keys():
        if players[name] != name:
            raise InvalidArgument(f"a player is called {name!r} and is not the scripted one: give it another name")
    names = [*players]
    seated = [seat_player(one, name, game=rink.game, seed=k) for k, (name, one) in enumerate(players.items())]
    pairs = [*itertools.combinations(range(len(names)), 2)]
    wins, draws = np.zeros((2, len(names), len(names)), np.int64)
    outcomes: dict[tuple[str, str], list[int]] = {}
    with rink.open(min(games, rink.num_envs)) as fleet:
        for number, (one, two) in enumerate(pairs):
            if progress:
                progress(f"{names[one]} against {names[two]}", number / len(pairs))
            played = play(seated[one], seated[two], games, seed=seed, rink=rink, fleet=fleet).outcomes.tolist()
            wins[one, two], wins[two, one] = played.count(1), played.count(-1)
            draws[one, two] = draws[two, one] = played.count(0)
            outcomes[names[one], names[two]] = played
    ratings = [*rate(names, outcomes, rink.game.anchors).values()]
    order = sorted(range(len(names)), key=lambda row: -ratings[row].mu)
    place = np.ix_(order, order)
    return Tournament(tuple(ratings[row] for row in order), wins[place], draws[place], games)
