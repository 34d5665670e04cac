"""A second sub-environment for each row, reset in the background, for environments whose reset is slow."""

from __future__ import annotations

import contextlib
import queue
import threading
from concurrent.futures import Future
from typing import Any, TypeAlias

import gymnasium as gym

from envfleet.core.env_rows import EnvRows
from envfleet.errors import Failure

_Built: TypeAlias = tuple[gym.Env[Any, Any], int | None]
"""A sub-environment, and the seed it was built with where that is not its builder's own."""

_Reset: TypeAlias = tuple[_Built, int, Any, dict[str, Any]]
"""A spare, the seed it was reset with, and what its reset returned."""

RUNNING_WAIT_S = 0.05
"""What a reset that is running may take to end, however short the time the group was given to close."""


class Spares:
    """One spare per row, always reset for the row's next episode by one thread in the background.

    Row and spare take turns episode by episode, each reset with a seed that derives from the fleet's seed and the
    episode's number: so the episodes do not depend on how fast the background thread is. A row whose spare is not ready
    waits for it. The thread is a daemon: a reset that never returns keeps nobody from ending.

    Args:
        rows: The sub-environments.
        num_envs: How many.
    """

    def __init__(self, rows: EnvRows, num_envs: int) -> None:
        self._rows = rows
        self._episodes = [0] * num_envs
        self._spares: list[_Built | None] = [None] * num_envs  # also while they wait to be reset
        self._orders: queue.SimpleQueue[tuple[int, int, Future[_Reset]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # of these three
        self._is_closed = False  # no reset begins any more
        self._row: int | None = None  # whose spare is being reset
        self._left: int | None = None  # whose spare was left behind in its reset
        self._next = [self._prepare(row) for row in range(num_envs)]
        self._thread = threading.Thread(target=self._serve, name="envfleet-spares", daemon=True)
        self._thread.start()

    def swap_in(self, row: int) -> tuple[Any, dict[str, Any]]:
        """Put the row's spare in its place, and begin to reset the one it replaces.

        Returns:
            The observation and the info of the spare's reset; what that raised is raised here.
        """
        try:
            (env, build_seed), seed, observation, info = self._next[row].result()
        except BaseException:
            self._next[row] = self._prepare(row)
            raise
        trace = self._rows.trace
        self._spares[row] = self._rows.envs[row], trace.build_seeds[row]
        trace.build_seeds[row] = build_seed
        trace.begin(row, env, seed, None)
        self._rows.install(row, env)
        self._next[row] = self._prepare(row)
        return observation, info

    def _prepare(self, row: int) -> Future[_Reset]:
        self._episodes[row] += 1
        future: Future[_Reset] = Future()
        self._orders.put((row, self._rows.derive_seed(row, self._episodes[row]), future))
        return future

    def _serve(self) -> None:
        for row, seed, future in iter(self._orders.get, None):
            with self._lock:
                if self._is_closed or not future.set_running_or_notify_cancel():
                    continue
                self._row = row
            try:
                future.set_result(self._reset(row, seed))
            except BaseException as error:  # noqa: BLE001 - raised to whoever asks for the spare
                future.set_exception(error)
            with self._lock:
                self._row = None
            if self._left is not None:
                self._close_spare(self._left)

    def _reset(self, row: int, seed: int) -> _Reset:
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
        return built, seed, observation, info

    def close(self, timeout_s: float) -> list[Failure]:
        """Wait for the background thread, about `timeout_s`, and close the spares; returns what went wrong."""
        with self._lock:
            self._is_closed = True
        for future in self._next:
            future.cancel()
        self._orders.put(None)
        wait_s = max(timeout_s, RUNNING_WAIT_S)
        self._thread.join(wait_s)
        with self._lock:
            self._left = left = self._row
        failures = []
        if left is not None:
            late = TimeoutError(
                f"its spare is still in reset(), {wait_s:g} s after it was to be closed, and is left behind in a "
                "thread of its own: find what its reset waits for"
            )
            failures.append(self._rows.describe_failure(left, "close", late))
        found = [self._close_spare(row) for row in range(len(self._spares)) if row != left]
        return failures + [failure for failure in found if failure is not None]

    def _close_spare(self, row: int) -> Failure | None:
        built = self._spares[row]
        try:
            if built is not None:
                built[0].close()
        except self._rows.caught as error:
            return self._rows.describe_failure(row, "close", error)
        return None
