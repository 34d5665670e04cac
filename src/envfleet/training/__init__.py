"""From a configuration file to a trained agent: curriculum, opponents, one training loop, evaluation, records."""

from envfleet.training.loop.trainer import Trainer
from envfleet.training.options import RunOptions
from envfleet.training.single_run import RunResult, resume, train, train_single_run

__all__ = ["RunOptions", "RunResult", "Trainer", "resume", "train", "train_single_run"]
