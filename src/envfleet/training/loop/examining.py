"""The evaluations of a run: always on the same seeds, apart from training."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from envfleet.agents import Agent
from envfleet.envs.games import RANDOM, Game
from envfleet.training.config import RunConfig, shares_of
from envfleet.training.config.opponents import NOBODY, SCRIPT, NamedOpponent
from envfleet.training.config.phases import Environment
from envfleet.training.evaluation.evaluation import Evaluation, MeanReturn, Score, evaluate, evaluate_returns
from envfleet.training.events import Examination
from envfleet.training.games.matches import Rink
from envfleet.training.games.players import OwnPlayer, Player, find_class, seat_player
from envfleet.training.games.seating import Policy
from envfleet.training.opponents.pool import SnapshotPool
from envfleet.training.opponents.standing import rate_learner

POOL = "pool"
_SNAPSHOTS = 3  # that an evaluation plays against


class Examiner:
    """Evaluates the learner of a run: in games for two against opponents and its snapshots, else by its return.

    Opponents are the game's scripted players, or a random one if it has none, and those of the configuration that are
    classes of the user's own. Games are played on the first engine, whatever the run is trained on.

    Args:
        config: Of the run.
        game: What is played; `None` in environments for one.
        seed: Of all games.
    """

    def __init__(self, config: RunConfig, game: Game | None, seed: int) -> None:
        self._config, self._game, self._seed = config, game, seed

    def examine(self, agent: Agent[Any], pool: SnapshotPool) -> Examination:
        """Evaluate an agent without exploration.

        Args:
            agent: Who.
            pool: Its snapshots, which are rated on the way; they do not count for the score.
        """
        place = self._config.curriculum.phases[0].environment
        if self._game is not None:
            return self._play(agent, pool, place, self._game)
        episodes = max(self._config.training.eval_games, 2)
        found = evaluate_alone(agent, place, episodes=episodes, seed=self._seed).figures()
        return Examination(results={NOBODY: found}, score=found["mean_return"])

    def _play(self, agent: Agent[Any], pool: SnapshotPool, place: Environment, game: Game) -> Examination:
        training = self._config.training
        rink = Rink(game=game, settings=place.settings)

        def meet(opponents: Mapping[str, Player], games: int) -> dict[str, Evaluation]:
            return {
                name: evaluate(agent, seat_player(one, name, game=game), games=games, seed=self._seed, rink=rink)
                for name, one in opponents.items()
            }

        met = meet(self._panel(game), training.eval_games)
        snapshots = {one.name: pool.player(one.name) for one in pool.unsure(_SNAPSHOTS)}
        results = {name: evaluation.figures() for name, evaluation in met.items()}
        scores = [figures["win_rate"] + figures["draw_rate"] / 2 for figures in results.values()]
        if snapshots:
            mine = meet(snapshots, -(-training.eval_games // len(snapshots)))
            results[POOL] = sum((evaluation.score for evaluation in mine.values()), Score(0, 0, 0)).figures()
            met |= mine
        anchors = {type_of(name, game): mu for name, mu in game.anchors.items()}
        ratings = {
            name: {"rating": rating.mu, "rating_sd": rating.sigma}
            for name, rating in rate_learner(met, pool, anchors).items()
        }
        return Examination(results=results, score=sum(scores) / len(scores), ratings=ratings)

    def _panel(self, game: Game) -> dict[str, Player]:
        """Return the opponents by their types in configurations, the strongest scripted one first."""
        scripted = [*game.scripts][::-1] or [RANDOM]
        if not self._config.training.eval_weak_opponent:
            del scripted[1:]
        panel: dict[str, Player] = {type_of(name, game): name for name in scripted}
        for phase in self._config.curriculum.phases:
            for one, _ in shares_of(phase.opponent):
                if isinstance(one, NamedOpponent) and ":" in one.type:
                    panel[one.type] = OwnPlayer(find_class(one.type), game, self._seed, **one.kwargs)
        return panel


def type_of(player: str, game: Game) -> str:
    """Return the type of a player that is known by name in configurations."""
    return f"{SCRIPT}{player}" if player in game.scripts else player


def evaluate_alone(policy: Policy, place: Environment, *, episodes: int, seed: int) -> MeanReturn:
    """Evaluate in the environment for one of a configuration; raises as `evaluate_returns`."""
    if place.is_remote:
        kwargs = dict(place.kwargs)
        return evaluate_returns(policy, kwargs.pop("env"), episodes=episodes, seed=seed, **kwargs)
    source, kwargs = place.source()
    found = evaluate_returns(policy, source, episodes=episodes, seed=seed, **kwargs)
    return dataclasses.replace(found, env=place.id)
