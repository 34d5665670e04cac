"""The evaluations of a run: always on the same seeds, apart from training."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from envfleet.agents import Agent
from envfleet.training.arena.building import env_source
from envfleet.training.config import RunConfig
from envfleet.training.config.phases import Environment
from envfleet.training.evaluation.episodes import evaluate_returns
from envfleet.training.evaluation.evaluation import Score, evaluate_panel
from envfleet.training.games.matches import Rink
from envfleet.training.opponents.pool import SnapshotPool
from envfleet.training.opponents.standing import STRONG, WEAK, rate_learner
from envfleet.training.options import RunOptions

POOL, NOBODY = "pool", "none"
_SNAPSHOTS = 3  # that an evaluation plays against


@dataclasses.dataclass(frozen=True)
class Examination:
    """How good the learner is.

    Attributes:
        results: Figures by name of the opponent; `"pool"` are some of its snapshots together.
        score: What the best checkpoint is chosen by: the mean of win rates plus half the draws, or the mean return.
        ratings: `rating` and `rating_sd` of `"learner"` and of those snapshots, by name; empty where nobody plays
            against it.
    """

    results: Mapping[str, Mapping[str, float]]
    score: float
    ratings: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)


class Examiner:
    """Evaluates the learner of a run: in hockey against scripted players and its snapshots, else by its return.

    Games are played on compiled hockey whatever the run is trained on, as it is the same game to the last bit and takes
    a hundredth of the time.

    Args:
        config: Of the run.
        options: Likewise.
        seed: Of all games.
    """

    def __init__(self, config: RunConfig, options: RunOptions, seed: int) -> None:
        self._config, self._options, self._seed = config, options, seed

    def examine(self, agent: Agent[Any], pool: SnapshotPool) -> Examination:
        """Evaluate an agent without exploration.

        Args:
            agent: Who.
            pool: Its snapshots, which are rated on the way; they do not count for the score.
        """
        place = self._config.curriculum.phases[0].environment
        return self._play(agent, pool, place) if place.is_hockey else self._play_alone(agent, place)

    def _play(self, agent: Agent[Any], pool: SnapshotPool, place: Environment) -> Examination:
        training = self._config.training
        scripted = {STRONG: "strong"} | ({WEAK: "weak"} if training.eval_weak_opponent else {})
        snapshots = {one.name: pool.player(one.name) for one in pool.unsure(_SNAPSHOTS)}
        rink = Rink(engine="compiled", keep_mode=place.keep_mode)
        met = evaluate_panel(agent, scripted, games=training.eval_games, seed=self._seed, rink=rink)
        results = {name: evaluation.figures() for name, evaluation in met.items()}
        scores = [figures["win_rate"] + figures["draw_rate"] / 2 for figures in results.values()]
        if snapshots:
            games = -(-training.eval_games // len(snapshots))
            mine = evaluate_panel(agent, snapshots, games=games, seed=self._seed, rink=rink)
            results[POOL] = sum((evaluation.score for evaluation in mine.values()), Score(0, 0, 0)).figures()
            met |= mine
        ratings = {
            name: {"rating": rating.mu, "rating_sd": rating.sigma} for name, rating in rate_learner(met, pool).items()
        }
        return Examination(results, sum(scores) / len(scores), ratings)

    def _play_alone(self, agent: Agent[Any], place: Environment) -> Examination:
        episodes, kwargs = max(self._config.training.eval_games, 2), dict(place.kwargs)
        source = kwargs.pop("env") if place.is_remote else env_source(place, self._options)
        found = evaluate_returns(agent, source, episodes=episodes, seed=self._seed, **kwargs).figures()
        return Examination({NOBODY: found}, found["mean_return"])
