"""Folder of a run: name, configuration, options and checkpoints."""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import hashlib
import json
import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import torch

from envfleet.agents import Agent, saving
from envfleet.errors import InvalidArgument
from envfleet.files import read_json, write_whole
from envfleet.machine import cpu_model, version_of, whole_cores
from envfleet.training.config import RunConfig, parse_config

BEST = "best.pt"
RESUME_FILE = "resume.pt"
"""State that a resumed run needs; not an agent, despite the suffix."""
_GONE = "restore the original file of the run"
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # network file systems without locks
_PACKAGES = ("envfleet", "box2d", "gymnasium", "numba", "numpy", "openskill", "polars", "torch")


class RunFolder:
    """Files of a run.

    `checkpoints/000000250000.pt` is the agent after 250,000 transitions, `checkpoints/best.pt` the best one so far;
    both hold weights only, which load without executing code (`load_agent`). `resume.pt` is the whole run at its last
    checkpoint; it is unpickled, so resume only runs that you trust. Files are replaced atomically.

    Args:
        path: Folder; its name is the name of the run.

    Attributes:
        path: Folder of the run.
        name: Name of the run.
        config: File of the configuration.
        environment: File of options, versions and the machine.
        episodes: File with a row per episode.
        updates: File of losses and other metrics.
        evaluations: File with a row per evaluation and opponent.
        plots: Folder of figures.
        checkpoints: Folder of saved agents.
        tensorboard: Folder for `tensorboard --logdir`.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.name
        self.config, self.environment = path / "config.json", path / "environment.json"
        self.episodes, self.updates = path / "episodes.csv", path / "updates.csv"
        self.evaluations = path / "evaluations.csv"
        self.plots, self.checkpoints, self.tensorboard = path / "plots", path / "checkpoints", path / "tensorboard"

    @classmethod
    def create(
        cls, base: str | Path, config: RunConfig, *, options: Mapping[str, Any], name: str | None = None
    ) -> Self:
        """Make the folder of a new run and write its configuration and options.

        Args:
            base: Folder of runs.
            config: Written to `config.json`, with all defaults filled in.
            options: Options of the run as plain values, including `num_envs`; written to `environment.json`, with
                versions of packages and a description of the machine.
            name: Name of the run; `None` for agent, time, a hash of the configuration and `vec` with the number of
                sub-environments, such as `SAC_2026-01-31_12-00-00_1f0c22ab_vec8`.

        Raises:
            InvalidArgument: A run of that name exists, or the folder cannot be made.
        """
        surroundings = {"options": dict(options), **describe_surroundings()}
        try:
            path = _make_named(Path(base), name) if name else _make_unique(Path(base), config, int(options["num_envs"]))
        except OSError as error:
            raise InvalidArgument(
                f"cannot make a folder in {base} ({error.strerror}): pass another folder for runs"
            ) from error
        folder = cls(path)
        for part in (folder.plots, folder.checkpoints, folder.tensorboard):
            part.mkdir()
        write_whole(folder.environment, json.dumps(surroundings, indent=2, default=str) + "\n")
        write_whole(folder.config, config.model_dump_json(indent=2) + "\n")  # last: it marks the folder as one of a run
        return folder

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open the folder of an existing run.

        Raises:
            InvalidArgument: It is not the folder of a run.
        """
        folder = cls(Path(path))
        if not folder.config.is_file():
            raise InvalidArgument(
                f"{path} is not the folder of a run, as {folder.config.name} is missing: pass the folder that "
                f"`envfleet train` printed at the start, or {_GONE}"
            )
        return folder

    def read_config(self) -> RunConfig:
        """Return the configuration of the run.

        Raises:
            InvalidArgument: The file is missing or was edited to an invalid configuration.
        """
        return parse_config(read_json(self.config, _GONE), str(self.config))

    def read_options(self) -> dict[str, Any]:
        """Return the options that the run was started with.

        Raises:
            InvalidArgument: The file is missing or was edited to something invalid.
        """
        try:
            return dict(read_json(self.environment, _GONE)["options"])
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidArgument(f"{self.environment} lacks options: {_GONE}") from error

    @property
    def latest(self) -> Path | None:
        """Return the file of the newest agent."""
        return max(self._numbered(), default=None)

    @property
    def best(self) -> Path | None:
        """Return the file of the best agent."""
        path = self.checkpoints / BEST
        return path if path.is_file() else None

    @property
    def advice(self) -> str:
        """Return advice for a run that ended with an error."""
        if (self.path / RESUME_FILE).is_file():
            return f"continue from its last checkpoint: envfleet train --resume {self.path}"
        return "start the run again: no checkpoint was written"

    def save(self, agent: Agent[Any], transitions: int, state: Mapping[str, Any], *, max_kept: int) -> Path:
        """Write a checkpoint: the agent, and the state that a resumed run needs.

        Args:
            agent: Agent to save.
            transitions: Transitions of the run so far.
            state: Picklable state of the run, which `load` returns.
            max_kept: Number of agents to keep in addition to the best; the oldest is deleted first.

        Returns:
            File of the agent.
        """
        path = self.checkpoints / f"{transitions:012d}.pt"
        agent.save(path, "weights")
        saving.write(self.path / RESUME_FILE, state, is_trusted=True)
        for old in self._numbered()[:-max_kept]:
            old.unlink()
        return path

    def save_best(self, agent: Agent[Any]) -> Path:
        """Write the agent as the best so far."""
        path = self.checkpoints / BEST
        agent.save(path, "weights")
        return path

    def load(self) -> dict[str, Any]:
        """Return the state of the last checkpoint, and delete partial files of a process that was killed in `save`.

        Call it while the run is reserved.

        Raises:
            InvalidArgument: Missing or unreadable checkpoint.
        """
        path = self.path / RESUME_FILE
        for folder in (self.path, self.checkpoints):
            for unfinished in folder.glob(".*.pt"):
                unfinished.unlink()
        if not path.is_file():
            raise InvalidArgument(
                f"{self.path} lacks {RESUME_FILE}: the run ended before its first checkpoint; start a new one, "
                "with a smaller checkpoint_frequency"
            )
        try:
            return saving.read(path, is_trusted=True)
        except InvalidArgument as error:
            kept = self.latest or self.best
            start = "" if kept is None else f", with agent.checkpoint_path={str(kept)!r} to keep its weights"
            raise InvalidArgument(f"{path} is damaged or from another version: start a new run{start}") from error

    def _numbered(self) -> list[Path]:
        return sorted(path for path in self.checkpoints.glob("*.pt") if path.stem.isdigit())


def agents_in(folder: Path) -> dict[str, Path]:
    """Return the files of saved agents in a folder, at any depth; for a file, the file itself.

    Returns:
        Files by name: the path within the folder, without `checkpoints` where names stay unique. Sorted by file name,
        numbers after words, so that the latest checkpoint is last.

    Raises:
        InvalidArgument: A folder without saved agents.
    """
    if folder.is_file():
        return {folder.stem: folder}
    paths, agents = (path for path in folder.rglob("[!.]*.pt") if path.name != RESUME_FILE), dict[str, Path]()
    for path in sorted(paths, key=lambda path: (path.stem.isdigit(), path.name, path)):
        whole = path.relative_to(folder).with_suffix("")
        short = "/".join(part for part in whole.parts if part != "checkpoints")
        agents[whole.as_posix() if short in agents else short] = path
    if not agents:
        raise InvalidArgument(
            f"no saved agent (*.pt) in {folder}: pass a file that an agent's save() wrote, or a folder with "
            "some, such as that of a run"
        )
    return agents


@contextlib.contextmanager
def reserve(path: Path, what: str) -> Iterator[None]:
    """Lock a file exclusively; the operating system releases the lock when the process ends.

    Args:
        path: File to lock.
        what: Description of the locked thing, for the error message.

    Raises:
        InvalidArgument: Another process holds the lock.
    """
    with path.open("r+b") as file:  # NFS locks only files that are open for writing
        if os.name == "posix":  # other systems get no lock
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InvalidArgument(f"{what} is in use by another process: wait until it ends, or stop it") from error
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
        yield


def config_hash(config: RunConfig) -> str:
    """Return a hash of a configuration, eight hex digits."""
    return hashlib.sha256(config.model_dump_json().encode()).hexdigest()[:8]


def _make_named(base: Path, name: str) -> Path:
    if name in {".", ".."} or Path(name).name != name:
        raise InvalidArgument(
            f"the name of the run is {name!r}, expected the name of a folder without a path: change it"
        )
    path = base / name
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        advice = "delete that folder, which is without a checkpoint"
        if (path / RESUME_FILE).is_file():
            advice = f"continue that run (--resume {path})"
        raise InvalidArgument(f"{path} exists already: choose another name, or {advice}") from None
    return path


def _make_unique(base: Path, config: RunConfig, num_envs: int) -> Path:
    time = dt.datetime.now().astimezone().strftime("%Y-%m-%d_%H-%M-%S")
    stem = f"{config.agent.type.rpartition(':')[2]}_{time}_{config_hash(config)}"
    attempt = 0
    while True:  # each failed attempt has found one more existing folder
        attempt += 1
        path = base / f"{stem}{f'-{attempt}' * (attempt > 1)}_vec{num_envs}"
        with contextlib.suppress(FileExistsError):
            path.mkdir(parents=True)
            return path


def describe_surroundings() -> dict[str, Any]:
    """Return versions of Python and packages, and a description of the machine, as plain values."""
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "began": dt.datetime.now().astimezone().isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "packages": {name: version_of(name) for name in _PACKAGES},
        "machine": {"system": platform.platform(), "cpu": cpu_model(), "cores": whole_cores(), "gpus": gpus}
        | {"torch_threads": torch.get_num_threads(), "cuda": torch.version.cuda},
    }
