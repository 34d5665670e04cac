"""Files of a run, also after a kill."""

from __future__ import annotations

import csv
import dataclasses
import errno
import fcntl
import io
import json
import os
import re
import resource
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from matplotlib.collections import LineCollection
from matplotlib.image import imread
from rich.console import Console
from tensorboard.backend.event_processing import event_accumulator  # type: ignore[import-untyped]
from tests.unit.training.records import played

from envfleet import training
from envfleet.agents import saving
from envfleet.errors import InvalidArgument
from envfleet.training import folder as folder_module
from envfleet.training.config import read_config
from envfleet.training.events import Episodes, Evaluating, Event, Learned, Progress
from envfleet.training.folder import RunFolder, config_hash, reserve
from envfleet.training.records import ProgressBar, plot_runs, read_history
from envfleet.training.records.figures import draw_evaluations, draw_returns
from envfleet.training.records.tables import TableWriter
from envfleet.training.records.tensorboard import TensorBoardWriter

OPTIONS = {"num_envs": 2, "engine": "compiled"}
FIGURES = ("evaluations", "losses", "returns", "win_rate")


def make_folder(base: Path, **rest: Any) -> RunFolder:
    return RunFolder.create(base, played.config(**rest), options=OPTIONS)


def tell(observers: list[Any], *events: Event) -> None:
    for event in events:
        for observer in observers:
            observer.on_event(event)


def close(observers: list[Any]) -> None:
    for observer in observers:
        observer.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The folder of a whole run."""
    folder = make_folder(tmp_path_factory.mktemp("runs"))
    observers = [TableWriter(folder), TensorBoardWriter(folder)]
    tell(observers, played.begin(folder.path), *played.rounds(), played.end())
    close(observers)
    plot_runs([folder.path])
    return folder


def test_runs_of_one_second_have_folders_of_their_own(tmp_path: Path) -> None:
    folders = [make_folder(tmp_path) for _ in range(3)]
    assert len({folder.path for folder in folders}) == 3
    assert all(folder.name.startswith("SAC_") and folder.name.endswith("_vec2") for folder in folders)


def test_the_hash_in_the_name_is_of_the_whole_configuration() -> None:
    configs = [
        played.config(),
        played.config(seed=1),
        played.config(training={"reward_scale": 2.0}),
        played.config(agent={"type": "SAC", "hyperparameters": {"target_entropy": -1.0}}),
    ]
    assert len({config_hash(config) for config in configs}) == 4
    assert config_hash(played.config()) == config_hash(played.config())


def test_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, played.config(), options=OPTIONS, name="mine")
    with pytest.raises(InvalidArgument, match=r"mine exists already: choose another name, or delete that folder"):
        RunFolder.create(tmp_path, played.config(), options=OPTIONS, name="mine")
    (folder.path / "resume.pt").touch()
    with pytest.raises(InvalidArgument, match=r"mine exists already: choose another name, or continue .*--resume"):
        RunFolder.create(tmp_path, played.config(), options=OPTIONS, name="mine")
    with pytest.raises(InvalidArgument, match=r"cannot make a folder in .*resume\.pt"):
        RunFolder.create(folder.path / "resume.pt", played.config(), options=OPTIONS, name="mine")
    with pytest.raises(InvalidArgument, match=r"the name of the run is '\.\./mine', expected the name of a folder"):
        RunFolder.create(tmp_path, played.config(), options=OPTIONS, name="../mine")
    with pytest.raises(InvalidArgument, match=r"as config\.json is missing"):
        RunFolder.open(tmp_path)


def test_a_folder_that_is_not_finished_is_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> dict[str, Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(folder_module, "describe_surroundings", interrupt)
    with pytest.raises(KeyboardInterrupt):
        make_folder(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["config.json", "environment.json", "resume.pt"])
def test_damaged_files_of_a_run_are_named(name: str, tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    for content in (b'{"options": ', b"3"):
        (folder.path / name).write_bytes(content)
        with pytest.raises(
            InvalidArgument,
            match=rf"{name} (is not JSON .*: fix it|holds a int, expected|lacks options: restore the original"
            r"|is damaged or from another version: start a new)",
        ):
            training.resume(folder.path, verbose=False)


def test_the_files_a_run_began_with_belong_to_it(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    for content in ('{"options": ["ab", "c"]}', '{"options": [1]}', "{}"):
        folder.environment.write_text(content)
        with pytest.raises(InvalidArgument, match=r"lacks options: restore the original file of the run$"):
            folder.read_options()
    folder.config.unlink()
    for read in (folder.read_config, lambda: RunFolder.open(folder.path)):
        with pytest.raises(InvalidArgument, match=r"restore the original file of the run$"):
            read()


def test_agents_of_one_short_name_are_all_found(tmp_path: Path) -> None:
    names = ("a/best", "a/checkpoints/best", "b/checkpoints/best", "b/checkpoints/12")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.pt").touch()
    paths = {name: path.relative_to(tmp_path).as_posix() for name, path in folder_module.agents_in(tmp_path).items()}
    assert [*paths] == ["a/best", "a/checkpoints/best", "b/best", "b/12"]
    assert [*paths.values()] == [f"{name}.pt" for name in names]


def test_a_damaged_run_names_what_is_left_of_it(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    (folder.path / "resume.pt").write_bytes(b"of another world")
    (folder.checkpoints / "000000000100.pt").touch()
    with pytest.raises(InvalidArgument, match=r"with agent.checkpoint_path='.*000000000100\.pt' to keep"):
        training.resume(folder.path, verbose=False)


def test_a_checkpoint_whose_bytes_changed_is_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    path = folder.path / "resume.pt"
    saving.write(path, {"weights": np.arange(1_000.0)}, is_trusted=True)
    content = path.read_bytes()
    changed = content.replace(np.arange(500.0, 502.0).tobytes(), np.arange(2.0).tobytes())
    assert len(content) == len(changed)
    path.write_bytes(changed)
    with pytest.raises(InvalidArgument, match=r"resume\.pt is damaged"):
        folder.load()


def test_a_run_of_an_earlier_version_is_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    saving.write(folder.path / "resume.pt", {"num_envs": 1})
    with pytest.raises(InvalidArgument, match=r"resume\.pt is damaged or from another version"):
        training.resume(folder.path, verbose=False)


def test_one_process_at_a_time_writes_into_a_run(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    with (
        reserve(folder.environment, "the run"),
        pytest.raises(InvalidArgument, match="is in use by another process: wait until it ends"),
    ):
        training.resume(folder.path, verbose=False)
    with reserve(folder.environment, "the run"):
        pass


def test_runs_are_reserved_on_nfs_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", fcntl.lockf)  # what Linux makes of it there
    with reserve(make_folder(tmp_path).environment, "the run"):
        pass


def test_runs_go_on_where_nothing_can_be_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))  # as Lustre does, mounted without flock

    monkeypatch.setattr(fcntl, "flock", refuse)
    with reserve(make_folder(tmp_path).environment, "the run"):
        pass


def test_the_folder_of_a_failed_start_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[Path] = []

    def remove(path: Path) -> None:
        with reserve(RunFolder(path).environment, "the run"):  # NFS removes no folder with a file in it that is open
            removed.append(path)

    monkeypatch.setattr("shutil.rmtree", remove)
    phase = {"name": "a", "transitions": 1, "environment": {"id": "CartPole-v1"}, "opponent": {"type": "none"}}
    config = {"curriculum": {"phases": [phase]}, "agent": {"type": "DDDQN"}}
    with pytest.raises(InvalidArgument, match="device='warp'"):
        training.train(config, base_output_dir=tmp_path, run_name="a", device="warp", verbose=False)
    assert removed == [tmp_path / "a"]


def test_the_folder_says_what_the_run_began_with(run: RunFolder) -> None:
    assert read_config(run.config) == RunFolder.open(run.path).read_config() == played.config()
    environment = json.loads(run.environment.read_text(encoding="utf-8"))
    assert environment["options"] == OPTIONS
    assert environment["packages"]["numpy"] == np.__version__
    assert environment["machine"]["cores"] >= 1


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


def test_histories_hold_what_was_told(run: RunFolder) -> None:
    history = read_history(run.path)
    assert (history.name, history.phases) == (run.name, [("shooting", 0), ("games", 8000)])
    assert history.updates["figure"].unique().sort().to_list() == ["critic_loss", "entropy"]
    assert history.evaluations.filter(pl.col("opponent") == "weak", pl.col("figure") == "win_rate")[
        "value"
    ].to_list() == pytest.approx([0.333, 0.473, 0.613, 0.753, 0.893])


def test_tensorboard_reads_the_logs(run: RunFolder) -> None:
    logs = event_accumulator.EventAccumulator(str(run.tensorboard))
    logs.Reload()
    assert {"episodes/return", "learning/critic_loss", "evaluation_strong/win_rate", "speed/steps_per_s"} <= set(
        logs.Tags()["scalars"]
    )
    rates = [(event.step, round(event.value, 3)) for event in logs.Scalars("evaluation_weak/win_rate")]
    assert rates[0] == (3200, 0.333)


def test_figures_are_drawn_at_the_end(run: RunFolder) -> None:
    assert sorted(path.stem for path in run.plots.glob("*")) == list(FIGURES)
    for path in run.plots.glob("*.png"):
        picture = imread(path)
        assert picture.shape[0] > 300
        assert picture[..., :3].std() > 0.05  # there is something on it


def test_several_runs_are_drawn_into_the_same_figures(run: RunFolder, tmp_path: Path) -> None:
    other = make_folder(tmp_path)
    observers = [TableWriter(other)]
    tell(observers, played.begin(other.path), *played.rounds(last=30, seed=1))
    close(observers)
    files = plot_runs([run.path, other.path], tmp_path / "both")
    assert sorted(path.stem for path in files) == list(FIGURES)
    assert (tmp_path / "both" / "returns.png").read_bytes() != (run.plots / "returns.png").read_bytes()
    with pytest.raises(InvalidArgument, match=r"2 runs to compare, but no folder for the figures"):
        plot_runs([run.path, other.path])
    with pytest.raises(InvalidArgument, match=r"no run to plot"):
        plot_runs([])


def test_phases_in_plots_begin_where_the_last_one_ended(run: RunFolder) -> None:
    history = read_history(run.path)
    late = history.episodes.filter((pl.col("phase") == 0) | (pl.col("transitions") > 12_000))
    assert dataclasses.replace(history, episodes=late).phases == [("shooting", 0), ("games", 8000)]


def test_one_evaluation_alone_has_its_interval(run: RunFolder) -> None:
    history = read_history(run.path)
    first = history.evaluations.filter(pl.col("transitions") == history.evaluations["transitions"].min())
    figure = draw_evaluations([dataclasses.replace(history, evaluations=first)])
    assert figure is not None
    for panel in figure.axes:
        (lines,) = [drawn for drawn in panel.collections if isinstance(drawn, LineCollection)]
        ((_, low), (_, high)) = lines.get_segments()[0]
        assert high > low


def test_return_curves_are_smoothed_within_phases(run: RunFolder) -> None:
    history = read_history(run.path)
    jump = history.episodes.with_columns(pl.col("return") + 1000 * pl.col("phase"))
    figure = draw_returns([dataclasses.replace(history, episodes=jump)])
    assert figure is not None
    raw, smooth = (np.asarray(line.get_ydata(), float) for line in figure.axes[0].lines[:2])
    assert [line.get_alpha() for line in figure.axes[0].lines[:2]] == [0.3, None]
    ends = jump["return"].to_numpy()
    np.testing.assert_allclose(raw, ends.reshape(-1, len(ends) // len(raw)).mean(1))
    assert np.abs(np.diff(smooth[: len(smooth) // 2])).mean() < 0.3 * np.abs(np.diff(raw[: len(raw) // 2])).mean()
    assert ((smooth < 500) == (raw < 500)).all()  # nothing of one phase gets into another
    smooth_mean, raw_mean = smooth.mean(), raw.mean()
    assert smooth_mean == pytest.approx(raw_mean, abs=1.0)


def test_a_run_that_has_just_begun_has_nothing_to_plot(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    observers = [TableWriter(folder)]
    tell(observers, played.begin(folder.path))
    close(observers)
    assert plot_runs([folder.path]) == []


def test_a_killed_and_resumed_run_has_the_same_tables(run: RunFolder, tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    killed = TableWriter(folder)
    tell([killed], played.begin(folder.path), *played.rounds(last=43))
    state = killed.state_dict()
    tell([killed], *played.rounds(43, 61, seed=7))  # all this is lost
    killed.close()
    with folder.episodes.open("ab") as file:
        file.write(b"122,9920,49")  # the line it died at

    resumed = TableWriter(folder)
    resumed.load_state_dict(json.loads(json.dumps(state)))
    tell([resumed], played.begin(folder.path, transitions=43 * 160), *played.rounds(43), played.end())
    resumed.close()
    for name in ("episodes.csv", "updates.csv", "evaluations.csv"):
        assert (folder.path / name).read_bytes() == (run.path / name).read_bytes()


def test_half_a_line_is_not_read(run: RunFolder, tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    folder.episodes.write_bytes(run.episodes.read_bytes()[:-9])
    assert len(read_history(folder.path).episodes) == 2 * played.ROUNDS - 1


def test_a_table_shorter_than_its_checkpoint_is_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    tables = TableWriter(folder)
    tables.load_state_dict({"episodes": 1000, "updates": 0, "evaluations": 0})
    with pytest.raises(InvalidArgument, match=r"episodes\.csv has 0 bytes, but .* when it had 1,000"):
        tables.on_event(played.begin(folder.path, 6400))
    tables.close()


def test_the_error_of_a_full_disk_names_the_file(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    tables = TableWriter(folder)
    tables.on_event(played.begin(folder.path))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match=r"too large: '.*\.csv'"):
            tell([tables], *[event for seed in range(20) for event in played.rounds(seed=seed)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    tables.close()


def test_logs_behind_the_checkpoint_are_hidden_from_tensorboard(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    for first, transitions in ((0, 0), (40, 6400)):
        writer = TensorBoardWriter(folder)
        tell([writer], played.begin(folder.path, transitions), *played.rounds(first, 60, seed=first))
        writer.close()
    logs = event_accumulator.EventAccumulator(str(folder.tensorboard), purge_orphaned_data=True)
    logs.Reload()
    steps = [event.step for event in logs.Scalars("learning/entropy")]
    assert steps == sorted(set(steps))
    assert len(steps) == 12


def shown(*events: Event, is_terminal: bool, width: int = 80) -> str:
    """Return the text of the progress bar without colors."""
    text = io.StringIO()
    bar = ProgressBar(
        Console(file=text, force_terminal=is_terminal, color_system="standard", width=width, legacy_windows=False)
    )
    tell([bar], *events)
    bar.close()
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text.getvalue())


def test_the_bar_shows_where_the_run_is() -> None:
    text = shown(played.begin(), *played.rounds(last=80), is_terminal=True)
    for part in ("a run begins: SAC, 2 sub-environments", "games 2/2", "12,800", "won", "loss", "left", "79%"):
        assert part in text


def test_the_bar_shows_that_an_evaluation_is_under_way() -> None:
    last = [*played.rounds(last=80)][-1]
    where = {name: getattr(last, name) for name in ("transitions", "episodes", "updates", "phase", "phase_name")}
    text = shown(played.begin(), *played.rounds(last=80), Evaluating(**where), is_terminal=True)
    assert text.rstrip().endswith("evaluating at 12,800")


def test_names_with_brackets_are_shown_as_they_are() -> None:
    begun = dataclasses.replace(played.begin(), run_name="run[a]", folder=Path("runs[b]"))
    progress = next(event for event in played.rounds(last=80) if isinstance(event, Progress))
    text = shown(begun, dataclasses.replace(progress, phase_name="[c] first"), is_terminal=True)
    assert "run[a] begins" in text
    assert "runs[b]" in text
    assert "[c] first 1/2" in text


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_longest_figures_are_whole_in_80_columns(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envfleet.training.records.progress._LINE_EVERY_S", 0.0)
    begun = dataclasses.replace(played.begin(), phases=("a phase of a long name", "mixed modes and opponents") * 6)
    rounds = [event for event in played.rounds() if not isinstance(event, Progress)]
    long = Progress(
        transitions=1_234_567_890, episodes=12_345_678, updates=1, phase=11, phase_name=begun.phases[-1],
        run_share=0.1234, steps_per_s=1_234_567.0, elapsed_s=86_399.0, times=played.TIMES,
        latest={"return": -12_345.67, "win_rate": 1.0},
    )  # fmt: skip
    lossy = Learned(figures={"critic_loss": -1.234e-05}, transitions=1, episodes=1, updates=1, phase=1, phase_name="a")
    text = shown(begun, *rounds, lossy, long, is_terminal=is_terminal)
    assert max(map(len, text.splitlines())) <= 80
    whole = re.sub(r"\s+", " ", text)
    for part in ("modes", "opponents", "1,234,567,890", "12,345,678", "1,234,567", "-1.23e-05", "12% in 23:59:59"):
        assert part in whole, text


def test_without_a_terminal_evaluations_are_lines() -> None:
    lines = shown(played.begin(), *played.rounds(), played.end(), is_terminal=False).splitlines()
    assert lines[0] == "a run begins: SAC, 2 sub-environments"
    assert lines[1] == "evaluated at 3,200: won 33.3% against weak, 21.4% against strong, rating 21.9"
    assert len(lines) == 6


def test_without_a_terminal_there_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envfleet.training.records.progress._LINE_EVERY_S", 0.0)
    lines = shown(played.begin(transitions=1), *played.rounds(last=3), is_terminal=False, width=200).splitlines()
    assert lines[0].startswith("a run continues")
    assert lines[-1].startswith("2% in 0:00:00, 0:00:10 left, phase shooting 1/2, transitions 480, steps/s ")
