"""The CSV files of a run."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

from envfleet.training.events import Began, Ended, Episodes, Evaluated, Event, Learned, Progress
from envfleet.training.records.files import Table
from envfleet.training.records.folder import RunFolder

EPISODE_COLUMNS = (
    "episode", "transitions", "updates", "phase", "phase_name", "mode", "opponent", "env_index", "return",
    "shaped_return", "length", "winner", "truncated",
)  # fmt: skip
UPDATE_COLUMNS = ("transitions", "updates", "phase", "figure", "value")
EVALUATION_COLUMNS = ("transitions", "episodes", "updates", "phase", "opponent", "figure", "value")
SPEED_COLUMNS = (
    "elapsed_s", "transitions", "episodes", "updates", "phase", "steps_per_s", "act_s", "env_s", "wait_s", "update_s",
    "evaluation_s",
)  # fmt: skip
_SPEED_EVERY_S = 2.0


class TableWriter:
    """Writes what happens to `episodes.csv`, `updates.csv`, `evaluations.csv` and `speed.csv`.

    All but the last depend on the configuration alone: a run that was interrupted and resumed writes the same ones.

    Args:
        folder: Of the run.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._episodes = Table(folder.episodes, EPISODE_COLUMNS)
        self._updates = Table(folder.updates, UPDATE_COLUMNS)
        self._evaluations = Table(folder.evaluations, EVALUATION_COLUMNS)
        self._speed = Table(folder.speed, SPEED_COLUMNS)
        self._tables = (self._episodes, self._updates, self._evaluations, self._speed)
        self._sizes: Mapping[str, int] = {}
        self._next_speed = 0.0

    def on_event(self, event: Event) -> None:
        """Write rows."""
        match event:
            case Began():
                for table in self._tables:
                    table.cut(self._sizes.get(table.path.name, 0))
            case Episodes():
                self._episodes.add(_episode_rows(event))
            case Learned():
                place = (event.transitions, event.updates, event.phase)
                self._updates.add((*place, name, float(value)) for name, value in event.figures.items())
            case Evaluated():
                for opponent, figures in (*event.results.items(), *event.ratings.items()):
                    row = (event.transitions, event.episodes, event.updates, event.phase, opponent)
                    self._evaluations.add((*row, name, float(value)) for name, value in figures.items())
            case Progress() if time.monotonic() >= self._next_speed:
                self._next_speed = time.monotonic() + _SPEED_EVERY_S
                counts = (event.transitions, event.episodes, event.updates, event.phase)
                self._speed.add([(event.elapsed_s, *counts, event.steps_per_s, *dataclasses.astuple(event.times))])
            case Ended():
                for table in self._tables:
                    table.sync()

    def state_dict(self) -> dict[str, Any]:
        """How long each file is, in bytes, after all so far is on the disk."""
        return {table.path.name: table.sync() for table in self._tables}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Cut the files to these lengths when the run goes on."""
        self._sizes = {name: int(size) for name, size in state.items()}

    def close(self) -> None:
        """Write what waits and let go of the files."""
        for table in self._tables:
            table.close()


def _episode_rows(event: Episodes) -> list[tuple[Any, ...]]:
    place = (event.transitions, event.updates, event.phase, event.phase_name)
    columns = zip(
        event.numbers.tolist(), event.modes, event.opponents, event.env_indices.tolist(), event.returns.tolist(),
        event.shaped_returns.tolist(), event.lengths.tolist(), event.winners.tolist(),
        event.truncated.astype(int).tolist(), strict=True,
    )  # fmt: skip
    return [(number, *place, *rest) for number, *rest in columns]
