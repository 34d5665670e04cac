"""How good a player is: games on fixed seeds, how sure their shares are, ratings and tournaments."""

from envfleet.training.evaluation.evaluation import Evaluation, MeanReturn, Score, evaluate, evaluate_returns
from envfleet.training.evaluation.ratings import Rating
from envfleet.training.evaluation.tournament import Tournament, find_checkpoints, run_tournament

__all__ = [
    "Evaluation",
    "MeanReturn",
    "Rating",
    "Score",
    "Tournament",
    "evaluate",
    "evaluate_returns",
    "find_checkpoints",
    "run_tournament",
]
