"""Evaluations of a run, on fixed seeds and separate from training."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from numpy.typing import NDArray

from envfleet.agents import Agent
from envfleet.envs.games import Game
from envfleet.evaluation.episodes import Policy
from envfleet.fleet.fleet import Fleet
from envfleet.registry import RANDOM
from envfleet.training.environments import source_of
from envfleet.training.evaluation import Evaluation, MeanReturn, Rating, Score, evaluate, evaluate_returns, rate
from envfleet.training.events import LEARNER, EvaluationSummary
from envfleet.training.games.matches import MatchConfig, open_fleet
from envfleet.training.games.players import LoadedPlayer, Player, UserPlayer, load_player
from envfleet.training.opponents.pool import SnapshotPool
from envfleet.training.phases import NOBODY, SCRIPT, Environment, NamedOpponent
from envfleet.training.plan import RunPlan

POOL = "pool"
_SNAPSHOTS = 3  # that an evaluation plays against
_EPISODES = 64  # at once, in environments for one


class EvaluationStopped(Exception):
    """A stop was requested during an evaluation."""


class StoppablePolicy:
    """Policy that checks for a stop request before each step.

    Args:
        policy: Policy to act with.
        should_stop: Returns whether a stop was requested.
    """

    def __init__(self, policy: Policy, should_stop: Callable[[], bool]) -> None:
        self._policy, self._should_stop = policy, should_stop

    def act_batch(self, observations: NDArray[Any], deterministic: bool = False) -> NDArray[Any]:
        """Choose actions for observations, or raise `EvaluationStopped`."""
        if self._should_stop():
            raise EvaluationStopped
        actions: NDArray[Any] = self._policy.act_batch(observations, deterministic=deterministic)
        return actions


class Evaluator:
    """Evaluator of an agent without exploration: by games against opponents and snapshots, or by its mean return.

    Opponents are the game's scripted players, or else a random player, and the user's own classes in the
    configuration. Games use the first engine, independent of the engine of training. The fleet is made for the first
    evaluation and reused, since making one can take seconds; environments on a service are connected to for each
    evaluation, so that an idle fleet does not use the quota.

    Args:
        plan: Plan of the run; evaluations use the environment of its last phase.
        seed: Seed that the seeds of all games derive from.
        options: Options of `envfleet.make`, for environments that are not compiled.
    """

    def __init__(self, plan: RunPlan, seed: int, options: Mapping[str, Any] | None = None) -> None:
        self._plan, self._game, self._seed, self._options = plan, plan.games[-1], seed, options or {}
        self._environment = plan.phases[-1].environment
        settings = self._environment.kwargs
        self._match = (
            None if self._game is None else MatchConfig(game=self._game, settings=settings, options=self._options)
        )
        self._fleet: Fleet | None = None

    def evaluate(
        self, agent: Agent[Any], pool: SnapshotPool, should_stop: Callable[[], bool] = lambda: False
    ) -> EvaluationSummary:
        """Evaluate an agent.

        Args:
            agent: Agent to evaluate.
            pool: Snapshots of the agent, which are rated too, but do not count for the score.
            should_stop: Called before each step.

        Raises:
            EvaluationStopped: `should_stop` returned True.
        """
        try:
            return self._evaluate(agent, pool, should_stop)
        except EvaluationStopped:
            raise
        except BaseException:
            self.close()  # its fleet may be broken
            raise

    def _evaluate(self, agent: Agent[Any], pool: SnapshotPool, should_stop: Callable[[], bool]) -> EvaluationSummary:
        policy = StoppablePolicy(agent, should_stop)
        training, game, match = self._plan.training, self._game, self._match
        if game is None or match is None:
            episodes = max(training.eval_games, 2)
            fleet = None if self._environment.is_remote else self._open(min(episodes, _EPISODES))
            figures = evaluate_single_player(
                policy, self._environment, episodes=episodes, seed=self._seed, options=self._options, fleet=fleet
            ).figures()
            return EvaluationSummary(results={NOBODY: figures}, score=figures["mean_return"])
        fleet = self._open(min(training.eval_games, match.num_envs))

        def meet(opponents: Mapping[str, Player], games: int) -> dict[str, Evaluation]:
            return {
                name: evaluate(
                    LoadedPlayer(agent.name, policy=policy), load_player(one, name, game=game),
                    games=games, seed=self._seed, match=match, fleet=fleet,
                )
                for name, one in opponents.items()
            }  # fmt: skip

        met = meet(_panel(self._plan, game, self._seed), training.eval_games)
        results = {name: evaluation.figures() for name, evaluation in met.items()}
        scores = [figures["win_rate"] + figures["draw_rate"] / 2 for figures in results.values()]
        if snapshots := {name: pool.player(name) for name in pool.unsure(_SNAPSHOTS)}:
            against_pool = meet(snapshots, -(-training.eval_games // len(snapshots)))
            results[POOL] = Score.of([outcome for one in against_pool.values() for outcome in one.outcomes]).figures()
            met |= against_pool
        anchors = {type_of(name, game): mu for name, mu in game.anchors.items()}
        rated = rate_learner(met, pool, anchors)
        ratings = {name: {"rating": rating.mu, "rating_sd": rating.sigma} for name, rating in rated.items()}
        return EvaluationSummary(results=results, score=sum(scores) / len(scores), ratings=ratings)

    def _open(self, num_envs: int) -> Fleet:
        if self._fleet is None and self._match is not None:
            self._fleet = self._match.open(num_envs)
        elif self._fleet is None:
            source, kwargs = source_of(self._environment)
            self._fleet = open_fleet(source, num_envs, self._options, **kwargs)
        return self._fleet

    def close(self) -> None:
        """Close the fleet; the next evaluation makes a new one."""
        if self._fleet is not None:
            self._fleet.close()
            self._fleet = None


def rate_learner(
    evaluations: Mapping[str, Evaluation], pool: SnapshotPool, anchors: Mapping[str, float]
) -> dict[str, Rating]:
    """Rate the current learner and the snapshots that it played against.

    The learner changes between evaluations, so its rating comes from these games only. Snapshots do not change: their
    ratings are kept in the pool and become more certain with each evaluation.

    Args:
        evaluations: Evaluations of the learner by opponent: scripted players, names of snapshots, …
        pool: Pool of the snapshots.
        anchors: Fixed ratings of opponents by name.

    Returns:
        Ratings of `"learner"` and of these snapshots, by name.
    """
    outcomes = {(LEARNER, name): evaluation.outcomes for name, evaluation in evaluations.items()}
    ratings = rate([LEARNER, *evaluations], outcomes, anchors, pool.ratings)
    snapshots = {name: rating for name, rating in ratings.items() if name in pool.ratings}
    pool.ratings |= snapshots
    return {LEARNER: ratings[LEARNER], **snapshots}


def _panel(plan: RunPlan, game: Game, seed: int) -> dict[str, Player]:
    """Return the opponents by type in configurations, the strongest scripted player first."""
    scripted = ([*game.scripts][::-1] or [RANDOM])[: None if plan.training.eval_weak_opponent else 1]
    panel: dict[str, Player] = {type_of(name, game): name for name in scripted}
    for opponents in plan.opponents:
        for one, _ in opponents:
            if isinstance(one, NamedOpponent) and ":" in one.type:
                panel[one.label] = UserPlayer(one.type, game, seed, **one.kwargs)
    return panel


def type_of(player: str, game: Game) -> str:
    """Return the type in configurations of a player known by name."""
    return f"{SCRIPT}{player}" if player in game.scripts else player


def evaluate_single_player(policy: Policy, environment: Environment, **options: Any) -> MeanReturn:
    """Evaluate in the single-player environment of a configuration; options and errors are `evaluate_returns`'."""
    if environment.is_remote:
        return evaluate_returns(policy, **options, **environment.kwargs)  # including env and url
    source, kwargs = source_of(environment)
    result = evaluate_returns(policy, source, **options, **kwargs)
    return dataclasses.replace(result, env=environment.id)
