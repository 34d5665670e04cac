"""Where a run plays: the arena of its phase, and who plays there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.agents import Agent
from envfleet.training.arena.arena import Arena
from envfleet.training.arena.building import make_arena
from envfleet.training.arena.stopwatch import Stopwatch
from envfleet.training.config import Phase, RunConfig
from envfleet.training.opponents.pool import SnapshotPool
from envfleet.training.opponents.sources import entries_of, needs_pool
from envfleet.training.options import RunOptions


class Stage:
    """The arena of a run, which is made anew when a phase plays something else.

    Args:
        config: Of the run.
        options: Likewise.
        env_seed: Of the first reset of an arena.
        opponents_seed: Of the draws of opponents.
        stopwatch: Told where the time goes.

    Attributes:
        arena: Of the phase; it is closed with the stage.
    """

    def __init__(
        self,
        config: RunConfig,
        options: RunOptions,
        *,
        env_seed: int,
        opponents_seed: np.random.SeedSequence,
        stopwatch: Stopwatch,
    ) -> None:
        self._config, self._options, self._watch = config, options, stopwatch
        self._env_seed, self._opponents_seed = env_seed, opponents_seed
        self._place = config.curriculum.phases[0].environment
        self.arena = self._make_arena()
        self._is_new = True

    def _make_arena(self) -> Arena:
        return make_arena(self._place, self._config, self._options, seed=self._opponents_seed, stopwatch=self._watch)

    def begin_phase(self, phase: Phase, learner: Agent[Any], pool: SnapshotPool) -> NDArray[Any]:
        """Reset all sub-environments, to play by the rules of a phase.

        Returns:
            Observations of all seats of the arena, `(num_seats, …)`.
        """
        if needs_pool(phase.opponent):
            pool.add()
        self._enter(phase, learner, pool)
        seed, self._is_new = self._env_seed if self._is_new else None, False
        observations: NDArray[Any] = self.arena.reset(seed=seed)[0]
        return observations

    def _enter(self, phase: Phase, learner: Agent[Any], pool: SnapshotPool) -> None:
        if not phase.environment.is_hockey and phase.environment != self._place:
            self.arena.close()
            self._place = phase.environment
            self.arena, self._is_new = self._make_arena(), True
        self.arena.begin_phase(phase, entries_of(phase.opponent, learner, pool, device=self._options.device))

    def load_state_dict(
        self, state: Mapping[str, Any], phase: Phase, learner: Agent[Any], pool: SnapshotPool
    ) -> NDArray[Any]:
        """Go on in a phase where the arena of another stage was, of which `state` is the state.

        Returns:
            Observations of all seats of the arena, `(num_seats, …)`.
        """
        self._enter(phase, learner, pool)
        self._is_new = False
        return self.arena.load_state_dict(state)
