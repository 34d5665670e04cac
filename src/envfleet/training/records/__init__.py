"""What a run leaves behind: its folder, tables, TensorBoard logs, plots; and the progress bar."""

from envfleet.errors import MissingDependency

try:
    import polars as pl  # noqa: F401  # so that what is missing is said once, and how to get it
except ImportError as error:
    raise MissingDependency("records need polars, which is not installed: pip install 'envfleet[train]'") from error

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
