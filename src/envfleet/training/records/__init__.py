"""What a run leaves behind: its folder, tables, TensorBoard logs, plots; and the progress bar."""

from envfleet.training.records.folder import RunFolder
from envfleet.training.records.history import read_history
from envfleet.training.records.plots import plot_runs, records_of
from envfleet.training.records.progress import ProgressBar

__all__ = [
    "ProgressBar",
    "RunFolder",
    "plot_runs",
    "read_history",
    "records_of",
]
