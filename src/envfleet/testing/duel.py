"""`Duel`: drive two vector environments with the same calls and note every difference."""

from __future__ import annotations

import copy
import dataclasses
import traceback
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array

from envfleet.testing.compare import mismatches

OUR_INFOS = ("episode", "_episode")


@dataclasses.dataclass(frozen=True)
class Difference:
    """One way in which the vector environment did not behave as the reference.

    Attributes:
        check: The check that found it.
        case: The environment it was found over, with autoreset mode and copy mode.
        where: The call, and the place in its result.
        message: What was expected and what was found.
    """

    check: str
    case: str
    where: str
    message: str

    def __str__(self) -> str:
        return f"[{self.check}] {self.case}: {self.where}: {self.message}"


class Duel:
    """A reference and a subject that get the same calls.

    Args:
        reference: The vector environment taken as right.
        subject: The one under examination.
        report: Called with (where, message) for each difference.
        limit: After so many differences `is_over` holds and nothing more is compared.

    Attributes:
        ended: Flags of the last step, by the reference, shape (num_envs,): what a reset mask needs.
    """

    def __init__(
        self,
        reference: VectorEnv[Any, Any, Any],
        subject: VectorEnv[Any, Any, Any],
        report: Callable[[str, str], None],
        limit: int = 8,
    ) -> None:
        self.reference, self.subject = reference, subject
        self.ended = np.zeros(reference.num_envs, dtype=np.bool_)
        self._report = report
        self._left = limit
        self._calls = 0
        self._kept: list[tuple[str, Any, Any]] = []

    @property
    def is_over(self) -> bool:
        """Whether so much differed that going on would only repeat it."""
        return self._left <= 0

    def note(self, where: str, message: str) -> None:
        """Report a difference."""
        if not self.is_over:
            self._left -= 1
            self._report(where, message)

    def compare(self, expected: Any, found: Any, where: str) -> None:
        """Report every place where `found` differs."""
        for mismatch in mismatches(expected, found, where):
            self.note(mismatch.path, f"expected {mismatch.expected}, found {mismatch.found}")

    def reset(self, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None) -> None:
        """Reset both and compare."""
        if self.is_over:
            return
        self._calls += 1
        where = f"call {self._calls}, reset(seed={seed}, options={options})"
        # Gymnasium types seeds as list[int] but takes None in the list, and takes "reset_mask" out of the options.
        seeds = cast("Any", seed)
        expected = self.reference.reset(seed=seeds, options=copy.deepcopy(options))
        mask = None if options is None else options.get("reset_mask")
        self.ended = np.zeros_like(self.ended) if mask is None else self.ended & ~mask
        given = copy.deepcopy(options)
        found = self._subject_call(where, lambda: self.subject.reset(seed=seeds, options=given))
        if found is not None:
            self._compare_results(expected, found, where, ("observations", "infos"))

    def step(self, actions: Any) -> None:
        """Step both, each with its own copy of the actions, and compare."""
        if self.is_over:
            return
        self._calls += 1
        where = f"call {self._calls}, step"
        expected = self.reference.step(copy.deepcopy(actions))
        self.ended = np.logical_or(expected[2], expected[3])
        given = copy.deepcopy(actions)
        found = self._subject_call(where, lambda: self.subject.step(given))
        if found is None:
            return
        self._compare_results(expected, found, where, ("observations", "rewards", "terminated", "truncated", "infos"))
        for mismatch in mismatches(actions, given, f"{where}: the caller's actions after the call"):
            self.note(mismatch.path, f"were {mismatch.expected}, became {mismatch.found}")

    def roll(self, num_steps: int) -> None:
        """Step both with sampled actions; where autoreset is off, reset the ended ones by mask."""
        is_manual = self.reference.metadata["autoreset_mode"] == AutoresetMode.DISABLED
        for _ in range(num_steps):
            if is_manual and self.ended.any():
                self.reset(options={"reset_mask": self.ended.copy()})
            self.step(self.reference.action_space.sample())

    def check_kept(self) -> None:
        """Report every array returned so far that has changed since."""
        for where, returned, snapshot in self._kept:
            for mismatch in mismatches(snapshot, returned, where):
                self.note(
                    f"{mismatch.path}, looked at again later", f"was {mismatch.expected}, became {mismatch.found}"
                )

    def _subject_call(self, where: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception:  # noqa: BLE001  # whatever the subject raises is a finding
            self.note(where, f"raised\n{traceback.format_exc(limit=-4)}")
            self._left = 0
            return None

    def _in_form(self, infos: dict[str, Any]) -> dict[str, Any]:
        # Whether a final observation comes as its space holds it or as the environment made it is not compared: a list
        # or an array, an int or an int64.
        if "final_obs" not in infos:
            return infos
        space = self.reference.single_observation_space
        finals = [
            None if final is None else concatenate(space, [final], create_empty_array(space, 1))
            for final in infos["final_obs"]
        ]
        return {**infos, "final_obs": finals}

    def _compare_results(self, expected: tuple[Any, ...], found: Any, where: str, names: tuple[str, ...]) -> None:
        if not isinstance(found, tuple) or len(found) != len(expected):
            self.note(where, f"expected a tuple of {len(expected)} values, found {type(found).__name__}")
            return
        infos = expected[-1]
        if isinstance(found[-1], dict):
            ours = {key: value for key, value in found[-1].items() if key not in OUR_INFOS or key in infos}
            found = (*found[:-1], self._in_form(ours))
            expected = (*expected[:-1], self._in_form(infos))
        for name, one, other in zip(names, expected, found, strict=True):
            self.compare(one, other, f"{where}: {name}")
            self._kept.append((f"{where}: {name}", other, copy.deepcopy(other)))
