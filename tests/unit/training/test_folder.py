"""Files of a run, also after a kill."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.training.records import played

from envfleet import training
from envfleet.agents import saving
from envfleet.errors import InvalidArgument
from envfleet.training import folder as folder_module
from envfleet.training.config import read_config
from envfleet.training.folder import RunFolder, config_hash, reserve


def test_runs_of_one_second_have_folders_of_their_own(tmp_path: Path) -> None:
    folders = [played.make_folder(tmp_path) for _ in range(3)]
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
    folder = RunFolder.create(tmp_path, played.config(), options=played.OPTIONS, name="mine")
    with pytest.raises(InvalidArgument, match=r"mine exists already: choose another name, or delete that folder"):
        RunFolder.create(tmp_path, played.config(), options=played.OPTIONS, name="mine")
    (folder.path / "resume.pt").touch()
    with pytest.raises(InvalidArgument, match=r"mine exists already: choose another name, or continue .*--resume"):
        RunFolder.create(tmp_path, played.config(), options=played.OPTIONS, name="mine")
    with pytest.raises(InvalidArgument, match=r"cannot make a folder in .*resume\.pt"):
        RunFolder.create(folder.path / "resume.pt", played.config(), options=played.OPTIONS, name="mine")
    with pytest.raises(InvalidArgument, match=r"the name of the run is '\.\./mine', expected the name of a folder"):
        RunFolder.create(tmp_path, played.config(), options=played.OPTIONS, name="../mine")
    with pytest.raises(InvalidArgument, match=r"as config\.json is missing"):
        RunFolder.open(tmp_path)


def test_a_folder_that_is_not_finished_is_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> dict[str, Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(folder_module, "describe_surroundings", interrupt)
    with pytest.raises(KeyboardInterrupt):
        played.make_folder(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["config.json", "environment.json", "resume.pt"])
def test_damaged_files_of_a_run_are_named(name: str, tmp_path: Path) -> None:
    folder = played.make_folder(tmp_path)
    for content in (b'{"options": ', b"3"):
        (folder.path / name).write_bytes(content)
        with pytest.raises(
            InvalidArgument,
            match=rf"{name} (is not JSON .*: fix it|holds a int, expected|lacks options: restore the original"
            r"|is damaged or from another version: start a new)",
        ):
            training.resume(folder.path, verbose=False)


def test_the_files_a_run_began_with_belong_to_it(tmp_path: Path) -> None:
    folder = played.make_folder(tmp_path)
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
    folder = played.make_folder(tmp_path)
    (folder.path / "resume.pt").write_bytes(b"of another world")
    (folder.checkpoints / "000000000100.pt").touch()
    with pytest.raises(InvalidArgument, match=r"with agent.checkpoint_path='.*000000000100\.pt' to keep"):
        training.resume(folder.path, verbose=False)


def test_a_checkpoint_whose_bytes_changed_is_refused(tmp_path: Path) -> None:
    folder = played.make_folder(tmp_path)
    path = folder.path / "resume.pt"
    saving.write(path, {"weights": np.arange(1_000.0)}, is_trusted=True)
    content = path.read_bytes()
    changed = content.replace(np.arange(500.0, 502.0).tobytes(), np.arange(2.0).tobytes())
    assert len(content) == len(changed)
    path.write_bytes(changed)
    with pytest.raises(InvalidArgument, match=r"resume\.pt is damaged"):
        folder.load()


def test_a_run_of_an_earlier_version_is_refused(tmp_path: Path) -> None:
    folder = played.make_folder(tmp_path)
    saving.write(folder.path / "resume.pt", {"num_envs": 1})
    with pytest.raises(InvalidArgument, match=r"resume\.pt is damaged or from another version"):
        training.resume(folder.path, verbose=False)


def test_one_process_at_a_time_writes_into_a_run(tmp_path: Path) -> None:
    folder = played.make_folder(tmp_path)
    with (
        reserve(folder.environment, "the run"),
        pytest.raises(InvalidArgument, match="is in use by another process: wait until it ends"),
    ):
        training.resume(folder.path, verbose=False)
    with reserve(folder.environment, "the run"):
        pass


def test_runs_are_reserved_on_nfs_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", fcntl.lockf)  # what Linux makes of it there
    with reserve(played.make_folder(tmp_path).environment, "the run"):
        pass


def test_runs_go_on_where_nothing_can_be_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))  # as Lustre does, mounted without flock

    monkeypatch.setattr(fcntl, "flock", refuse)
    with reserve(played.make_folder(tmp_path).environment, "the run"):
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


def test_the_folder_says_what_the_run_began_with(tmp_path: Path) -> None:
    run = played.make_folder(tmp_path)
    assert read_config(run.config) == RunFolder.open(run.path).read_config() == played.config()
    environment = json.loads(run.environment.read_text(encoding="utf-8"))
    assert environment["options"] == played.OPTIONS
    assert environment["packages"]["numpy"] == np.__version__
    assert environment["machine"]["cores"] >= 1
