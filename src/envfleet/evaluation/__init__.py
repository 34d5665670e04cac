"""Evaluation of policies on whole episodes with fixed seeds."""

from envfleet.evaluation.evaluate import evaluate
from envfleet.evaluation.results import EvaluationResult

__all__ = ["EvaluationResult", "evaluate"]
