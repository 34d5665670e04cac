"""`envfleet.evaluate`: whole episodes of any policy in any environment, each from its own seed."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument
from envfleet.evaluation.episodes import BlockPolicy, EpisodeRunner, EpisodeSchedule, Policy
from envfleet.evaluation.policies import AnyPolicy, digest_agent, name_policy, read_policy
from envfleet.evaluation.results import EvaluationResult
from envfleet.evaluation.tasks import TASK, name_tasks, task_functions
from envfleet.files import check_writable, read_json, write_whole
from envfleet.fleet.checks import check_options, check_seeds, check_whole
from envfleet.fleet.evaluating import Progress
from envfleet.fleet.fleet import Fleet
from envfleet.machine import whole_cores
from envfleet.make import make
from envfleet.natives import Native, find_native
from envfleet.options import OPTIONS, Options
from envfleet.registry import BACKENDS
from envfleet.sources import Blueprint, EnvSource, is_kernel_class, name_source, names_kernel, resolve_source

SUCCESS_NAMES = ("is_success", "success")
"""Infos by which environments report success: Gymnasium-Robotics and Stable-Baselines3, Meta-World and ManiSkill."""

_NUM_ENVS = 16
_FORMAT = 1
_SAVE_S = 1.0


def evaluate(  # noqa: PLR0913 (every option is keyword-only)
    policy: AnyPolicy,
    env: EnvSource | Fleet | Sequence[Any],
    *,
    episodes: int = 100,
    seeds: int | Sequence[int] = 0,
    num_envs: int | None = None,
    options: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
    success: str | float | None = None,
    path: str | Path | None = None,
    films: str | Path | None = None,
    batch_rows: int = 32,
    repeat_failed: bool = True,
    progress: Progress | None = None,
    **make_options: Any,
) -> EvaluationResult:
    """Play whole episodes without exploration and return their results.

    Episode `i` starts from `seeds[i]` and is played to its end, whatever the backend and `num_envs`, and however slow
    others are. If its environment or worker fails, an episode is played again from the same seed, until the fleet's
    `max_restarts` are used up; fleets made here have `on_failure="restart"`. Results differ only if the policy draws
    random numbers, or the environment ignores its seed.

    Args:
        policy: `"random"`; the path of a saved agent or of a run; a function of a batch of observations; or an object
            with `act_batch(observations, deterministic)`, or with `predict(observations, deterministic=)` as models of
            Stable-Baselines3 have.
        env: Environment as `envfleet.make` takes it; a fleet, which stays open; or a list of environments with the same
            spaces, the tasks. Sub-environments are shared by all tasks and build one when it is needed.
        episodes: Number of episodes, of each task.
        seeds: First seed, or one seed per episode.
        num_envs: Number of simultaneous episodes; 16 or `episodes` by default, whichever is smaller.
        options: Reset options: one dict for all, or a list of one dict or `None` per episode.
        success: Name of the info that reports success in the last step of an episode, or the lowest return of a
            successful episode. By default `"is_success"` or `"success"`, if the environment has one.
        path: JSON file of finished episodes. It is rewritten as a whole about once a second; if it exists, its episodes
            are not played again, so an evaluation that was killed continues. A file of other arguments or of another
            saved agent is refused; functions and objects are known by name only.
        films: Folder for the films `worst.gif` and `best.gif`: those episodes are played again in an environment made
            with `render_mode="rgb_array"`, which callables receive if they have an argument of that name. A fleet must
            have been made with it.
        batch_rows: Number of observations that the policy always gets at once; rows without an episode repeat an older
            observation. A fixed number keeps the last bits of a network's outputs the same for every `num_envs`.
        repeat_failed: False to count an episode that fails as truncated at that step, instead of playing it again.
        progress: Called after episodes end with a text and the share of finished episodes.
        **make_options: Options of `envfleet.make`, such as `backend` and `workers`, and arguments of the environment.

    Returns:
        Results of all episodes, in order.

    Raises:
        InvalidArgument: An argument is invalid, rewards are vectors, or `path` belongs to another evaluation.
        SubEnvError: A sub-environment could not be built, or raised in a fleet without `on_failure="restart"`.
        RestartBudgetSpent: Environments failed too often; with `path`, finished episodes are kept.

    Examples:
        >>> result = evaluate("random", "CartPole-v1", episodes=4, backend="serial")
        >>> result.lengths.tolist() == result.returns.tolist()
        True
        >>> result.seeds
        (0, 1, 2, 3)
    """
    plan = _Plan(policy, env, episodes, seeds, options, success, make_options)
    results = Records(plan, path)
    block_rows = check_whole("batch_rows", batch_rows, 1)
    if films is not None:
        with _open_for_film(plan, make_options):  # fail now, not when all episodes have been played
            check_writable(Path(films) / "worst.gif")
    if results.missing:
        with _open(plan, num_envs, results.missing, make_options) as fleet:
            play_episodes(
                fleet, plan, results, policy, block_rows=block_rows, repeat_failed=repeat_failed, progress=progress
            )
    film_paths = _film(plan, results, policy, Path(films), block_rows, make_options) if films is not None else ()
    return results.result(film_paths)


class _Plan:
    """Arguments of an evaluation, checked."""

    def __init__(
        self,
        policy: AnyPolicy,
        env: Any,
        episodes: int,
        seeds: Any,
        options: Any,
        success: str | float | None,
        make_options: Mapping[str, Any],
    ) -> None:
        self.env, self._policy, self._make_options = resolve_source(env), policy, make_options
        if isinstance(env, VectorEnv) and not isinstance(env, Fleet):
            raise InvalidArgument("env is a vector environment, expected a fleet: pass envfleet.adopt(env)")
        has_tasks = isinstance(env, Sequence) and not isinstance(env, str)
        self.tasks: tuple[Any, ...] = tuple(map(resolve_source, env)) if has_tasks else ()
        if has_tasks and not self.tasks:
            raise InvalidArgument("env is an empty list: pass at least one environment")
        self.episodes = check_whole("episodes", episodes, 1)
        count = max(len(self.tasks), 1)
        self.task_of = np.repeat(np.arange(count), self.episodes)
        checked = check_seeds(0 if seeds is None else seeds, self.episodes, per="episodes")
        each = [checked + k for k in range(self.episodes)] if isinstance(checked, int) else checked or []
        if None in each:
            raise InvalidArgument("seeds has the entry None, expected one int per episode")
        self.seeds = tuple(int(seed) for seed in each if seed is not None) * count
        check_options(options, self.episodes)
        self._of_tasks: dict[tuple[int, int], Mapping[str, Any]] = {}
        self._options = [options] * self.episodes if options is None or isinstance(options, Mapping) else [*options]
        if success is not None and (isinstance(success, bool) or not isinstance(success, (str, float, int))):
            raise InvalidArgument(f"success={success!r}: pass the name of an info, or the lowest successful return")
        self.success = success
        self.policy_name = name_policy(policy)
        self.task_names = name_tasks(self.tasks) if self.tasks else (self.env_name,)

    @property
    def env_name(self) -> str:
        """Name of the environment, or number of tasks."""
        if isinstance(self.env, Fleet):
            spec = self.env.spec
            return self.env.engine.traits.env_name if spec is None else str(spec.id)
        return f"{len(self.tasks)} tasks" if self.tasks else name_source(self.env)

    def options_of(self, number: int) -> Mapping[str, Any] | None:
        """Return the reset options of an episode, with its task."""
        options = self._options[number % self.episodes]
        if not self.tasks:
            return options
        task = int(self.task_of[number])
        return self._of_tasks.setdefault((task, id(options)), {**(options or {}), TASK: task})

    def describe(self) -> dict[str, Any]:
        """Return what a file of results must agree with."""
        return {
            "env": [*self.task_names],
            "arguments": self._describe_arguments(),
            "policy": self.policy_name,
            "agent": digest_agent(self._policy),
            "seeds": [*self.seeds],
            "options": repr(self._options),
            "success": self.success,
        }

    def _describe_arguments(self) -> str:
        """Return the environments with their arguments, without addresses in memory."""
        source = self.env.spec if isinstance(self.env, Fleet) else self.env
        options = {
            name: value
            for name, value in sorted(self._make_options.items())
            if name not in OPTIONS or name == "transforms"
        }
        return re.sub(" at 0x[0-9a-f]+", "", repr((source, options)))


class Records:
    """Results of episodes by number, and their file.

    Args:
        plan: The evaluation.
        path: JSON file that is read if it exists and rewritten as episodes end; `None` for none.

    Raises:
        InvalidArgument: The file is not one of results, or belongs to another evaluation.
    """

    def __init__(self, plan: _Plan, path: str | Path | None) -> None:
        self._plan, self._path = plan, None if path is None else Path(path)
        self._episodes: dict[int, tuple[float, int, bool, bool | None]] = {}
        self._saved_s = -_SAVE_S
        self._identity: dict[str, Any] = {}
        if self._path is not None:
            self._identity = plan.describe()
            check_writable(self._path)
            if self._path.exists():
                self._read(self._path)

    def _read(self, path: Path) -> None:
        saved = read_json(path, "pass another path")
        if not isinstance(saved, dict) or saved.get("format") != _FORMAT or "episodes" not in saved:
            raise InvalidArgument(f"{path} is not a file of an evaluation: pass another path")
        for name, value in self._identity.items():
            if saved.get(name) != value:
                raise InvalidArgument(
                    f"{path} is of an evaluation with {name}={_short(saved.get(name))}, not {_short(value)}: pass "
                    "another path, or delete the file"
                )
        self._episodes = {int(number): tuple(values) for number, values in saved["episodes"].items()}

    @property
    def missing(self) -> list[int]:
        """Numbers of the episodes without a result."""
        return [number for number in range(len(self._plan.seeds)) if number not in self._episodes]

    @property
    def share(self) -> float:
        """Share of finished episodes."""
        return len(self._episodes) / len(self._plan.seeds)

    def add(self, number: int, total: float, length: int, truncated: bool, success: bool | None) -> None:
        """Add the result of an episode."""
        self._episodes[number] = float(total), int(length), bool(truncated), success

    def save(self, *, at_once: bool = False) -> None:
        """Write the file, if the last time is a second ago."""
        if self._path is None or (not at_once and time.monotonic() - self._saved_s < _SAVE_S):
            return
        content = {"format": _FORMAT, **self._identity, "episodes": self._episodes}
        write_whole(self._path, json.dumps(content))
        self._saved_s = time.monotonic()

    def result(self, films: tuple[Path, ...] = ()) -> EvaluationResult:
        """Return the results of all episodes."""
        rows = [self._episodes[number] for number in range(len(self._plan.seeds))]
        returns, lengths, truncated, successes = zip(*rows, strict=True)
        return EvaluationResult(
            env=self._plan.env_name,
            policy=self._plan.policy_name,
            seeds=self._plan.seeds,
            returns=np.array(returns, np.float64),
            lengths=np.array(lengths, np.int64),
            truncated=np.array(truncated, np.bool_),
            successes=None if None in successes else np.array(successes, np.bool_),
            tasks=self._plan.task_of,
            task_names=self._plan.task_names,
            films=films,
        )


class _Runner(EpisodeRunner):
    """Runner of an evaluation."""

    def __init__(
        self,
        fleet: Fleet,
        plan: _Plan,
        schedule: EpisodeSchedule,
        policy: Policy,
        block_rows: int,
        note: Callable[[int, float, int, bool, bool | None], None],
    ) -> None:
        super().__init__(fleet, plan.seeds, schedule)
        self._plan, self._note = plan, note
        self._policy = BlockPolicy(policy, schedule, block_rows)

    def act(self, observations: Any, rows: NDArray[np.int64]) -> Any:
        return self._policy.act(observations, rows)

    def begin(self, rows: NDArray[np.int64]) -> None:
        self._policy.begin(rows)

    def options(self, rows: NDArray[np.int64]) -> list[Mapping[str, Any] | None]:
        return [self._plan.options_of(number) for number in self.schedule.episodes[rows].tolist()]

    def note(
        self, rows: NDArray[np.int64], truncated: NDArray[np.bool_], find: Callable[[str], NDArray[Any] | None]
    ) -> None:
        success = self._plan.success
        values: NDArray[Any] | None
        if success is None:
            values = next((value for name in SUCCESS_NAMES if (value := find(name)) is not None), None)
        elif isinstance(success, str):
            values = find(success)
            if values is None:
                raise InvalidArgument(
                    f"success={success!r}, but the infos of the last step have no such entry: pass the name of one, "
                    "or the lowest successful return"
                )
        else:
            values = self.returns[rows] >= success
        numbers = self.schedule.episodes[rows].tolist()
        flags = [None] * len(rows) if values is None else [bool(value) for value in values]
        for row, number, limit, flag in zip(rows.tolist(), numbers, truncated.tolist(), flags, strict=True):
            self._note(number, float(self.returns[row]), int(self.lengths[row]), limit, flag)


def play_episodes(
    fleet: Fleet,
    plan: _Plan,
    results: Records,
    policy: AnyPolicy,
    *,
    block_rows: int,
    repeat_failed: bool,
    progress: Progress | None = None,
) -> None:
    """Play the episodes without a result, and add their results."""
    fleet.engine.traits.refuse_vector_rewards("an evaluation")
    schedule = EpisodeSchedule(results.missing, fleet.num_envs, block_rows=block_rows, tasks=plan.task_of)
    acting = read_policy(policy, fleet.single_action_space)
    runner = _Runner(fleet, plan, schedule, acting, block_rows, results.add)
    runner.repeats_lost = repeat_failed
    try:
        for ended in runner.play():
            if len(ended):
                results.save()
                if progress is not None:
                    progress(f"{plan.policy_name} in {plan.env_name}", results.share)
    finally:
        results.save(at_once=True)


@contextlib.contextmanager
def _open(plan: _Plan, num_envs: int | None, numbers: Sequence[int], make_options: dict[str, Any]) -> Iterator[Fleet]:
    """Open the fleet of an evaluation; one that was passed stays open."""
    if isinstance(plan.env, Fleet):
        if make_options or num_envs is not None:
            names = [*make_options, *(["num_envs"] if num_envs is not None else [])]
            raise InvalidArgument(f"{names[0]} is an option of make(), but env is a fleet: leave it out")
        yield plan.env
        return
    wanted = _NUM_ENVS if num_envs is None else check_whole("num_envs", num_envs, 1)
    count = min(wanted, len(numbers))
    options: dict[str, Any] = dict(make_options)
    for name in ("workers", "batch_size"):
        if options.get(name) is not None:
            options[name] = min(check_whole(name, options[name], 1), count)
    source = plan.env
    if plan.tasks:
        env_kwargs = {name: options.pop(name) for name in [*options] if name not in OPTIONS}
        schedule = EpisodeSchedule(numbers, count, tasks=plan.task_of)
        schedule.assign(np.arange(count))  # as it will be played, so that each begins with a task that it needs
        source = task_functions(plan.tasks, plan.task_of[schedule.episodes].tolist(), env_kwargs)
        options.setdefault("backend", "process" if whole_cores() > 1 and count > 1 else "serial")
    if _can_restart(source, options.get("backend", "auto")):
        options.setdefault("on_failure", "restart")
    with make(source, count, **options) as fleet:
        yield fleet


def _can_restart(source: Any, backend: str) -> bool:
    """Return whether `on_failure="restart"` means something; compiled environments do not fail."""
    if names_kernel(source) or backend not in ("auto", *BACKENDS):
        return False
    if backend == "native":
        native = find_native(Blueprint(source, 1, Options(), {}))
        return isinstance(native, Native) and native.kind == "task"
    return backend == "auto" or "on_failure" in BACKENDS[backend].options


def _film(
    plan: _Plan,
    results: Records,
    policy: AnyPolicy,
    folder: Path,
    block_rows: int,
    make_options: dict[str, Any],
) -> tuple[Path, ...]:
    """Play the worst and the best episode again and write their films."""
    from envfleet.envs.film import save_film

    result = results.result()
    with _open_for_film(plan, make_options) as fleet:
        films = []
        for name, number in (("worst", result.worst), ("best", result.best)):
            schedule = EpisodeSchedule([number], fleet.num_envs, block_rows=block_rows, tasks=plan.task_of)
            acting, totals = read_policy(policy, fleet.single_action_space), list[float]()
            runner = _Runner(
                fleet,
                plan,
                schedule,
                acting,
                block_rows,
                lambda _number, total, *_, totals=totals: totals.append(total),
            )
            fps = float(fleet.metadata.get("render_fps") or 30)
            films.append(save_film(folder / f"{name}.gif", _frames(fleet, runner), fps=fps))
            if totals[-1:] != [result.returns[number]]:
                warnings.warn(
                    f"{films[-1]} shows a return of {totals[-1]:.6g}, but episode {number} had "
                    f"{result.returns[number]:.6g}: the policy or the environment draws random numbers that do not "
                    "derive from the seed",
                    RuntimeWarning,
                    stacklevel=3,
                )
    return tuple(films)


def _frames(fleet: Fleet, runner: EpisodeRunner) -> Iterator[NDArray[np.uint8]]:
    hides_last = fleet.autoreset_mode is AutoresetMode.SAME_STEP
    for ended in runner.play():
        if hides_last and len(ended):  # the next episode has begun
            continue
        if fleet.engine.traits.has_objects:
            yield np.asarray(fleet.apply(_render, indices=[0])[0], np.uint8)
        else:
            yield np.asarray((fleet.render() or ())[0], np.uint8)


def _render(env: Any) -> Any:
    return env.render()


@contextlib.contextmanager
def _open_for_film(plan: _Plan, make_options: dict[str, Any]) -> Iterator[Fleet]:
    """Open a fleet of one sub-environment that draws pictures; a fleet that was passed stays open.

    Raises:
        InvalidArgument: The environment has another render mode.
    """
    with contextlib.ExitStack() as stack:
        fleet = plan.env
        if not isinstance(fleet, Fleet):
            env_kwargs = {name: value for name, value in make_options.items() if name not in OPTIONS}
            tasks = plan.tasks or (plan.env,)
            if all(isinstance(task, (str, EnvSpec)) or is_kernel_class(task) for task in tasks):
                env_kwargs["render_mode"] = "rgb_array"
            else:
                tasks = tuple(_with_pictures(task) for task in tasks)
            if plan.tasks:
                fleet = make(task_functions(tasks, [0], env_kwargs), 1, backend="serial")
            else:
                fleet = make(tasks[0], 1, backend="serial", **env_kwargs)
            stack.enter_context(fleet)
        if fleet.render_mode != "rgb_array":
            raise InvalidArgument(
                f"films require render_mode='rgb_array' (got {fleet.render_mode!r}): pass a Gymnasium id, a callable "
                "with an argument render_mode, or a fleet that was made with it"
            )
        yield fleet


def _with_pictures(task: Any) -> Any:
    """Bind the render mode of a callable that takes one."""
    try:
        takes_mode = "render_mode" in inspect.signature(task).parameters
    except (TypeError, ValueError):  # an id, or a built-in callable without a signature
        return task
    return functools.partial(task, render_mode="rgb_array") if takes_mode else task


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
