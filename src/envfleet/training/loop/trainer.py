"""Training loop for any number of sub-environments, any backend and any agent."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from envfleet.agents.means import Means
from envfleet.agents.packing import fits_float32
from envfleet.errors import InvalidArgument, ObservationError, RewardError, TrainingDiverged
from envfleet.training import events
from envfleet.training.arena.arena import ArenaStep
from envfleet.training.arena.building import check_phases, make_agent, make_arena
from envfleet.training.arena.stopwatch import Stopwatch
from envfleet.training.config import find_difference, parse_config
from envfleet.training.folder import RunFolder
from envfleet.training.loop.curriculum import CurriculumProgress
from envfleet.training.loop.evaluator import EvaluationStopped, Evaluator
from envfleet.training.loop.learners import make_learner
from envfleet.training.opponents.opponents import entries_of
from envfleet.training.opponents.pool import SnapshotPool
from envfleet.training.plan import RunPlan, fill_in, needs_pool

_LEARNED_EVERY = 1_000  # transitions
_PROGRESS_EVERY_S = 1.0
_EVALUATION_SHARE, _EVALUATION_MINUTES = 1.1, 1.0  # of max_minutes, and beyond that: when an evaluation ends unfinished


class Trainer:
    """Trainer of an agent through a curriculum.

    A round is one step of all sub-environments: the agent acts, the step is sent, scheduled updates are made while the
    fleet steps, and the results are received. All counts are in transitions of the learner: two for a step of a game in
    which it plays both sides, one for any other. So learning depends on `num_envs` as little as possible.

    Args:
        plan: Plan of the run, from `envfleet.training.plan.resolve`.
        folder: Folder of the run, for checkpoints; `None` for no checkpoints.
        observers: Receive events in order; closed with the trainer, including when construction fails.
        is_resumed: True if `load_state_dict` follows: then later phases are not checked again, and the initial weights
            are not read.

    Attributes:
        plan: Plan of the run.
        agent: The learning agent.
        progress: Counters of the run, over all sessions, and the position in the curriculum.

    Raises:
        InvalidArgument: Configuration and options do not fit together.
    """

    def __init__(
        self,
        plan: RunPlan,
        *,
        folder: RunFolder | None = None,
        observers: Sequence[events.Observer] = (),
        is_resumed: bool = False,
    ) -> None:
        self.plan, self._folder = plan, folder
        for_envs, for_agent, self._opponents_seed, for_evaluator = np.random.SeedSequence(plan.config.seed).spawn(4)
        self._env_seed, self._games_seed = _int_of(for_envs), _int_of(for_evaluator)
        self._watch, self.progress = Stopwatch(), CurriculumProgress(plan.phases)
        names = [type(observer).__name__ for observer in observers]  # identify observers in checkpoints
        keys = [f"{name}.{names[:place].count(name)}" for place, name in enumerate(names)]
        self._observers = dict(zip(keys, observers, strict=True))
        with contextlib.ExitStack() as closing:  # closes everything if construction fails
            for observer in reversed(observers):
                closing.callback(observer.close)
            if not is_resumed:
                check_phases(plan)
            self._open(0)
            closing.callback(lambda: self._arena.close())  # noqa: PLW0108  # the arena of the last phase
            self.agent = make_agent(plan, self._arena, seed=_int_of(for_agent), takes_weights=not is_resumed)
            self._learner = make_learner(self.agent, plan)
            closing.callback(self._learner.close)
            self._pool = SnapshotPool(self.agent, plan.training.pool.size)
            self._evaluator = self._make_evaluator()
            closing.callback(self._evaluator.close)
            self._closing = closing.pop_all()
        self._observations: NDArray[Any] = np.zeros(0)
        self._should_stop: Callable[[], bool] = lambda: False
        self._has_begun, self._next_progress_s = False, 0.0
        self._last_arena: Mapping[str, Any] | None = None  # state of the arena of a finished run

    # ------------------------------------------------------------------ the loop

    def run(self, should_stop: Callable[[], bool] = lambda: False) -> str:
        """Train until the curriculum is finished, a limit is reached, or a stop is requested.

        Args:
            should_stop: Called before each round.

        Returns:
            Reason for the end: `"completed"`, `"max_minutes"`, `"max_transitions"`, `"stop_at_return"`, `"observer"` or
            `"interrupted"`.

        Raises:
            TrainingDiverged: A loss is not finite; the message names the last checkpoint before it.
            RewardError: A reward is not finite in float32.
            ObservationError: A sub-environment returned an observation that is not finite in float32.
            SubEnvError: A sub-environment raised, and `on_failure` is `"raise"`.
        """
        self._should_stop = should_stop
        self.begin()
        try:
            if self.progress.is_evaluation_due:
                self.evaluate()
            while (reason := self._why_stop(should_stop)) is None:
                self.round()
        except (TrainingDiverged, RewardError, ObservationError) as error:
            latest = None if self._folder is None else self._folder.latest
            advice = "there is no checkpoint yet" if latest is None else f"the checkpoint {latest} is from before"
            raise type(error)(f"{error}; {advice}") from None
        return self._end(reason)

    def _why_stop(self, should_stop: Callable[[], bool]) -> str | None:
        if self.progress.is_finished:
            return "completed"
        spent = [name for name, share in self._spent().items() if share >= 1]
        if spent:
            return spent[0]
        goal = self.plan.options.stop_at_return
        if goal is not None and self.progress.has_latest and self.progress.latest()["return"] >= goal:
            return "stop_at_return"
        if any(observer.stop_requested for observer in self._observers.values()):
            return "observer"
        return "interrupted" if should_stop() else None

    def _spent(self) -> dict[str, float]:
        """Return the used share of each limit of the run, by name."""
        spent = {"max_transitions": self.transitions, "max_minutes": self._watch.elapsed_s / 60}
        limits = {name: getattr(self.plan.options, name) for name in spent}
        return {name: spent[name] / limit for name, limit in limits.items() if limit is not None}

    def round(self) -> None:
        """Step all sub-environments once, and make updates in the meantime."""
        watch, arena = self._watch, self._arena
        watch.start()
        actions = self.agent.act_batch(self._observations, env_indices=arena.players)
        watch.lap("act")
        arena.send(actions)
        watch.lap("env")
        self._add(self._learner.learn())
        watch.lap("update")
        step = arena.recv()
        watch.lap("env")
        self._check(step)
        if len(step.failed):
            self._learner.cut(step.failed)
        self._add(self._learner.take(step.transitions))
        watch.lap("update")
        self._observations = step.observations
        before = self.transitions
        self.progress.count(len(step.transitions), step.results)
        if step.results is not None:
            self._tell(events.Episodes, **vars(step.results))
        self._do_what_is_due(before)

    def _check(self, step: ArenaStep) -> None:
        """Check that rewards and observations are finite and in their space, before the learner receives them."""
        transitions, num_envs = step.transitions, self._arena.num_envs
        _check_all(
            transitions.rewards,
            fits_float32(transitions.rewards),
            "the reward",
            transitions.env_indices % num_envs,
            RewardError,
        )
        self._check_observations(transitions.next_observations, transitions.env_indices)
        if step.results is not None:  # else those are the same
            self._check_observations(step.observations, self._arena.players)

    def _check_observations(self, observations: NDArray[Any], players: NDArray[np.int64]) -> None:
        packing, rows = self.agent.packing, players % self._arena.num_envs
        values = packing.unpack(torch.from_numpy(observations)) if packing.is_nested else ()
        for part, array in zip(packing.parts, [one.numpy() for one in values] or [observations], strict=True):
            _check_all(array, part.fits(array), part.name, rows, ObservationError)

    def _add(self, figures: dict[str, float]) -> None:
        """Add metrics of updates, which have to be finite."""
        broken = [name for name, value in figures.items() if not math.isfinite(value)]
        if broken:
            raise TrainingDiverged(
                f"{broken[0]} is {figures[broken[0]]} after {self.agent.num_updates:,} updates of {self.agent.name}, "
                "expected a finite number: lower the learning rate or reward_scale, set max_grad_norm, or look for NaN "
                "in the environment's rewards"
            )
        self.progress.figures.add(figures)

    def _do_what_is_due(self, before: int) -> None:
        training, after = self.plan.training, self.transitions
        periods = {
            "report": _LEARNED_EVERY,
            "snapshot": training.pool.snapshot_every,
            "evaluate": training.eval_frequency,
            "save": training.checkpoint_frequency,
        }
        due = {name for name, every in periods.items() if every is not None and before // every < after // every}
        if due - {"save"} or self.progress.is_phase_over:
            self._add(self._learner.finish())
        if "report" in due:
            self._tell_learned()
        if "snapshot" in due and needs_pool(self.plan.opponents[self.progress.phase_index]):
            self._pool.add()
        if self.progress.is_phase_over:
            self._end_phase()
        if "evaluate" in due and not self.progress.is_finished:
            self.evaluate()
        if "save" in due and not self.progress.is_finished:
            self.save()
        if time.monotonic() >= self._next_progress_s:
            self._tell_progress()

    # ------------------------------------------------------------------ phases

    def begin(self) -> None:
        """Prepare the first round; `run` calls it, direct users of `round` do first."""
        self._watch.speed(self.transitions)
        fleet = self._arena.fleet
        name = self._environment.id if fleet.spec is None else fleet.spec.id
        updates = "compiled updates" if self.agent.is_compiled else f"updates by torch on {self.agent.device}"
        self._tell(
            events.Began,
            run_name="run" if self._folder is None else self._folder.name,
            agent=self.agent.name,
            num_envs=self.plan.options.num_envs,
            plan=f"{name}, {fleet.plan.describe()}, {updates}",
            phases=tuple(phase.name for phase in self.progress.phases),
            folder=None if self._folder is None else self._folder.path,
        )
        if not self._has_begun:
            self._begin_phase()
            self._tell(events.PhaseBegan)
            self._has_begun = True
        self._watch.begin()  # once kernels are compiled

    def _open(self, phase: int) -> None:
        self._arena = make_arena(self.plan, phase, seed=self._opponents_seed, stopwatch=self._watch)
        self._environment = self.plan.phases[phase].environment
        self._reset_seed: int | None = self._env_seed

    def _begin_phase(self, state: Mapping[str, Any] | None = None) -> None:
        """Reset all sub-environments for the phase, or restore the state of an arena."""
        index, phase = self.progress.phase_index, self.progress.phase
        opponents = self.plan.opponents[index]
        if state is None and needs_pool(opponents):
            self._pool.add()
        if not phase.environment.is_known_game and phase.environment != self._environment:
            self._arena.close()
            self._open(index)
        arena, seed, self._reset_seed = self._arena, self._reset_seed, None
        entries = entries_of(opponents, self.agent, self._pool, arena.game)
        arena.begin_phase(phase, entries, self.plan.shapings[index])
        self._observations = arena.reset(seed) if state is None else arena.load_state_dict(state)
        self._check_observations(self._observations, arena.players)

    def _end_phase(self) -> None:
        """End the phase: truncate running episodes, and reset all sub-environments for the next phase."""
        self._add(self._learner.end_phase())
        self._tell_learned()
        self._watch.lap("update")
        self.progress.advance()
        if self.progress.is_finished:
            return
        if self.progress.phase.clear_buffer:
            self._learner.forget()
        self._begin_phase()
        self._tell(events.PhaseBegan)

    # ------------------------------------------------------------------ evaluations and checkpoints

    def evaluate(self) -> None:
        """Evaluate the agent, and save it if it is the best so far; a stopped evaluation is repeated on resume."""
        self._watch.start()
        self.progress.is_evaluation_due = True
        self._tell(events.Evaluating)
        with contextlib.suppress(EvaluationStopped):
            summary = self._evaluator.evaluate(self.agent, self._pool, self._must_end_evaluation)
            is_best = self.progress.add_evaluation(summary)
            self._tell(events.Evaluated, is_best=is_best, **vars(summary))
            if is_best and self._folder is not None:
                self._tell(events.Saved, path=self._folder.save_best(self.agent), is_best=True)
        if self.progress.is_evaluation_due and not self._should_stop():
            warnings.warn(
                f"an evaluation was not finished {self._watch.elapsed_s / 60:.3g} minutes after the beginning, with "
                f"max_minutes={self.plan.options.max_minutes}: allow more minutes, lower training.eval_games, or make "
                "sure that episodes end",
                RuntimeWarning,
                stacklevel=2,
            )
        self._watch.lap("evaluation")

    def _must_end_evaluation(self) -> bool:
        limit = self.plan.options.max_minutes
        is_over = limit is not None and self._watch.elapsed_s / 60 > limit * _EVALUATION_SHARE + _EVALUATION_MINUTES
        return is_over or self._should_stop()

    def _make_evaluator(self) -> Evaluator:
        fleet_plan = self._arena.fleet.plan
        options = {name: getattr(self.plan.options, name) for name in ("num_envs", "on_failure", "max_restarts")}
        options |= {"backend": fleet_plan.backend, "workers": fleet_plan.num_workers}
        return Evaluator(self.plan, self._games_seed, options)

    def save(self, learner: Mapping[str, Any] | None = None) -> None:
        """Write a checkpoint, if the run has a folder; by default with the current state of the learner."""
        if self._folder is None:
            return
        self._watch.start()
        most = self.plan.training.max_checkpoints
        path = self._folder.save(self.agent, self.transitions, self.state_dict(learner), max_kept=most)
        self._tell(events.Saved, path=path, is_best=False)
        self._watch.lap("evaluation")

    def _end(self, reason: str) -> str:
        goes_on = reason != "completed" and self._folder is not None
        learner = self._learner.state_dict() if goes_on else None  # before steps that a resumed run does not repeat
        figures = self._learner.finish()
        if reason == "completed":
            self._add(figures)
            self._tell_learned()
        try:
            if reason != "interrupted" and self.progress.evaluated_at != self.transitions:
                self.evaluate()
                reason = "interrupted" if self.progress.is_evaluation_due and self._should_stop() else reason
        except Exception:
            self.save(learner)
            raise
        self.save(learner)
        self._tell_learned()
        self._tell_progress()
        self._tell(events.Ended, reason=reason, elapsed_s=self._watch.elapsed_s, times=self.times)
        return reason

    # ------------------------------------------------------------------ observers

    def _tell(self, kind: type[events.Event], **own: Any) -> None:
        event = kind(
            transitions=self.transitions,
            episodes=self.progress.episodes,
            updates=self._learner.num_updates,
            phase=self.progress.phase_index,
            phase_name=self.progress.phase.name,
            **own,
        )
        for name, observer in self._observers.items():
            try:
                observer.on_event(event)
            except Exception as error:
                error.add_note(
                    f"raised by the observer {name.partition('.')[0]} at {kind.__name__}, which ended the run"
                )
                raise

    def _tell_learned(self) -> None:
        figures, self.progress.figures = self.progress.figures.result(), Means()
        if figures:
            self._tell(events.Learned, figures=figures)

    def _tell_progress(self) -> None:
        self._next_progress_s = time.monotonic() + _PROGRESS_EVERY_S
        self._tell(
            events.Progress,
            run_share=min(max([self.progress.share, *self._spent().values()]), 1.0),
            steps_per_s=self._watch.speed(self.transitions),
            elapsed_s=self._watch.elapsed_s,
            times=self.times,
            latest=self.progress.latest(),
        )

    # ------------------------------------------------------------------ state

    def state_dict(self, learner: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the whole state; a resumed run is bit-identical on a CPU with one thread.

        Args:
            learner: State of the learner; `None` for the current one.
        """
        return {
            "config": self.plan.config.model_dump_json(),
            "num_envs": self._arena.num_envs,
            "learner": learner or self._learner.state_dict(),
            "pool": self._pool.state_dict(),
            "arena": self._last_arena or self._arena.state_dict(),
            "progress": copy.deepcopy(self.progress),
            "observers": {name: observer.state_dict() for name, observer in self._observers.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a trainer with the same configuration; call it before `run`.

        Raises:
            InvalidArgument: The configuration or `num_envs` differ.
        """
        saved, config = parse_config(json.loads(state["config"]), "the saved configuration"), self.plan.config
        saved = fill_in(saved, self.plan.games)
        if changed := find_difference(saved.model_dump(mode="json"), config.model_dump(mode="json")):
            path, before, now = changed
            raise InvalidArgument(
                f"{path} is {now!r} in the configuration, but was {before!r} when the run was saved: change it back, "
                "or start a new run"
            )
        if state["num_envs"] != self._arena.num_envs:
            raise InvalidArgument(
                f"num_envs={self._arena.num_envs}, but the run was saved with num_envs={state['num_envs']}: pass that"
            )
        self.progress = state["progress"]
        most = self.plan.options.max_transitions or 0
        if self.progress.is_finished and most > self.transitions:
            self.progress.extend(most)
        if self.progress.is_finished:
            self._last_arena = state["arena"]
        self._pool.load_state_dict(state["pool"])
        for name in state["observers"].keys() & self._observers.keys():
            self._observers[name].load_state_dict(state["observers"][name])
        self._has_begun = True
        if not self.progress.is_finished:
            self._begin_phase(state["arena"])
        self._learner.load_state_dict(state["learner"])
        if not self.progress.is_finished and state["arena"]["fleet"] is None:
            self._learner.cut()
            warnings.warn(
                f"environments of {self._environment.id!r} cannot be saved in the middle of an episode, so new "
                "episodes begin here; give them get_state() and set_state() to continue exactly",
                RuntimeWarning,
                stacklevel=2,
            )

    def close(self) -> None:
        """Close the sub-environments, the observers and the background thread."""
        self._closing.close()

    # ------------------------------------------------------------------ figures

    @property
    def transitions(self) -> int:
        """Transitions so far, over all sessions."""
        return self.progress.transitions

    @property
    def times(self) -> events.Times:
        """Time spent in this session."""
        return self._watch.times


def _int_of(seed: np.random.SeedSequence) -> int:
    return int(seed.generate_state(1)[0])


def _check_all(values: NDArray[Any], fits: NDArray[Any], name: str, rows: NDArray[Any], error: type[Exception]) -> None:
    """Raise an error that names the first sub-environment with an invalid value, and its index."""
    if not fits.all():
        row, *place = np.argwhere(~fits)[0].tolist()
        raise error(
            f"sub-environment {rows[row]} returned {values[(row, *place)]} in {name}{place or ''}, expected numbers "
            "that are finite in float32, or choices within the space: fix the environment or the shaping function, "
            "e.g. guard a division by zero"
        )
