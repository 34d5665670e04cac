"""Comparison of two vector environments that get the same calls: `Duel`."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array

from envfleet.testing.compare import mismatches

Finding = tuple[str, str]
"""Position and description of a difference."""

_OUR_INFOS = ("episode", "_episode")


def differences_of(expected: Any, actual: Any, where: str) -> Iterator[Finding]:
    """Yield all positions at which `actual` differs."""
    for mismatch in mismatches(expected, actual, where):
        yield mismatch.path, f"expected {mismatch.expected}, found {mismatch.actual}"


def changes_of(before: Any, after: Any, where: str) -> Iterator[Finding]:
    """Yield all positions at which a value changed that must not."""
    for mismatch in mismatches(before, after, where):
        yield mismatch.path, f"was {mismatch.expected}, became {mismatch.actual}"


class Duel:
    """Reference and subject that get the same calls; each method yields the differences.

    Args:
        reference: Vector environment that is correct by definition.
        subject: Vector environment to check.

    Attributes:
        ended: Flags of episodes that ended in the last step of the reference, shape (num_envs,).
    """

    def __init__(self, reference: VectorEnv[Any, Any, Any], subject: VectorEnv[Any, Any, Any]) -> None:
        self.reference, self.subject = reference, subject
        self.ended = np.zeros(reference.num_envs, dtype=np.bool_)
        self._calls = 0
        self._kept: list[tuple[str, Any, Any]] = []

    def call(self, name: str, *args: Any, **kwargs: Any) -> Iterator[Finding]:
        """Call a method of both and compare the results."""
        yield from differences_of(*self._call_both(name, *args, **kwargs))

    def reset(
        self, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> Iterator[Finding]:
        """Reset both and compare."""
        mask = None if options is None else options.get("reset_mask")
        self.ended = np.zeros_like(self.ended) if mask is None else self.ended & ~mask
        expected, actual, where = self._call_both("reset", seed=seed, options=options)
        yield from self._compare_results(expected, actual, where, ("observations", "infos"))

    def step(self, actions: Any) -> Iterator[Finding]:
        """Step both, each with its own copy of the actions, and compare."""
        actions_copy = copy.deepcopy(actions)
        expected, actual, where = self._call_both("step", actions_copy)
        self.ended = np.logical_or(expected[2], expected[3])
        names = ("observations", "rewards", "terminated", "truncated", "infos")
        yield from self._compare_results(expected, actual, where, names)
        yield from changes_of(actions, actions_copy, f"{where}: the caller's actions after the call")

    def roll(self, num_steps: int) -> Iterator[Finding]:
        """Step both with sampled actions; with autoreset disabled, reset ended sub-environments by a mask."""
        is_manual = self.reference.metadata["autoreset_mode"] == AutoresetMode.DISABLED
        for _ in range(num_steps):
            if is_manual and self.ended.any():
                yield from self.reset(options={"reset_mask": self.ended.copy()})
            yield from self.step(self.reference.action_space.sample())

    def check_kept(self) -> Iterator[Finding]:
        """Yield all changes of results since they were returned."""
        for where, returned, snapshot in self._kept:
            yield from changes_of(snapshot, returned, f"{where}, at the end")

    def _call_both(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, Any, str]:
        """Return the results of reference and subject, and a description of the call."""
        self._calls += 1
        words = [*(repr(arg) for arg in args if isinstance(arg, str)), *(f"{key}={kwargs[key]}" for key in kwargs)]
        where = f"call {self._calls}, {name}({', '.join(words)})"
        expected = getattr(self.reference, name)(*copy.deepcopy(args), **copy.deepcopy(kwargs))
        try:
            return expected, getattr(self.subject, name)(*args, **kwargs), where
        except Exception as error:
            error.add_note(f"in {where}")
            raise

    def _compare_results(self, expected: Any, actual: Any, where: str, names: tuple[str, ...]) -> Iterator[Finding]:
        if not isinstance(actual, tuple) or len(actual) != len(expected):
            yield where, f"expected a tuple of {len(expected)} values, found {type(actual).__name__}"
            return
        for name, one, other in zip(names, expected, actual, strict=True):
            self._kept.append((f"{where}: {name}", other, copy.deepcopy(other)))
            if name == "infos" and isinstance(other, dict):
                ours = {key: value for key, value in other.items() if key not in _OUR_INFOS or key in one}
                yield from differences_of(self._in_form(one), self._in_form(ours), f"{where}: {name}")
            else:
                yield from differences_of(one, other, f"{where}: {name}")

    def _in_form(self, infos: dict[str, Any]) -> dict[str, Any]:
        # Final observations may be returned in the form of their space or as the environment made them, for example as
        # an array or a list, so both are converted before the comparison.
        if "final_obs" not in infos:
            return infos
        space = self.reference.single_observation_space
        finals = [
            None if final is None else concatenate(space, [final], create_empty_array(space, 1))
            for final in infos["final_obs"]
        ]
        return {**infos, "final_obs": finals}
