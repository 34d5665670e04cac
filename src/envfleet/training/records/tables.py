"""The CSV files of a run: they only grow, so that they survive a kill, and are read for plots."""

from __future__ import annotations

import csv
import dataclasses
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from envfleet.errors import InvalidArgument
from envfleet.files import naming
from envfleet.training.events import Began, Ended, Episodes, Evaluated, Event, Learned, Observer, Progress
from envfleet.training.folder import RunFolder

_PLACE = dict.fromkeys(("transitions", "updates", "phase"), pl.Int64)
TABLES: dict[str, dict[str, Any]] = {
    "episodes": {
        "episode": pl.Int64, **_PLACE, "phase_name": pl.String, "mode": pl.String, "opponent": pl.String,
        "env_index": pl.Int64, "return": pl.Float64, "shaped_return": pl.Float64, "length": pl.Int64,
        "winner": pl.Int64, "truncated": pl.Int64,
    },
    "updates": {**_PLACE, "figure": pl.String, "value": pl.Float64},
    "evaluations": {
        **dict.fromkeys(("transitions", "episodes", "updates", "phase"), pl.Int64),
        "opponent": pl.String, "figure": pl.String, "value": pl.Float64,
    },
}  # fmt: skip
"""Columns of each table and their types; its file is the attribute of `RunFolder` of the same name."""


class TableWriter(Observer):
    """Writes what happens to `episodes.csv`, `updates.csv` and `evaluations.csv`.

    They depend on the configuration alone: a run that was interrupted and resumed writes the same ones.

    Args:
        folder: Of the run; its files are made if need be, and what they hold stays until the run begins.
    """

    def __init__(self, folder: RunFolder) -> None:
        paths: dict[str, Path] = {name: getattr(folder, name) for name in TABLES}
        self._files = {name: path.open("ab", buffering=1 << 16) for name, path in paths.items()}
        self._sizes: Mapping[str, int] = {}

    def on_event(self, event: Event) -> None:
        """Write rows."""
        match event:
            case Began():
                for name in TABLES:
                    self._cut(name, self._sizes.get(name, 0))
            case Episodes():
                self._add("episodes", _episode_rows(event))
            case Learned():
                place = (event.transitions, event.updates, event.phase)
                self._add("updates", ((*place, name, float(value)) for name, value in event.figures.items()))
            case Evaluated():
                for opponent, figures in (*event.results.items(), *event.ratings.items()):
                    row = (event.transitions, event.episodes, event.updates, event.phase, opponent)
                    self._add("evaluations", ((*row, name, float(value)) for name, value in figures.items()))
            case Progress():
                self._flush()
            case Ended():
                self.state_dict()

    def _cut(self, name: str, size_bytes: int) -> None:
        """Forget all behind the first bytes of a file.

        Raises:
            InvalidArgument: The file is shorter.
        """
        file = self._files[name]
        found = file.seek(0, os.SEEK_END)
        if found < size_bytes:
            raise InvalidArgument(
                f"{file.name} has {found:,} bytes, but the checkpoint was made when it had {size_bytes:,}: put the "
                "file back that belongs to it, or begin a new run"
            )
        file.truncate(size_bytes)
        if not size_bytes:
            self._add(name, [[*TABLES[name]]])

    def _add(self, name: str, rows: Iterable[Sequence[Any]]) -> None:
        """Add rows, each with a value per column; floats are written with six digits."""
        text = io.StringIO()
        shown = ([f"{value:.6g}" if isinstance(value, float) else value for value in row] for row in rows)
        csv.writer(text, lineterminator="\n").writerows(shown)
        file = self._files[name]
        with naming(file.name):
            file.write(text.getvalue().encode())

    def _flush(self) -> None:
        for file in self._files.values():
            with naming(file.name):
                file.flush()

    def state_dict(self) -> dict[str, Any]:
        """Return how long each file is, in bytes, after all so far is on the disk."""
        self._flush()
        for file in self._files.values():
            os.fsync(file.fileno())
        return {name: file.seek(0, os.SEEK_END) for name, file in self._files.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Cut the files to these lengths when the run goes on."""
        self._sizes = {name: int(size) for name, size in state.items()}

    def close(self) -> None:
        """Write what waits and let go of the files."""
        for file in self._files.values():
            with naming(file.name):
                file.close()


@dataclasses.dataclass(frozen=True)
class RunHistory:
    """The tables of a run, as polars data frames with the columns of its CSV files.

    Attributes:
        name: Of the run.
        episodes: A row per episode.
        updates: A row per figure of an update.
        evaluations: A row per figure, opponent and evaluation.
    """

    name: str
    episodes: pl.DataFrame
    updates: pl.DataFrame
    evaluations: pl.DataFrame

    @property
    def phases(self) -> list[tuple[str, int]]:
        """Name of each phase that an episode ended in, and the transitions where it began.

        That is the last of which the phases before it tell something: losses are told when a phase ends.
        """
        told: Any = pl.concat([table.select("phase", "transitions") for table in (self.episodes, self.updates)])
        names = self.episodes.select("phase", "phase_name").unique("phase", keep="first", maintain_order=True)
        return [(name, told.filter(pl.col("phase") < phase)["transitions"].max() or 0) for phase, name in names.rows()]


def read_history(path: str | Path) -> RunHistory:
    """Read what a run has written so far, also while it runs or after it was killed.

    Raises:
        InvalidArgument: It is no folder of a run.
    """
    folder = RunFolder.open(path)
    tables = {name: _read(getattr(folder, name), schema) for name, schema in TABLES.items()}
    return RunHistory(folder.path.resolve().name, **tables)


def _read(path: Path, schema: Mapping[str, Any]) -> pl.DataFrame:
    """Return the whole lines of a file."""
    content = path.read_bytes() if path.is_file() else b""
    content = content[: content.rfind(b"\n") + 1]
    if content.count(b"\n", 0, 4096) < 2:
        return pl.DataFrame(schema=schema)
    return pl.read_csv(io.BytesIO(content), schema=schema)


def _episode_rows(event: Episodes) -> list[tuple[Any, ...]]:
    place = (event.transitions, event.updates, event.phase, event.phase_name)
    columns = zip(
        event.modes, event.opponents, event.env_indices.tolist(), event.returns.tolist(), event.shaped_returns.tolist(),
        event.lengths.tolist(), event.winners.tolist(), event.truncated.astype(int).tolist(), strict=True,
    )  # fmt: skip
    return [(number, *place, *rest) for number, rest in enumerate(columns, event.episodes - len(event))]
