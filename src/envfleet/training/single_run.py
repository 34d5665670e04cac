"""The front doors: train by a file, by a configuration, or go on with a run that was interrupted.

Ctrl-C is a request here: the round that is under way is finished, and everything is saved; a second one is Ctrl-C.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from envfleet.files import NO_ROOM
from envfleet.training.config import Backend, RunConfig, RunOptions, change_config, read_config
from envfleet.training.events import LEARNER, Examination, Observer, find_observers
from envfleet.training.folder import RunFolder, reserve
from envfleet.training.loop.trainer import Trainer
from envfleet.training.records import ProgressBar, TableWriter, TensorBoardWriter, plot_runs

RUNS = "results/runs"
_CHANGED = "the configuration with the arguments"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_NOTICE = "\rSaving after this round; Ctrl-C again ends at once, without saving."  # from the ^C that a terminal shows


@dataclasses.dataclass(frozen=True)
class RunResult:
    """What came of a run.

    Attributes:
        run_name: Its name, which is that of its folder.
        run_dir: The folder.
        reason: Why it ended: `"completed"`, `"max_minutes"`, `"max_transitions"`, `"stop_at_return"`, `"observer"`,
            `"interrupted"`.
        total_steps: Transitions, over all sub-environments, and over all sittings if the run was resumed.
        total_episodes: Likewise.
        total_updates: Likewise.
        mean_reward: Mean return of the last 100 episodes of training, without shaping.
        evaluation: All figures of the last evaluation, by opponent: `win_rate`, `mean_return`, …
        rating: Then, on the scale of the game's scripted players; `None` in environments for one.
        steps_per_s: Transitions per second of this sitting, without evaluations.
        seconds: Where those of this sitting went: `act`, `env`, `wait`, `update`, `evaluation`.
        checkpoint: The last agent's file.
        best_checkpoint: The file of the agent that was best in an evaluation.
    """

    run_name: str
    run_dir: Path
    reason: str
    total_steps: int
    total_episodes: int
    total_updates: int
    mean_reward: float
    evaluation: Mapping[str, Mapping[str, float]]
    rating: float | None
    steps_per_s: float
    seconds: Mapping[str, float]
    checkpoint: Path | None
    best_checkpoint: Path | None


def train(  # noqa: PLR0913  # every option is keyword-only
    config: RunConfig | Mapping[str, Any] | str | Path,
    *,
    num_envs: int = 1,
    engine: str | None = None,
    backend: Backend | None = None,
    workers: int | None = None,
    device: str = "cpu",
    seed: int | None = None,
    max_minutes: float | None = None,
    max_transitions: int | None = None,
    stop_at_return: float | None = None,
    on_failure: Literal["raise", "restart"] = "raise",
    max_restarts: int | None = None,
    base_output_dir: str | Path = RUNS,
    run_name: str | None = None,
    verbose: bool = True,
    observers: Sequence[Observer] = (),
) -> RunResult:
    """Train an agent, and leave a folder with checkpoints, tables, logs and plots.

    Ctrl-C ends the run in order; `resume` goes on with it.

    Args:
        config: A configuration, its content as a dict, the path of its file, or the name of one that comes with
            envfleet, such as `"quickstart"`.
        num_envs: Sub-environments.
        engine: Of a game that has several, such as `"box2d"`; `None` for the first of them.
        backend: Of the fleet; `None` chooses.
        workers: Threads or processes of the fleet; `None` for its own choice.
        device: Where networks live: `"cpu"`, `"cuda"`, …
        seed: Instead of the configuration's.
        max_minutes: Stop after so many.
        max_transitions: Stop after so many.
        stop_at_return: Stop once the mean return of the last 100 episodes is at least this.
        on_failure: What happens if a sub-environment fails: `"raise"`, or `"restart"`, which rebuilds it; the failed
            step is not learned from.
        max_restarts: Failures allowed within any hour with `on_failure="restart"`; `None` for what the configuration
            says.
        base_output_dir: Folder of runs.
        run_name: `None` for agent, time, a hash of the configuration, and `vec` with the number of sub-environments.
        verbose: Whether a progress bar is shown.
        observers: More who are told what happens; see `envfleet.training.events`.

    Raises:
        InvalidArgument: The configuration or an option cannot be.
        TrainingDiverged: A loss is no number any more.
    """
    given = locals()
    options = RunOptions(**{field.name: given[field.name] for field in dataclasses.fields(RunOptions)})
    read = read_config(config)
    if seed is not None:
        read = change_config(read, {"seed": seed}, _CHANGED)
    folder = RunFolder.create(base_output_dir, read, options=dataclasses.asdict(options), name=run_name)
    return _run(read, options, folder, _told(verbose, observers), is_resumed=False)


def resume(
    run: str | Path,
    *,
    max_minutes: float | None = None,
    max_transitions: int | None = None,
    stop_at_return: float | None = None,
    device: str | None = None,
    max_restarts: int | None = None,
    verbose: bool = True,
    observers: Sequence[Observer] = (),
) -> RunResult:
    """Go on with a run from its last checkpoint, whatever ended it.

    On a CPU with one thread (`torch.set_num_threads(1)`) it ends with the same weights and the same `episodes.csv` as
    if it had not been interrupted, to the last bit.

    Args:
        run: Its folder. The checkpoint in it is unpickled: resume runs of your own only.
        max_minutes: Stop after so many more.
        max_transitions: Stop after so many of the whole run. A run whose curriculum has ended goes on with its last
            phase until then, with its replay buffer, optimizers and shaping as they were.
        stop_at_return: Stop once the mean return of the last 100 episodes is at least this.
        device: Where networks live; `None` for where they did.
        max_restarts: Failures allowed within any hour; `None` for as many as before.
        verbose: Whether a progress bar is shown.
        observers: More who are told what happens.

    Raises:
        InvalidArgument: There is no such run, or no checkpoint in it.
    """
    folder = RunFolder.open(run)
    limits = {"max_minutes": max_minutes, "max_transitions": max_transitions, "stop_at_return": stop_at_return}
    saved = folder.read_options() | limits
    saved |= {name: value for name, value in (("device", device), ("max_restarts", max_restarts)) if value is not None}
    return _run(folder.read_config(), RunOptions(**saved), folder, _told(verbose, observers), is_resumed=True)


def train_single_run(  # noqa: PLR0913, PLR0917  # the signature that people were promised
    config_path: RunConfig | Mapping[str, Any] | str | Path,
    base_output_dir: str | Path = RUNS,
    run_name: str | None = None,
    verbose: bool = True,
    eval_freq_steps: int | None = None,
    eval_num_games: int | None = None,
    eval_weak_opponent: bool | None = None,
    device: str = "cpu",
    checkpoint_path: str | Path | None = None,
    num_envs: int = 1,
    **options: Any,
) -> dict[str, Any]:
    """Train by a configuration file; `num_envs` is the only thing to change for speed.

    Args:
        config_path: The file, the name of a configuration that comes with envfleet, the content of one as a dict, or a
            `RunConfig`.
        base_output_dir: Folder of runs.
        run_name: As in `train`.
        verbose: Whether a progress bar is shown.
        eval_freq_steps: Transitions between evaluations; `None` for what the file says.
        eval_num_games: Games of each, against each opponent; likewise.
        eval_weak_opponent: Whether the weak scripted player is played, too; likewise.
        device: Where networks live: `"cpu"`, `"cuda"`, `"cuda:1"`, …
        checkpoint_path: File of an agent whose weights are the first ones; likewise.
        num_envs: Sub-environments.
        **options: More of `train`'s: `engine`, `backend`, `seed`, `max_minutes`, …

    Returns:
        The fields of `RunResult` by name, files as text.

    Raises:
        InvalidArgument: The configuration or an option cannot be.
        TypeError: `train` has no such option.
    """
    changes = {
        "training.eval_frequency": eval_freq_steps,
        "training.eval_games": eval_num_games,
        "training.eval_weak_opponent": eval_weak_opponent,
        "agent.checkpoint_path": None if checkpoint_path is None else str(checkpoint_path),
    }
    given = {path: value for path, value in changes.items() if value is not None}
    config = change_config(read_config(config_path), given, _CHANGED)
    options |= {"num_envs": num_envs, "device": device, "run_name": run_name, "verbose": verbose}
    result = train(config, base_output_dir=base_output_dir, **options)
    return {name: str(value) if isinstance(value, Path) else value for name, value in vars(result).items()}


def _told(verbose: bool, observers: Sequence[Observer]) -> list[Observer]:
    return [ProgressBar(), *observers] if verbose else [*observers]


def _run(
    config: RunConfig, options: RunOptions, folder: RunFolder, observers: list[Observer], *, is_resumed: bool
) -> RunResult:
    with contextlib.ExitStack() as unbegun:
        if not is_resumed:
            unbegun.callback(shutil.rmtree, folder.path)  # once nothing in it is open, as NFS wants it
        with reserve(folder.environment, f"the run in {folder.path}"):
            state = folder.load() if is_resumed else None
            own = [kind() for kind in find_observers(config.observers)]
            told = [TableWriter(folder), TensorBoardWriter(folder), *own, *observers]
            trainer = Trainer(config, options, folder=folder, observers=told, is_resumed=is_resumed)
            unbegun.pop_all()
            with contextlib.closing(trainer), stop_requests() as should_stop:
                if state is not None:
                    trainer.load_state_dict(state)
                before = trainer.transitions
                try:
                    reason = trainer.run(should_stop)
                    plot_runs([folder.path])
                except OSError as error:
                    if error.errno in NO_ROOM:
                        error.add_note(f"free some space, then {folder.way_on}")
                    raise
                return _result(trainer, folder, reason, trainer.transitions - before)


@contextlib.contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Take Ctrl-C and SIGTERM for requests to stop, and say so; a second one does what it always does.

    Outside the main thread, where Python lets nobody do that, signals stay as they are.

    Yields:
        Whether somebody has asked.
    """
    asked = threading.Event()
    with contextlib.ExitStack() as restoring:

        def ask(_number: int, _frame: FrameType | None) -> None:
            asked.set()
            restoring.close()
            with contextlib.suppress(OSError):  # of a pipe whose reader, such as tee, had the same Ctrl-C
                print(_NOTICE, file=sys.stderr, flush=True)  # noqa: T201

        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                restoring.callback(signal.signal, number, signal.signal(number, ask))
        yield asked.is_set


def _result(trainer: Trainer, folder: RunFolder, reason: str, made: int) -> RunResult:
    found = trainer.tally.examination or Examination(results={}, score=math.nan)
    return RunResult(
        run_name=folder.name,
        run_dir=folder.path,
        reason=reason,
        total_steps=trainer.transitions,
        total_episodes=trainer.tally.episodes,
        total_updates=trainer.agent.num_updates,
        mean_reward=trainer.tally.latest().get("return", math.nan),
        evaluation=found.results,
        rating=found.ratings.get(LEARNER, {}).get("rating"),
        steps_per_s=made / trainer.times.training if made else 0.0,
        seconds=dataclasses.asdict(trainer.times),
        checkpoint=folder.latest,
        best_checkpoint=folder.best,
    )
