"""What is made of a run's records once it ends."""

from __future__ import annotations

from envfleet.training.events import Ended, Event, Observer
from envfleet.training.records.folder import RunFolder
from envfleet.training.records.history import write_parquet
from envfleet.training.records.plots import plot_runs
from envfleet.training.records.tables import TableWriter
from envfleet.training.records.tensorboard import TensorBoardWriter


class Reporter(Observer):
    """Draws the plots and writes the episodes as Parquet when a run ends; comes after `TableWriter`.

    Args:
        folder: Of the run.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def on_event(self, event: Event) -> None:
        """Report when it is over."""
        if isinstance(event, Ended):
            write_parquet(self._folder)
            plot_runs([self._folder.path])


def records_of(folder: RunFolder) -> list[Observer]:
    """Return all that write into the folder of a run, in the order in which they are to be told."""
    return [TableWriter(folder), TensorBoardWriter(folder), Reporter(folder)]
