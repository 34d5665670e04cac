"""Every error envfleet raises on purpose, and `Failure`, the value that some of them carry.

A user's mistake is an `InvalidArgument` (also a `ValueError`). Problems while a fleet runs are the other
children of `EnvfleetError`. Each class has a stable `code`, which survives a change of wording or a trip over a wire.
"""

from __future__ import annotations

import dataclasses
import pickle
import signal
from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium.error


class EnvfleetError(Exception):
    """Base of all errors envfleet raises on purpose."""

    code: ClassVar[str] = "envfleet_error"

    @property
    def summary(self) -> str:
        """Description of the failure, without advice."""
        return str(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, vars(self))


def _rebuild(kind: type[EnvfleetError], args: tuple[Any, ...], attributes: dict[str, Any]) -> EnvfleetError:
    """Return an unpickled error, without a call of its constructor."""
    error = kind.__new__(kind, *args)
    vars(error).update(attributes)
    return error


class InvalidArgument(EnvfleetError, ValueError):
    """An argument cannot be used; the message says what was given, what was expected and what to do."""

    code = "invalid_argument"


class UnknownEnv(InvalidArgument, gymnasium.error.UnregisteredEnv):
    """No environment is registered under the id given; the message names those that are near."""

    code = "unknown_env"


class ActionsNotBatched(InvalidArgument, TypeError):
    """Actions are not a batch, such as one number for all sub-environments."""

    code = "actions_not_batched"


class SpacesDiffer(InvalidArgument, RuntimeError, AssertionError):
    """Sub-environments do not share their spaces; all that Gymnasium's vector environments raise then.

    Attributes:
        space: Which: `"observation_space"` or `"action_space"`.
    """

    code = "spaces_differ"

    def __init__(self, message: str, space: str = "observation_space") -> None:
        super().__init__(message)
        self.space = space


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


class MissingDependency(EnvfleetError, ImportError):
    """A package is not installed that what was asked for needs; the message says how to install it."""

    code = "missing_dependency"


class FleetClosed(EnvfleetError, gymnasium.error.ClosedEnvironmentError):
    """The fleet was used after `close()`."""

    code = "fleet_closed"


class FleetBroken(EnvfleetError):
    """The fleet was used after a failure it could not repair; chained to that failure."""

    code = "fleet_broken"


class CallPending(EnvfleetError, gymnasium.error.AlreadyPendingCallError):
    """A call was made while an earlier `send` still waits for its `recv`."""

    code = "call_pending"

    def __init__(self, message: str, name: str = "step") -> None:
        super().__init__(message, name)


class NothingPending(EnvfleetError, gymnasium.error.NoAsyncCallError):
    """`recv` was called with nothing sent."""

    code = "nothing_pending"

    def __init__(self, message: str, name: str = "step") -> None:
        super().__init__(message, name)


class ResetNeeded(EnvfleetError, gymnasium.error.ResetNeeded):
    """A sub-environment was stepped before its first reset, or after its episode ended with autoreset disabled."""

    code = "reset_needed"


class StateUnsupported(EnvfleetError):
    """A sub-environment's state can be neither saved nor restored."""

    code = "state_unsupported"


class ObservationError(EnvfleetError, ValueError):
    """A sub-environment returned an observation that does not match its `observation_space`."""

    code = "bad_observation"


class RewardError(EnvfleetError, ValueError):
    """A sub-environment, or a shaping function, returned a reward that is not finite, and training cannot use it."""

    code = "bad_reward"


class TrainingDiverged(EnvfleetError, ArithmeticError):
    """A loss is not finite any more; the message names the loss and what to do."""

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


def after_steps(count: int) -> str:
    """Return how far an episode is, in words."""
    return f"after {count} step{'' if count == 1 else 's'}"


@dataclasses.dataclass(frozen=True)
class Failure:
    """A failure of one sub-environment, as plain values that always pickle.

    Attributes:
        env_index: The sub-environment's index in the fleet.
        worker: The worker's index.
        verb: What it was doing: `"make"`, `"reset"`, `"step"`, `"close"`, …
        type_name: Qualified name of the original exception's type.
        message: The original exception's text.
        traceback: The formatted remote traceback, from where the sub-environment's own code begins; empty if the
            fleet found out itself what is wrong with what the sub-environment returned.
        pid: Process that ran the sub-environment.
        seed: Seed that it was last reset with, in this episode or an earlier one, if there was one.
        step: Steps taken in the running episode before the failing call.
        action: `repr` of the last action, shortened, or `None`.
        pickled: The original exception, pickled, where it survives the trip.
        replay: What `envfleet replay` needs, or `None`.
        no_replay: Reason for a missing replay file.
        error: The original exception itself, where it was raised in this process; does not pickle along.
    """

    env_index: int
    worker: int
    verb: str
    type_name: str
    message: str
    traceback: str
    pid: int
    seed: int | None = None
    step: int | None = None
    action: str | None = None
    pickled: bytes | None = None
    replay: bytes | None = None
    no_replay: str | None = None
    error: BaseException | None = dataclasses.field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "error": None}

    def original(self) -> BaseException | None:
        """Return the exception as it was raised; `None` if it came from elsewhere and did not survive pickling."""
        if self.error is not None or self.pickled is None:
            return self.error
        try:
            error = pickle.loads(self.pickled)
        except Exception:  # noqa: BLE001  # whatever a foreign __reduce__ may raise; the failure's text says it all
            return None
        return error if isinstance(error, BaseException) else None

    @property
    def place(self) -> str:
        """Description of what it was doing in which episode."""
        episode = "" if self.step is None else f" {after_steps(self.step)} of its episode"
        seed = "" if self.seed is None else f", last seeded with {self.seed}"
        action = "" if self.action is None else f", last action {self.action}"
        return f"{self.verb}{episode}{seed}{action}"

    def summary(self) -> str:
        """Return one line that says what failed where."""
        where = f"sub-environment {self.env_index} (worker {self.worker}, pid {self.pid})"
        return f"{where} failed in {self.place}: {self.type_name}: {self.message}"

    def how_to_repeat(self, replay_file: str | None) -> str:
        """Return how to run it again, or why that is impossible; empty outside episodes."""
        if replay_file is not None:
            return f"To run it again in this process: envfleet replay {replay_file}"
        return "" if self.no_replay is None else f"There is no file to run it again: {self.no_replay}."


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
        self.failures = tuple(sorted(failures, key=lambda failure: failure.env_index))
        self.replay_file = replay_file
        first = self.failures[0]
        self.env_index, self.worker, self.verb = first.env_index, first.worker, first.verb
        again = first.how_to_repeat(replay_file)
        lines = [*(failure.summary() for failure in self.failures), *([again] if again else [])]
        where = [f"Traceback in worker {first.worker}:\n{first.traceback}"] if first.traceback else []
        super().__init__("\n".join([*lines, *where]))
        self.__cause__ = first.original()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.failures, self.replay_file)


def describe_exit(exitcode: int | None) -> str:
    """Describe how a process ended.

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
        env_index: The sub-environment it was running, or `None`.
        rows: Index, steps and last seed of each of its sub-environments, in words.
        how: Description of its end instead of the exit code.
    """

    code = "worker_died"

    def __init__(
        self,
        worker: int,
        env_indices: Sequence[int],
        exitcode: int | None,
        pid: int | None = None,
        *,
        env_index: int | None = None,
        rows: str = "",
        how: str | None = None,
    ) -> None:
        self.worker, self.env_indices, self.exitcode, self.pid = worker, tuple(env_indices), exitcode, pid
        self.env_index, self.rows, self.how = env_index, rows, how
        super().__init__(f'{self.summary}\nPass on_failure="restart" to have lost workers rebuilt.')

    @property
    def summary(self) -> str:
        """Description of the failure, without advice."""
        running = "" if self.env_index is None else f", while running sub-environment {self.env_index}"
        held = f"; it held sub-environments {list(self.env_indices)}"
        cause = self.how or describe_exit(self.exitcode)
        return f"worker {self.worker} (pid {self.pid}) {cause}{running}{held}{f': {self.rows}' if self.rows else ''}"


class StepTimeout(EnvfleetError, TimeoutError):
    """A sub-environment overran `step_timeout_s`; its worker was ended.

    Attributes:
        worker: The worker's index.
        env_index: The sub-environment that was running.
        timeout_s: The deadline it overran.
        stack: The worker's Python stack at that moment.
        rows: Index, steps and last seed of each of the worker's sub-environments, in words.
    """

    code = "step_timeout"

    def __init__(self, worker: int, env_index: int, timeout_s: float, stack: str, rows: str = "") -> None:
        self.worker, self.env_index, self.timeout_s, self.stack, self.rows = worker, env_index, timeout_s, stack, rows
        super().__init__(
            f'{self.summary}\nPass on_failure="restart" to have its worker replaced, or raise step_timeout_s.'
        )

    @property
    def summary(self) -> str:
        """Description of the failure, without advice."""
        held = f" It held {self.rows}." if self.rows else ""
        return (
            f"sub-environment {self.env_index} ran longer than step_timeout_s={self.timeout_s:g}, so worker "
            f"{self.worker} was ended.{held}\nWhere it was:\n{self.stack}"
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


class RestartBudgetSpent(EnvfleetError):
    """More failures than `max_restarts` allows within an hour; chained to the last one."""

    code = "restart_budget_spent"
