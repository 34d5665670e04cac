"""The learner's side of a fleet: opponents, shaped rewards and the results of episodes are dealt with here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from envfleet.agents.packing import Packing
from envfleet.envs.hockey.constants import Mode
from envfleet.errors import InvalidArgument
from envfleet.fleet.engine import StepResult
from envfleet.fleet.fleet import Fleet
from envfleet.training.arena.outcomes import ArenaStep, Running, column, in_step
from envfleet.training.arena.shaping import SHAPING_TERMS, RewardShaper
from envfleet.training.arena.stopwatch import Stopwatch
from envfleet.training.config import Phase
from envfleet.training.opponents.opponents import Entry, Opponents

PLAYERS = 2


class Arena(VectorEnv[NDArray[Any], NDArray[Any], NDArray[Any]]):
    """A vector environment for one learner, in `AutoresetMode.SAME_STEP`, made of a fleet for one or two players.

    With two players (observations `(N, 2, …)`, actions `(N, 2, …)`) the learner is player one. Its opponents are drawn
    per episode: scripted ones play inside the environment, by its attribute `player_two`; networks act here, on what
    player two saw in the same step. Rewards are those that are learned from; what the environment gave is in
    `ArenaStep.results`.

    What the learner does and sees is numbered by seats: seat i is player one of sub-environment i. With
    `has_both_sides` there are 2N, seat N + i being player two of sub-environment i; the learner has it in episodes
    against itself. Then the arena is stepped by `send` and `recv` alone.

    Args:
        fleet: In `SAME_STEP`. It is closed with the arena.
        num_players: 1 or 2.
        seed: Of the draws of opponents.
        reward_scale: What all rewards are multiplied by.
        max_loaded: Networks of opponents to keep.
        has_both_sides: Whether the learner learns from either side of games against itself.
        has_states: Whether states of the fleet can be brought back in another one; a service keeps its fleet's own.
        stopwatch: Told where the time goes.

    Attributes:
        fleet: The fleet inside.
        has_states: Whether running episodes are saved; if not, whoever goes on begins new ones.
        num_seats: N or 2N.
        seats: Those that the learner has now, int64, ascending.

    Raises:
        InvalidArgument: The fleet is in another mode, or has not as many players.
    """

    def __init__(
        self,
        fleet: Fleet,
        num_players: int,
        *,
        seed: np.random.SeedSequence,
        reward_scale: float = 1.0,
        max_loaded: int = 8,
        has_both_sides: bool = False,
        has_states: bool = True,
        stopwatch: Stopwatch | None = None,
    ) -> None:
        self.closed = True  # until everything is there
        self.metadata = dict(fleet.metadata)
        if self.metadata["autoreset_mode"] is not AutoresetMode.SAME_STEP:
            raise InvalidArgument(
                f"the fleet's autoreset_mode is {self.metadata['autoreset_mode'].name}, expected SAME_STEP: make it "
                'with autoreset_mode="SAME_STEP"'
            )
        self.fleet, self.has_states = fleet, has_states and fleet.engine.traits.has_states
        self._is_game = num_players == PLAYERS
        self._watch = Stopwatch() if stopwatch is None else stopwatch
        self.num_envs, self.spec, self.render_mode = fleet.num_envs, fleet.spec, fleet.render_mode
        self.single_observation_space: Any = _one_of(fleet.single_observation_space, num_players)
        self.single_action_space: Any = _one_of(fleet.single_action_space, num_players)
        self._pack = Packing(self.single_observation_space).pack
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._opponents = Opponents(
            self.num_envs,
            self.single_action_space.shape or (),
            seed=seed,
            max_loaded=max_loaded,
            spares_learner=has_both_sides,
        )
        self._shaper = RewardShaper(self.num_envs, reward_scale)
        self._running = Running(self.num_envs)
        self._observations: NDArray[Any] = np.zeros(0)  # as the fleet returned them
        self._every = np.arange(self.num_envs)
        self.num_seats, self.seats = self.num_envs * (1 + has_both_sides), self._every
        self.closed = False

    @property
    def plan(self) -> str:
        """Return where the sub-environments run, in a few words."""
        return f"{self.spec.id if self.spec is not None else 'custom environment'}, {self.fleet.plan.describe()}"

    # ------------------------------------------------------------------ phases and resets

    def begin_phase(self, phase: Phase, entries: Sequence[Entry] = ()) -> None:
        """Play by the rules of a phase from the next `reset` on, which is due.

        Args:
            phase: Rewards and, with two players, modes.
            entries: With two players: who the opponents are.
        """
        self._shaper.begin_phase(phase)
        if not self._is_game:
            return
        shares = phase.environment.mode_shares
        settings = {
            "mode": int(Mode.NORMAL),
            "shooting_share": shares.get(Mode.TRAIN_SHOOTING.name, 0.0),
            "defense_share": shares.get(Mode.TRAIN_DEFENSE.name, 0.0),
            "keep_mode": phase.environment.keep_mode,
            "starter": 0,  # said again in every phase, or it would be that of the phase before
            **phase.environment.kwargs,
        }
        for name, value in settings.items():
            self.fleet.set_attr(name, [value] * self.num_envs)
        self._opponents.cast(entries)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Begin an episode everywhere, against opponents that are drawn anew.

        Args:
            seed: As of the fleet.
            options: There are none.

        Returns:
            Observations of all seats, `(num_seats, …)`, and the fleet's infos.
        """
        if options:
            raise InvalidArgument(f"options={options!r}: an arena is reset as a whole, without options")
        if self._is_game:
            self._opponents.draw(self._every)
            self._set_scripts()
            self._take_seats()
        observations, infos = self.fleet.reset(seed=seed)
        self._observations = self._pack(observations)
        self._shaper.begin_episodes(self._every)
        self._running.clear()
        return self._by_seat(self._observations), infos

    def _set_scripts(self) -> None:
        self.fleet.set_attr("player_two", self._opponents.scripts.tolist())

    def _take_seats(self) -> None:
        self.seats = np.concatenate((self._every, self.num_envs + self._opponents.own_rows))

    @property
    def _has_both_sides(self) -> bool:
        return self.num_seats > self.num_envs

    def _by_seat(self, array: NDArray[Any]) -> NDArray[Any]:
        if not self._is_game:
            return array
        if self._has_both_sides:
            return array.swapaxes(0, 1).reshape(-1, *array.shape[2:])  # (N, 2, …) -> (2 * N, …)
        return array[:, 0]

    # ------------------------------------------------------------------ steps

    def send(self, actions: NDArray[Any]) -> None:
        """Start a step with the learner's actions, `(num_seats, …)`, and those of its opponents.

        Actions for seats that it does not have are not looked at.
        """
        if self._is_game:
            joint = np.zeros((self.num_envs, PLAYERS, *self.single_action_space.shape), self.single_action_space.dtype)
            joint[:, 0] = actions[: self.num_envs]
            if self._opponents.has_networks:
                joint[:, 1] = self._opponents.act(self._observations[:, 1])
                self._watch.lap("act")
            own = self._opponents.own_rows
            joint[own, 1] = actions[self.num_envs + own]
            actions = joint
        self.fleet.send(actions)

    def recv(self) -> ArenaStep:
        """Wait for what comes of it; episodes that begin have their opponents then."""
        observations, rewards, terminated, truncated, infos, _ = self.fleet.recv()
        self._watch.lap("wait")
        self._observations = observations = self._pack(observations)
        rows = np.flatnonzero(terminated | truncated)
        winners = np.zeros(self.num_envs, np.int64)
        if len(rows):
            winners[rows] = column(infos, "winner", rows)
        shaped, seats = self._shape(rewards, winners, infos, rows), self.seats
        self._running.add(rewards, shaped[: self.num_envs])
        results = None
        if len(rows):
            names = self._opponents.names(rows) if self._is_game else ("",) * len(rows)
            results = self._running.end(rows, winners[rows], truncated[rows], infos, names)
            self._begin_episodes(rows, winners[rows])
        if self._has_both_sides:
            terminated, truncated = np.tile(terminated, PLAYERS), np.tile(truncated, PLAYERS)
        finals = self.final_observations
        return ArenaStep(seats, self._by_seat(observations), shaped, terminated, truncated, finals, infos, results)

    def _shape(
        self, rewards: NDArray[Any], winners: NDArray[np.int64], infos: Mapping[str, Any], ended: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Rewards to learn from in every seat; 0 for all players two if the learner is none of them."""
        one = self._shaper.shape(rewards, self._terms(infos, "", ended), winners > 0)
        if not self._has_both_sides:
            return one
        two = np.zeros(self.num_envs)
        if len(self._opponents.own_rows):
            theirs = in_step(infos, "reward_two", ended)
            two = self._shaper.shape(theirs, self._terms(infos, "_two", ended), winners < 0)
        return np.concatenate((one, two))

    def _terms(self, infos: Mapping[str, Any], player: str, ended: NDArray[np.int64]) -> NDArray[np.float64] | None:
        if not self._shaper.needs_terms:
            return None
        return np.stack([in_step(infos, name + player, ended) for name in SHAPING_TERMS], axis=1)

    def _begin_episodes(self, rows: NDArray[np.int64], winners: NDArray[np.int64]) -> None:
        if self._is_game:
            self._opponents.report(rows, winners)
            if self._opponents.draw(rows):
                self._set_scripts()
            self._take_seats()
        self._shaper.begin_episodes(rows)

    def step(self, actions: NDArray[Any]) -> StepResult:
        """`send` and `recv`, in the form of every vector environment.

        Raises:
            InvalidArgument: There are more seats than sub-environments.
        """
        if self._has_both_sides:
            raise InvalidArgument(
                f"step() of an arena with {self.num_seats} seats in {self.num_envs} sub-environments: call send() and "
                "recv(), or make it without has_both_sides"
            )
        self.send(actions)
        step = self.recv()
        infos = step.infos
        if step.results is not None and self._is_game:
            finals = np.full(self.num_envs, None, object)
            for row in step.results.env_indices.tolist():
                finals[row] = step.final_observations[row]
            infos = {**infos, "final_obs": finals}
        return step.observations, step.rewards, step.terminated, step.truncated, infos

    @property
    def final_observations(self) -> NDArray[Any]:
        """Last observations of the episodes that ended in the last step, `(num_seats, …)`."""
        return self._by_seat(self._pack(self.fleet.final_observations))

    def close(self, **kwargs: Any) -> None:
        """Close the fleet."""
        self.closed = True
        self.fleet.close(**kwargs)

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` takes; `"fleet"` is the fleet's own, and pickles, or `None` if it has none."""
        return {
            "fleet": self.fleet.get_state() if self.has_states else None,
            "opponents": self._opponents.state_dict(),
            "shaper": self._shaper.state_dict(),
            "running": self._running.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> NDArray[Any]:
        """Go on where another was, after `begin_phase` of the same phase; without states new episodes begin.

        Returns:
            Observations of all seats, `(num_seats, …)`.
        """
        self._opponents.load_state_dict(state["opponents"])
        self._shaper.load_state_dict(state["shaper"])
        if state["fleet"] is None:
            return self.reset()[0]
        self._running.load_state_dict(state["running"])
        if self._is_game:
            self._set_scripts()
            self._take_seats()
        self._observations = self._pack(self.fleet.set_state(state["fleet"]))
        return self._by_seat(self._observations)


def _one_of(space: spaces.Space[Any], num_players: int) -> spaces.Space[Any]:
    """Return the space of one of `num_players` players."""
    if num_players == 1:
        return space
    if not isinstance(space, spaces.Box) or not space.shape or space.shape[0] != num_players:
        raise InvalidArgument(
            f"the space {space} is not one of {num_players} players, expected a Box whose first dimension they are"
        )
    return spaces.Box(space.low[0], space.high[0], dtype=space.low.dtype.type)
