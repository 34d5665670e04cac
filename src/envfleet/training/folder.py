"""The folder of a run: its name, what it began with, its checkpoints."""

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
"""What a run needs to go on; no agent, though its suffix is that of one."""
_GONE = "put the file back that belongs to the run"
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # of file systems of networks, where nothing is held
_PACKAGES = ("envfleet", "box2d", "gymnasium", "numba", "numpy", "openskill", "polars", "torch")


class RunFolder:
    """Where the files of a run are.

    `checkpoints/000000250000.pt` is the agent after 250,000 transitions, `checkpoints/best.pt` the best one so far:
    weights alone, which load without executing anything (`load_agent`). `resume.pt` is the whole run at its last
    checkpoint; it is unpickled, so go on with runs of your own only. Every file is replaced as a whole or not at all.

    Args:
        path: The folder; its name is the run's.

    Attributes:
        path: The folder.
        name: Of the run.
        config: The configuration.
        environment: Options, versions, machine.
        episodes: A row per episode.
        updates: Losses and other figures.
        evaluations: A row per evaluation and opponent.
        plots: Folder of figures.
        checkpoints: Folder of saved agents.
        tensorboard: Folder that `tensorboard --logdir` takes.
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
        """Make the folder of a new run and write down what it begins with.

        Args:
            base: Folder of runs.
            config: Goes to `config.json`, with all defaults filled in.
            options: What else the run was told, of plain values, with `num_envs` among them; goes to
                `environment.json`, with versions of packages and facts about the machine.
            name: Of the run; `None` for agent, time, a hash of the whole configuration and `vec` with the number of
                sub-environments, such as `SAC_2026-01-31_12-00-00_1f0c22ab_vec8`.

        Raises:
            InvalidArgument: There is a run of that name already, or no folder can be made.
        """
        found = {"options": dict(options), **describe_surroundings()}
        try:
            path = _make_named(Path(base), name) if name else _make_unique(Path(base), config, int(options["num_envs"]))
        except OSError as error:
            raise InvalidArgument(
                f"no folder can be made in {base} ({error.strerror}): pass another place for runs"
            ) from error
        folder = cls(path)
        for part in (folder.plots, folder.checkpoints, folder.tensorboard):
            part.mkdir()
        write_whole(folder.environment, json.dumps(found, indent=2, default=str) + "\n")
        write_whole(folder.config, config.model_dump_json(indent=2) + "\n")  # last: with it the folder is a run's
        return folder

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Find the folder of a run that was begun before.

        Raises:
            InvalidArgument: It is none.
        """
        folder = cls(Path(path))
        if not folder.config.is_file():
            raise InvalidArgument(
                f"{path} is no folder of a run, there is no {folder.config.name} in it: pass the folder that "
                f"`envfleet train` named at its beginning, or {_GONE}"
            )
        return folder

    def read_config(self) -> RunConfig:
        """Return the configuration that the run began with.

        Raises:
            InvalidArgument: The file is gone, or was changed to something that cannot be.
        """
        return parse_config(read_json(self.config, _GONE), str(self.config))

    def read_options(self) -> dict[str, Any]:
        """Return what else the run was told when it began.

        Raises:
            InvalidArgument: The file is gone, or was changed to something that cannot be.
        """
        try:
            return dict(read_json(self.environment, _GONE)["options"])
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidArgument(f"{self.environment} has no options: {_GONE}") from error

    @property
    def latest(self) -> Path | None:
        """Return the newest agent's file."""
        return max(self._numbered(), default=None)

    @property
    def best(self) -> Path | None:
        """Return the best agent's file."""
        path = self.checkpoints / BEST
        return path if path.is_file() else None

    @property
    def way_on(self) -> str:
        """Return what to do with a run that ended by an error."""
        if (self.path / RESUME_FILE).is_file():
            return f"go on from its last checkpoint: envfleet train --resume {self.path}"
        return "begin the run again: it has no checkpoint to go on from"

    def save(self, agent: Agent[Any], transitions: int, state: Mapping[str, Any], *, max_kept: int) -> Path:
        """Write the agent, and all that is needed to go on from here.

        Args:
            agent: Whose weights.
            transitions: Of the run so far.
            state: What `load` returns: anything that pickles.
            max_kept: Agents to keep, the best one aside; the oldest goes.

        Returns:
            The agent's file.
        """
        path = self.checkpoints / f"{transitions:012d}.pt"
        agent.save(path, "weights")
        saving.write(self.path / RESUME_FILE, state, is_trusted=True)
        for old in self._numbered()[:-max_kept]:
            old.unlink()
        return path

    def save_best(self, agent: Agent[Any]) -> Path:
        """Write the agent as the best one so far."""
        path = self.checkpoints / BEST
        agent.save(path, "weights")
        return path

    def load(self) -> dict[str, Any]:
        """Return what `save` was given last, and remove unfinished files of a process that was killed in `save`.

        Call it while the run is reserved.

        Raises:
            InvalidArgument: There is none, or it cannot be read.
        """
        path = self.path / RESUME_FILE
        for folder in (self.path, self.checkpoints):
            for unfinished in folder.glob(".*.pt"):
                unfinished.unlink()
        if not path.is_file():
            raise InvalidArgument(
                f"{self.path} has no {RESUME_FILE}: the run ended before its first checkpoint; begin a new one, "
                "with a smaller checkpoint_frequency"
            )
        try:
            return saving.read(path, is_trusted=True)
        except InvalidArgument as error:
            kept = self.latest or self.best
            start = "" if kept is None else f", with agent.checkpoint_path={str(kept)!r} to keep what was learned"
            raise InvalidArgument(f"{path} is damaged, or of another version: begin a new run{start}") from error

    def _numbered(self) -> list[Path]:
        return sorted(path for path in self.checkpoints.glob("*.pt") if path.stem.isdigit())


def agents_in(folder: Path) -> dict[str, Path]:
    """Find the files of saved agents in a folder, at any depth; a file is found itself.

    Returns:
        The files by name, the path within the folder, without `checkpoints` as far as that tells them apart; in order
        of their own names, numbers after words, so that the latest is the last.

    Raises:
        InvalidArgument: There is none.
    """
    if folder.is_file():
        return {folder.stem: folder}
    paths, found = (path for path in folder.rglob("[!.]*.pt") if path.name != RESUME_FILE), dict[str, Path]()
    for path in sorted(paths, key=lambda path: (path.stem.isdigit(), path.name, path)):
        whole = path.relative_to(folder).with_suffix("")
        short = "/".join(part for part in whole.parts if part != "checkpoints")
        found[whole.as_posix() if short in found else short] = path
    if not found:
        raise InvalidArgument(
            f"there is no saved agent (*.pt) in {folder}: pass a file that an agent's save() wrote, or a folder with "
            "some, such as that of a run"
        )
    return found


@contextlib.contextmanager
def reserve(path: Path, what: str) -> Iterator[None]:
    """Hold a file, so that nobody else does meanwhile; this ends with the process, however that ends.

    Raises:
        InvalidArgument: Somebody else holds it; the message says what that is.
    """
    with path.open("r+b") as file:  # NFS locks only what is open for writing
        if os.name == "posix":  # elsewhere nothing is held
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InvalidArgument(
                    f"{what} is under way in another process: wait for its end, or stop it there"
                ) from error
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
        yield


def config_hash(config: RunConfig) -> str:
    """Return eight hex digits that differ if anything in two configurations does."""
    return hashlib.sha256(config.model_dump_json().encode()).hexdigest()[:8]


def _make_named(base: Path, name: str) -> Path:
    if name in {".", ".."} or Path(name).name != name:
        raise InvalidArgument(f"the run's name is {name!r}, expected the name of a folder, without a path: change it")
    path = base / name
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        way_on = "delete that folder: its run saved nothing to go on with"
        if (path / RESUME_FILE).is_file():
            way_on = f"go on with that run (--resume {path})"
        raise InvalidArgument(f"{path} exists already: take another name, or {way_on}") from None
    return path


def _make_unique(base: Path, config: RunConfig, num_envs: int) -> Path:
    time = dt.datetime.now().astimezone().strftime("%Y-%m-%d_%H-%M-%S")
    stem = f"{config.agent.type.rpartition(':')[2]}_{time}_{config_hash(config)}"
    again = 0
    while True:  # ends: every turn found one more folder
        again += 1
        path = base / f"{stem}{f'-{again}' * (again > 1)}_vec{num_envs}"
        with contextlib.suppress(FileExistsError):
            path.mkdir(parents=True)
            return path


def describe_surroundings() -> dict[str, Any]:
    """Versions of Python and packages, and facts about the machine, as plain values."""
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "began": dt.datetime.now().astimezone().isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "packages": {name: version_of(name) for name in _PACKAGES},
        "machine": {"system": platform.platform(), "cpu": cpu_model(), "cores": whole_cores(), "gpus": gpus}
        | {"torch_threads": torch.get_num_threads(), "cuda": torch.version.cuda},
    }
