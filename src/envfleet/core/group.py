"""A group: the sub-environments of one worker, which steps itself over arrays. Holds the only Python autoreset."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from envfleet.core.arrays import FleetArrays, Outputs, Progress
from envfleet.core.builders import EnvBuilder
from envfleet.core.checks import UNSET, check_distinct, check_same_spaces, explain_reset, explain_result
from envfleet.core.failures import StepInterrupted, make_failure, replay_bytes
from envfleet.core.info_columns import ColumnWriter
from envfleet.core.infos import own_info
from envfleet.core.layout import SpaceLayout
from envfleet.core.messages import CallPayload, Reply, ResetPayload
from envfleet.core.state import EnvState, load_env, save_env
from envfleet.core.trace import Trace
from envfleet.errors import Failure, SubEnvError

TICK = 1 << 20
"""`Progress.ROW` holds `turn * TICK + row + 1`; the low part is 0 when the worker is idle."""


class GroupInfo(NamedTuple):
    """What a group tells of itself once it is built.

    Attributes:
        observation_spaces: Of every sub-environment if they differ, else the one they share.
        action_space: The one they share.
        metadata: Of the first.
        spec: Of the first.
        render_mode: Of the first.
        pid: Process it lives in.
        identities: `id` of every sub-environment, to find one that stands twice.
    """

    observation_spaces: list[gym.Space[Any]]
    action_space: gym.Space[Any]
    metadata: dict[str, Any]
    spec: Any
    render_mode: str | None
    pid: int
    identities: list[int]


@dataclasses.dataclass(frozen=True)
class GroupOptions:
    """How a group behaves.

    Attributes:
        worker: Index of its worker.
        first_index: Index in the fleet of its first sub-environment.
        autoreset_mode: Gymnasium's.
        on_failure: `"raise"` reports a sub-environment that raised; `"restart"` rebuilds it in place.
        root_seed: Seeds of rebuilt sub-environments derive from it.
        incarnation: How often this worker was started before.
        lost: Why the predecessor ended; every sub-environment then answers its first step as truncated.
        same_bounds: Observation spaces must be equal, not only of one shape and type.
        is_inline: The group runs in the owner's thread.
        spares: Sub-environments kept reset in the background for slow resets.
    """

    worker: int
    first_index: int
    autoreset_mode: AutoresetMode
    on_failure: Literal["raise", "restart"]
    root_seed: int
    incarnation: int = 0
    lost: str | None = None
    same_bounds: bool = True
    is_inline: bool = False
    spares: int = 0


class Group(Protocol):
    """A slice of sub-environments that steps itself over arrays; what every transport carries."""

    num_envs: int

    def describe(self) -> GroupInfo: ...
    def attach(self, arrays: FleetArrays, layouts: tuple[SpaceLayout, SpaceLayout]) -> None: ...
    def step(self, generation: int, rows: Sequence[int] | None, objects: list[list[Any]]) -> Reply | None: ...
    def reset(self, generation: int, payload: ResetPayload) -> Reply | None: ...
    def call(self, payload: CallPayload, rows: Sequence[int] | None) -> Reply: ...
    def set_attr(self, name: str, values: Sequence[Any], rows: Sequence[int] | None) -> Reply: ...
    def get_state(self, generation: int, rows: Sequence[int]) -> Reply: ...
    def set_state(self, generation: int, states: Sequence[tuple[int, Any]]) -> Reply: ...
    def close(self) -> list[Failure]: ...


class RowState(NamedTuple):
    """A saved row of a group: the sub-environment, its last observation and whether it awaits a reset."""

    env: EnvState
    observation: Any
    is_awaiting: bool


class EnvGroup:
    """Python sub-environments, stepped one after the other.

    Args:
        builders: One per sub-environment.
        options: How the group behaves.
        shared: The fleet's shared data by name.

    Raises:
        SubEnvError: A sub-environment could not be built; those built before it are closed again.
    """

    def __init__(
        self,
        builders: Sequence[EnvBuilder],
        options: GroupOptions,
        shared: Mapping[str, Any],
    ) -> None:
        self.num_envs = len(builders)
        self.is_abandoned = False  # set from another thread: this group must not write any more
        self._builders, self._options, self._shared = builders, options, shared
        self._mode = options.autoreset_mode
        # In the owner's own thread a KeyboardInterrupt is the person's; in a worker it can only be the environment's.
        self._caught = (Exception, SystemExit, StepInterrupted) if options.is_inline else (BaseException,)
        self._rebuilds = [0] * self.num_envs
        self._awaiting = [False] * self.num_envs
        self._next_seeds: list[int | None] = [None] * self.num_envs
        self._lengths = [0] * self.num_envs
        self._lost: list[str | None] = [options.lost] * self.num_envs
        self._trace = Trace(self.num_envs)
        self._reply: Reply | None = None
        self._tick = 0
        self._envs: list[gym.Env[Any, Any]] = []
        for row in range(self.num_envs):
            # A sub-environment that replaces a lost one must not repeat its predecessor's episodes.
            seed = self._derive_seed(row) if options.lost else None
            try:
                self._envs.append(builders[row].build(shared, seed))
            except self._caught as error:
                failure = self._describe_failure(row, "make", error)
                self.close()
                raise SubEnvError([failure]) from error
        self._steps = [env.step for env in self._envs]

    def describe(self) -> GroupInfo:
        """Check that the sub-environments fit together, and tell what the fleet must know.

        Raises:
            InvalidArgument: Spaces differ, or two sub-environments are the same object.
        """
        first, first_index = self._envs[0], self._options.first_index
        for row, env in enumerate(self._envs):
            check_same_spaces(first_index, first, first_index + row, env, self._options.same_bounds)
        identities = [id(env.unwrapped) for env in self._envs]
        check_distinct(identities, first_index)
        spaces = [env.observation_space for env in self._envs]
        if all(space == spaces[0] for space in spaces):
            spaces = spaces[:1]
        return GroupInfo(
            spaces,
            first.action_space,
            dict(first.metadata),
            first.spec,
            first.render_mode,
            os.getpid(),
            identities,
        )

    def attach(self, arrays: FleetArrays, layouts: tuple[SpaceLayout, SpaceLayout]) -> None:
        """Take the arrays to read actions from and write results to; `layouts` are of observations and actions."""
        self._observation_layout, self._action_layout = layouts
        self._outputs = arrays.outputs
        self._actions = arrays.actions
        self._progress = memoryview(arrays.progress[self._options.worker])
        num_objects = self._observation_layout.num_objects
        self._objects: list[list[Any]] = [[None] * self.num_envs for _ in range(num_objects)]
        self._final_objects: list[list[Any]] = [[None] * self.num_envs for _ in range(num_objects)]
        self._writers = [self._observation_layout.writer(out.observations, self._objects) for out in self._outputs]
        self._final_writers = [
            self._observation_layout.writer(out.finals, self._final_objects) if out.finals else None
            for out in self._outputs
        ]
        self._columns = None
        values = [out.info_values for out in self._outputs if out.info_values is not None]
        present = [out.info_present for out in self._outputs if out.info_present is not None]
        if values:
            self._columns = ColumnWriter(values, present)

    # ------------------------------------------------------------------ step

    def step(self, generation: int, rows: Sequence[int] | None, objects: list[list[Any]]) -> Reply | None:
        """Step every sub-environment once, or those in `rows` in that order.

        Args:
            generation: Which outputs to write.
            rows: Local indices, or `None` for all.
            objects: Action leaves that do not fit an array, each with one value per row stepped.

        Returns:
            What there is to say beyond the arrays, or `None`.
        """
        start_ns = time.perf_counter_ns()
        out, write = self._outputs[generation], self._writers[generation]
        rewards, terminated_out, truncated_out = out.rewards, out.terminated, out.truncated
        awaiting, lengths, steps, progress = self._awaiting, self._lengths, self._steps, self._progress
        lost = self._lost
        columns = self._columns if rows is None else None  # rows that complete one by one would clear each other's
        if columns is not None:
            columns.begin(generation)
        actions = self._read_actions(rows, objects)
        tick = self._tick
        for row, action in zip(range(self.num_envs) if rows is None else rows, actions, strict=True):
            tick += TICK
            progress[0] = tick + row + 1
            result = UNSET
            try:
                if lost[row] is not None or awaiting[row]:
                    self._step_ended(row, generation, whole=rows is None)
                    continue
                result = steps[row](action)
                observation, reward, terminated, truncated, info = result
                write(row, observation)
                rewards[row] = reward
                terminated_out[row] = terminated
                truncated_out[row] = truncated
                lengths[row] += 1
                if terminated or truncated:
                    info = self._end_episode(row, generation, observation, info)
                if info and (columns is None or not columns.write(row, info)):
                    self._add_info(row, info)
            except self._caught as error:
                self._handle_failure(row, generation, explain_result(error, result), action, whole=rows is None)
        self._tick = tick
        progress[0] = tick
        progress[Progress.STEPS] += len(actions)
        progress[Progress.BUSY_NS] += time.perf_counter_ns() - start_ns
        return self._finish(rows)

    def _read_actions(self, rows: Sequence[int] | None, objects: list[list[Any]]) -> list[Any]:
        # Copies, because a sub-environment may keep or change the action it is given.
        leaves = [leaf.copy() if rows is None else leaf[list(rows)] for leaf in self._actions]
        actions = self._action_layout.reader(leaves, objects)
        self._trace.add(rows, actions)
        return actions

    def _step_ended(self, row: int, generation: int, whole: bool) -> None:
        """Step a row whose episode is over: answer as lost, or reset it (`NEXT_STEP`)."""
        why = self._lost[row]
        if why is not None:
            self._lost[row] = None
            self._write_truncated(row, generation, why, whole)
            return
        out = self._outputs[generation]
        observation, info = self._reset_env(row, self._next_seeds[row], None)
        self._writers[generation](row, observation)
        self._clear_flags(row, out)
        if info:
            self._add_info(row, info)

    def _end_episode(self, row: int, generation: int, observation: Any, info: dict[str, Any]) -> dict[str, Any]:
        """Apply the autoreset mode to an episode that ended just now; returns the infos of the step."""
        if self._mode is not AutoresetMode.SAME_STEP:
            self._awaiting[row] = True
            return info
        write_final = self._final_writers[generation]
        if write_final is not None:
            write_final(row, observation)
        if self._final_objects:
            index = self._options.first_index + row
            self._report().final_objects[index] = [leaf[row] for leaf in self._final_objects]
        final_info = own_info(info)
        observation, info = self._reset_env(row, self._next_seeds[row], None)
        self._writers[generation](row, observation)
        return {"final_info": final_info, **info}

    def _reset_env(self, row: int, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        env = self._envs[row]
        self._next_seeds[row] = None
        self._trace.begin(row, env, seed, options)
        result = env.reset() if seed is None and options is None else env.reset(seed=seed, options=options)
        try:
            observation, info = result
        except (TypeError, ValueError) as error:
            raise explain_reset(result) from error
        self._awaiting[row] = False
        self._lost[row] = None
        self._lengths[row] = 0
        return observation, info

    @staticmethod
    def _clear_flags(row: int, out: Outputs) -> None:
        out.rewards[row] = 0.0
        out.terminated[row] = False
        out.truncated[row] = False

    def _finish(self, rows: Sequence[int] | None) -> Reply | None:
        reply, self._reply = self._reply, None
        new_columns = self._columns.take_new() if self._columns is not None else []
        if self._objects or new_columns:
            reply = reply or Reply()
            reply.columns = new_columns
            first = self._options.first_index
            for row in range(self.num_envs) if rows is None else rows:
                reply.objects[first + row] = [leaf[row] for leaf in self._objects]
        return reply

    def _report(self) -> Reply:
        if self._reply is None:
            self._reply = Reply()
        return self._reply

    def _add_info(self, row: int, info: dict[str, Any]) -> None:
        self._report().infos.append((self._options.first_index + row, own_info(info)))

    # ------------------------------------------------------------------ reset

    def reset(self, generation: int, payload: ResetPayload) -> Reply | None:
        """Reset the sub-environments in `payload`, writing their rows of `generation`."""
        rows = range(self.num_envs) if payload.indices is None else payload.indices
        seeds = payload.seeds if payload.seeds is not None else (None,) * len(rows)
        for row, seed in zip(rows, seeds, strict=True):
            self._turn_to(row)
            if seed is None:
                seed = self._next_seeds[row]
            try:
                info = self._reset_row(row, generation, seed, payload.options)
            except self._caught as error:
                info = self._reset_again(row, generation, seed, payload.options, error)
            if info:
                self._add_info(row, info)
        self._progress[0] = self._tick
        return self._finish(rows)

    def _reset_row(self, row: int, generation: int, seed: int | None, options: dict[str, Any] | None) -> dict[str, Any]:
        observation, info = self._reset_env(row, seed, options)
        self._writers[generation](row, observation)
        self._clear_flags(row, self._outputs[generation])
        return info

    def _reset_again(
        self, row: int, generation: int, seed: int | None, options: dict[str, Any] | None, error: BaseException
    ) -> dict[str, Any]:
        """Give a sub-environment whose reset raised a second chance after a rebuild, if failures restart."""
        failure = self._describe_failure(row, "reset", error)
        if self._options.on_failure == "restart" and self._rebuild(row, failure):
            try:
                return self._reset_row(row, generation, seed, options)
            except self._caught as second:
                failure = self._describe_failure(row, "reset", second)
        self._report().failures.append(failure)
        return {}

    # ------------------------------------------------------------------ failures

    def _handle_failure(self, row: int, generation: int, error: BaseException, action: Any, whole: bool) -> None:
        if self.is_abandoned:
            raise error
        failure = self._describe_failure(row, "step", error, action)
        if self._options.on_failure == "raise" or not self._rebuild(row, failure):
            self._report().failures.append(failure)
            return
        try:
            self._write_truncated(row, generation, failure.summary(), whole)
        except self._caught as second:
            self._report().failures.append(self._describe_failure(row, "reset", second))

    def _rebuild(self, row: int, failure: Failure) -> bool:
        """Put a new sub-environment in the place of one that failed; False if that fails too."""
        self._report().restarts.append(failure)
        self._rebuilds[row] += 1
        try:
            self._envs[row].close()
        except Exception:  # it is broken already, and the failure that matters is reported
            pass
        seed = self._derive_seed(row)
        try:
            env = self._builders[row].build(self._shared, seed)
        except self._caught as error:
            self._report().failures.append(self._describe_failure(row, "make", error))
            return False
        self._install(row, env)
        self._next_seeds[row] = seed
        return True

    def _install(self, row: int, env: gym.Env[Any, Any]) -> None:
        self._envs[row], self._steps[row] = env, env.step

    def _write_truncated(self, row: int, generation: int, why: str, whole: bool) -> None:
        """Answer a step of a sub-environment that was lost: its last observation again, reward 0, truncated."""
        out = self._outputs[generation]
        # A step of all rows alternates generations, so the last observation lies in the other one.
        last = self._outputs[1 - generation] if whole else out
        for leaf, last_leaf in zip(out.observations, last.observations, strict=True):
            leaf[row] = last_leaf[row]
        self._clear_flags(row, out)
        out.truncated[row] = True
        if self._next_seeds[row] is None:
            self._next_seeds[row] = self._derive_seed(row)
        info: dict[str, Any] = {"env_error": why, "restarted": True}
        if self._mode is AutoresetMode.SAME_STEP:
            last_observation = self._observation_layout.row(out.observations, self._objects, row)
            info = self._end_episode(row, generation, last_observation, {}) | info
        else:
            self._awaiting[row] = True
        self._add_info(row, info)

    def _derive_seed(self, row: int) -> int:
        options = self._options
        key = (options.first_index + row, options.incarnation, self._rebuilds[row])
        return int(np.random.SeedSequence(options.root_seed, spawn_key=key).generate_state(1)[0])

    def _describe_failure(self, row: int, verb: str, error: BaseException, action: Any = None) -> Failure:
        index = self._options.first_index + row
        replay = None
        if verb in ("step", "reset"):
            replay = replay_bytes(self._builders[row], self._trace, row, index, verb, error)
        return make_failure(
            error,
            verb=verb,
            env_index=index,
            worker=self._options.worker,
            seed=self._trace.origins[row].seed,
            step=self._lengths[row] if verb == "step" else None,
            action=action,
            replay=replay,
        )

    # ------------------------------------------------------------------ everything else

    def call(self, payload: CallPayload, rows: Sequence[int] | None) -> Reply:
        """Look `payload.name` up on every sub-environment, call it if it can be called."""

        def look_up(row: int) -> Any:
            found = self._envs[row].get_wrapper_attr(payload.name)
            return found(*payload.args, **payload.kwargs) if callable(found) else found

        return self._for_each(range(self.num_envs) if rows is None else rows, "call", look_up)

    def set_attr(self, name: str, values: Sequence[Any], rows: Sequence[int] | None) -> Reply:
        """Set an attribute on every sub-environment, one value each."""
        wanted = dict(zip(range(self.num_envs) if rows is None else rows, values, strict=True))
        return self._for_each(wanted, "set_attr", lambda row: self._envs[row].set_wrapper_attr(name, wanted[row]))

    def get_state(self, generation: int, rows: Sequence[int]) -> Reply:
        """Save sub-environments; the reply's value is one `RowState` per row."""
        out = self._outputs[generation]

        def save(row: int) -> RowState:
            observation = self._observation_layout.row(out.observations, self._objects, row)
            return RowState(save_env(self._envs[row]), observation, self._awaiting[row])

        return self._for_each(rows, "get_state", save)

    def set_state(self, generation: int, states: Sequence[tuple[int, RowState]]) -> Reply:
        """Bring saved sub-environments back and write their last observations."""

        def load(row: int) -> None:
            state = wanted[row]
            self._install(row, load_env(self._envs[row], state.env))
            self._writers[generation](row, state.observation)
            self._clear_flags(row, self._outputs[generation])
            self._awaiting[row], self._lost[row] = state.is_awaiting, None

        wanted = dict(states)
        reply = self._for_each(list(wanted), "set_state", load)
        first = self._options.first_index
        reply.objects = {first + row: [leaf[row] for leaf in self._objects] for row in wanted if self._objects}
        return reply

    def _for_each(self, rows: Iterable[int], verb: str, action: Any) -> Reply:
        reply = Reply(value=[])
        for row in rows:
            self._turn_to(row)
            try:
                reply.value.append(action(row))
            except self._caught as error:
                reply.failures.append(self._describe_failure(row, verb, error))
        self._progress[0] = self._tick
        return reply

    def _turn_to(self, row: int) -> None:
        self._tick += TICK
        self._progress[0] = self._tick + row + 1

    def close(self) -> list[Failure]:
        """Close every sub-environment, also after one of them raised; returns what they raised."""
        failures = []
        for row, env in enumerate(self._envs):
            try:
                env.close()
            except self._caught as error:
                failures.append(self._describe_failure(row, "close", error))
        self._envs = []
        return failures
