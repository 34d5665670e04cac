"""Whole episodes on a fleet, each from its own seed.

Problem. The result of an episode must not depend on the backend, on the number of simultaneous episodes, on when others
end, or on workers that die. A matrix product may round a row differently in a batch of another size or at another
index, and after a few hundred steps that changes a return.

What does not work. Autoreset: the next initial state depends on how many draws the last episode made. Counting the
first episodes that end: short ones end first, so the mean is biased towards them.

Solution. Episodes are numbered and reset one by one with their own seeds, and all of them are played to the end. Those
that a crash cut short are played again from the same seed. Policies act on blocks of a fixed number of rows, and the
row of an episode in its block depends on the number of the episode only.

What remains. Results still differ if the policy draws random numbers, or the environment ignores its seed.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument
from envfleet.fleet.fleet import Fleet
from envfleet.fleet.layout import SpaceLayout
from envfleet.fleet.nested import map_arrays

BLOCK_ROWS = 128
MOST_STEPS = 30_000
"""Steps after which an episode is cut off, so that every evaluation ends; Atari games have at most 27,000."""

_IDLE = -1


class Policy(Protocol):
    """Object that chooses actions for a batch of observations, such as an agent."""

    def act_batch(self, observations: Any, deterministic: bool = False) -> Any:
        """Choose an action for each observation, `(N, …)`."""
        ...


class EpisodeSchedule:
    """Assignment of episodes to sub-environments: the next one goes to the sub-environment that is free first.

    Args:
        episodes: Numbers of the episodes to play, each once.
        num_envs: Number of sub-environments.
        block_rows: Rows of a batch that a policy acts on.
        tasks: Task of each episode by number. A sub-environment gets episodes of its last task as long as there are
            any, because another task has to be built.

    Attributes:
        episodes: Number of the current episode, int64 `(num_envs,)`; -1 in idle sub-environments.
        places: Row of the current or last episode in batches, int64 `(num_envs,)`.
        num_places: Rows of all batches together.

    Examples:
        >>> schedule = EpisodeSchedule(range(5), num_envs=2)
        >>> schedule.assign(np.array([0, 1])), schedule.episodes
        (array([0, 1]), array([0, 1]))
        >>> schedule.assign(np.array([1])), schedule.episodes
        (array([1]), array([0, 2]))
    """

    def __init__(
        self,
        episodes: Iterable[int],
        num_envs: int,
        *,
        block_rows: int = BLOCK_ROWS,
        tasks: Sequence[int] | NDArray[np.int64] | None = None,
    ) -> None:
        self.num_places = -(-num_envs // block_rows) * block_rows
        self.episodes: NDArray[np.int64] = np.full(num_envs, _IDLE, np.int64)
        self.places = np.arange(num_envs)
        self._tasks = tasks
        self._waiting: dict[int, deque[int]] = {}
        for number in episodes:
            self._waiting.setdefault(self._task(number), deque()).append(number)
        self._last_tasks: list[int | None] = [None] * num_envs
        self._taken: set[int] = set()

    @property
    def rows(self) -> NDArray[np.int64]:
        """Sub-environments with a running episode."""
        return np.flatnonzero(self.episodes != _IDLE)

    def assign(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Assign the next episodes to sub-environments that are free or have finished one.

        An episode waits while a running one occupies its row of the block.

        Returns:
            Sub-environments that received an episode.
        """
        for row in rows.tolist():
            if self.episodes[row] != _IDLE:
                self._taken.remove(int(self.places[row]))
                self.episodes[row] = _IDLE
        assigned = [row for row in rows.tolist() if self._assign(row)]
        return np.array(assigned, np.int64)

    def repeat(self, rows: NDArray[np.int64]) -> None:
        """Queue the running episodes of these sub-environments once more, before all others."""
        for row in rows.tolist():
            number = int(self.episodes[row])
            self._waiting.setdefault(self._task(number), deque()).appendleft(number)

    def _assign(self, row: int) -> bool:
        last = self._last_tasks[row]
        # The same task, else the one with most episodes left.
        for task in sorted(self._waiting, key=lambda task: (task != last, -len(self._waiting[task]), task)):
            waiting = self._waiting[task]
            free = (number for number in waiting if number % self.num_places not in self._taken)
            if (number := next(free, None)) is not None:
                waiting.remove(number)
                if not waiting:
                    del self._waiting[task]
                self.episodes[row], self.places[row] = number, number % self.num_places
                self._taken.add(number % self.num_places)
                self._last_tasks[row] = task
                return True
        return False

    def _task(self, number: int) -> int:
        return 0 if self._tasks is None else int(self._tasks[number])


class BlockPolicy:
    """Policy that always sees an episode in the same row of its batch, and batches of one size.

    Args:
        policy: Policy, which acts without exploration. If it has a method `begin_episodes(env_indices)`, this is called
            with the rows of new episodes, int64 `(M,)`, and `act_batch` also receives `env_indices=`, the index of each
            row of its batch.
        schedule: Assignment of episodes.
        block_rows: Rows of a batch.
    """

    def __init__(self, policy: Policy, schedule: EpisodeSchedule, block_rows: int = BLOCK_ROWS) -> None:
        self._policy, self._schedule, self._block_rows = policy, schedule, block_rows
        self._begin = getattr(policy, "begin_episodes", None)
        self._begin_numbered = getattr(policy, "begin_numbered", None)  # of the random policy
        self._takes_indices = not (self._begin is None and self._begin_numbered is None)
        self._inputs: Any = None

    def act(self, observations: Any, rows: NDArray[np.int64]) -> Any:
        """Choose actions for the sub-environments `rows`.

        Args:
            observations: Observations of all sub-environments, `(num_envs, …)`, nested as their space.
            rows: Sub-environments with an episode, at least one.

        Returns:
            Actions, `(len(rows), …)`, nested as their space.
        """
        size, places = self._block_rows, self._schedule.places[rows]
        if self._inputs is None:
            # Rows without an episode need a valid observation of the space; zeros may not be valid.
            first, count = rows[:1], self._schedule.num_places
            self._inputs = map_arrays(observations, lambda array: np.repeat(array[first], count, axis=0))

        def write(inputs: NDArray[Any], array: NDArray[Any]) -> None:
            inputs[places] = array[rows]

        map_arrays(self._inputs, write, observations)
        blocks = np.unique(places // size)
        chosen = [self._act(block * size) for block in blocks.tolist()]
        index = np.searchsorted(blocks, places // size) * size + places % size
        return map_arrays(chosen[0], lambda *arrays: np.concatenate(arrays)[index], *chosen[1:])

    def _act(self, start: int) -> Any:
        size = self._block_rows
        block = map_arrays(self._inputs, lambda array: array[start : start + size])
        more: Any = {"env_indices": np.arange(start, start + size)} if self._takes_indices else {}
        actions = map_arrays(self._policy.act_batch(block, deterministic=True, **more), np.asarray)

        def check(array: NDArray[Any]) -> None:
            if array.ndim == 0 or len(array) != size:
                raise InvalidArgument(
                    f"the policy returned actions of shape {array.shape} for a batch of {size} observations, expected "
                    f"({size}, …): return one action per observation"
                )

        map_arrays(actions, check)
        return actions

    def begin(self, rows: NDArray[np.int64]) -> None:
        """Notify the policy that episodes begin in these sub-environments, if it has a method for it."""
        if self._begin is not None and len(rows):
            self._begin(self._schedule.places[rows])
        if self._begin_numbered is not None:
            self._begin_numbered(self._schedule.places[rows], self._schedule.episodes[rows])


class EpisodeRunner:
    """Runner of episodes; subclasses decide how they act, how they are reset, and what is noted at their end.

    Args:
        fleet: Fleet that episodes are played in, one per sub-environment at a time, in any autoreset mode.
        seeds: Seed of each episode by number.
        schedule: Assignment of episodes.

    Attributes:
        repeats_lost: True if episodes that a failure of their environment or worker cut short are played again; else
            they count as truncated.
        fleet: The fleet.
        schedule: Assignment of episodes.
        returns: Sums of rewards of the running episodes, float64 `(N,)`.
        lengths: Steps of the running episodes, int64 `(N,)`.

    Raises:
        InvalidArgument: Arrays of the fleet live on another device, or have no fixed shape.
    """

    repeats_lost = True

    def __init__(self, fleet: Fleet, seeds: Sequence[int] | NDArray[Any], schedule: EpisodeSchedule) -> None:
        if fleet.device != "cpu":
            raise InvalidArgument(f"the fleet's arrays are on {fleet.device!r}: make it with device='cpu'")
        if SpaceLayout(fleet.single_observation_space).num_objects:
            raise InvalidArgument(
                f"observations of {fleet.single_observation_space} have no fixed shape: wrap the environment so that "
                "they are arrays (gymnasium.wrappers.TransformObservation)"
            )
        self.fleet, self.schedule, self._seeds = fleet, schedule, seeds
        self.returns = np.zeros(fleet.num_envs)
        self.lengths = np.zeros(fleet.num_envs, np.int64)
        self._every = np.arange(fleet.num_envs)
        self._observations: Any = None

    # ---------------------------------------------------------------- what subclasses write

    def act(self, observations: Any, rows: NDArray[np.int64]) -> Any:
        """Return actions of the sub-environments `rows`, from the observations of all."""
        raise NotImplementedError

    def options(self, rows: NDArray[np.int64]) -> list[Mapping[str, Any] | None]:
        """Return the reset options of the next episodes of `rows`."""
        return [None] * len(rows)

    def begin(self, rows: NDArray[np.int64]) -> None:
        """Notice that episodes begin in `rows`, before these are reset."""

    def on_step(self, rewards: NDArray[np.float64], infos: dict[str, Any], rows: NDArray[np.int64]) -> None:
        """Notice a step of `rows`; `rewards` and `infos` have one entry for each."""

    def note(
        self,
        rows: NDArray[np.int64],
        truncated: NDArray[np.bool_],
        find: Callable[[str], NDArray[Any] | None],
    ) -> None:
        """Note the episodes that ended in `rows`; `find` returns the value of a name in their last infos, or `None`."""
        raise NotImplementedError

    # ---------------------------------------------------------------- the loop

    def play(self) -> Iterator[NDArray[np.int64]]:
        """Play all episodes, step by step.

        Yields:
            Sub-environments with episodes that ended in this step; empty right after episodes began.
        """
        self._begin_all()
        while len(self.schedule.rows):
            ended = self._every[:0]
            yield ended
            while not len(ended):
                ended, lost = self._step()
                yield ended
                ended = np.union1d(ended, lost)
            self._begin(np.union1d(ended, np.flatnonzero(self.schedule.episodes == _IDLE)))

    def _begin_all(self) -> None:
        rows = self.schedule.assign(self._every)
        self.begin(rows)
        self.returns[:], self.lengths[:] = 0, 0
        groups = [*self._group(rows)] if len(rows) == len(self._every) else []
        if len(groups) != 1:  # a fleet must be reset as a whole before some of it can be
            self._write(self._every, self.fleet.reset()[0])
        self._reset(rows)

    def _begin(self, free: NDArray[np.int64]) -> None:
        rows = self.schedule.assign(free)
        if len(rows):
            self.begin(rows)
            self.returns[rows], self.lengths[rows] = 0, 0
            self._reset(rows)

    def _reset(self, rows: NDArray[np.int64]) -> None:
        """Reset sub-environments with the seeds of their episodes; those rebuilt meanwhile once more."""
        while len(rows):
            failed = [rows[:0]]
            for group, options in self._group(rows):
                observations, infos = self.fleet.reset_envs(group, self._seeds_of(group), options)
                self._write(group, observations)
                failed.append(group[_masked(infos, "_env_error", len(group))])
            rows = np.concatenate(failed)

    def _group(self, rows: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], Any]]:
        """Yield rows that can be reset together, with their options; only Python objects take options per row."""
        options = self.options(rows)
        groups = list({id(option): option for option in options}.values())
        if len(groups) > 1 and self.fleet.engine.traits.has_objects:
            yield rows, options
            return
        for one in groups:
            yield rows[[option is one for option in options]], one

    def _seeds_of(self, rows: NDArray[np.int64]) -> list[int]:
        return [int(self._seeds[number]) for number in self.schedule.episodes[rows].tolist()]

    def _write(self, rows: NDArray[np.int64], observations: Any) -> None:
        """Write observations of rows into the runner's own arrays, because those of a fleet may be views."""
        if self._observations is None:
            count = len(self._every)
            self._observations = map_arrays(observations, lambda array: np.repeat(array[:1], count, axis=0))

        def write(array: NDArray[Any], values: Any) -> None:
            array[rows] = values

        map_arrays(self._observations, write, observations)

    def _step(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Step all sub-environments with an episode; return those that ended, and those that were lost."""
        fleet, rows = self.fleet, self.schedule.rows
        actions = self.act(self._observations, rows)
        if len(rows) < len(self._every) and fleet.engine.traits.has_partial_steps:
            fleet.send(actions, rows)
            observations, rewards, terminated, truncated, infos, _ = fleet.recv(env_indices=rows)
            stepped = rows
        else:
            if len(rows) < len(self._every):  # sub-environments without an episode repeat the first action
                pick = np.zeros(len(self._every), np.int64)
                pick[rows] = np.arange(len(rows))
                actions = map_arrays(actions, lambda array: array[pick])
                if fleet.autoreset_mode is AutoresetMode.DISABLED and fleet.terminated_indices:
                    fleet.reset_envs(fleet.terminated_indices)
            observations, rewards, terminated, truncated, infos = fleet.step(actions)
            stepped = self._every
        self._write(stepped, observations)
        self.returns[stepped] += rewards
        self.lengths[stepped] += 1
        self.on_step(rewards, infos, stepped)
        is_playing = self.schedule.episodes[stepped] != _IDLE
        is_lost = _masked(infos, "_env_error", len(stepped)) & is_playing & self.repeats_lost
        is_endless = (self.lengths[stepped] >= MOST_STEPS) & ~(terminated | truncated) & is_playing
        if is_endless.any():
            warnings.warn(
                f"an episode had not ended after {MOST_STEPS:,} steps and was cut off: give the environment a time "
                "limit",
                RuntimeWarning,
                stacklevel=2,
            )
        lost = stepped[is_lost]
        self.schedule.repeat(lost)
        places = np.flatnonzero((terminated | truncated | is_endless) & is_playing & ~is_lost)
        if len(places):
            if fleet.autoreset_mode is AutoresetMode.SAME_STEP:
                infos = {**infos, **infos.get("final_info", {})}

            def find(name: str) -> NDArray[Any] | None:
                return np.asarray(infos[name])[places] if name in infos else None

            self.note(stepped[places], (truncated | is_endless)[places] & ~terminated[places], find)
        return stepped[places], lost


def _masked(infos: Mapping[str, Any], name: str, count: int) -> NDArray[np.bool_]:
    return np.asarray(infos.get(name, np.zeros(count, np.bool_)), np.bool_)
