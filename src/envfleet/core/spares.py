"""A second sub-environment for each row, reset in the background, for environments whose reset is slow."""

from __future__ import annotations

import concurrent.futures
import contextlib
from typing import Any, TypeAlias

import gymnasium as gym

from envfleet.core.env_rows import EnvRows
from envfleet.errors import Failure

_Built: TypeAlias = tuple[gym.Env[Any, Any], int | None]
"""A sub-environment, and the seed it was built with where that is not its builder's own."""


class Spares:
    """One spare per row, always reset for the row's next episode by one thread in the background.

    Row and spare take turns episode by episode, each reset with a seed that derives from the fleet's seed and the
    episode's number: so the episodes do not depend on how fast the background thread is. A row whose spare is not ready
    waits for it.

    Args:
        rows: The sub-environments.
        num_envs: How many.
    """

    def __init__(self, rows: EnvRows, num_envs: int) -> None:
        self._rows = rows
        self._episodes = [0] * num_envs
        self._executor = concurrent.futures.ThreadPoolExecutor(1, "envfleet-spares")
        self._spares: list[_Built | None] = [None] * num_envs  # also while they wait to be reset
        self._next = [self._prepare(row) for row in range(num_envs)]

    def swap_in(self, row: int) -> tuple[Any, dict[str, Any]]:
        """Put the row's spare in its place, and begin to reset the one it replaces.

        Returns:
            The observation and the info of the spare's reset; what that raised is raised here.
        """
        episode = self._episodes[row]
        try:
            (env, build_seed), observation, info = self._next[row].result()
        except BaseException:
            self._next[row] = self._prepare(row)
            raise
        trace = self._rows.trace
        self._spares[row] = self._rows.envs[row], trace.build_seeds[row]
        trace.build_seeds[row] = build_seed
        trace.begin(row, env, self._rows.derive_seed(row, episode), None)
        self._rows.install(row, env)
        self._next[row] = self._prepare(row)
        return observation, info

    def _prepare(self, row: int) -> concurrent.futures.Future[tuple[_Built, Any, dict[str, Any]]]:
        self._episodes[row] += 1
        return self._executor.submit(self._reset, row, self._rows.derive_seed(row, self._episodes[row]))

    def _reset(self, row: int, seed: int) -> tuple[_Built, Any, dict[str, Any]]:
        built = self._spares[row]
        if built is None:
            built = self._spares[row] = self._rows.build(row, seed), seed
        try:
            observation, info = built[0].reset(seed=seed)
        except BaseException:
            self._spares[row] = None
            with contextlib.suppress(*self._rows.caught):  # it is broken already, and its reset's failure is reported
                built[0].close()
            raise
        return built, observation, info

    def close(self) -> list[Failure]:
        """Wait for the background thread and close the spares; returns what they raised."""
        self._executor.shutdown(cancel_futures=True)
        failures = []
        for row, built in enumerate(self._spares):
            if built is None:
                continue
            try:
                built[0].close()
            except self._rows.caught as error:
                failures.append(self._rows.describe_failure(row, "close", error))
        return failures
