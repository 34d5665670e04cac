"""The one training loop: for any number of sub-environments, any backend, any kind of agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument
from envfleet.training.announcer import Announcer
from envfleet.training.arena import Arena
from envfleet.training.budget import Budget
from envfleet.training.building import make_agent, make_arena
from envfleet.training.checkpoints import Checkpoints
from envfleet.training.config import Phase, RunConfig
from envfleet.training.curriculum import Curriculum
from envfleet.training.events import (
    Began,
    Ended,
    Episodes,
    Evaluated,
    Learned,
    Observer,
    PhaseBegan,
    Progress,
    Saved,
    Times,
)
from envfleet.training.examining import Examination, Examiner
from envfleet.training.learners import make_learner
from envfleet.training.options import RunOptions
from envfleet.training.outcomes import Results
from envfleet.training.pool import SnapshotPool
from envfleet.training.sources import entries_of, needs_pool
from envfleet.training.standing import LEARNER
from envfleet.training.stopwatch import Stopwatch
from envfleet.training.tally import Tally

_LEARNED_EVERY = 1_000  # transitions


class Trainer:
    """Trains an agent through a curriculum.

    A round is one step of all sub-environments: the agent acts, the step is sent, the updates that are due are made
    while it is under way, and what comes of it is taken in. All counts are in transitions, so what is learned depends
    on `num_envs` as little as can be.

    Args:
        config: What is trained.
        options: How.
        name: Of the run.
        folder: Where checkpoints are written; `None` for none.
        observers: Told what happens; closed with the trainer.

    Attributes:
        agent: Who learns.
        transitions: Made so far.
        episodes: Ended so far.

    Raises:
        InvalidArgument: Configuration and options do not fit together.
    """

    def __init__(
        self,
        config: RunConfig,
        options: RunOptions | None = None,
        *,
        name: str = "run",
        folder: Path | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.config, self.options = config, options or RunOptions()
        self._name, self._folder = name, folder
        self._announcer = Announcer(observers)
        self._budget = Budget(self.options.max_minutes, self.options.max_transitions)
        root = np.random.SeedSequence(config.seed)
        for_envs, for_agent, for_opponents, for_examiner = root.spawn(4)
        self._env_seed, self._opponents_seed = _int_of(for_envs), for_opponents
        self._watch = Stopwatch()
        self._curriculum = Curriculum(config.curriculum.phases)
        self._arena = self._make_arena()
        try:
            self.agent = make_agent(config, self._arena, seed=_int_of(for_agent), device=self.options.device)
        except BaseException:
            self._arena.close()
            raise
        self._learner = make_learner(self.agent, config)
        self._pool = SnapshotPool(self.agent, config.training.pool.size)
        self._examiner = Examiner(config, self.options, _int_of(for_examiner))
        self._checkpoints = None if folder is None else Checkpoints(folder, config.training.max_checkpoints)
        self.transitions = self.episodes = 0
        self._tally = Tally()
        self._observations: NDArray[Any] = np.zeros(0)
        self._has_begun = False
        self._first_transitions = 0

    def _make_arena(self) -> Arena:
        place = self._curriculum.phase.environment
        return make_arena(place, self.config, self.options, seed=self._opponents_seed, stopwatch=self._watch)

    # ------------------------------------------------------------------ the loop

    def run(self, should_stop: Callable[[], bool] = lambda: False) -> str:
        """Train until the curriculum is done, a budget is spent, or somebody asks to stop.

        Args:
            should_stop: Asked before each round.

        Returns:
            Why it ended: `"completed"`, `"max_minutes"`, `"max_transitions"` or `"interrupted"`.

        Raises:
            TrainingDiverged: A loss is no number; the last checkpoint is from before.
            SubEnvError: A sub-environment raised, and `on_failure` is `"raise"`.
        """
        self.begin()
        while (reason := self._why_stop(should_stop)) is None:
            self.round()
        self._tally.add_figures(self._learner.end_phase() if reason == "completed" else {})
        self._end(reason)
        return reason

    def _why_stop(self, should_stop: Callable[[], bool]) -> str | None:
        if self._curriculum.is_finished:
            return "completed"
        return self._budget.spent(self.transitions) or ("interrupted" if should_stop() else None)

    def round(self) -> None:
        """One step of all sub-environments, and what is learned meanwhile."""
        watch, arena = self._watch, self._arena
        watch.start()
        actions = self.agent.act_batch(self._observations)
        watch.lap("act")
        arena.send(actions)
        watch.lap("env")
        self._tally.add_figures(self._learner.learn())
        watch.lap("update")
        step = arena.recv()
        watch.lap("wait" if arena.has_workers else "env")
        self._tally.add_figures(self._learner.take(actions, step))
        watch.lap("update")
        self._observations = step.observations
        before = self.transitions
        self.transitions += arena.num_envs
        self._count(step.results)
        self._do_what_is_due(before)

    def _count(self, results: Results | None) -> None:
        if results is None:
            self._curriculum.count(self._arena.num_envs)
            return
        phase, count = self._curriculum.phase, len(results.env_indices)
        self._curriculum.count(self._arena.num_envs, results.winners)
        self._tally.add_returns(results.returns)
        numbers = self.episodes + np.arange(count)
        self.episodes += count
        self._announcer.tell(
            Episodes(
                numbers=numbers,
                phase=self._curriculum.index,
                phase_name=phase.name,
                transitions=self.transitions,
                updates=self.agent.num_updates,
                **vars(results),
            )
        )

    def _do_what_is_due(self, before: int) -> None:
        training, after = self.config.training, self.transitions

        def is_due(every: int | None) -> bool:
            return every is not None and before // every < after // every

        if is_due(_LEARNED_EVERY):
            self._tell_figures()
        if is_due(training.pool.snapshot_every) and needs_pool(self._curriculum.phase.opponent):
            self._pool.add()
        if self._curriculum.is_phase_over:
            self._end_phase()
        if is_due(training.eval_frequency) and not self._curriculum.is_finished:
            self.evaluate()
        if is_due(training.checkpoint_frequency) and not self._curriculum.is_finished:
            self.save()
        if self._announcer.is_progress_due:
            self._tell_progress()

    # ------------------------------------------------------------------ phases

    def begin(self) -> None:
        """What `run` does before its first round; needed only by those who call `round` themselves."""
        self._budget.begin()
        self._announcer.tell(
            Began(
                run_name=self._name,
                agent=self.agent.name,
                num_envs=self._arena.num_envs,
                plan=self._arena.plan,
                phases=tuple(phase.name for phase in self._curriculum.phases),
                transitions=self.transitions,
                episodes=self.episodes,
                updates=self.agent.num_updates,
                folder=self._folder,
            )
        )
        if not self._has_begun:
            self._begin_phase(self._env_seed)
            self._has_begun = True
        self._first_transitions = self.transitions
        self._announcer.begin(self.transitions)

    def _begin_phase(self, seed: int | None = None) -> None:
        phase = self._curriculum.phase
        if needs_pool(phase.opponent):
            self._pool.add()
        self._enter(phase)
        self._observations, _ = self._arena.reset(seed=seed)
        self._learner.reset(self._observations)
        self._announcer.tell(PhaseBegan(self._curriculum.index, phase.name, self.transitions, self.episodes))

    def _enter(self, phase: Phase) -> None:
        entries = entries_of(phase.opponent, self.agent, self._pool, device=self.options.device)
        self._arena.begin_phase(phase, entries)

    def _end_phase(self) -> None:
        """All sub-environments are reset together; running episodes are closed as if time had ended them."""
        before = self._curriculum.phase
        self._curriculum.advance()
        if self._curriculum.is_finished:
            return
        self._tally.add_figures(self._learner.end_phase())
        self._tell_figures()
        phase, seed = self._curriculum.phase, None
        if phase.clear_buffer:
            self._learner.forget()
        if not phase.environment.is_hockey and phase.environment != before.environment:
            self._arena.close()
            self._arena, seed = self._make_arena(), self._env_seed
        self._begin_phase(seed)

    # ------------------------------------------------------------------ evaluations and checkpoints

    def evaluate(self) -> Examination:
        """Evaluate the agent as it is, and keep it if it is the best so far."""
        self._watch.start()
        found = self._examiner.examine(self.agent, self._pool)
        is_best = self._tally.take_score(found.score, self.transitions)
        self._announcer.tell(
            Evaluated(
                results=found.results,
                transitions=self.transitions,
                episodes=self.episodes,
                updates=self.agent.num_updates,
                phase=self._phase_index,
                score=found.score,
                is_best=is_best,
                ratings=found.ratings,
            )
        )
        self._tally.examination = found
        if is_best and self._checkpoints is not None:
            self._announcer.tell(Saved(self._checkpoints.save_best(self.agent), self.transitions, is_best=True))
        self._watch.lap("evaluation")
        return found

    def save(self) -> None:
        """Write a checkpoint, if the run has a folder."""
        if self._checkpoints is None:
            return
        self._watch.start()
        path = self._checkpoints.save(self.agent, self.transitions, self.state_dict())
        self._announcer.tell(Saved(path, self.transitions, is_best=False))
        self._watch.lap("evaluation")

    def _end(self, reason: str) -> None:
        self._tell_figures()
        if reason != "interrupted" and self._tally.examined_at != self.transitions:
            self.evaluate()
        self.save()
        self._tell_progress()
        self._announcer.tell(
            Ended(
                reason=reason,
                transitions=self.transitions,
                episodes=self.episodes,
                updates=self.agent.num_updates,
                elapsed_s=self._budget.elapsed_s,
                times=self._watch.times,
            )
        )

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs to go on to the last bit, on a CPU with one thread."""
        return {
            "config": self.config.model_dump_json(),
            "num_envs": self._arena.num_envs,
            "counts": {"transitions": self.transitions, "episodes": self.episodes},
            "curriculum": self._curriculum.state_dict(),
            "learner": self._learner.state_dict(),
            "pool": self._pool.state_dict(),
            "arena": {} if self._curriculum.is_finished else self._arena.state_dict(),
            "tally": self._tally.state_dict(),
            "observers": self._announcer.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another trainer of the same configuration was; before `run`.

        Raises:
            InvalidArgument: The configuration or `num_envs` differ.
        """
        if state["config"] != self.config.model_dump_json() or state["num_envs"] != self._arena.num_envs:
            raise InvalidArgument(
                f"the run to go on with had another configuration, or num_envs={state['num_envs']} where this one has "
                f"{self._arena.num_envs}: go on with what it began with"
            )
        self.transitions, self.episodes = state["counts"]["transitions"], state["counts"]["episodes"]
        self._curriculum.load_state_dict(state["curriculum"])
        self._pool.load_state_dict(state["pool"])
        self._tally.load_state_dict(state["tally"])
        self._announcer.load_state_dict(state["observers"])
        self._has_begun = True
        if not self._curriculum.is_finished:
            self._load_arena(state)
        self._learner.load_state_dict(state["learner"])

    def _load_arena(self, state: Mapping[str, Any]) -> None:
        phase = self._curriculum.phase
        if not phase.environment.is_hockey and phase.environment != self._curriculum.phases[0].environment:
            self._arena.close()
            self._arena = self._make_arena()
        self._enter(phase)
        self._observations = self._arena.load_state_dict(state["arena"])
        self._learner.reset(self._observations)

    def close(self) -> None:
        """Close the sub-environments and the observers."""
        self._arena.close()
        self._announcer.close()

    # ------------------------------------------------------------------ figures

    @property
    def mean_return(self) -> float:
        """Mean return of the last 100 episodes, without shaping; NaN before the first."""
        return self._tally.mean_return

    @property
    def evaluation(self) -> Mapping[str, Mapping[str, float]]:
        """Figures of the last evaluation, by opponent."""
        return {} if self._tally.examination is None else self._tally.examination.results

    @property
    def rating(self) -> float | None:
        """The learner's in the last evaluation; `None` if it was not rated."""
        examination = self._tally.examination
        return None if examination is None else examination.ratings.get(LEARNER, {}).get("rating")

    @property
    def times(self) -> Times:
        """Where the seconds of this sitting went."""
        return self._watch.times

    @property
    def steps_per_s(self) -> float:
        """Transitions per second of this sitting, without evaluations and checkpoints."""
        seconds = self.times.total - self.times.evaluation
        return (self.transitions - self._first_transitions) / seconds if seconds else 0.0

    def _tell_figures(self) -> None:
        figures = self._tally.take_figures()
        if figures:
            self._announcer.tell(Learned(figures, self.agent.num_updates, self.transitions, self._phase_index))

    def _tell_progress(self) -> None:
        curriculum, index = self._curriculum, self._phase_index
        self._announcer.tell(
            Progress(
                transitions=self.transitions,
                episodes=self.episodes,
                updates=self.agent.num_updates,
                phase=index,
                phase_name=curriculum.phases[index].name,
                phase_share=1.0 if curriculum.is_finished else curriculum.phase_share,
                run_share=max(curriculum.share, self._budget.share(self.transitions)),
                steps_per_s=self._announcer.take_speed(self.transitions),
                elapsed_s=self._budget.elapsed_s,
                times=self._watch.times,
            )
        )

    @property
    def _phase_index(self) -> int:
        """Of the phase, and of the last one when all are done."""
        return min(self._curriculum.index, len(self._curriculum.phases) - 1)


def _int_of(seed: np.random.SeedSequence) -> int:
    return int(seed.generate_state(1)[0])
