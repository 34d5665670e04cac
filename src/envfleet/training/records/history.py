"""What the files of a run say, for plots and whoever wants to look at it."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from envfleet.training.records.folder import RunFolder
from envfleet.training.records.tables import TABLES


@dataclasses.dataclass(frozen=True)
class RunHistory:
    """The tables of a run, as polars data frames with the columns of its CSV files.

    Attributes:
        name: Of the run.
        episodes: A row per episode.
        updates: A row per figure of an update.
        evaluations: A row per figure, opponent and evaluation.
        speed: A row every few seconds.
    """

    name: str
    episodes: pl.DataFrame
    updates: pl.DataFrame
    evaluations: pl.DataFrame
    speed: pl.DataFrame

    @property
    def phases(self) -> list[tuple[str, int]]:
        """Name of each phase that an episode ended in, and the transitions where it began.

        That is the last of which the phases before it tell something: losses are told when a phase ends.
        """
        told = pl.concat([table.select("phase", "transitions") for table in (self.episodes, self.updates, self.speed)])
        names = self.episodes.group_by("phase", maintain_order=True).agg(pl.col("phase_name").first())
        begun = [
            told.filter(pl.col("phase") < phase).select(pl.col("transitions").max().fill_null(0)).item()
            for phase in names["phase"]
        ]
        return list(zip(names["phase_name"].to_list(), begun, strict=True))


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
