"""Every error envfleet raises on purpose; `Failure`, the value that some of them carry, is `envfleet.failure`'s.

A user's mistake is an `InvalidArgument` (also a `ValueError`). What goes wrong while a fleet runs is one of the other
children of `EnvfleetError`. Each class has a stable `code`, which survives a change of wording or a trip over a wire.
"""

from __future__ import annotations

import functools
import signal
from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium.error

from envfleet.failure import Failure as Failure  # noqa: PLC0414  # offered here, too


class EnvfleetError(Exception):
    """Base of all errors envfleet raises on purpose."""

    code: ClassVar[str] = "envfleet_error"

    @property
    def summary(self) -> str:
        """What happened, without advice."""
        return str(self)


class InvalidArgument(EnvfleetError, ValueError):
    """An argument cannot be used; the message says what was given, what was expected and what to do."""

    code = "invalid_argument"


class UnknownEnv(InvalidArgument, gymnasium.error.UnregisteredEnv):
    """No environment is registered under the id given; the message names those that are near."""

    code = "unknown_env"


class SpacesDiffer(InvalidArgument):
    """Sub-environments do not share their spaces.

    Attributes:
        space: Which: `"observation_space"` or `"action_space"`.
    """

    code = "spaces_differ"

    def __init__(self, message: str, space: str = "observation_space") -> None:
        super().__init__(message)
        self.space = space

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.space)


class KernelError(EnvfleetError, TypeError):
    """A kernel is written in a way that cannot run or be compiled; the message names the function, line or field."""

    code = "kernel"


class KernelIndexError(KernelError, IndexError):
    """A kernel used an index outside an array, in code compiled to notice it (`debug=True`).

    Attributes:
        place: File, line and function.
        index: The index.
        axis: Of the array, or 0 of a tuple.
        size: Of that axis.
    """

    code = "kernel_index"

    def __init__(self, place: str, index: int, axis: int, size: int) -> None:
        self.place, self.index, self.axis, self.size = place, index, axis, size
        super().__init__(
            f"{place}: index {index} is out of bounds for axis {axis} with size {size}: compare it with the size "
            "first, or make the array larger"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.place, self.index, self.axis, self.size)


class MissingDependency(EnvfleetError, ImportError):
    """A package is not installed that what was asked for needs; the message says how to install it."""

    code = "missing_dependency"


class FleetClosed(EnvfleetError):
    """The fleet was used after `close()`, or after `split()`, when only its parts may be."""

    code = "fleet_closed"


class FleetBroken(EnvfleetError):
    """The fleet was used after a failure it could not repair; chained to that failure."""

    code = "fleet_broken"


class CallPending(EnvfleetError):
    """A call was made while an earlier `send` still waits for its `recv`."""

    code = "call_pending"


class NothingPending(EnvfleetError):
    """`recv` was called with nothing sent."""

    code = "nothing_pending"


class ResetNeeded(EnvfleetError, gymnasium.error.ResetNeeded):
    """A sub-environment was stepped before its first reset, or after its episode ended with autoreset disabled."""

    code = "reset_needed"


class StateUnsupported(EnvfleetError):
    """A sub-environment's state can be neither saved nor restored."""

    code = "state_unsupported"


class ObservationError(EnvfleetError, ValueError):
    """A sub-environment returned an observation that does not match its `observation_space`."""

    code = "bad_observation"


class TrainingDiverged(EnvfleetError, ArithmeticError):
    """A loss is no finite number any more; the message says which, and what to do."""

    code = "training_diverged"


class WireError(EnvfleetError, ValueError):
    """Bytes from the network that are not what they should be, or a value that cannot be sent."""

    code = "wire"


class ServiceUnreachable(EnvfleetError, ConnectionError):
    """A service gave no answer, however often it was asked; the call may have been made, and can be repeated."""

    code = "service_unreachable"


class ServiceRefused(EnvfleetError):
    """A service refused a call: `status` is HTTP's, `reason` the code that the service gave (`"quota"`)."""

    code = "service_refused"
    status: int = 0
    reason: str = ""


class OutOfMemory(EnvfleetError, MemoryError):
    """There is not enough memory for the arrays a fleet shares with its workers."""

    code = "out_of_memory"


class SubEnvError(EnvfleetError):
    """One or more sub-environments raised.

    Raised `from` the original exception where that unpickles, so `except SubEnvError as error: error.__cause__` has
    its type. The message names each sub-environment and carries the remote traceback of the first.

    Attributes:
        failures: One `Failure` per sub-environment that raised, by index.
        replay_file: Path of the file that `envfleet replay` runs again in this process, or `None`.
    """

    code = "sub_env_error"

    def __init__(self, failures: Sequence[Failure], replay_file: str | None = None) -> None:
        self.failures = tuple(failures)
        self.replay_file = replay_file
        first = self.failures[0]
        self.env_index, self.worker, self.verb = first.env_index, first.worker, first.verb
        again = first.how_to_repeat(replay_file)
        lines = [*(failure.summary() for failure in self.failures), *([again] if again else [])]
        where = [f"Traceback in worker {first.worker}:\n{first.traceback}"] if first.traceback else []
        super().__init__("\n".join([*lines, *where]))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.failures, self.replay_file)


def describe_exit(exitcode: int | None) -> str:
    """Say in words how a process ended.

    >>> describe_exit(-9)
    'killed by SIGKILL, often out of memory'
    >>> describe_exit(3)
    'exited with code 3'
    """
    if exitcode is None:
        return "ended without an exit code"
    if exitcode >= 0:
        return f"exited with code {exitcode}"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        return f"killed by signal {-exitcode}"
    hints = {
        "SIGKILL": ", often out of memory",
        "SIGSEGV": ", a crash in native code",
        "SIGABRT": ", a failed check in native code",
        "SIGBUS": ", often a full disk or shared memory",
    }
    return f"killed by {name}{hints.get(name, '')}"


class WorkerDied(EnvfleetError):
    """A worker ended without being asked to.

    Attributes:
        worker: Its index.
        env_indices: The sub-environments it held.
        exitcode: As `subprocess`: negative is a signal; `None` if unknown.
        pid: Its process.
        how: What is known of its end beyond the exit code, or in place of it.
        failures: What is known of the sub-environment it was running when it died: one `Failure`, or none.
        env_index: Index of that sub-environment, or `None`.
        replay_file: Path of the file that `envfleet replay` runs again in this process, or `None`.
        is_repaired: Whether another worker has taken its place.
    """

    code = "worker_died"

    def __init__(
        self,
        worker: int,
        env_indices: Sequence[int],
        exitcode: int | None,
        pid: int | None = None,
        *,
        how: str | None = None,
        failures: Sequence[Failure] = (),
        replay_file: str | None = None,
    ) -> None:
        self.worker, self.env_indices, self.exitcode = worker, tuple(env_indices), exitcode
        self.pid, self.how = pid, how
        self.is_repaired = False
        self.blame(failures, replay_file)
        super().__init__(self.summary)

    def blame(self, failures: Sequence[Failure], replay_file: str | None) -> None:
        """Add what is known of the sub-environment it was running."""
        self.failures, self.replay_file = tuple(failures), replay_file
        self.env_index = failures[0].env_index if failures else None

    def __str__(self) -> str:
        advice = "" if self.is_repaired else '\nPass on_failure="restart" to have lost workers rebuilt.'
        return f"{self.summary}{advice}"

    @property
    def cause(self) -> str:
        """How it ended, in words."""
        return self.how or describe_exit(self.exitcode)

    @property
    def summary(self) -> str:
        """What happened, without advice."""
        running = "".join(f", while running sub-environment {one.env_index} in {one.place}" for one in self.failures)
        again = "".join(f"\n{one.how_to_repeat(self.replay_file)}" for one in self.failures).rstrip()
        return (
            f"worker {self.worker} (pid {self.pid}) {self.cause}{running}; "
            f"it held sub-environments {list(self.env_indices)}{again}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        rebuild = functools.partial(type(self), how=self.how, failures=self.failures, replay_file=self.replay_file)
        return rebuild, (self.worker, self.env_indices, self.exitcode, self.pid)

    def because(self, how: str) -> WorkerDied:
        """The same, with more words for how it ended."""
        return WorkerDied(self.worker, self.env_indices, self.exitcode, self.pid, how=how)


class StepTimeout(EnvfleetError, TimeoutError):
    """A sub-environment overran `step_timeout_s`.

    Attributes:
        worker: The worker's index.
        env_index: The sub-environment that was running.
        timeout_s: The deadline it overran.
        stack: The worker's Python stack at that moment.
        failures: What is known of that sub-environment: one `Failure`, or none.
        replay_file: Path of the file that `envfleet replay` runs again in this process, or `None`.
    """

    code = "step_timeout"

    def __init__(
        self,
        worker: int,
        env_index: int,
        timeout_s: float,
        stack: str,
        failures: Sequence[Failure] = (),
        replay_file: str | None = None,
    ) -> None:
        self.worker, self.env_index, self.timeout_s, self.stack = worker, env_index, timeout_s, stack
        self.blame(failures, replay_file)
        super().__init__(self.summary)

    def blame(self, failures: Sequence[Failure], replay_file: str | None) -> None:
        """Add what is known of the sub-environment."""
        self.failures, self.replay_file = tuple(failures), replay_file

    def __str__(self) -> str:
        return f'{self.summary}\nPass on_failure="restart" to have it rebuilt, or raise step_timeout_s.'

    @property
    def summary(self) -> str:
        """What happened, without advice."""
        place = "".join(f" in {one.place}" for one in self.failures)
        again = "".join(f"{one.how_to_repeat(self.replay_file)}\n" for one in self.failures).lstrip()
        return (
            f"sub-environment {self.env_index} (worker {self.worker}) ran longer than "
            f"step_timeout_s={self.timeout_s:g}{place}.\n{again}Where it was:\n{self.stack}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (
            self.worker,
            self.env_index,
            self.timeout_s,
            self.stack,
            self.failures,
            self.replay_file,
        )


class WorkersUnplaced(EnvfleetError, TimeoutError):
    """Ray did not find a place for every worker of a fleet.

    Attributes:
        workers: Those without a place.
        num_workers: How many there were to place.
        timeout_s: The limit, `ray_options["place_timeout_s"]` or what is left of `start_timeout_s`.
        asked: What each of them asks for.
        cluster: What the cluster has, and what of that is free.
        reason: What Ray says, if it gave up by itself.
    """

    code = "workers_unplaced"

    def __init__(
        self, workers: Sequence[int], num_workers: int, timeout_s: float, asked: str, cluster: str, reason: str | None
    ) -> None:
        self.workers, self.num_workers, self.timeout_s = tuple(workers), num_workers, timeout_s
        self.asked, self.cluster, self.reason = asked, cluster, reason
        outcome = f"within place_timeout_s={timeout_s:g}" if reason is None else f"because Ray says: {reason}"
        super().__init__(
            f"workers {list(workers)} of {num_workers} were not placed {outcome}. Each asks for {asked}; the cluster "
            f"has {cluster}. Ask for less in ray_options, for fewer workers with more envs_per_worker, or raise "
            'ray_options["place_timeout_s"] if nodes are being added'
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.workers, self.num_workers, self.timeout_s, self.asked, self.cluster, self.reason)


class StartTimeout(EnvfleetError, TimeoutError):
    """Not all sub-environments were built in time.

    Attributes:
        workers: The workers still building.
        timeout_s: The limit, `start_timeout_s`.
        stacks: Where they were.
    """

    code = "start_timeout"

    def __init__(self, workers: Sequence[int], timeout_s: float, stacks: str) -> None:
        self.workers, self.timeout_s, self.stacks = tuple(workers), timeout_s, stacks
        super().__init__(
            f"workers {list(workers)} did not finish building their sub-environments within "
            f"start_timeout_s={timeout_s:g}: raise it if they are slow to build.\nWhere they were:\n{stacks}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.workers, self.timeout_s, self.stacks)


class CallTimeout(EnvfleetError, TimeoutError):
    """A caller's own patience ran out; nothing is lost, the call can be finished later.

    Attributes:
        verb: What was asked.
        timeout_s: How long the caller waited.
    """

    code = "call_timeout"

    def __init__(self, verb: str, timeout_s: float) -> None:
        self.verb, self.timeout_s = verb, timeout_s
        super().__init__(
            f"{verb} was not complete within timeout_s={timeout_s:g}: wait again, nothing is lost "
            "(step_timeout_s of make() is what limits a sub-environment)"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.verb, self.timeout_s)


class RestartBudgetSpent(EnvfleetError):
    """More failures than `max_restarts` allows within an hour; chained to the last one."""

    code = "restart_budget_spent"
