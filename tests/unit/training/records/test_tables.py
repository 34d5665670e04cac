"""Tables of a run, also after a kill."""

from __future__ import annotations

import csv
import json
import resource
from pathlib import Path

import numpy as np
import pytest
from tests.unit.training.records import played

from envfleet.errors import InvalidArgument
from envfleet.training.events import Episodes
from envfleet.training.folder import RunFolder
from envfleet.training.records import read_history
from envfleet.training.records.tables import TableWriter


def test_every_episode_is_in_the_table(run: RunFolder) -> None:
    played_ones = [event for event in played.rounds() if isinstance(event, Episodes)]
    with run.episodes.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["episode"]) for row in rows] == list(range(2 * played.ROUNDS))
    expected = np.concatenate([event.returns for event in played_ones])
    assert np.allclose([float(row["return"]) for row in rows], expected, rtol=1e-5)
    assert {row["opponent"] for row in rows} == {"weak", 'a "file", with commas'}
    winners = np.concatenate([event.winners for event in played_ones])
    assert [int(row["winner"]) for row in rows] == winners.tolist()


def test_a_killed_and_resumed_run_has_the_same_tables(run: RunFolder, tmp_path: Path) -> None:
    folder = played.make_folder(tmp_path)
    killed = TableWriter(folder)
    played.notify([killed], played.begin(folder.path), *played.rounds(last=43))
    state = killed.state_dict()
    played.notify([killed], *played.rounds(43, 61, seed=7))  # all this is lost
    killed.close()
    with folder.episodes.open("ab") as file:
        file.write(b"122,9920,49")  # the line it died at

    resumed = TableWriter(folder)
    resumed.load_state_dict(json.loads(json.dumps(state)))
    played.notify([resumed], played.begin(folder.path, transitions=43 * 160), *played.rounds(43), played.end())
    resumed.close()
    for name in ("episodes.csv", "updates.csv", "evaluations.csv"):
        assert (folder.path / name).read_bytes() == (run.path / name).read_bytes()


def test_half_a_line_is_not_read(run: RunFolder, tmp_path: Path) -> None:
    folder = played.make_folder(tmp_path)
    folder.episodes.write_bytes(run.episodes.read_bytes()[:-9])
    assert len(read_history(folder.path).episodes) == 2 * played.ROUNDS - 1


def test_a_table_shorter_than_its_checkpoint_is_refused(tmp_path: Path) -> None:
    folder = played.make_folder(tmp_path)
    tables = TableWriter(folder)
    tables.load_state_dict({"episodes": 1000, "updates": 0, "evaluations": 0})
    with pytest.raises(InvalidArgument, match=r"episodes\.csv has 0 bytes, but .* when it had 1,000"):
        tables.on_event(played.begin(folder.path, 6400))
    tables.close()


def test_the_error_of_a_full_disk_names_the_file(tmp_path: Path) -> None:
    folder = played.make_folder(tmp_path)
    tables = TableWriter(folder)
    tables.on_event(played.begin(folder.path))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match=r"too large: '.*\.csv'"):
            played.notify([tables], *[event for seed in range(20) for event in played.rounds(seed=seed)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    tables.close()
