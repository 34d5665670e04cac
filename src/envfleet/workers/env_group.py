"""`EnvGroup`: the Python sub-environments of one worker, stepped one after another, with autoreset."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode

from envfleet.errors import Failure, InvalidArgument, SubEnvError
from envfleet.fleet.infos import own_info
from envfleet.fleet.leaves import MISFIT
from envfleet.workers.arrays import ArraysSpec, FleetArrays
from envfleet.workers.board import BUSY_NS, IS_REBUILDING, ROW, STEPS, Line
from envfleet.workers.columns import ColumnWriter
from envfleet.workers.env_checks import (
    UNSET,
    check_flags,
    explain_reset,
    explain_result,
    find_reward_space,
    read_reset,
    refuse_in_thread,
)
from envfleet.workers.failures import is_from_signal, make_failure, repair_info
from envfleet.workers.messages import GroupInfo, GroupPlan, Reply, ResetPlan, RowState
from envfleet.workers.replay import EpisodeLog
from envfleet.workers.state import load_env, save_env, set_rng_state

_ONE_PER_PROCESS = (
    "(Others were built in this process before. Environments that allow one instance per process need "
    'backend="process" and envs_per_worker=1.)'
)


class EnvGroup:
    """Python sub-environments of one worker.

    Args:
        plan: Plan of the group.
        shared: The fleet's shared data by name.
        line: Words in which to report progress.
        is_inline: True if the group runs in the caller's thread, where Ctrl-C and what other signal handlers raise are
            not failures of a sub-environment.

    Attributes:
        columns: Writer of info columns, once attached.
        log: Seeds and actions of the running episodes.

    Raises:
        SubEnvError: A sub-environment could not be built.
        InvalidArgument: A callable did not return an environment.
    """

    def __init__(self, plan: GroupPlan, shared: Mapping[str, Any], line: Line, *, is_inline: bool = False) -> None:
        self.plan, self._options, self._shared, self._line = plan, plan.options, shared, line
        self.num_envs = len(plan.builders)
        self._is_inline = is_inline
        self._is_same_step = plan.options.autoreset_mode is AutoresetMode.SAME_STEP
        self._caught: tuple[type[BaseException], ...] = (
            (Exception, SystemExit, GeneratorExit) if is_inline else (BaseException,)
        )
        self._is_next_step = plan.options.autoreset_mode is AutoresetMode.NEXT_STEP
        self._awaiting = [self._is_next_step and plan.incarnation > 0] * self.num_envs
        self._next_seeds: list[int | None] = [None] * self.num_envs
        self._rebuilds = [0] * self.num_envs
        self._num_steps, self._busy_ns = line[STEPS], line[BUSY_NS]
        self._reply: Reply | None = None
        self.columns: ColumnWriter
        self.log = EpisodeLog(self.num_envs)
        self.envs: list[gym.Env[Any, Any]] = []
        self._steps: list[Callable[[Any], Any]] = []
        for row in range(self.num_envs):
            seed = self.log.build_seeds[row] = plan.derive_seed(row) if plan.incarnation else None
            try:
                self.envs.append(plan.builders[row].build(shared, seed))
                if plan.options.backend == "thread":
                    refuse_in_thread(self.envs[row])
            except InvalidArgument:
                self.close()
                raise
            except self._caught as error:
                if row > 0:
                    error.add_note(_ONE_PER_PROCESS)
                failure = self._describe(row, "make", error)
                self.close()
                raise SubEnvError([failure]) from error
            self._steps.append(self.envs[row].step)
            self._next_seeds[row] = seed
        for row, state in enumerate(plan.rng_states):
            if state is not None:
                self._next_seeds[row] = None
                set_rng_state(self.envs[row], state)

    def describe(self) -> GroupInfo:
        """Return the spaces and other properties of the group, for the owner."""
        first, identities = self.envs[0], [id(env.unwrapped) for env in self.envs]
        one = first.observation_space, first.action_space
        each = [(env.observation_space, env.action_space) for env in self.envs]
        spaces = [one if pair == one else pair for pair in each]
        rewards = list(map(find_reward_space, self.envs))
        return GroupInfo(spaces, dict(first.metadata), first.spec, first.render_mode, os.getpid(), identities, rewards)

    def attach(self, spec: ArraysSpec, arrays: FleetArrays) -> None:
        """Set the arrays of actions and results.

        Args:
            spec: Description of the arrays.
            arrays: This group's rows of them.
        """
        self._layout, self._action_layout = spec.observations, spec.actions
        self._reward_shape = spec.reward_shape
        self._actions, self._outputs = arrays.actions, arrays.outputs
        self.has_object_actions = self._action_layout.num_objects > 0
        num_objects = self._layout.num_objects
        self._objects: list[list[Any]] = [[None] * self.num_envs for _ in range(num_objects)]
        self._final_objects: list[list[Any]] = [[None] * self.num_envs for _ in range(num_objects)]
        self._writers = [self._layout.writer(out.observations, self._objects) for out in self._outputs]
        nothing: list[Any] = [None] * self.num_envs
        self._buffers = [self._layout.buffers(out.observations) or nothing for out in self._outputs]
        finals = self._outputs if self._is_same_step else []
        self._final_writers = [self._layout.writer(out.finals, self._final_objects) for out in finals]
        takes_none = (
            self._options.lenient and not spec.reward_shape
        )  # an array has NaN for None, a memoryview refuses it
        self._rewards = [out.rewards if takes_none else out.flat[0] for out in self._outputs]
        self._has_flags = [True] * len(self._outputs)
        self.log.limit(sum(leaf.nbytes for leaf in self._actions))
        self.columns = ColumnWriter(arrays.info_values, arrays.info_given)

    # ------------------------------------------------------------------------------------------------ stepping

    def step(
        self, generation: int, rows: list[int] | None = None, objects: Any = (), values: list[Any] | None = None
    ) -> Reply | None:
        """Step every sub-environment once, or those in `rows` in that order.

        Args:
            generation: Outputs to write to.
            rows: Rows to step; all by default.
            objects: Action leaves without a fixed shape, one list per leaf with one entry per row.
            values: Actions to use instead of those in the arrays.

        Returns:
            A reply, if there is more to report than the arrays.
        """
        start_ns = time.perf_counter_ns()
        self._reply = None
        out, line, columns, steps = self._outputs[generation], self._line, self.columns, self._steps
        which: Any = slice(None)
        if rows is None:
            if values is None:
                values = self._action_layout.reader(self._actions, objects, self.num_envs)
            if self._has_flags[generation]:
                out.flags[...] = self._has_flags[generation] = False
            turns = zip(range(self.num_envs), values, steps, self._buffers[generation], strict=True)
        else:
            which = rows
            if values is None:
                values = self._action_layout.reader([leaf[rows] for leaf in self._actions], objects, len(rows))
            out.clear(rows)
            buffers = self._buffers[generation]
            turns = zip(rows, values, [steps[row] for row in rows], [buffers[row] for row in rows], strict=True)
        if columns.is_dirty:
            columns.clear(which)
            columns.is_dirty = rows is not None
        self.log.steps.append(values if rows is None else dict(zip(rows, values, strict=True)))
        self.log.count += 1
        self._step_rows(turns, generation)
        line[ROW] = 0
        self._num_steps += len(values)
        self._busy_ns += time.perf_counter_ns() - start_ns
        line[STEPS], line[BUSY_NS] = self._num_steps, self._busy_ns
        if self._objects:
            self._report_objects(range(self.num_envs) if rows is None else rows)
        return self._reply

    def _step_rows(self, turns: Iterable[tuple[int, Any, Callable[[Any], Any], Any]], generation: int) -> None:
        write, columns, line = self._writers[generation], self.columns, self._line
        rewards, (_, terminated_out, truncated_out) = self._rewards[generation], self._outputs[generation].flat
        awaiting, caught, everything = self._awaiting, self._caught, slice(None)
        for row, action, step, buffer in turns:
            line[ROW] = row + 1
            result = UNSET
            try:
                if awaiting[row]:  # NEXT_STEP
                    self._add_info(row, self._renew(row, generation, None, None))
                    self._outputs[generation].rewards[row] = 0.0
                    continue
                result = step(action)
                observation, reward, terminated, truncated, info = result
                if buffer is None:
                    write(row, observation)
                else:
                    try:
                        buffer[everything] = observation
                    except MISFIT:
                        write(row, observation)
                rewards[row] = reward
                if terminated or truncated:
                    if type(terminated) is not bool or type(truncated) is not bool:
                        check_flags(terminated, truncated)
                    self._has_flags[generation] = True
                    terminated_out[row], truncated_out[row] = terminated, truncated
                    info = self._end_episode(row, generation, observation, info)
                if info:
                    rest = columns.write(row, info)
                    if rest:
                        self._add_info(row, rest)
            except caught as error:
                self._handle_failure(row, generation, explain_result(error, result, self._reward_shape), action)

    def _end_episode(self, row: int, generation: int, observation: Any, info: dict[str, Any]) -> dict[str, Any]:
        """Apply the autoreset mode to an episode that just ended, and return the infos of the step."""
        if not self._is_same_step:
            self._awaiting[row] = self._is_next_step
            return info
        self._final_writers[generation](row, observation)
        if self._final_objects:
            index = self.plan.rows.start + row
            self._report().final_objects[index] = [leaf[row] for leaf in self._final_objects]
        final_info, renewed = own_info(info), self._renew(row, generation, None, None)
        return {"final_info": final_info, **renewed} if final_info else renewed  # the owner adds empty ones

    def _handle_failure(self, row: int, generation: int, error: BaseException, action: Any) -> None:
        """Report a sub-environment that raised in `step`, or end its episode and rebuild it."""
        failure = self._describe(row, "step", error, action)
        self._outputs[generation].clear(row)
        self.columns.clear([row])
        if self._options.on_failure == "raise":
            self._report().failures.append(failure)
        elif self._rebuild(row, failure):
            self._truncate(row, generation, failure)

    def _truncate(self, row: int, generation: int, failure: Failure) -> None:
        """Report a truncation for a sub-environment that was rebuilt; the owner repeats its last observation."""
        self._outputs[generation].flags[1, row] = self._has_flags[generation] = True
        info = repair_info(failure)
        if self._is_same_step:
            info = {"final_info": {}, **self._renew(row, generation, None, None), **info}
        else:
            self._awaiting[row] = self._is_next_step
        self._add_info(row, info)

    def _rebuild(self, row: int, failure: Failure) -> bool:
        """Replace a sub-environment that failed; return False, with another failure to report, if that fails too."""
        self._report().restarts.append(failure)
        self._line[IS_REBUILDING] = True
        self._rebuilds[row] += 1
        with contextlib.suppress(*self._caught):
            self.envs[row].close()
        seed = self.log.build_seeds[row] = self.plan.derive_seed(row, self._rebuilds[row])
        try:
            self._install(row, self.plan.builders[row].build(self._shared, seed))
        except self._caught as error:
            self._report().failures.append(self._describe(row, "make", error))
            return False
        finally:
            self._line[IS_REBUILDING] = False
        self._next_seeds[row] = seed
        return True

    def _install(self, row: int, env: gym.Env[Any, Any]) -> None:
        self.envs[row], self._steps[row] = env, env.step

    # ------------------------------------------------------------------------------------------------ resetting

    def reset(self, generation: int, plan: ResetPlan) -> Reply | None:
        """Reset the rows of a plan."""
        self._reply = None
        out = self._outputs[generation]
        self.columns.clear(list(plan.rows))
        for row, seed, options in zip(*plan, strict=True):
            self._line[ROW] = row + 1
            info = self._renew(row, generation, seed, options)
            out.clear(row)
            self._add_info(row, info)
        self._line[ROW] = 0
        if self._objects:
            self._report_objects(plan.rows)
        return self._reply

    def _renew(self, row: int, generation: int, seed: int | None, options: Any) -> dict[str, Any]:
        """Reset a row and return its infos; after a failure, rebuild it and retry once if `on_failure` allows that."""
        try:
            return self._reset_row(row, generation, seed, options)
        except self._caught as error:
            failure = self._describe(row, "reset", explain_reset(error, seed, options))
        if self._options.on_failure == "raise":
            self._report().failures.append(failure)
        elif self._rebuild(row, failure):
            try:
                return self._reset_row(row, generation, seed, options) | repair_info(failure)
            except self._caught as second:
                self._report().failures.append(self._describe(row, "reset", second))
        return {}

    def _reset_row(self, row: int, generation: int, seed: int | None, options: Any) -> dict[str, Any]:
        if seed is None and self._next_seeds[row] is not None:
            seed = self._report().seeds[self.plan.rows.start + row] = self._next_seeds[row]
        self._next_seeds[row] = None
        env = self.envs[row]
        self.log.begin(row, env, seed, options)
        is_plain = seed is None and options is None
        observation, info = read_reset(env.reset() if is_plain else env.reset(seed=seed, options=options))
        self._writers[generation](row, observation)
        self._awaiting[row], self._steps[row] = False, env.step  # also where Ctrl-C struck between an env and its step
        return info

    # ---------------------------------------------------------------------------------------- calls and states

    def call(self, name: str | Callable[..., Any], args: Any, kwargs: Any, rows: Iterable[int] | None) -> Reply:
        """Read an attribute of sub-environments and call it if it is callable; or call a function with each."""

        def find(row: int) -> Any:
            if not isinstance(name, str):
                return name(self.envs[row], *args, **kwargs)
            attribute = self.envs[row].get_wrapper_attr(name)
            return attribute(*args, **kwargs) if callable(attribute) else attribute

        return self._for_each(rows, "call", find)

    def set_attr(self, name: str, values: Sequence[Any]) -> Reply:
        """Set an attribute of every sub-environment, one value each."""
        return self._for_each(None, "set_attr", lambda row: self.envs[row].set_wrapper_attr(name, values[row]))

    def get_state(self, rows: Iterable[int]) -> Reply:
        """Save sub-environments; the reply's value is one `RowState` per row, to which the owner adds observations."""
        return self._for_each(
            rows, "get_state", lambda row: RowState(save_env(self.envs[row]), None, self._awaiting[row])
        )

    def set_state(self, states: Mapping[int, RowState]) -> Reply:
        """Restore saved sub-environments."""

        def load(row: int) -> None:
            state, before = states[row], self.envs[row]
            env = load_env(before, state.env)
            self._install(row, env)
            if before is not env:
                with contextlib.suppress(*self._caught):
                    before.close()
            self._awaiting[row], self._next_seeds[row] = state.is_awaiting, None
            self.log.resume(row)

        return self._for_each(states, "set_state", load)

    def _for_each(self, rows: Iterable[int] | None, verb: str, action: Callable[[int], Any]) -> Reply:
        """Run an action for each row; the reply's value has one result per row that did not raise."""
        reply = Reply(value=[])
        for row in range(self.num_envs) if rows is None else rows:
            self._line[ROW] = row + 1
            try:
                reply.value.append(action(row))
            except self._caught as error:
                reply.failures.append(self._describe(row, verb, error))
        self._line[ROW] = 0
        return reply

    # ------------------------------------------------------------------------------------------------ reports

    def _report(self) -> Reply:
        self._reply = self._reply or Reply()
        return self._reply

    def _report_objects(self, rows: Iterable[int]) -> None:
        objects = self._report().objects
        for row in rows:
            objects[self.plan.rows.start + row] = [leaf[row] for leaf in self._objects]

    def _add_info(self, row: int, info: dict[str, Any]) -> None:
        if info:
            self._report().infos.append((self.plan.rows.start + row, own_info(info)))

    def _describe(self, row: int, verb: str, error: BaseException, action: Any = None) -> Failure:
        """Convert an exception of a sub-environment to a picklable value."""
        if self._is_inline and is_from_signal(error):  # as Ctrl-C, it is for the caller
            raise error
        index = self.plan.rows.start + row
        replay = (
            self.log.record(row, self.plan.builders[row], verb, error, index) if verb in ("step", "reset") else None
        )
        actions = self.log.actions_of(row) if verb == "step" else None
        return make_failure(
            error,
            verb=verb,
            env_index=index,
            worker=self.plan.worker,
            seed=self.log.last_seeds[row],
            step=None if actions is None else len(actions) - 1,
            action=action,
            replay=replay,
        )

    def close(self) -> list[Failure]:
        """Close every sub-environment, also after one of them raised; return their failures."""
        envs, self.envs = self.envs, []
        self._steps.clear()
        self._reply = None
        failures = []
        for row, env in enumerate(envs):
            try:
                env.close()
            except self._caught as error:
                failures.append(self._describe(row, "close", error))
        return failures
