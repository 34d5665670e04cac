"""Conformance suite for vector environments of this and other packages: `check_backend`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Sequence

from gymnasium.vector import AutoresetMode

from envfleet.testing import checks
from envfleet.testing.cases import CASES, Case
from envfleet.testing.checks import MakeFleet, Trial
from envfleet.testing.duel import Finding

Check = Callable[[Trial], checks.Findings]

ONCE: dict[str, Check] = {
    "attributes": checks.check_attributes,
    "np_random": checks.check_generators,
    "options": checks.check_options,
    "metadata": checks.check_metadata,
    "closing": checks.check_closing,
    "infos-changing": checks.check_changing_infos,
    **{f"infos-{kind}": functools.partial(checks.check_infos, kind=kind) for kind in ("mixed", "ragged")},
}

CHECKS: tuple[str, ...] = ("rollout", *ONCE)
"""Names of all checks, for `check_backend(skip=…)`."""

_MOST_FINDINGS = 8
"""Maximum number of findings of one check with one environment."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """Difference between a vector environment and the reference.

    Attributes:
        check: Name of the check.
        case: Environment, autoreset mode and copy mode.
        where: The call, and the position in its result.
        message: Expected and actual value.
    """

    check: str
    case: str
    where: str
    message: str

    def __str__(self) -> str:
        return f"[{self.check}] {self.case}: {self.where}: {self.message}"


class ConformanceError(AssertionError):
    """A vector environment does not behave as the reference; the message lists every difference.

    Attributes:
        differences: All differences.
    """

    def __init__(self, differences: Sequence[Difference], num_trials: int) -> None:
        self.differences = tuple(differences)
        self.num_trials = num_trials
        lines = [f"{len(self.differences)} differences in {num_trials} trials:"]
        lines += [f"  {difference}" for difference in self.differences]
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[type[ConformanceError], tuple[tuple[Difference, ...], int]]:
        return type(self), (self.differences, self.num_trials)


def check_backend(
    make_fleet: MakeFleet,
    *,
    cases: Sequence[Case] = CASES,
    autoreset_modes: Sequence[AutoresetMode] = tuple(AutoresetMode),
    copy_modes: Sequence[bool] = (True, False),
    num_envs: int = 3,
    num_steps: int = 8,
    timeout_s: float = 60.0,
    skip: Collection[str] = (),
) -> int:
    """Compare a vector environment with Gymnasium's `SyncVectorEnv` over many environments.

    Observations, rewards, flags and infos must be equal in every bit, including dtypes and masks, in every autoreset
    mode, with and without copies, and after every kind of reset. The results of `call`, `get_attr`, `set_attr` and
    `render`, spaces and metadata must also be equal. The caller's options and actions and all returned copies must not
    change, infos that Gymnasium merges with errors must keep their values, and a closed vector environment must raise.
    The keys `"episode"` and `"_episode"` may be added to infos.

    Args:
        make_fleet: Function that builds the vector environment from a list of constructors and the options
            `autoreset_mode` and `copy`.
        cases: Environments of the comparison.
        autoreset_modes: Modes to check.
        copy_modes: Values of `copy` to check.
        num_envs: Number of sub-environments, at least 1.
        num_steps: Number of steps after each reset.
        timeout_s: Time limit of a check with one vector environment. One that hangs is abandoned in its thread and
            reported as a difference.
        skip: Names of checks (see `CHECKS`) or of cases to leave out.

    Returns:
        Number of vector environments that were built and conform.

    Raises:
        ConformanceError: There are differences; all are listed.

    Examples:
        Gymnasium's class accepts calls after `close` and removes the mask from the caller's options, among other
        differences:

        >>> from gymnasium.vector import SyncVectorEnv
        >>> from envfleet.testing import CASES, check_backend
        >>> try:
        ...     check_backend(SyncVectorEnv, cases=CASES[:2])
        ... except Exception as error:
        ...     print(sorted({difference.check for difference in error.differences}))
        ['closing', 'infos-mixed', 'infos-ragged', 'metadata', 'options']
    """
    examined: list[tuple[str, str, Check]] = [
        ("rollout", case.name, functools.partial(checks.check_rollout, case=case)) for case in cases
    ]
    examined += [(name, "environments of the check", check) for name, check in ONCE.items()]
    differences: list[Difference] = []
    num_trials = 0
    for autoreset_mode, copy, (name, case_name, check) in itertools.product(autoreset_modes, copy_modes, examined):
        if name not in skip and case_name not in skip:
            trial = Trial(make_fleet, autoreset_mode, copy, num_envs, num_steps)
            place = f"{case_name}, {autoreset_mode.name}, copy={copy}"
            differences += [Difference(name, place, *finding) for finding in _run(check, trial, timeout_s)]
            num_trials += 1
    if differences:
        raise ConformanceError(differences, num_trials)
    return num_trials


def _run(check: Check, trial: Trial, timeout_s: float) -> list[Finding]:
    findings: list[Finding] = []

    def examine() -> None:
        try:
            with contextlib.closing(check(trial)) as results:
                findings.extend(itertools.islice(results, _MOST_FINDINGS))
        except Exception:  # noqa: BLE001  # any exception is a finding; the other checks still run
            findings.append(("raised", traceback.format_exc(limit=-5)))

    # A thread can be abandoned when a vector environment hangs, for example in close().
    thread = threading.Thread(target=examine, name="check_backend", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001  # the only way to another thread's stack
        findings.append((f"hung for {timeout_s:g} s", "".join(traceback.format_stack(frame, limit=8))))
    return findings
