"""Entry points: train from a configuration, or resume an interrupted run.

The first Ctrl-C finishes the current round and saves the run; a second one interrupts at once.
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
from envfleet.training.events import LEARNER, EvaluationSummary, Observer
from envfleet.training.folder import RunFolder, reserve
from envfleet.training.loop.trainer import Trainer
from envfleet.training.plan import RunPlan, resolve
from envfleet.training.records import ProgressBar, TableWriter, TensorBoardWriter, plot_runs

RUNS = "results/runs"
_CHANGED = "the configuration with the arguments"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_NOTICE = "\rSaving after this round; Ctrl-C again ends at once, without saving."  # \r overwrites the terminal's ^C


@dataclasses.dataclass(frozen=True)
class RunResult:
    """Result of a run.

    Attributes:
        run_name: Name of the run and of its folder.
        run_dir: Folder of the run.
        reason: Reason for the end: `"completed"`, `"max_minutes"`, `"max_transitions"`, `"stop_at_return"`,
            `"observer"`, `"interrupted"`.
        total_steps: Transitions, over all sub-environments, and over all sessions of a resumed run.
        total_episodes: Episodes, over the same.
        total_updates: Gradient updates, over the same.
        mean_reward: Mean return of the last 100 training episodes, without shaping.
        evaluation: Metrics of the last evaluation, by opponent: `win_rate`, `mean_return`, …
        rating: Rating in the last evaluation, on the scale of the game's scripted players; `None` in single-player
            environments.
        steps_per_s: Transitions per second in this session, without evaluations.
        seconds: Time spent in this session: `act`, `env`, `wait`, `update`, `evaluation`.
        checkpoint: File of the last agent.
        best_checkpoint: File of the agent with the best evaluation.
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
    """Train an agent; write a folder with checkpoints, tables, logs and plots.

    Ctrl-C saves and ends the run; `resume` continues it.

    Args:
        config: Configuration, content of one as a dict, path of a file, or name of a shipped configuration, such as
            `"quickstart"`.
        num_envs: Number of sub-environments.
        engine: Engine of a game that has several, such as `"box2d"`; `None` for the first.
        backend: Backend of the fleet; `None` for an automatic choice.
        workers: Threads or processes of the fleet; `None` for the fleet's default.
        device: Device of the networks: `"cpu"`, `"cuda"`, …
        seed: Seed, instead of the configuration's.
        max_minutes: Time limit in minutes.
        max_transitions: Limit in transitions.
        stop_at_return: Stop once the mean return of the last 100 episodes is at least this.
        on_failure: Reaction to a failing sub-environment: `"raise"`, or `"restart"`, which rebuilds it and discards the
            failed step.
        max_restarts: Failures allowed within any hour with `on_failure="restart"`; `None` for the configuration's
            value.
        base_output_dir: Folder of runs.
        run_name: Name of the run; `None` for agent, time, a hash of the configuration, and `vec` with the number of
            sub-environments.
        verbose: True to show a progress bar.
        observers: Further observers; see `envfleet.training.events`.

    Raises:
        InvalidArgument: The configuration or an option is invalid.
        TrainingDiverged: A loss is not finite.
    """
    arguments = locals()
    options = RunOptions(**{field.name: arguments[field.name] for field in dataclasses.fields(RunOptions)})
    run_config = read_config(config)
    if seed is not None:
        run_config = change_config(run_config, {"seed": seed}, _CHANGED)
    source = str(config) if isinstance(config, (str, Path)) else "the configuration"
    plan = resolve(run_config, options, source=source)
    folder = RunFolder.create(base_output_dir, plan.config, options=dataclasses.asdict(options), name=run_name)
    return _run(plan, folder, _add_progress_bar(verbose, observers), is_resumed=False)


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
    """Continue a run from its last checkpoint, for whatever reason it ended.

    On a CPU with one thread (`torch.set_num_threads(1)`) the weights and `episodes.csv` at the end are bit-identical to
    those of an uninterrupted run.

    Args:
        run: Folder of the run. Its `resume.pt` is unpickled: resume only runs that you trust.
        max_minutes: Time limit of this session, in minutes.
        max_transitions: Limit in transitions of the whole run. A finished curriculum continues with its last
            phase until then, with its replay buffer, optimizers and shaping unchanged.
        stop_at_return: Stop once the mean return of the last 100 episodes is at least this.
        device: Device of the networks; `None` for the previous one.
        max_restarts: Failures allowed within any hour; `None` for the previous limit.
        verbose: True to show a progress bar.
        observers: Further observers.

    Raises:
        InvalidArgument: Unknown run, or a run without a checkpoint.
    """
    folder = RunFolder.open(run)
    limits = {"max_minutes": max_minutes, "max_transitions": max_transitions, "stop_at_return": stop_at_return}
    saved = folder.read_options() | limits
    saved |= {name: value for name, value in (("device", device), ("max_restarts", max_restarts)) if value is not None}
    plan = resolve(folder.read_config(), RunOptions(**saved), source=str(folder.config))
    return _run(plan, folder, _add_progress_bar(verbose, observers), is_resumed=True)


def train_single_run(  # noqa: PLR0913, PLR0917  # a documented signature
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
    """Train from a configuration file; `num_envs` is the only setting to change for speed.

    Args:
        config_path: File, name of a shipped configuration, content of one as a dict, or a `RunConfig`.
        base_output_dir: Folder of runs.
        run_name: Name of the run, as in `train`.
        verbose: True to show a progress bar.
        eval_freq_steps: Transitions between evaluations; `None` for the file's value.
        eval_num_games: Games per evaluation and opponent; `None` for the file's value.
        eval_weak_opponent: True if evaluations include the weaker scripted players; `None` for the file's value.
        device: Device of the networks: `"cpu"`, `"cuda"`, `"cuda:1"`, …
        checkpoint_path: File of an agent with the initial weights; `None` for the file's value.
        num_envs: Number of sub-environments.
        **options: Further options of `train`: `engine`, `backend`, `seed`, `max_minutes`, …

    Returns:
        Fields of `RunResult` by name, with paths as text.

    Raises:
        InvalidArgument: The configuration or an option is invalid.
        TypeError: Unknown option of `train`.
    """
    changes = {
        "training.eval_frequency": eval_freq_steps,
        "training.eval_games": eval_num_games,
        "training.eval_weak_opponent": eval_weak_opponent,
        "agent.checkpoint_path": None if checkpoint_path is None else str(checkpoint_path),
    }
    changes = {path: value for path, value in changes.items() if value is not None}
    config = change_config(read_config(config_path), changes, _CHANGED)
    options |= {"num_envs": num_envs, "device": device, "run_name": run_name, "verbose": verbose}
    result = train(config, base_output_dir=base_output_dir, **options)
    return {name: str(value) if isinstance(value, Path) else value for name, value in vars(result).items()}


def _add_progress_bar(verbose: bool, observers: Sequence[Observer]) -> list[Observer]:
    return [ProgressBar(), *observers] if verbose else [*observers]


def _run(plan: RunPlan, folder: RunFolder, observers: list[Observer], *, is_resumed: bool) -> RunResult:
    with contextlib.ExitStack() as undo:
        if not is_resumed:
            undo.callback(shutil.rmtree, folder.path)  # after its files are closed, which NFS requires
        with reserve(folder.environment, f"the run in {folder.path}"):
            state = folder.load() if is_resumed else None
            own = [observer_class() for observer_class in plan.observers]
            observers = [TableWriter(folder), TensorBoardWriter(folder), *own, *observers]
            trainer = Trainer(plan, folder=folder, observers=observers, is_resumed=is_resumed)
            undo.pop_all()
            with contextlib.closing(trainer), stop_requests() as should_stop:
                if state is not None:
                    trainer.load_state_dict(state)
                before = trainer.transitions
                try:
                    reason = trainer.run(should_stop)
                    plot_runs([folder.path])
                except OSError as error:
                    if error.errno in NO_ROOM:
                        error.add_note(f"free some disk space, then {folder.advice}")
                    raise
                return _make_result(trainer, folder, reason, trainer.transitions - before)


@contextlib.contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C or SIGTERM into a request to stop; restore the default handlers for the second.

    Outside the main thread Python cannot install signal handlers, so signals keep theirs.

    Yields:
        Function that returns whether a stop was requested.
    """
    requests: list[int] = []  # not an Event, whose lock a second signal would wait for while the first holds it
    with contextlib.ExitStack() as restore:

        def request_stop(number: int, _frame: FrameType | None) -> None:
            requests.append(number)
            restore.close()
            with contextlib.suppress(OSError):  # the reader of the pipe, such as tee, received the same Ctrl-C
                print(_NOTICE, file=sys.stderr, flush=True)  # noqa: T201

        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                restore.callback(signal.signal, number, signal.signal(number, request_stop))
        yield lambda: bool(requests)


def _make_result(trainer: Trainer, folder: RunFolder, reason: str, transitions: int) -> RunResult:
    evaluation = trainer.progress.evaluation or EvaluationSummary(results={}, score=math.nan)
    return RunResult(
        run_name=folder.name,
        run_dir=folder.path,
        reason=reason,
        total_steps=trainer.transitions,
        total_episodes=trainer.progress.episodes,
        total_updates=trainer.agent.num_updates,
        mean_reward=trainer.progress.latest().get("return", math.nan),
        evaluation=evaluation.results,
        rating=evaluation.ratings.get(LEARNER, {}).get("rating"),
        steps_per_s=transitions / trainer.times.training if transitions else 0.0,
        seconds=dataclasses.asdict(trainer.times),
        checkpoint=folder.latest,
        best_checkpoint=folder.best,
    )
