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


class Table:
    """A CSV file that rows are added to.

    Args:
        path: The file; it is made if need be, and what it holds stays until `cut`.
        columns: Their names, the first line.
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path, self._columns = path, columns
        self._file = path.open("ab", buffering=1 << 16)

    def cut(self, size_bytes: int) -> None:
        """Forget all behind the first bytes of the file; before the first rows are added.

        Raises:
            InvalidArgument: The file is shorter.
        """
        found = self.path.stat().st_size
        if found < size_bytes:
            raise InvalidArgument(
                f"{self.path} has {found:,} bytes, but the checkpoint was made when it had {size_bytes:,}: put the "
                "file back that belongs to it, or begin a new run"
            )
        self._file.truncate(size_bytes)
        if not size_bytes:
            self.add([self._columns])

    def add(self, rows: Iterable[Sequence[Any]]) -> None:
        """Add rows, each with a value per column; floats are written with six digits."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([_shown(value) for value in row] for row in rows)
        with naming(self.path):
            self._file.write(text.getvalue().encode())

    def flush(self) -> None:
        """Write what waits."""
        with naming(self.path):
            self._file.flush()

    def sync(self) -> int:
        """Write what waits down to the disk, and return how many bytes the file has."""
        self.flush()
        os.fsync(self._file.fileno())
        return self.path.stat().st_size

    def close(self) -> None:
        """Write what waits and let go of the file."""
        with naming(self.path):
            self._file.close()


def _shown(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value


class TableWriter(Observer):
    """Writes what happens to `episodes.csv`, `updates.csv` and `evaluations.csv`.

    They depend on the configuration alone: a run that was interrupted and resumed writes the same ones.

    Args:
        folder: Of the run.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._tables = {name: Table(getattr(folder, name), [*columns]) for name, columns in TABLES.items()}
        self._sizes: Mapping[str, int] = {}

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
            case Progress():
                for table in self._tables.values():
                    table.flush()
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
