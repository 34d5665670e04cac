"""The evaluations of a run: always on the same seeds, apart from training."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from envfleet.agents import Agent
from envfleet.training.building import env_source
from envfleet.training.config import RunConfig
from envfleet.training.episodes import evaluate_returns
from envfleet.training.evaluation import evaluate_panel
from envfleet.training.matches import Rink
from envfleet.training.options import RunOptions

STRONG, WEAK, NOBODY = "basic_strong", "basic_weak", "none"


@dataclasses.dataclass(frozen=True)
class Examination:
    """How good the learner is.

    Attributes:
        results: Figures by name of the opponent.
        score: What the best checkpoint is chosen by: the mean of win rates plus half the draws, or the mean return.
    """

    results: Mapping[str, Mapping[str, float]]
    score: float


class Examiner:
    """Evaluates the learner of a run: in hockey against the scripted players, else by its return.

    Games are played on compiled hockey whatever the run is trained on, as it is the same game to the last bit and takes
    a hundredth of the time.

    Args:
        config: Of the run.
        options: Likewise.
        seed: Of all games.
    """

    def __init__(self, config: RunConfig, options: RunOptions, seed: int) -> None:
        self._config, self._options, self._seed = config, options, seed

    def examine(self, agent: Agent[Any], players: Mapping[str, Agent[Any]] | None = None) -> Examination:
        """Evaluate an agent without exploration.

        Args:
            agent: Who.
            players: More opponents by name, which do not count for the score.
        """
        training, place = self._config.training, self._config.curriculum.phases[0].environment
        if not place.is_hockey:
            episodes, kwargs = max(training.eval_games, 2), dict(place.kwargs)
            source = kwargs.pop("env") if place.is_remote else env_source(place, self._options)
            found = evaluate_returns(agent, source, episodes=episodes, seed=self._seed, **kwargs).figures()
            return Examination({NOBODY: found}, found["mean_return"])
        panel: dict[str, Any] = {STRONG: "strong"}
        if training.eval_weak_opponent:
            panel[WEAK] = "weak"
        scripted = tuple(panel)
        rink = Rink(engine="compiled", keep_mode=place.keep_mode)
        played = evaluate_panel(
            agent, panel | dict(players or {}), games=training.eval_games, seed=self._seed, rink=rink
        )
        results = {name: evaluation.figures() for name, evaluation in played.items()}
        scores = [results[name]["win_rate"] + results[name]["draw_rate"] / 2 for name in scripted]
        return Examination(results, sum(scores) / len(scores))
