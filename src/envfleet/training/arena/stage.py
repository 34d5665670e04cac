"""Where a run plays: the arena of its phase, and who plays there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import envfleet
from envfleet.agents import Agent
from envfleet.envs.games import Game, find_game
from envfleet.errors import InvalidArgument
from envfleet.fleet.fleet import Fleet
from envfleet.sources import names_kernel
from envfleet.training.arena.arena import Arena
from envfleet.training.arena.shaping import find_shaping
from envfleet.training.arena.stopwatch import Stopwatch
from envfleet.training.config import Phase, RunConfig
from envfleet.training.config.phases import Environment
from envfleet.training.opponents.pool import SnapshotPool
from envfleet.training.opponents.sources import check_opponents, entries_of, needs_learner, needs_pool
from envfleet.training.options import RunOptions

Seeds = tuple[np.random.SeedSequence, np.random.SeedSequence]


def int_of(seed: np.random.SeedSequence) -> int:
    """Return a seed as a number."""
    return int(seed.generate_state(1)[0])


class Stage:
    """The arena of a run, which is made anew when a phase plays something else.

    Args:
        config: Of the run.
        options: Likewise.
        seeds: Of the first reset of an arena, and of the draws of opponents.
        stopwatch: Told where the time goes.

    Attributes:
        arena: Of the phase; it is closed with the stage.
        game: What is played there; `None` in environments for one.
    """

    def __init__(self, config: RunConfig, options: RunOptions, seeds: Seeds, stopwatch: Stopwatch) -> None:
        self._config, self._options, self._watch = config, options, stopwatch
        self._env_seed, self._opponents_seed = int_of(seeds[0]), seeds[1]
        self._place = config.curriculum.phases[0].environment
        self.game = _game_of(self._place)
        self.arena = self._make_arena()
        self._seed: int | None = self._env_seed  # of the next reset

    def _make_arena(self) -> Arena:
        training, phases = self._config.training, self._config.curriculum.phases
        fleet = make_fleet(self._place, self._options, self.game)
        try:
            return Arena(
                fleet,
                self.game,
                seed=self._opponents_seed,
                reward_scale=training.reward_scale,
                has_both_sides=training.learn_from_both_sides and any(needs_learner(one.opponent) for one in phases),
                has_states=not self._place.is_remote,
                stopwatch=self._watch,
            )
        except BaseException:
            fleet.close()
            raise

    def begin_phase(
        self, phase: Phase, learner: Agent[Any], pool: SnapshotPool, state: Mapping[str, Any] | None = None
    ) -> NDArray[Any]:
        """Reset all sub-environments, to play by the rules of a phase.

        Args:
            phase: Which.
            learner: Who trains.
            pool: Its snapshots.
            state: Of the arena of another stage, to go on where that was in the phase.

        Returns:
            Observations of the learner's seats, `(len(seats), …)`.
        """
        if state is None and needs_pool(phase.opponent):
            pool.add()
        if not phase.environment.is_known_game and phase.environment != self._place:
            self.arena.close()
            self._place, self.game = phase.environment, _game_of(phase.environment)
            self.arena, self._seed = self._make_arena(), self._env_seed
        _check(phase, self.game)
        self.arena.begin_phase(phase, entries_of(phase.opponent, learner, pool, self.game))
        seed, self._seed = self._seed, None
        return self.arena.reset(seed) if state is None else self.arena.load_state_dict(state)


def make_fleet(place: Environment, options: RunOptions, game: Game | None) -> Fleet:
    """Make the fleet of a phase, in `SAME_STEP`.

    Args:
        place: Where the phase plays.
        options: Of the run.
        game: What `place` means; `None` if it is for one.

    Raises:
        InvalidArgument: There is no such environment, or an option does not fit it.
        SubEnvError: A sub-environment could not be built.
        ServiceUnreachable: There is no service at the address of a remote one.
    """
    if place.is_remote:
        if options.backend is not None:
            raise InvalidArgument(
                f"backend={options.backend!r} for an environment behind a service, which decides that: leave it out"
            )
        return envfleet.connect(num_envs=options.num_envs, autoreset_mode="SAME_STEP", **place.kwargs)
    if game is None and options.engine is not None:
        raise InvalidArgument(f"engine={options.engine!r}, but {place.id!r} has none to choose from: leave it out")
    source, kwargs = place.source() if game is None else (game.source(options.engine), {})  # set by each phase
    return envfleet.make(
        source,
        options.num_envs,
        backend=options.backend or ("kernel" if names_kernel(source) else "auto"),
        workers=options.workers,
        autoreset_mode="SAME_STEP",
        on_failure=options.on_failure,
        **kwargs,
    )


def check_phases(phases: Sequence[Phase]) -> None:
    """Check the phases of a run before it begins; its last one may be hours away.

    Raises:
        InvalidArgument: A phase has something that its environment does not, or names a file, class or function that
            cannot be used.
    """
    game = _game_of(phases[0].environment)
    for phase in phases:
        _check(phase, game)
        if phase.shaping is not None:
            find_shaping(phase.shaping)
    if game is not None:
        check_opponents(phases, game)


def _check(phase: Phase, game: Game | None) -> None:
    try:
        phase.check(game)
    except ValueError as error:
        raise InvalidArgument(f"the phase {phase.name!r} {error}") from error


def _game_of(place: Environment) -> Game | None:
    return None if place.is_remote else find_game(place.id, place.kwargs)
