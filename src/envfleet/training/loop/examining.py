"""The evaluations of a run: always on the same seeds, apart from training."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from numpy.typing import NDArray

from envfleet.agents import Agent
from envfleet.envs.games import RANDOM, Game
from envfleet.training.config import RunConfig
from envfleet.training.evaluation import Evaluation, MeanReturn, Rating, Score, evaluate, evaluate_returns, rate
from envfleet.training.events import LEARNER, Examination
from envfleet.training.games.matches import Rink
from envfleet.training.games.players import OwnPlayer, Player, Policy, Seated, seat_player
from envfleet.training.opponents.pool import SnapshotPool
from envfleet.training.phases import NOBODY, SCRIPT, Environment, NamedOpponent, shares_of

POOL = "pool"
_SNAPSHOTS = 3  # that an evaluation plays against


class Stopped(Exception):
    """Somebody asks to stop in the middle of an evaluation."""


class Watched:
    """Acts as a policy does, until somebody asks to stop.

    Args:
        policy: Who acts.
        should_stop: Asked before each step.
    """

    def __init__(self, policy: Policy, should_stop: Callable[[], bool]) -> None:
        self._policy, self._should_stop = policy, should_stop

    def act_batch(self, observations: NDArray[Any], deterministic: bool = False) -> NDArray[Any]:
        """Choose actions for observations; raises `Stopped`."""
        if self._should_stop():
            raise Stopped
        return self._policy.act_batch(observations, deterministic=deterministic)


def examine(
    agent: Agent[Any], pool: SnapshotPool, *, config: RunConfig, game: Game | None, seed: int,
    options: Mapping[str, Any] | None = None, should_stop: Callable[[], bool] = lambda: False,
) -> Examination:  # fmt: skip
    """Evaluate an agent without exploration: in games for two against opponents and its snapshots, else by its return.

    Opponents are the game's scripted players, or a random one if it has none, and those of the configuration that are
    classes of the user's own. Games are played on the first engine, whatever the run is trained on.

    Args:
        agent: Who.
        pool: Its snapshots, which are rated on the way; they do not count for the score.
        config: Of the run.
        game: What is played; `None` in environments for one.
        seed: Of all games.
        options: Of `envfleet.make`, for what is not compiled.
        should_stop: Asked before each step.

    Raises:
        Stopped: Somebody asked to stop.
    """
    watched = Watched(agent, should_stop)
    training, place = config.training, config.curriculum.phases[-1].environment
    if game is None:
        episodes = max(training.eval_games, 2)
        found = evaluate_alone(watched, place, episodes=episodes, seed=seed, options=options).figures()
        return Examination(results={NOBODY: found}, score=found["mean_return"])
    rink = Rink(game=game, settings=place.settings, options=options or {})

    def meet(opponents: Mapping[str, Player], games: int) -> dict[str, Evaluation]:
        return {
            name: evaluate(
                Seated(agent.name, policy=watched), seat_player(one, name, game=game), games=games, seed=seed, rink=rink
            )
            for name, one in opponents.items()
        }

    met = meet(_panel(config, game, seed), training.eval_games)
    results = {name: evaluation.figures() for name, evaluation in met.items()}
    scores = [figures["win_rate"] + figures["draw_rate"] / 2 for figures in results.values()]
    if snapshots := {name: pool.player(name) for name in pool.unsure(_SNAPSHOTS)}:
        mine = meet(snapshots, -(-training.eval_games // len(snapshots)))
        results[POOL] = Score.of([outcome for one in mine.values() for outcome in one.outcomes]).figures()
        met |= mine
    anchors = {type_of(name, game): mu for name, mu in game.anchors.items()}
    rated = rate_learner(met, pool, anchors)
    ratings = {name: {"rating": rating.mu, "rating_sd": rating.sigma} for name, rating in rated.items()}
    return Examination(results=results, score=sum(scores) / len(scores), ratings=ratings)


def rate_learner(
    evaluations: Mapping[str, Evaluation], pool: SnapshotPool, anchors: Mapping[str, float]
) -> dict[str, Rating]:
    """Rate the learner as it is, and the snapshots that it played against.

    The learner of a later evaluation is another player, so its rating comes from these games alone. Snapshots stay as
    they are: theirs become surer with every evaluation, and are kept in the pool.

    Args:
        evaluations: Of the learner, by opponent: scripted players, names of snapshots, …
        pool: Of the snapshots.
        anchors: Fixed ratings of opponents by name.

    Returns:
        Ratings of `"learner"` and of those snapshots, by name.
    """
    outcomes = {(LEARNER, name): evaluation.outcomes for name, evaluation in evaluations.items()}
    ratings = rate([LEARNER, *evaluations], outcomes, anchors, pool.ratings)
    snapshots = {name: rating for name, rating in ratings.items() if name in pool.ratings}
    pool.ratings |= snapshots
    return {LEARNER: ratings[LEARNER], **snapshots}


def _panel(config: RunConfig, game: Game, seed: int) -> dict[str, Player]:
    """Return the opponents by their types in configurations, the strongest scripted one first."""
    scripted = ([*game.scripts][::-1] or [RANDOM])[: None if config.training.eval_weak_opponent else 1]
    panel: dict[str, Player] = {type_of(name, game): name for name in scripted}
    for phase in config.curriculum.phases:
        for one, _ in shares_of(phase.opponent):
            if isinstance(one, NamedOpponent) and ":" in one.type:
                panel[one.label] = OwnPlayer(one.type, game, seed, **one.kwargs)
    return panel


def type_of(player: str, game: Game) -> str:
    """Return the type of a player that is known by name in configurations."""
    return f"{SCRIPT}{player}" if player in game.scripts else player


def evaluate_alone(policy: Policy, place: Environment, **how: Any) -> MeanReturn:
    """Evaluate in the environment for one of a configuration; `how`, and what is raised, as in `evaluate_returns`."""
    if place.is_remote:
        return evaluate_returns(policy, **how, **place.kwargs)  # which have env and url
    source, kwargs = place.source()
    found = evaluate_returns(policy, source, **how, **kwargs)
    return dataclasses.replace(found, env=place.id)
