"""What it takes to run a sub-environment's episode again: where it began and the actions since."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium as gym

MAX_ENTRIES = 20_000
"""Group steps remembered. An episode longer than this cannot be replayed from its start."""


class Origin(NamedTuple):
    """How an episode began: the seed it was reset with, or else the generator's state just before."""

    seed: int | None
    options: dict[str, Any] | None
    rng_state: Any


class Trace:
    """Actions of the running episodes of a group.

    Holds references to what the group decoded anyway, so recording costs one append per group step. Entries older than
    every running episode are dropped whenever an episode begins.
    """

    def __init__(self, num_envs: int) -> None:
        self._entries: collections.deque[tuple[Sequence[int] | None, Sequence[Any]]] = collections.deque(
            maxlen=MAX_ENTRIES
        )
        self._count = 0
        self._starts = [0] * num_envs
        self.origins: list[Origin | None] = [None] * num_envs

    def begin(self, row: int, env: gym.Env[Any, Any], seed: int | None, options: dict[str, Any] | None) -> None:
        """Note that an episode of `row` begins now; call it just before the reset."""
        rng_state = None
        if seed is None:
            rng = getattr(env.unwrapped, "_np_random", None)
            rng_state = None if rng is None else rng.bit_generator.state
        self.origins[row] = Origin(seed, options, rng_state)
        self._starts[row] = self._count
        oldest = min(self._starts)
        while self._entries and self._count - len(self._entries) < oldest:
            self._entries.popleft()

    def forget(self, row: int) -> None:
        """Note that what `row` does now did not begin with a reset here, so it cannot be replayed."""
        self.origins[row] = None

    def add(self, rows: Sequence[int] | None, actions: Sequence[Any]) -> None:
        """Note the actions of one group step; `rows` is `None` if they are for all sub-environments."""
        self._entries.append((rows, actions))
        self._count += 1

    def actions_of(self, row: int) -> list[Any] | None:
        """All actions of the running episode of `row`, or `None` if the first of them were dropped."""
        wanted = self._count - self._starts[row]
        if wanted > len(self._entries):
            return None
        found = []
        for rows, actions in list(self._entries)[len(self._entries) - wanted :]:
            if rows is None:
                found.append(actions[row])
            elif row in rows:
                found.append(actions[rows.index(row)])
        return found
