"""The sub-environments of a group: building, rebuilding and reaching into them; what is known of each."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from envfleet.core.builders import EnvBuilder
from envfleet.core.checks import check_distinct, check_same_spaces
from envfleet.core.direct_steps import DirectSteps
from envfleet.core.failures import StepInterrupted, make_failure, text_of
from envfleet.core.group import GroupInfo, GroupOptions
from envfleet.core.messages import CallPayload, Reply
from envfleet.core.replay import NO_BEGINNING, TOO_LONG, ReplayRecord
from envfleet.core.trace import Trace
from envfleet.errors import Failure, InvalidArgument, SubEnvError


class EnvRows:
    """Python sub-environments, one per row.

    Args:
        builders: One per sub-environment.
        options: How the group behaves.
        shared: The fleet's shared data by name.

    Attributes:
        envs: The sub-environments.
        direct: Their `step` methods.
        trace: Their running episodes.
        next_seeds: Seed of the next reset where a sub-environment was rebuilt, else `None`.
        caught: What counts as a failure of a sub-environment. In the owner's own thread a `KeyboardInterrupt` is the
            person's; in a worker it can only be the environment's.

    Raises:
        SubEnvError: A sub-environment could not be built; those built before it are closed again.
    """

    def __init__(self, builders: Sequence[EnvBuilder], options: GroupOptions, shared: Mapping[str, Any]) -> None:
        num_envs = len(builders)
        self._builders, self._options, self._shared = builders, options, shared
        self.caught: tuple[type[BaseException], ...] = (
            (Exception, SystemExit, GeneratorExit, StepInterrupted) if options.is_inline else (BaseException,)
        )
        self._rebuilds = [0] * num_envs
        self.trace = Trace(num_envs)
        self.next_seeds: list[int | None] = [None] * num_envs
        self.envs: list[gym.Env[Any, Any]] = []
        for row in range(num_envs):
            # One that takes another's place must not repeat its episodes.
            seed = self.trace.build_seeds[row] = self.derive_seed(row) if options.incarnation else None
            try:
                self.envs.append(self.build(row, seed))
            except InvalidArgument:
                self.close()
                raise
            except self.caught as error:
                failure = self.describe_failure(row, "make", error)
                self.close()
                raise SubEnvError([failure]) from error
        self.direct = DirectSteps(self.envs, self.trace)

    def build(self, row: int, seed: int | None) -> gym.Env[Any, Any]:
        """Build a sub-environment for `row`; `seed` is for callables that take one."""
        return self._builders[row].build(self._shared, seed)

    def describe(self) -> GroupInfo:
        """Check that the sub-environments fit together, and tell what the fleet must know.

        Raises:
            InvalidArgument: Spaces differ, or two sub-environments are the same object.
        """
        first, first_index = self.envs[0], self._options.first_index
        for row, env in enumerate(self.envs):
            check_same_spaces(first_index, first, first_index + row, env, self._options.same_bounds)
        identities = [id(env.unwrapped) for env in self.envs]
        check_distinct(identities, first_index)
        spaces = [env.observation_space for env in self.envs]
        if all(space == spaces[0] for space in spaces):
            spaces = spaces[:1]
        metadata = dict(first.metadata)
        return GroupInfo(spaces, first.action_space, metadata, first.spec, first.render_mode, os.getpid(), identities)

    def install(self, row: int, env: gym.Env[Any, Any]) -> None:
        """Put `env` in the place of the sub-environment of `row`."""
        self.envs[row] = env
        del env  # or it would count as held by somebody else
        self.direct.adopt(row)

    def rebuild(self, row: int) -> Failure | None:
        """Put a new sub-environment in the place of one that failed, with a seed of its own for its next reset.

        Returns:
            What went wrong if it cannot be built again.
        """
        self._rebuilds[row] += 1
        with contextlib.suppress(*self.caught):  # it is broken already, and the failure that matters is reported
            self.envs[row].close()
        seed = self.trace.build_seeds[row] = self.derive_seed(row)
        try:
            self.install(row, self.build(row, seed))
        except self.caught as error:
            return self.describe_failure(row, "make", error)
        self.next_seeds[row] = seed
        return None

    def derive_seed(self, row: int, episode: int = 0) -> int:
        """A seed for a sub-environment that takes another's place, different each time."""
        options = self._options
        key = (options.first_index + row, options.incarnation, self._rebuilds[row], episode)
        return int(np.random.SeedSequence(options.root_seed, spawn_key=key).generate_state(1)[0])

    def describe_failure(self, row: int, verb: str, error: BaseException, action: Any = None) -> Failure:
        """Turn what a sub-environment raised into a value that can travel."""
        index, worker = self._options.first_index + row, self._options.worker
        replay = self._record(row, verb, error) if verb in ("step", "reset") else None
        origin = self.trace.origin(row)
        if isinstance(error, StepInterrupted):  # raised by signal or from another thread, where it gets no text
            text = f"ran longer than step_timeout_s={self._options.step_timeout_s:g}"
            error = StepInterrupted(text).with_traceback(error.__traceback__)
        return make_failure(
            error,
            verb=verb,
            env_index=index,
            worker=worker,
            seed=None if origin is None else origin.last_seed,
            step=self.trace.length(row) - 1 if verb == "step" else None,
            action=action,
            replay=replay,
        )

    def _record(self, row: int, verb: str, error: BaseException) -> bytes | str:
        """Pickle what it takes to run an episode again; returns why not, if that cannot be."""
        origin, actions = self.trace.origin(row), self.trace.actions_of(row)
        if origin is None:
            return NO_BEGINNING
        if actions is None:
            return TOO_LONG
        index, timeout_s = self._options.first_index + row, self._options.step_timeout_s
        what = verb, type(error).__qualname__, text_of(error)
        return ReplayRecord(self._builders[row], origin, actions, *what, index, timeout_s).pack()

    def call(self, row: int, payload: CallPayload) -> Any:
        """Look a name up on the sub-environment, and call it if it can be called; or call a function of it."""
        if not isinstance(payload.name, str):
            return payload.name(self.envs[row], *payload.args, **payload.kwargs)
        found = self.envs[row].get_wrapper_attr(payload.name)
        return found(*payload.args, **payload.kwargs) if callable(found) else found

    def for_each(self, rows: Iterable[int], verb: str, action: Callable[[int], Any]) -> Reply:
        """Do something for each row; the reply's value has one result per row that did not raise."""
        reply = Reply(value=[])
        for row in rows:
            self.direct.restore(row)
            try:
                reply.value.append(action(row))
            except self.caught as error:
                reply.failures.append(self.describe_failure(row, verb, error))
            finally:
                self.direct.adopt(row)
        return reply

    def close(self) -> list[Failure]:
        """Close every sub-environment, also after one of them raised; returns what they raised."""
        envs, self.envs = self.envs, []
        failures = []
        for row, env in enumerate(envs):
            try:
                env.close()
            except self.caught as error:
                failures.append(self.describe_failure(row, "close", error))
        return failures
