"""Hyperparameter search by Optuna over keys of a configuration: each trial is a run; bad trials are pruned."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import shutil
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from envfleet.errors import InvalidArgument, TrainingDiverged
from envfleet.extras import missing
from envfleet.files import read_json, write_whole
from envfleet.training.config import RunConfig, RunOptions, change_config, read_config
from envfleet.training.events import Episodes, Evaluated, Event, Observer
from envfleet.training.folder import RESUME_FILE, reserve
from envfleet.training.plan import resolve
from envfleet.training.records.figures import new_figure, save_figure, style
from envfleet.training.records.progress import ProgressBar
from envfleet.training.single_run import resume, train

try:
    import optuna
    from optuna.trial import FrozenTrial, TrialState
except ImportError as error:
    raise missing("a search", error) from error

SEARCHES = "results/search"
Space = Mapping[str, Any]
"""By the path of a key: a list of choices, or an object with `low`, `high` and perhaps `log`."""
_SCORE = "score"  # of the last evaluation, an attribute of Optuna's trials
_FORM = 'a list of choices, or {"low": 1e-5, "high": 1e-3, "log": true}'


@dataclasses.dataclass(frozen=True)
class SearchResult:
    """Result of a search.

    Attributes:
        folder: Folder with `best.json`, `search.png`, `search.db` (Optuna's study), and the runs of trials in `runs`.
        scores: Score of each trial, in order; `None` for pruned or interrupted trials.
        values: Values of the keys of the space, for each trial.
        best: Index of the trial with the highest score; `None` if none was completed.
        is_complete: True if all trials have ended; if not, the same call continues the search.
    """

    folder: Path
    scores: Sequence[float | None]
    values: Sequence[Mapping[str, Any]]
    best: int | None
    is_complete: bool

    @property
    def best_config(self) -> Path | None:
        """File of the best trial's configuration, for `train`."""
        return None if self.best is None else self.folder / "best.json"


def search(
    config: RunConfig | Mapping[str, Any] | str | Path,
    space: Mapping[str, Any] | str | Path,
    *,
    trials: int = 20,
    out: str | Path = SEARCHES,
    options: RunOptions | None = None,
    verbose: bool = True,
) -> SearchResult:
    """Search for the values of keys that maximize the score of training.

    The score of a trial is that of its last evaluation: the mean return or, in two-player games, the win rate plus half
    the draw rate. Optuna proposes the values (TPE) and prunes a trial at an evaluation with a score below the median of
    earlier trials at the same step, from the sixth trial on. The same call continues an interrupted or killed search
    within the running trial, with the same proposals.

    Args:
        config: Configuration, as in `train`.
        space: By the path of a key (`"agent.hyperparameters.learning_rate"`, `"curriculum.phases[0].transitions"`):
            a list of choices, or an object with `low`, `high` and, for a logarithmic scale, `log`; whole numbers are
            drawn if both ends are. Or the path of a JSON file with that.
        trials: Total number of trials.
        out: Folder of the search.
        options: Options of each run; `max_minutes` and `max_transitions` are limits of one trial.
        verbose: True to show trials and their progress on stderr.

    Raises:
        InvalidArgument: Unknown key, invalid value, or another search in the folder.
    """
    if trials < 1:
        raise InvalidArgument(f"trials={trials!r}, expected at least 1: pass the number of runs of the search")
    base, folder, options = resolve(read_config(config)).config, Path(out), options or RunOptions()
    ranges = _read_space(space)
    _check_space(ranges, base)
    definition = _define(folder, {"config": base.model_dump(mode="json"), "space": ranges, "options": vars(options)})
    with reserve(definition, f"the search in {out}"), _opened(folder / "search.db") as storage:
        console = Console(stderr=True, highlight=False, quiet=not verbose)
        pruner = optuna.pruners.MedianPruner()
        study = optuna.create_study(
            storage=storage, study_name="search", direction="maximize", pruner=pruner, load_if_exists=True
        )
        return _Search(base, ranges, folder, options, console, storage, study).run(trials)


def _define(folder: Path, content: dict[str, Any]) -> Path:
    """Write the definition of the search, or compare it with that of the existing search.

    Raises:
        InvalidArgument: The folder has another search.
    """
    path = folder / "search.json"
    if not path.exists():
        write_whole(path, json.dumps(content, indent=2) + "\n")
        return path
    recorded = json.loads(path.read_text(encoding="utf-8"))
    differing = [name for name, value in content.items() if recorded.get(name) != json.loads(json.dumps(value))]
    if differing:
        raise InvalidArgument(
            f"{folder} has a search with other {' and '.join(differing)}: pass the same as before, or another "
            "folder as `out` (--out)"
        )
    return path


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[optuna.storages.RDBStorage]:
    """Open Optuna's study in a SQLite file, which a kill leaves whole."""
    connect = functools.partial(sqlite3.connect, path, check_same_thread=False)
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = optuna.storages.RDBStorage("sqlite:///search.db", {"creator": connect})  # a path in a URL needs escapes
    try:
        yield storage
    finally:
        optuna.logging.set_verbosity(level)
        storage.remove_session()
        storage.engine.dispose()


@dataclasses.dataclass(frozen=True)
class _Search:
    """A search and its folder."""

    base: RunConfig
    space: Space
    folder: Path
    options: RunOptions
    console: Console
    storage: optuna.storages.RDBStorage
    study: optuna.Study

    def run(self, trials: int) -> SearchResult:
        """Run the missing trials."""
        for number in range(trials):
            begun = self.study.trials
            if number < len(begun) and begun[number].state.is_finished():
                continue
            trial = self._begin(number, is_new=number >= len(begun))
            drawn = {path: _draw(trial, path, one) for path, one in self.space.items()}
            self.console.print(f"Trial {number + 1} of {trials}: {describe(drawn)}", markup=False)
            try:
                if not self._try(trial, drawn):
                    return self._result(is_complete=False)
            finally:
                self._show()
        return self._result(is_complete=True)

    def _begin(self, number: int, *, is_new: bool) -> optuna.Trial:
        """Return a new trial, or the one that was interrupted."""
        # One sampler per trial, so that proposals do not depend on interruptions.
        self.study.sampler = optuna.samplers.TPESampler(seed=self.base.seed + number)
        if is_new:
            return self.study.ask()
        study_id = self.storage.get_study_id_from_name(self.study.study_name)
        return optuna.Trial(self.study, self.storage.get_trial_id_from_study_id_trial_number(study_id, number))

    def _try(self, trial: optuna.Trial, drawn: Mapping[str, Any]) -> bool:
        """Run a trial to its end; return False if it was interrupted."""
        run_dir = self.folder / "runs" / f"trial-{trial.number + 1:03}"
        try:
            if self._train(trial, drawn, run_dir) == "interrupted":
                return False
            if _SCORE not in trial.user_attrs:
                raise optuna.TrialPruned("no evaluation was finished within max_minutes")
        except (TrainingDiverged, optuna.TrialPruned) as error:
            self.study.tell(trial, state=TrialState.PRUNED)
            self.console.print(f"  ended early: {error}", markup=False)
        else:
            score = trial.user_attrs[_SCORE]
            self.study.tell(trial, score)
            is_best = self.study.best_trial.number == trial.number
            self.console.print(f"  score {score:.4g}{', the best so far' * is_best}")
        (run_dir / RESUME_FILE).unlink(missing_ok=True)  # it may hold a large replay buffer
        return True

    def _train(self, trial: optuna.Trial, drawn: Mapping[str, Any], run_dir: Path) -> str:
        try:
            config = change_config(self.base, drawn, "the configuration of this trial")
            resolve(config, source="the configuration of this trial")
        except InvalidArgument as error:  # values that are incompatible
            raise optuna.TrialPruned(str(error)) from error
        bar = [] if self.console.quiet else [ProgressBar(has_head=False)]
        watch: Any = {"verbose": False, "observers": [_Watch(trial, config.training.eval_frequency), *bar]}
        options = dataclasses.asdict(self.options)
        if (run_dir / RESUME_FILE).is_file():
            limits = {name: options[name] for name in ("max_minutes", "max_transitions", "stop_at_return")}
            return resume(run_dir, **limits, **watch).reason
        shutil.rmtree(run_dir, ignore_errors=True)
        return train(config, base_output_dir=run_dir.parent, run_name=run_dir.name, **options, **watch).reason

    def _show(self) -> None:
        """Write the best configuration and the plot."""
        result = self._result(is_complete=False)
        if result.best is not None and result.best_config is not None:
            best = change_config(self.base, result.values[result.best], "the best configuration")
            write_whole(result.best_config, best.model_dump_json(indent=2) + "\n")
        _plot(self.study.trials, self.space, self.folder / "search.png")

    def _result(self, *, is_complete: bool) -> SearchResult:
        trials = self.study.trials
        scores = [trial.value if trial.state == TrialState.COMPLETE else None for trial in trials]
        known = [score for score in scores if score is not None]
        values = [
            {path: json.loads(value) if isinstance(self.space[path], list) else value for path, value in drawn.items()}
            for drawn in (trial.params for trial in trials)
        ]
        return SearchResult(self.folder, scores, values, scores.index(max(known)) if known else None, is_complete)


class _Watch(Observer):
    """Observer that reports evaluations to Optuna and prunes the run.

    Args:
        trial: Trial of the run.
        every: Transitions between evaluations; `None` for one at the end.
    """

    def __init__(self, trial: optuna.Trial, every: int | None) -> None:
        self._trial, self._every = trial, every or 1
        self._problem = ""

    def on_event(self, event: Event) -> None:
        """Report an evaluation."""
        if isinstance(event, Episodes) and self._problem:  # not at the evaluation itself, which may be the last
            raise optuna.TrialPruned(self._problem)
        if not isinstance(event, Evaluated):
            return
        self._trial.set_user_attr(_SCORE, event.score)
        step = event.transitions // self._every * self._every  # a round may exceed the multiple by some transitions
        reported = self._trial.study.trials[self._trial.number].intermediate_values
        if step in reported:  # reported before the run was resumed, or the final evaluation
            return
        self._trial.report(event.score, step)
        if self._trial.should_prune():
            self._problem = f"{event.score:.4g} at {event.transitions:,} transitions is below the median"


# ---------------------------------------------------------------------- the space


def _read_space(source: Mapping[str, Any] | str | Path) -> dict[str, Any]:
    data = read_json(Path(source), "pass a JSON file with the space") if isinstance(source, (str, Path)) else source
    if not isinstance(data, Mapping) or not data:
        raise InvalidArgument(
            f"the space is {data!r}, expected an object: name a key of the configuration, and {_FORM}"
        )
    return dict(data)


def _check_space(space: Space, base: RunConfig) -> None:
    """Check the form of a space, and that the configuration accepts each bound and each choice.

    Raises:
        InvalidArgument: Unknown key or invalid value.
    """
    for path, choices in space.items():
        if isinstance(choices, list) and choices:
            values = choices
        elif isinstance(choices, Mapping) and {"low", "high"} <= set(choices) <= {"low", "high", "log"}:
            values = [choices["low"], choices["high"]]
            try:
                optuna.distributions.FloatDistribution(**choices)
                if type(choices.get("log", False)) is not bool:
                    raise ValueError(f"log={choices['log']!r} is neither true nor false")
            except (TypeError, ValueError) as error:
                raise InvalidArgument(
                    f"{path} is {choices!r} in the space, not a range ({error}): change it"
                ) from error
        else:
            raise InvalidArgument(f"{path} is {choices!r} in the space: write {_FORM}")
        for value in values:
            source = f"the space has {_shown(value)} for {path}"
            resolve(change_config(base, {path: value}, source), source=source)


def _draw(trial: optuna.Trial, path: str, choices: Any) -> Any:
    if isinstance(choices, list):  # as JSON, so that a choice may be anything
        return json.loads(trial.suggest_categorical(path, [json.dumps(choice) for choice in choices]))
    low, high = choices["low"], choices["high"]
    suggest: Any = trial.suggest_int if isinstance(low, int) and isinstance(high, int) else trial.suggest_float
    return suggest(path, low, high, log=choices.get("log", False))


def describe(values: Mapping[str, Any]) -> str:
    """Return a short description of the values of a trial."""
    return ", ".join(f"{_leaf(path)} {_shown(value)}" for path, value in values.items())


def _leaf(path: str) -> str:
    return path.rpartition(".")[2]


def _shown(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else json.dumps(value)


# ---------------------------------------------------------------------- the plot


def _plot(trials: Sequence[FrozenTrial], space: Space, path: Path) -> None:
    """Plot the scores of all trials over their numbers and over each key."""
    scored = [trial for trial in trials if trial.value is not None]
    done = [trial for trial in scored if trial.state == TrialState.COMPLETE]
    if not scored:
        return
    values = [trial.value or 0.0 for trial in scored]
    fills = ["C0" if trial.state == TrialState.COMPLETE else "none" for trial in scored]
    dots: Any = {"facecolors": fills, "edgecolors": "C0"}
    with style():
        figure, (first, *panels) = new_figure(len(space) + 1)
        first.scatter([trial.number + 1 for trial in scored], values, **dots)
        best = itertools.accumulate((trial.value or 0.0 for trial in done), max)
        first.step([trial.number + 1 for trial in done], [*best], where="post", color="C1", label="best so far")
        first.set(title="Score of trials", xlabel="trial; hollow ones were ended early")
        first.locator_params("x", integer=True)
        first.legend()
        for panel, (key, options) in zip(panels, space.items(), strict=True):
            places = [trial.params[key] for trial in scored]
            if isinstance(options, list):
                choices = [json.dumps(choice) for choice in options]
                places = [choices.index(place) for place in places]
                panel.set_xticks(range(len(options)), [_shown(choice) for choice in options])
            elif options.get("log"):
                panel.set_xscale("log")
            panel.scatter(places, values, **dots)
            panel.set_title(_leaf(key).replace("_", " "))
        save_figure(figure, path)
