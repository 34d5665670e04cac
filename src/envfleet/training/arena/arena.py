"""Learner's side of a fleet, with opponents, shaped rewards and results of episodes."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.agents import Transitions
from envfleet.agents.packing import Packing
from envfleet.envs.games import Game
from envfleet.errors import InvalidArgument, StateUnsupported, SubEnvError
from envfleet.fleet.fleet import Fleet
from envfleet.fleet.outcomes import final_observations
from envfleet.training.arena.shaping import RewardShaper
from envfleet.training.arena.stopwatch import Stopwatch
from envfleet.training.events import Results
from envfleet.training.games.players import idle_actions
from envfleet.training.opponents.opponents import Entry, Opponents
from envfleet.training.phases import Phase
from envfleet.training.plan import Shaping


@dataclasses.dataclass(frozen=True, eq=False)
class ArenaStep:
    """Result of one step of an arena.

    Attributes:
        observations: Observations of the learner's players after the step, `(len(players), …)`; the first observation
            of the next episode where one ended.
        transitions: Transitions to learn from, one per player that the learner controlled, with the index of the player
            as `env_indices`; without those of failed sub-environments.
        failed: Players in sub-environments that failed and were rebuilt, int64; their episodes ended one step earlier.
        results: Results of the finished episodes, for player one; `None` without any.
    """

    observations: NDArray[Any]
    transitions: Transitions
    failed: NDArray[np.int64]
    results: Results | None


def column(infos: Mapping[str, Any], name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
    """Return an info value of the last step of finished episodes, one for each of `rows`; 0 if it is absent."""
    last = infos.get("final_info", {})
    return np.asarray(last[name])[rows] if name in last else np.zeros(len(rows), np.int64)


def in_step(infos: Mapping[str, Any], name: str, ended: NDArray[np.int64], num_envs: int) -> NDArray[np.float64]:
    """Return an info value of the step for all sub-environments; rows in `ended` read it from `final_info`.

    Returns:
        `(num_envs,)`; 0 where a sub-environment failed and was rebuilt.

    Raises:
        InvalidArgument: The infos of the environment do not have the value.
    """
    if not len(ended) and name in infos:
        return np.array(infos[name], np.float64)
    numbers, has_ended = np.zeros(num_envs), np.zeros(num_envs, np.bool_)
    has_ended[ended] = True
    for rows, values in ((~has_ended, infos), (has_ended, infos.get("final_info", {}))):
        if name in values:
            numbers[rows] = values[name][rows]
        elif (rows & ~np.asarray(infos.get("_env_error", False))).any():
            known = ", ".join(sorted(key for key in values if not key.startswith(("_", "final_")))) or "nothing"
            raise InvalidArgument(
                f"rewards use the info {name!r}, but the environment's infos have {known}: train without it, or return "
                "it in the info of every step"
            )
    return numbers


class Arena:
    """Learner's view of a fleet for one or two players, with `AutoresetMode.SAME_STEP`.

    In two-player games (observations `(N, 2, …)`, actions `(N, 2, …)`) the learner is player one. Opponents are drawn
    per episode: scripted players act inside the environment, selected by its attribute `player_two`; networks act here,
    on player two's observations. Rewards are the learner's; `ArenaStep.results` has the environment's.

    Observations and actions of the learner are indexed by player: index i is player one of sub-environment i. With
    `has_both_sides` there are 2N players, and index N + i is player two of sub-environment i; the learner has it in
    episodes against itself in which it explores on both sides.

    Args:
        fleet: Fleet with `SAME_STEP` autoreset; closed with the arena.
        game: Two-player game; `None` for single-player environments.
        seed: Seed of the draws of opponents.
        reward_scale: Factor of the learner's reward.
        has_both_sides: True if the learner may play both sides.
        learns_from_both_sides: True if it then learns from both.
        stopwatch: Stopwatch that measures where time is spent.

    Attributes:
        fleet: Fleet of the arena.
        game: Two-player game; `None` for single-player environments.
        num_envs: Number of sub-environments, N.
        single_observation_space: Observation space of one player.
        single_action_space: Action space of one player.
        num_players: Number of players that the learner may control, N or 2N.
        players: Players that the learner controls now, int64, ascending.

    Raises:
        InvalidArgument: Observations or actions of a player are neither arrays nor numbers.
    """

    def __init__(
        self,
        fleet: Fleet,
        game: Game | None,
        *,
        seed: np.random.SeedSequence,
        reward_scale: float = 1.0,
        has_both_sides: bool = False,
        learns_from_both_sides: bool = True,
        stopwatch: Stopwatch | None = None,
    ) -> None:
        fleet.engine.traits.refuse_vector_rewards("training")
        self.fleet, self.game = fleet, game
        self._watch = Stopwatch() if stopwatch is None else stopwatch
        self.num_envs = fleet.num_envs
        self.single_observation_space: Any = fleet.single_observation_space
        self.single_action_space: Any = fleet.single_action_space
        if game is not None:
            self.single_observation_space, self.single_action_space = game.observation_space, game.action_space
            for space in (game.observation_space, game.action_space):
                if not isinstance(space, (spaces.Box, spaces.Discrete)):
                    raise InvalidArgument(
                        f"players of {game.name} have the space {space}, expected a Box or Discrete: give players "
                        "observations and actions that are arrays or numbers"
                    )
        self._packing = Packing(self.single_observation_space)
        self._opponents = Opponents(self.num_envs, self.single_action_space, seed=seed)
        self._shaper = RewardShaper(self.num_envs, reward_scale, None if game is None else game.terms)
        self._shaping: Shaping | None = None
        self._shaped_returns = np.zeros(self.num_envs)  # of the running episodes
        self._observations = self._seen = np.zeros(0)  # as the fleet returned them, and of the learner's players
        self._learner_actions = self._actions = np.zeros(0)  # by the learner, and as the fleet was sent them
        self._every = np.arange(self.num_envs)
        self._views = 1 + has_both_sides  # players of a game whom the learner may be
        self.num_players, self.players = self.num_envs * self._views, self._every
        self._num_learned = self.num_players if learns_from_both_sides else self.num_envs  # players, from the first

    # ------------------------------------------------------------------ phases and resets

    def begin_phase(self, phase: Phase, entries: Sequence[Entry] = (), shaping: Shaping | None = None) -> None:
        """Apply the settings of a phase; call `reset` next.

        Args:
            phase: Phase with the rewards and, in two-player games, the modes.
            entries: Opponents of the phase, in two-player games.
            shaping: The user's own shaping function.
        """
        self._shaper.begin_phase(phase)
        self._shaping = shaping
        if self.game is None:
            return
        settings = self.game.settings(phase.environment.mode_shares, phase.environment.kwargs)
        for name, value in settings.items():
            self.fleet.set_attr(name, [value] * self.num_envs)
        self._opponents.set_entries(entries)

    def reset(self, seed: int | None = None) -> NDArray[Any]:
        """Begin an episode in all sub-environments, against newly drawn opponents.

        Args:
            seed: Seed, as in the fleet's `reset`.

        Returns:
            Observations of the learner's players, `(len(players), …)`.
        """
        if self.game is not None:
            self._opponents.draw(self._every)
        self._assign_players()
        self._observations = self._packing.pack(self.fleet.reset(seed=seed)[0])
        self._shaper.begin_episodes(self._every)
        self._shaped_returns[:] = 0.0
        return self._look()

    def _look(self) -> NDArray[Any]:
        """Return the observations of the learner's players."""
        self._seen = self._by_player(self._observations)[self.players]
        return self._seen

    def _assign_players(self, *, has_new_scripts: bool = True) -> None:
        """Set the scripted players of sub-environments, and update the learner's players."""
        if self.game is None:
            return
        if has_new_scripts and self.game.scripts:
            self.fleet.set_attr("player_two", self._opponents.scripts.tolist())
        self.players = np.concatenate((self._every, self.num_envs + self._opponents.own_rows))

    def _by_player(self, array: NDArray[Any]) -> NDArray[Any]:
        if self.game is None:
            return array
        return array[:, : self._views].swapaxes(0, 1).reshape(-1, *array.shape[2:])  # (N, 2, …) -> (players, …)

    # ------------------------------------------------------------------ steps

    def send(self, actions: NDArray[Any]) -> None:
        """Start a step with the learner's actions for its players, `(len(players), …)`, and those of its opponents."""
        self._learner_actions = actions
        if self.game is not None:
            joint = idle_actions(self.fleet.single_action_space, self.num_envs)
            joint[:, 0] = actions[: self.num_envs]
            if self._opponents.groups:
                joint[:, 1] = self._opponents.act(self._observations[:, 1])
                self._watch.lap("act")
            joint[self._opponents.own_rows, 1] = actions[self.num_envs :]
            actions = joint
        self._actions = actions
        self.fleet.send(actions)

    def recv(self) -> ArenaStep:
        """Wait for the step, and draw opponents for episodes that begin."""
        received, rewards, terminated, truncated, infos, _ = self.fleet.recv()
        self._watch.lap("wait")
        observations = after = self._packing.pack(received)
        rows = np.flatnonzero(terminated | truncated)
        winners = np.zeros(self.num_envs, np.int64)
        if len(rows):
            winners[rows] = column(infos, "winner", rows)
            after = np.array(observations)
            after[rows] = self._packing.pack(final_observations(self.fleet.engine, received, rows))
        shaped = self._shape(rewards, winners, infos, rows, after)
        players = self.players[: self._num_learned]
        before: Any = slice(len(players))
        failed = players[:0]
        if "_env_error" in infos:
            has_failed = np.asarray(infos["_env_error"])[players % self.num_envs]
            before, failed, players = np.flatnonzero(~has_failed), players[has_failed], players[~has_failed]
        envs, seen = players % self.num_envs, self._by_player(after)[players]
        ends = terminated[envs], truncated[envs]
        transitions = Transitions(
            self._seen[before], self._learner_actions[before], shaped[players], *ends, seen, players
        )
        self._observations = observations
        self._shaped_returns += shaped[: self.num_envs]
        results = self._end_episodes(rows, winners[rows], truncated[rows], infos) if len(rows) else None
        return ArenaStep(self._look(), transitions, failed, results)

    def _shape(
        self,
        rewards: NDArray[Any],
        winners: NDArray[np.int64],
        infos: Mapping[str, Any],
        ended: NDArray[np.int64],
        seen: NDArray[Any],
    ) -> NDArray[np.float64]:
        """Return the learner's rewards of all players; 0 for player two if the learner does not learn from it."""
        shaped = np.zeros((self._views, self.num_envs))
        players_per_env = self._num_learned // self.num_envs if len(self._opponents.own_rows) else 1
        for player, suffix in enumerate(("", "_two")[:players_per_env]):
            reward = in_step(infos, "reward_two", ended, self.num_envs) if player else rewards
            if self._shaping is not None:
                arrays = (self._packing.unpacked(self._observations), self._actions, self._packing.unpacked(seen))
                before, actions, after = arrays if self.game is None else (array[:, player] for array in arrays)
                reward = self._shaping(before, actions, reward.copy(), after)  # the function may write into it
            terms = [in_step(infos, name + suffix, ended, self.num_envs) for name in self._shaper.terms]
            shaped[player] = self._shaper.shape(reward, terms, winners == (1, -1)[player])
        return shaped.reshape(-1)

    def _end_episodes(
        self, rows: NDArray[np.int64], winners: NDArray[np.int64], truncated: NDArray[np.bool_], infos: dict[str, Any]
    ) -> Results:
        """Return the results of the finished episodes of `rows`, and begin the next ones."""
        episodes, shaped_returns = self.fleet.engine.ended_episodes(), self._shaped_returns[rows]
        self._shaped_returns[rows] = 0.0
        nothing, names = ("",) * len(rows), () if self.game is None else self.game.modes
        has_modes = bool(names) and "mode" in infos.get("final_info", {})  # absent if all of them ended by failures
        results = Results(
            env_indices=rows,
            returns=episodes.returns,
            shaped_returns=shaped_returns,
            lengths=episodes.lengths,
            winners=winners,
            truncated=truncated,
            modes=tuple(names[mode] for mode in column(infos, "mode", rows).tolist()) if has_modes else nothing,
            opponents=nothing if self.game is None else self._opponents.names(rows),
        )
        if self.game is not None:
            self._opponents.report(rows, winners)
            self._assign_players(has_new_scripts=self._opponents.draw(rows))
        self._shaper.begin_episodes(rows)
        return results

    def close(self) -> None:
        """Close the fleet."""
        self.fleet.close()

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Return the picklable state for checkpoints; `"fleet"` is `None` for environments without states."""
        try:
            state = self.fleet.get_state() if self.fleet.engine.traits.has_states else None
        except SubEnvError as error:
            if not isinstance(error.__cause__, StateUnsupported):
                raise
            state = None
        return {
            "fleet": state,
            "opponents": self._opponents.state_dict(),
            "shaper": copy.deepcopy(self._shaper),
            "shaped_returns": self._shaped_returns.copy(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> NDArray[Any]:
        """Restore a state, after `begin_phase` of the same phase; without states of a fleet new episodes begin.

        Returns:
            Observations, as in `reset`.
        """
        if self.game is not None:
            self._opponents.load_state_dict(state["opponents"])
        self._shaper = state["shaper"]
        if state["fleet"] is None:
            return self.reset()
        self._shaped_returns[:] = state["shaped_returns"]
        self._assign_players()
        self._observations = self._packing.pack(self.fleet.set_state(state["fleet"]))
        return self._look()
