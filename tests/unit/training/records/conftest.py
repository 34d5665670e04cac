"""The folder of a whole run, for tests of what is recorded."""

from __future__ import annotations

import pytest
from tests.unit.training.records import played

from envfleet.training.folder import RunFolder
from envfleet.training.records import plot_runs
from envfleet.training.records.tables import TableWriter
from envfleet.training.records.tensorboard import TensorBoardWriter


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Return the folder of a whole run."""
    folder = played.make_folder(tmp_path_factory.mktemp("runs"))
    observers = [TableWriter(folder), TensorBoardWriter(folder)]
    played.notify(observers, played.begin(folder.path), *played.rounds(), played.end())
    played.close(observers)
    plot_runs([folder.path])
    return folder
