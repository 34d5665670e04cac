"""What it takes to run a sub-environment's episode again: where it began and the actions since."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium as gym

MAX_ENTRIES = 20_000
"""Group steps remembered. An episode longer than this cannot be replayed from its start."""

MIN_ENTRIES = 64
"""Group steps that are not worth dropping."""


class Origin(NamedTuple):
    """How an episode began: the seed it was reset with, or else the generator's state just before."""

    seed: int | None
    options: dict[str, Any] | None
    rng_state: Any


class Trace:
    """Actions of the running episodes of a group.

    Holds references to what the group decoded anyway, so recording costs one append per group step. Entries older than
    every running episode are dropped now and then when an episode begins.

    Attributes:
        count: Group steps so far.
    """

    def __init__(self, num_envs: int) -> None:
        self._entries: collections.deque[tuple[Sequence[int] | None, Sequence[Any]]] = collections.deque(
            maxlen=MAX_ENTRIES
        )
        self.count = 0
        self._starts = [0] * num_envs  # value of `count` when the episode began
        self._skipped = [0] * num_envs  # entries since then that were not for this row
        self._origins: list[tuple[int | None, dict[str, Any] | None, Any] | None] = [None] * num_envs
        self._prune_at = MIN_ENTRIES

    def begin(self, row: int, env: gym.Env[Any, Any], seed: int | None, options: dict[str, Any] | None) -> None:
        """Note that an episode of `row` begins now; call it just before the reset."""
        rng_state = None
        if seed is None:
            rng = getattr(env.unwrapped, "_np_random", None)
            rng_state = None if rng is None else rng.bit_generator.state
        self._origins[row] = seed, options, rng_state
        self._starts[row], self._skipped[row] = self.count, 0
        if len(self._entries) > self._prune_at:
            self._prune()

    def _prune(self) -> None:
        needed = self.count - min(self._starts)
        while len(self._entries) > needed:
            self._entries.popleft()
        self._prune_at = max(MIN_ENTRIES, 2 * needed)

    def origin(self, row: int) -> Origin | None:
        """How the running episode of `row` began; `None` where that is not known."""
        origin = self._origins[row]
        return None if origin is None else Origin(*origin)

    def resume(self, row: int, length: int) -> None:
        """Note that `row` goes on with an episode of `length` steps taken elsewhere, which cannot be replayed here."""
        self._origins[row] = None
        self._starts[row], self._skipped[row] = self.count, -length

    def add(self, rows: Sequence[int] | None, actions: Sequence[Any]) -> None:
        """Note the actions of one group step; `rows` is `None` if they are for all sub-environments."""
        self._entries.append((rows, actions))
        self.count += 1
        if rows is not None:
            for row in set(range(len(self._starts))).difference(rows):
                self._skipped[row] += 1

    def length(self, row: int) -> int:
        """Steps of the running episode of `row`, with the one noted last."""
        return self.count - self._starts[row] - self._skipped[row]

    def actions_of(self, row: int) -> list[Any] | None:
        """All actions of the running episode of `row`, or `None` if the first of them were dropped."""
        wanted = self.count - self._starts[row]
        if wanted > len(self._entries):
            return None
        found = []
        for rows, actions in list(self._entries)[len(self._entries) - wanted :]:
            if rows is None:
                found.append(actions[row])
            elif row in rows:
                found.append(actions[rows.index(row)])
        return found
