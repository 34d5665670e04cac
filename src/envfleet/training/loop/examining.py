"""The evaluations of a run: always on the same seeds, apart from training."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from numpy.typing import NDArray

from envfleet.agents import Agent
from envfleet.envs.games import RANDOM, Game
from envfleet.fleet.fleet import Fleet
from envfleet.training.config import RunConfig
from envfleet.training.evaluation import Evaluation, MeanReturn, Rating, Score, evaluate, evaluate_returns, rate
from envfleet.training.events import LEARNER, Examination
from envfleet.training.games.matches import Rink, open_fleet
from envfleet.training.games.players import OwnPlayer, Player, Policy, Seated, seat_player
from envfleet.training.opponents.pool import SnapshotPool
from envfleet.training.phases import NOBODY, SCRIPT, Environment, NamedOpponent, shares_of

POOL = "pool"
_SNAPSHOTS = 3  # that an evaluation plays against
_EPISODES = 64  # at once, in environments for one


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


class Examiner:
    """Evaluates an agent without exploration: in games for two against opponents and its snapshots, else by its return.

    Opponents are the game's scripted players, or a random one if it has none, and those of the configuration that are
    classes of the user's own. Games are played on the first engine, whatever the run is trained on. The fleet that
    plays is made for the first evaluation and serves all later ones, since making one can take seconds; only
    environments behind a service are connected to anew, so that an idle fleet uses up nobody's quota.

    Args:
        config: Configuration of the run.
        game: Game for two that is played; `None` in environments for one.
        seed: Seed that all games derive theirs from.
        options: Options of `envfleet.make`, for environments that are not compiled.
    """

    def __init__(
        self, config: RunConfig, game: Game | None, seed: int, options: Mapping[str, Any] | None = None
    ) -> None:
        self._config, self._game, self._seed, self._options = config, game, seed, options or {}
        self._place = config.curriculum.phases[-1].environment
        self._rink = None if game is None else Rink(game=game, settings=self._place.settings, options=self._options)
        self._fleet: Fleet | None = None

    def examine(
        self, agent: Agent[Any], pool: SnapshotPool, should_stop: Callable[[], bool] = lambda: False
    ) -> Examination:
        """Evaluate an agent.

        Args:
            agent: Agent to evaluate.
            pool: Its snapshots, which are rated on the way; they do not count for the score.
            should_stop: Called before each step.

        Raises:
            Stopped: `should_stop` returned True.
        """
        try:
            return self._examine(agent, pool, should_stop)
        except Stopped:
            raise
        except BaseException:
            self.close()  # its fleet may be broken
            raise

    def _examine(self, agent: Agent[Any], pool: SnapshotPool, should_stop: Callable[[], bool]) -> Examination:
        watched = Watched(agent, should_stop)
        training, game, rink = self._config.training, self._game, self._rink
        if game is None or rink is None:
            episodes = max(training.eval_games, 2)
            fleet = None if self._place.is_remote else self._open(min(episodes, _EPISODES))
            found = evaluate_alone(
                watched, self._place, episodes=episodes, seed=self._seed, options=self._options, fleet=fleet
            ).figures()
            return Examination(results={NOBODY: found}, score=found["mean_return"])
        fleet = self._open(min(training.eval_games, rink.num_envs))

        def meet(opponents: Mapping[str, Player], games: int) -> dict[str, Evaluation]:
            return {
                name: evaluate(
                    Seated(agent.name, policy=watched), seat_player(one, name, game=game),
                    games=games, seed=self._seed, rink=rink, fleet=fleet,
                )
                for name, one in opponents.items()
            }  # fmt: skip

        met = meet(_panel(self._config, game, self._seed), training.eval_games)
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

    def _open(self, num_envs: int) -> Fleet:
        if self._fleet is None and self._rink is not None:
            self._fleet = self._rink.open(num_envs)
        elif self._fleet is None:
            source, kwargs = self._place.source()
            self._fleet = open_fleet(source, num_envs, self._options, **kwargs)
        return self._fleet

    def close(self) -> None:
        """Close the fleet, if there is one; the next evaluation makes another."""
        if self._fleet is not None:
            self._fleet.close()
            self._fleet = None


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
