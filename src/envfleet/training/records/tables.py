"""The CSV files of a run."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import polars as pl

from envfleet.training.events import Began, Ended, Episodes, Evaluated, Event, Learned, Progress
from envfleet.training.records.files import Table
from envfleet.training.records.folder import RunFolder

TABLES: dict[str, dict[str, Any]] = {
    "episodes": {
        "episode": pl.Int64, "transitions": pl.Int64, "updates": pl.Int64, "phase": pl.Int64, "phase_name": pl.String,
        "mode": pl.String, "opponent": pl.String, "env_index": pl.Int64, "return": pl.Float64,
        "shaped_return": pl.Float64, "length": pl.Int64, "winner": pl.Int64, "truncated": pl.Int64,
    },
    "updates": {
        "transitions": pl.Int64, "updates": pl.Int64, "phase": pl.Int64, "figure": pl.String, "value": pl.Float64,
    },
    "evaluations": {
        "transitions": pl.Int64, "episodes": pl.Int64, "updates": pl.Int64, "phase": pl.Int64, "opponent": pl.String,
        "figure": pl.String, "value": pl.Float64,
    },
    "speed": {
        "elapsed_s": pl.Float64, "transitions": pl.Int64, "episodes": pl.Int64, "updates": pl.Int64, "phase": pl.Int64,
        "steps_per_s": pl.Float64, "act_s": pl.Float64, "env_s": pl.Float64, "wait_s": pl.Float64,
        "update_s": pl.Float64, "evaluation_s": pl.Float64,
    },
}  # fmt: skip
"""Columns of each table and their types; its file is the attribute of `RunFolder` of the same name."""
_SPEED_EVERY_S = 2.0


class TableWriter:
    """Writes what happens to `episodes.csv`, `updates.csv`, `evaluations.csv` and `speed.csv`.

    All but the last depend on the configuration alone: a run that was interrupted and resumed writes the same ones.

    Args:
        folder: Of the run.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._tables = {name: Table(getattr(folder, name), [*columns]) for name, columns in TABLES.items()}
        self._sizes: Mapping[str, int] = {}
        self._next_speed = 0.0

    def on_event(self, event: Event) -> None:
        """Write rows."""
        match event:
            case Began():
                for name, table in self._tables.items():
                    table.cut(self._sizes.get(name, 0))
            case Episodes():
                self._tables["episodes"].add(_episode_rows(event))
            case Learned():
                place = (event.transitions, event.updates, event.phase)
                self._tables["updates"].add((*place, name, float(value)) for name, value in event.figures.items())
            case Evaluated():
                for opponent, figures in (*event.results.items(), *event.ratings.items()):
                    row = (event.transitions, event.episodes, event.updates, event.phase, opponent)
                    self._tables["evaluations"].add((*row, name, float(value)) for name, value in figures.items())
            case Progress() if time.monotonic() >= self._next_speed:
                self._next_speed = time.monotonic() + _SPEED_EVERY_S
                counts = (event.transitions, event.episodes, event.updates, event.phase)
                self._tables["speed"].add(
                    [(event.elapsed_s, *counts, event.steps_per_s, *dataclasses.astuple(event.times))]
                )
            case Ended():
                self.state_dict()

    def state_dict(self) -> dict[str, Any]:
        """Return how long each file is, in bytes, after all so far is on the disk."""
        return {name: table.sync() for name, table in self._tables.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Cut the files to these lengths when the run goes on."""
        self._sizes = {name: int(size) for name, size in state.items()}

    def close(self) -> None:
        """Write what waits and let go of the files."""
        for table in self._tables.values():
            table.close()


def _episode_rows(event: Episodes) -> list[tuple[Any, ...]]:
    place = (event.transitions, event.updates, event.phase, event.phase_name)
    columns = zip(
        event.modes, event.opponents, event.env_indices.tolist(), event.returns.tolist(), event.shaped_returns.tolist(),
        event.lengths.tolist(), event.winners.tolist(), event.truncated.astype(int).tolist(), strict=True,
    )  # fmt: skip
    return [(number, *place, *rest) for number, rest in enumerate(columns, event.episodes - len(event))]
