"""All errors of envfleet, and `Failure`, the failure of one sub-environment.

A user's mistake is an `InvalidArgument` (also a `ValueError`). Problems while a fleet runs are the other subclasses of
`EnvfleetError`. Each class has a stable `code`, which does not change with the message and is sent over HTTP.
"""

from __future__ import annotations

import dataclasses
import pickle
import signal
from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium.error


class EnvfleetError(Exception):
    """Base class of all errors of envfleet."""

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
    """An argument is invalid; the message has its value, what is accepted and what to do."""

    code = "invalid_argument"


class UnknownEnv(InvalidArgument, gymnasium.error.UnregisteredEnv):
    """No environment is registered under this id; the message has similar ids."""

    code = "unknown_env"


class ActionsNotBatched(InvalidArgument, TypeError):
    """Actions are not a batch, such as one number for all sub-environments."""

    code = "actions_not_batched"


class SpacesDiffer(InvalidArgument, RuntimeError, AssertionError):
    """Sub-environments have different spaces; also a subclass of the errors that Gymnasium raises then.

    Attributes:
        space: Name of the space: `"observation_space"` or `"action_space"`.
    """

    code = "spaces_differ"

    def __init__(self, message: str, space: str = "observation_space") -> None:
        super().__init__(message)
        self.space = space


class KernelError(EnvfleetError, TypeError):
    """A kernel cannot run or be compiled; the message has the function, line or field."""

    code = "kernel"


class KernelIndexError(KernelError, IndexError):
    """A kernel used an invalid index, in code compiled with index checks (`debug=True`).

    Attributes:
        place: File, line and function.
        index: Index.
        axis: Axis of the array; 0 for a tuple.
        size: Size of that axis.
    """

    code = "kernel_index"

    def __init__(self, place: str, index: int, axis: int, size: int) -> None:
        self.place, self.index, self.axis, self.size = place, index, axis, size
        super().__init__(
            f"{place}: index {index} is out of bounds for axis {axis} with size {size}: compare it with the size "
            "first, or make the array larger"
        )


class MissingDependency(EnvfleetError, ImportError):
    """An optional package is not installed; the message has the command that installs it."""

    code = "missing_dependency"


class FleetClosed(EnvfleetError, gymnasium.error.ClosedEnvironmentError):
    """The fleet was used after `close()`."""

    code = "fleet_closed"


class FleetBroken(EnvfleetError):
    """The fleet was used after a failure that it could not repair; the cause is that failure."""

    code = "fleet_broken"


class CallPending(EnvfleetError, gymnasium.error.AlreadyPendingCallError):
    """A call was made while steps of `send` were pending."""

    code = "call_pending"

    def __init__(self, message: str, name: str = "step") -> None:
        super().__init__(message, name)


class NothingPending(EnvfleetError, gymnasium.error.NoAsyncCallError):
    """`recv` was called without pending steps."""

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
    """A sub-environment or a shaping function returned a reward that is not finite."""

    code = "bad_reward"


class TrainingDiverged(EnvfleetError, ArithmeticError):
    """A loss is not finite; the message has the name of the loss and what to do."""

    code = "training_diverged"


class WireError(EnvfleetError, ValueError):
    """Data from the network are invalid, or a value cannot be sent."""

    code = "wire"


class ServiceUnreachable(EnvfleetError, ConnectionError):
    """A service did not answer, even after retries; the call may have been executed, and can be repeated."""

    code = "service_unreachable"


class ServiceRefused(EnvfleetError):
    """A service refused a call: `status` of HTTP, and `reason`, the code of the refusal such as `"quota"`."""

    code = "service_refused"
    status: int = 0
    reason: str = ""


class OutOfMemory(EnvfleetError, MemoryError):
    """There is not enough memory for the arrays that a fleet shares with its workers."""

    code = "out_of_memory"


def after_steps(count: int) -> str:
    """Return the position in an episode in words."""
    return f"after {count} step{'' if count == 1 else 's'}"


@dataclasses.dataclass(frozen=True)
class Failure:
    """Failure of one sub-environment, as values that always pickle.

    Attributes:
        env_index: Index of the sub-environment in the fleet.
        worker: Index of the worker.
        verb: Call that failed: `"make"`, `"reset"`, `"step"`, `"close"`, …
        type_name: Qualified name of the original exception's type.
        message: Text of the original exception.
        traceback: Formatted remote traceback, starting in the sub-environment's code; empty if the fleet detected an
            invalid return value.
        pid: Process that ran the sub-environment.
        seed: Seed of its last seeded reset, in this episode or an earlier one.
        step: Steps taken in the running episode before the failing call.
        action: `repr` of the last action, shortened, or `None`.
        pickled: The original exception, pickled, if it can be unpickled.
        replay: Record for `envfleet replay`, or `None`.
        no_replay: Reason for a missing replay file.
        error: The original exception, if it was raised in this process; not pickled.
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
        """Return the original exception; `None` if it came from another process and could not be pickled."""
        if self.error is not None or self.pickled is None:
            return self.error
        try:
            error = pickle.loads(self.pickled)
        except Exception:  # noqa: BLE001  # whatever a foreign __reduce__ may raise; the failure's text says it all
            return None
        return error if isinstance(error, BaseException) else None

    @property
    def place(self) -> str:
        """Description of the call and the episode."""
        episode = "" if self.step is None else f" {after_steps(self.step)} of its episode"
        seed = "" if self.seed is None else f", last seeded with {self.seed}"
        action = "" if self.action is None else f", last action {self.action}"
        return f"{self.verb}{episode}{seed}{action}"

    def summary(self) -> str:
        """Return a summary of the failure in one line."""
        where = f"sub-environment {self.env_index} (worker {self.worker}, pid {self.pid})"
        return f"{where} failed in {self.place}: {self.type_name}: {self.message}"

    def how_to_repeat(self, replay_file: str | None) -> str:
        """Return how to reproduce the failure, or why that is impossible; empty outside of episodes."""
        if replay_file is not None:
            return f"To reproduce it in this process: envfleet replay {replay_file}"
        return "" if self.no_replay is None else f"There is no replay file: {self.no_replay}."


class SubEnvError(EnvfleetError):
    """One or more sub-environments raised.

    Its `__cause__` is the original exception, if that can be unpickled. The message has the index of each
    sub-environment and the remote traceback of the first one.

    Attributes:
        failures: Failure of each sub-environment that raised, by index.
        replay_file: Path of the file with which `envfleet replay` reproduces the failure, or `None`.
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
    """Describe the end of a process.

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
    """A worker ended unexpectedly.

    Attributes:
        worker: Index of the worker.
        env_indices: Sub-environments of the worker.
        exitcode: Exit code as in `subprocess`: a negative one is a signal; `None` if unknown.
        pid: Id of the process.
        env_index: Sub-environment that was running, or `None`.
        rows: Index, steps and last seed of each of its sub-environments, in words.
        how: Description of its end, used instead of the exit code.
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
        super().__init__(f'{self.summary}\nPass on_failure="restart" to replace lost workers.')

    @property
    def summary(self) -> str:
        """Description of the failure, without advice."""
        running = "" if self.env_index is None else f", while running sub-environment {self.env_index}"
        held = f"; it held sub-environments {list(self.env_indices)}"
        cause = self.how or describe_exit(self.exitcode)
        return f"worker {self.worker} (pid {self.pid}) {cause}{running}{held}{f': {self.rows}' if self.rows else ''}"


class StepTimeout(EnvfleetError, TimeoutError):
    """A sub-environment exceeded `step_timeout_s`; its worker was killed.

    Attributes:
        worker: Index of the worker.
        env_index: Sub-environment that was running.
        timeout_s: Timeout that it exceeded.
        stack: Python stack of the worker at that time.
        rows: Index, steps and last seed of each of the worker's sub-environments, in words.
    """

    code = "step_timeout"

    def __init__(self, worker: int, env_index: int, timeout_s: float, stack: str, rows: str = "") -> None:
        self.worker, self.env_index, self.timeout_s, self.stack, self.rows = worker, env_index, timeout_s, stack, rows
        super().__init__(
            f'{self.summary}\nPass on_failure="restart" to replace its worker, or increase step_timeout_s.'
        )

    @property
    def summary(self) -> str:
        """Description of the failure, without advice."""
        held = f" It held {self.rows}." if self.rows else ""
        return (
            f"sub-environment {self.env_index} ran longer than step_timeout_s={self.timeout_s:g}, so worker "
            f"{self.worker} was killed.{held}\nIts stack:\n{self.stack}"
        )


class WorkersUnplaced(EnvfleetError, TimeoutError):
    """Ray did not find a place for every worker of a fleet.

    Attributes:
        workers: Indices of workers without a place.
        num_workers: Number of workers to place.
        timeout_s: Timeout, `ray_options["place_timeout_s"]`.
        asked: Resources that each worker requests.
        cluster: Resources of the cluster, in total and free.
        reason: Message of Ray, if Ray raised an error.
    """

    code = "workers_unplaced"

    def __init__(
        self, workers: Sequence[int], num_workers: int, timeout_s: float, asked: str, cluster: str, reason: str | None
    ) -> None:
        self.workers, self.num_workers, self.timeout_s = tuple(workers), num_workers, timeout_s
        self.asked, self.cluster, self.reason = asked, cluster, reason
        outcome = f"within place_timeout_s={timeout_s:g}" if reason is None else f"because Ray says: {reason}"
        advice = (
            'Raise ray_options["place_timeout_s"], as a core starts about one process of Ray per second, or use fewer '
            "workers with more envs_per_worker"
            if asked == "nothing" and reason is None
            else "Ask for less in ray_options, for fewer workers with more envs_per_worker, or raise "
            'ray_options["place_timeout_s"] if nodes are being added'
        )
        super().__init__(
            f"workers {list(workers)} of {num_workers} were not placed {outcome}. Each asks for {asked}; the cluster "
            f"has {cluster}. {advice}"
        )


class StartTimeout(EnvfleetError, TimeoutError):
    """Not all sub-environments were built in time.

    Attributes:
        workers: Workers that were still building.
        timeout_s: Timeout, `start_timeout_s`.
        stacks: Python stacks of these workers.
    """

    code = "start_timeout"

    def __init__(self, workers: Sequence[int], timeout_s: float, stacks: str) -> None:
        self.workers, self.timeout_s, self.stacks = tuple(workers), timeout_s, stacks
        super().__init__(
            f"workers {list(workers)} did not finish building their sub-environments within "
            f"start_timeout_s={timeout_s:g}: increase it if they are slow to build.\nTheir stacks:\n{stacks}"
        )


class CallTimeout(EnvfleetError, TimeoutError):
    """A call exceeded the caller's timeout; nothing is lost, wait again for its result.

    Attributes:
        verb: Name of the call.
        timeout_s: Timeout of the caller.
    """

    code = "call_timeout"

    def __init__(self, verb: str, timeout_s: float) -> None:
        self.verb, self.timeout_s = verb, timeout_s
        super().__init__(
            f"{verb} was not complete within timeout_s={timeout_s:g}: wait again, nothing is lost "
            "(step_timeout_s of make() limits a sub-environment)"
        )


class RestartBudgetSpent(EnvfleetError):
    """There were more than `max_restarts` failures within an hour; the cause is the last one."""

    code = "restart_budget_spent"
