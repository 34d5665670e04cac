"""What it takes to run a sub-environment's episode again: where it began and the actions since."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Sequence
from typing import Any

import gymnasium as gym

from envfleet.core.origins import AsTuple, Origin, Origins

MAX_ENTRIES = 20_000
"""Group steps remembered. An episode longer than this cannot be replayed from its start."""

MAX_BYTES = 32 << 20
"""Actions remembered where they lie in arrays: by each worker of its own, and by the fleet of all of them together."""

MIN_ENTRIES = 64
"""Group steps that are not worth dropping."""


class ActionLog:
    """Actions of group steps, in order; the oldest are dropped.

    Args:
        num_envs: Sub-environments of the group.

    Attributes:
        count: Group steps so far.
    """

    def __init__(self, num_envs: int) -> None:
        self._entries: collections.deque[tuple[Sequence[int] | None, Any]] = collections.deque(maxlen=MAX_ENTRIES)
        self.count = 0
        self._num_partial = 0  # of them, those that were not for all rows
        self._partial = [0] * num_envs  # of those, the ones that were for this row

    def limit(self, step_bytes: int, size_bytes: int = MAX_BYTES) -> None:
        """Keep no more than `size_bytes`, of group steps of `step_bytes` each."""
        self._entries = collections.deque(self._entries, min(MAX_ENTRIES, size_bytes // max(step_bytes, 1)))

    def add(self, rows: Sequence[int] | None, actions: Any) -> None:
        """Note the actions of one group step; `rows` is `None` if they are for all sub-environments."""
        self._entries.append((rows, actions))
        self.count += 1
        if rows is not None:
            self._num_partial += 1
            for row in rows:
                self._partial[row] += 1

    def steps(self, row: int) -> int:
        """Group steps so far in which `row` took part."""
        return self.count - self._num_partial + self._partial[row]

    def forget(self, before: int) -> None:
        """Drop the group steps before number `before`; none if that is below 0."""
        while self._entries and len(self._entries) > self.count - before:
            self._entries.popleft()

    def find(self, row: int, start: int, stop: int) -> list[tuple[Any, int]] | None:
        """Return the actions of group steps `start` to `stop - 1` in which `row` took part.

        Args:
            row: Which sub-environment.
            start: Number of the first.
            stop: Any number: one that a worker left in shared memory when it crashed may be nonsense.

        Returns:
            The actions of each group step and the place of the row's own among them, or `None` if the first of them
            were dropped.
        """
        first = self.count - len(self._entries)
        if start < first:
            return None
        found = []
        for rows, actions in itertools.islice(self._entries, start - first, max(stop - first, 0)):
            if rows is None:
                found.append((actions, row))
            elif row in rows:
                found.append((actions, rows.index(row)))
        return found


class Trace(ActionLog):
    """Actions of the running episodes of a group, kept where it runs.

    Holds references to what the group decoded anyway, so recording costs one append per group step. Entries older than
    every running episode are dropped now and then when an episode begins.

    Args:
        num_envs: Sub-environments of the group.

    Attributes:
        build_seeds: Seeds that the sub-environments were built with, where those are not the builders' own.
    """

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.build_seeds: list[int | None] = [None] * num_envs
        self._starts = [0] * num_envs  # value of `count` when the episode began
        self._before = [0] * num_envs  # value of `steps` then
        self._origins: list[AsTuple | None] = [None] * num_envs
        self._last_seeds: list[int | None] = [None] * num_envs
        self._published: Origins | None = None
        self._prune_at = MIN_ENTRIES

    def publish(self, origins: Origins | None) -> None:
        """Write where episodes begin to shared memory, too."""
        self._published = origins

    def begin(self, row: int, env: gym.Env[Any, Any], seed: int | None, options: dict[str, Any] | None) -> None:
        """Note that an episode of `row` begins now; call it just before the reset."""
        rng_state = None
        if seed is None:
            rng = getattr(env.unwrapped, "_np_random", None)
            rng_state = None if rng is None else rng.bit_generator.state
        else:
            self._last_seeds[row] = seed
        self._begin(row, (seed, options, rng_state, self.build_seeds[row], self._last_seeds[row]))
        if len(self._entries) > self._prune_at:
            oldest = min(self._starts)
            self.forget(oldest)
            self._prune_at = max(MIN_ENTRIES, 2 * (self.count - oldest))

    def resume(self, row: int, length: int) -> None:
        """Note that `row` goes on with an episode of `length` steps taken elsewhere, which cannot be replayed here."""
        self._begin(row, None, length)

    def _begin(self, row: int, origin: AsTuple | None, length: int = 0) -> None:
        self._starts[row], self._before[row], self._origins[row] = self.count, self.steps(row) - length, origin
        if self._published is not None:
            self._published.write(row, self.count, self._before[row], origin)

    def origin(self, row: int) -> Origin | None:
        """How the running episode of `row` began; `None` where that is not known."""
        origin = self._origins[row]
        return None if origin is None else Origin(*origin)

    def length(self, row: int) -> int:
        """Steps of the running episode of `row`, with the one noted last."""
        return self.steps(row) - self._before[row]

    def actions_of(self, row: int) -> list[Any] | None:
        """All actions of the running episode of `row`, or `None` if the first of them were dropped."""
        found = self.find(row, self._starts[row], self.count)
        return None if found is None else [actions[place] for actions, place in found]
