"""CSV files of a run: append-only, so that they survive a kill, and read for plots."""

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
    """Observer that writes `episodes.csv`, `updates.csv` and `evaluations.csv`.

    Their content depends on the configuration only: an interrupted and resumed run writes the same files.

    Args:
        folder: Folder of the run; missing files are made, and existing content is kept until the run begins.
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
        """Truncate a file.

        Raises:
            InvalidArgument: The file is shorter.
        """
        file = self._files[name]
        actual_bytes = file.seek(0, os.SEEK_END)
        if actual_bytes < size_bytes:
            raise InvalidArgument(
                f"{file.name} has {actual_bytes:,} bytes, but the checkpoint was made when it had {size_bytes:,}: "
                "restore the original file, or start a new run"
            )
        file.truncate(size_bytes)
        if not size_bytes:
            self._add(name, [[*TABLES[name]]])

    def _add(self, name: str, rows: Iterable[Sequence[Any]]) -> None:
        """Add rows, each with a value per column; floats have six digits."""
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
        """Flush the files to disk and return their sizes in bytes."""
        self._flush()
        for file in self._files.values():
            os.fsync(file.fileno())
        return {name: file.seek(0, os.SEEK_END) for name, file in self._files.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set the sizes that files are truncated to when the run continues."""
        self._sizes = {name: int(size) for name, size in state.items()}

    def close(self) -> None:
        """Flush and close the files."""
        for file in self._files.values():
            with naming(file.name):
                file.close()


@dataclasses.dataclass(frozen=True)
class RunHistory:
    """The tables of a run, as polars data frames with the columns of its CSV files.

    Attributes:
        name: Name of the run.
        episodes: A row per episode.
        updates: A row per metric of an update.
        evaluations: A row per metric, opponent and evaluation.
    """

    name: str
    episodes: pl.DataFrame
    updates: pl.DataFrame
    evaluations: pl.DataFrame

    @property
    def phases(self) -> list[tuple[str, int]]:
        """Name of each phase with finished episodes, and the transitions at its start.

        The start is the last entry of the phases before it, since losses are reported when a phase ends.
        """
        entries: Any = pl.concat([table.select("phase", "transitions") for table in (self.episodes, self.updates)])
        names = self.episodes.select("phase", "phase_name").unique("phase", keep="first", maintain_order=True)
        return [
            (name, entries.filter(pl.col("phase") < phase)["transitions"].max() or 0) for phase, name in names.rows()
        ]


def read_history(path: str | Path) -> RunHistory:
    """Read the tables of a run, which may be running or killed.

    Raises:
        InvalidArgument: The path is not the folder of a run.
    """
    folder = RunFolder.open(path)
    tables = {name: _read(getattr(folder, name), schema) for name, schema in TABLES.items()}
    return RunHistory(folder.path.resolve().name, **tables)


def _read(path: Path, schema: Mapping[str, Any]) -> pl.DataFrame:
    """Return the complete lines of a file."""
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
