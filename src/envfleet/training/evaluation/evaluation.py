"""How good a player is: frozen, without exploration, on fixed seeds, with intervals that say how sure it is."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

import envfleet
from envfleet.errors import InvalidArgument
from envfleet.sources import names_kernel
from envfleet.training.games.matches import Games, Rink, Table, plan_episodes, play
from envfleet.training.games.players import Player, Seated, seat_player
from envfleet.training.games.seating import Policy

_Z_95 = 1.959963984540054  # standard deviations that leave out 2.5 % on either side


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

    def __add__(self, other: Score) -> Score:
        return Score(self.wins + other.wins, self.draws + other.draws, self.losses + other.losses)

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
) -> Evaluation:
    """Play games against an opponent and count.

    The same seed gives the same games, however many are played at once; two players that are evaluated with one seed
    meet the same starts.

    Args:
        player: An agent, the path of a checkpoint, a name that the game knows, `"random"`, or `"my_package:MyPlayer"`.
        opponent: Likewise; by default the game's strongest scripted player, or the random one if it has none.
        games: How many.
        seed: Of the games.
        side: One of the game's two seats, or `"both"` in turns; by default what is usual in the mode.
        rink: Where: the game, its engine and mode, how many games at once.

    Raises:
        InvalidArgument: There is no such player, side, engine or mode.
    """
    rink = rink or Rink()
    opponent = rink.game.strongest if opponent is None else opponent
    one, two = (seat_player(who, game=rink.game) for who in (player, opponent))
    side = side or rink.game.usual_seat(rink.mode)
    played = play(one, two, games, seed=seed, side=side, rink=rink)
    sides = dict(zip(rink.game.seats, (played.is_left, ~played.is_left), strict=True))
    return Evaluation(
        player=one.name,
        opponent=two.name,
        mode=rink.mode,
        seed=seed,
        score=_score(played, np.ones(games, np.bool_)),
        outcomes=tuple(played.outcomes.tolist()),
        sides={name: _score(played, where) for name, where in sides.items() if where.any()},
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
    **env_kwargs: Any,
) -> MeanReturn:
    """Play whole episodes without exploration, the same for any number at once.

    Args:
        policy: Anything with `act_batch`; every agent.
        env: A Gymnasium id, or a callable that makes an environment.
        episodes: How many, from 2.
        seed: All episodes derive theirs from it.
        num_envs: Episodes at once, at most.
        **env_kwargs: Arguments of the environment. With `url`, the environment runs on that service, and these are
            arguments of `envfleet.connect`.

    Raises:
        InvalidArgument: There is no such environment, or fewer than two episodes.
    """
    if episodes < 2:
        raise InvalidArgument(f"{episodes} episodes, expected 2 or more: one alone does not tell how sure it is")
    make: Any = envfleet.connect
    if "url" not in env_kwargs:
        make = functools.partial(envfleet.make, backend="kernel" if names_kernel(env) else "serial")
    played = plan_episodes(episodes, seed)
    with make(env=env, num_envs=min(episodes, num_envs), **env_kwargs) as fleet:
        Table(fleet, played, [Seated("", policy=policy)], None).play_all()
    returns, name = played.returns, env if isinstance(env, str) else repr(env)
    mean, reach = float(returns.mean()), _Z_95 * float(returns.std(ddof=1)) / episodes**0.5
    low, high, length = float(returns.min()), float(returns.max()), float(played.lengths.mean())
    return MeanReturn(name, seed, episodes, mean, (mean - reach, mean + reach), low, high, length)


def _score(games: Games, where: NDArray[np.bool_]) -> Score:
    outcomes: Any = games.outcomes[where]
    wins, draws, losses = (int((outcomes == outcome).sum()) for outcome in (1, 0, -1))
    return Score(wins, draws, losses)
