"""Records of a run: tables, TensorBoard logs, plots; and the progress bar."""

from envfleet.training.records.figures import plot_runs
from envfleet.training.records.progress import ProgressBar
from envfleet.training.records.tables import TableWriter, read_history
from envfleet.training.records.tensorboard import TensorBoardWriter

__all__ = ["ProgressBar", "TableWriter", "TensorBoardWriter", "plot_runs", "read_history"]
