"""TensorBoard logs of a run."""

from __future__ import annotations

from pathlib import Path

from tensorboard.backend.event_processing import event_accumulator  # type: ignore[import-untyped]
from tests.unit.training.records import played

from envfleet.training.folder import RunFolder
from envfleet.training.records.tensorboard import TensorBoardWriter


def test_tensorboard_reads_the_logs(run: RunFolder) -> None:
    logs = event_accumulator.EventAccumulator(str(run.tensorboard))
    logs.Reload()
    assert {"episodes/return", "learning/critic_loss", "evaluation_strong/win_rate", "speed/steps_per_s"} <= set(
        logs.Tags()["scalars"]
    )
    rates = [(event.step, round(event.value, 3)) for event in logs.Scalars("evaluation_weak/win_rate")]
    assert rates[0] == (3200, 0.333)


def test_logs_behind_the_checkpoint_are_hidden_from_tensorboard(tmp_path: Path) -> None:
    folder = played.make_folder(tmp_path)
    for first, transitions in ((0, 0), (40, 6400)):
        writer = TensorBoardWriter(folder)
        played.notify([writer], played.begin(folder.path, transitions), *played.rounds(first, 60, seed=first))
        writer.close()
    logs = event_accumulator.EventAccumulator(str(folder.tensorboard), purge_orphaned_data=True)
    logs.Reload()
    steps = [event.step for event in logs.Scalars("learning/entropy")]
    assert steps == sorted(set(steps))
    assert len(steps) == 12
