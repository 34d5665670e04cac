"""Step sub-environments beneath those of Gymnasium's wrappers that only keep books, which cost as much as they do."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import gymnasium as gym
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from envfleet.core.trace import Trace

Step = Callable[[Any], tuple[Any, Any, bool, bool, dict[str, Any]]]

NEVER = sys.maxsize
"""A number of group steps that no fleet takes."""

_PROBE = [object()]
_ALONE = sys.getrefcount(_PROBE[0])
"""References to an object that lies in one list, as `getrefcount` counts them."""


class DirectSteps:
    """The `step` of each sub-environment, beneath the outermost wrappers that would only pass it on.

    These are `OrderEnforcing` after a reset, `PassiveEnvChecker` after its one check and, as the outermost, `TimeLimit`
    up to the step before the one that it truncates: that one goes through it again. Its count of steps stands still
    meanwhile. Whoever may look at a wrapper, or change it, calls `restore` before and `adopt` after that.
    Subclasses of these wrappers, wrappers whose `step` was replaced, and a `TimeLimit` that anybody else holds a
    reference to (and may look at any time) are left in place.

    Args:
        envs: The sub-environments; the list is the caller's, who tells of changes by `adopt`.
        trace: Counts the steps of their episodes.

    Attributes:
        steps: What to call for a step of each sub-environment.
        next_due: Call `restore_due` before a group step once `trace.count` is as high as this.
    """

    def __init__(self, envs: list[gym.Env[Any, Any]], trace: Trace) -> None:
        self._envs, self._trace = envs, trace
        self.steps: list[Step] = [_no_step] * len(envs)
        self.next_due = NEVER
        # Those that are left out. Of any type, because what is read and written of them is private to Gymnasium.
        self._limits: list[Any] = [None] * len(envs)
        self._offsets = [0] * len(envs)  # what their counts are ahead of the trace's
        self._is_ours = [False] * len(envs)
        self._is_innermost = [False] * len(envs)
        for row in range(len(envs)):
            self.adopt(row)

    def adopt(self, row: int) -> None:
        """Take in a sub-environment that is new, or that somebody may have got hold of since `restore`."""
        self.steps[row], self._limits[row] = _no_step, None
        self._is_ours[row] = sys.getrefcount(self._envs[row]) <= _ALONE
        self.absorb(row)

    def absorb(self, row: int) -> None:
        """Leave out the wrappers of a sub-environment that was restored."""
        env: Any = self._envs[row]
        outermost: Any = env
        limit: Any = None
        if type(env) is TimeLimit and self._is_ours[row] and _is_as_made(env) and _steps_left(env) > 1:
            limit, env = env, env.env
        while _only_passes_on(env):
            env = env.env
        self._is_innermost[row] = type(env) not in (OrderEnforcing, PassiveEnvChecker)  # else there may be more to gain
        self.steps[row] = outermost.step if env is outermost else env.step
        self._limits[row] = limit
        if limit is not None:
            self._offsets[row] = limit._elapsed_steps - self._trace.length(row)  # noqa: SLF001 - as its type has it
            self.next_due = min(self.next_due, self._trace.count + _steps_left(limit) - 1)

    def begin(self, row: int) -> None:
        """Take in that a sub-environment was reset, by the outermost wrapper's `reset`."""
        limit = self._limits[row]
        if limit is None or not self._is_innermost[row]:
            self.absorb(row)
            return
        self._offsets[row] = 0
        self.next_due = min(self.next_due, self._trace.count + limit._max_episode_steps - 1)  # noqa: SLF001 - as above

    def restore(self, row: int) -> None:
        """Put the wrappers of a sub-environment back in place, with nothing about them to tell that they were not."""
        limit = self._limits[row]
        self.steps[row] = self._envs[row].step
        if limit is not None:
            self._limits[row] = None
            limit._elapsed_steps = self._offsets[row] + self._trace.length(row)  # noqa: SLF001 - as above

    def restore_due(self) -> None:
        """Restore the sub-environments whose next step `TimeLimit` truncates."""
        self.next_due = NEVER
        for row, limit in enumerate(self._limits):
            if limit is None:
                continue
            taken = self._offsets[row] + self._trace.length(row)
            left = limit._max_episode_steps - taken  # noqa: SLF001 - as above
            if left <= 1:
                self.restore(row)
            else:
                self.next_due = min(self.next_due, self._trace.count + left - 1)


def _is_as_made(env: gym.Env[Any, Any]) -> bool:
    """Whether nobody put other methods in the place of the class's."""
    return vars(env).keys().isdisjoint(("step", "reset"))


def _only_passes_on(env: Any) -> bool:
    """Whether a wrapper's `step` does nothing but call the next one."""
    kind = type(env)
    if kind is OrderEnforcing:
        return getattr(env, "_has_reset", False) is True and _is_as_made(env)
    return kind is PassiveEnvChecker and getattr(env, "checked_step", False) is True and _is_as_made(env)


def _steps_left(limit: Any) -> int:
    """Steps until a `TimeLimit` truncates; 0 where it cannot be told."""
    taken, most = getattr(limit, "_elapsed_steps", None), getattr(limit, "_max_episode_steps", None)
    return most - taken if type(taken) is int and type(most) is int else 0


def _no_step(action: Any) -> Any:
    raise RuntimeError("the step of a sub-environment was asked for before it was taken in")
