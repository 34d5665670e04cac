"""The group of Python sub-environments: steps them one after the other. Holds the only Python autoreset."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from gymnasium.vector import AutoresetMode

from envfleet.core.arrays import FleetArrays, PlaceWord
from envfleet.core.builders import EnvBuilder
from envfleet.core.checks import UNSET, explain_result, read_reset
from envfleet.core.env_rows import EnvRows
from envfleet.core.failures import StepInterrupted, tell_repair
from envfleet.core.group import CLOSE_TIMEOUT_S, GroupInfo, GroupOptions, RowState
from envfleet.core.info_columns import ColumnWriter
from envfleet.core.infos import own_info
from envfleet.core.layout import SpaceLayout
from envfleet.core.leaves import MISFIT
from envfleet.core.messages import CallPayload, Reply, ResetPayload
from envfleet.core.spares import Spares
from envfleet.core.state import load_env, save_env
from envfleet.errors import Failure

# A class's attributes are slow to look up, and these are for every step.
_ROW, _TURN, _BEGUN = PlaceWord.ROW, PlaceWord.TURN, PlaceWord.BEGUN
_STEPS, _BUSY_NS = PlaceWord.STEPS, PlaceWord.BUSY_NS
_NO_REPLY: Reply | None = None

Turns: TypeAlias = Iterator[tuple[Any, ...]]
"""What is needed to step each row, one after the other."""


class EnvGroup:
    """Python sub-environments, stepped one after the other; implements `Group`.

    Args:
        builders: One per sub-environment.
        options: How the group behaves.
        shared: The fleet's shared data by name.

    Raises:
        SubEnvError: A sub-environment could not be built; those built before it are closed again.
    """

    def __init__(self, builders: Sequence[EnvBuilder], options: GroupOptions, shared: Mapping[str, Any]) -> None:
        self.num_envs = len(builders)
        self._all_rows = range(self.num_envs)
        self.is_abandoned = False  # set from another thread: this group must not write any more
        self._options = options
        self._is_same_step = options.autoreset_mode is AutoresetMode.SAME_STEP  # an enum's member is slow to look up
        self._rows = EnvRows(builders, options, shared)
        self._spares = Spares(self._rows, self.num_envs) if options.has_spares else None
        self._awaiting = [options.lost is not None] * self.num_envs
        self._lost: list[str | None] = [options.lost] * self.num_envs
        self._reply: Reply | None = None
        self._is_watched = not options.is_inline or options.step_timeout_s is not None
        self._guard: Callable[[Turns], Turns] | None = None
        self._is_handling = False  # a failure is being dealt with

    def describe(self) -> GroupInfo:
        """Check that the sub-environments fit together, and tell what the fleet must know.

        Raises:
            InvalidArgument: Spaces differ, or two sub-environments are the same object.
        """
        return self._rows.describe()

    def attach(self, arrays: FleetArrays, layouts: tuple[SpaceLayout, SpaceLayout]) -> None:
        """Take the arrays to read actions from and write results to; `layouts` are of observations and actions."""
        self._layout, self._action_layout = layouts
        self._outputs, self._actions = arrays.outputs, arrays.actions
        line: Any = arrays.progress[self._options.worker]  # numpy does not type its arrays as buffers
        self._progress = memoryview(line)
        self._turn, self._busy_ns, self._num_steps = (  # goes on where a worker that was here before stopped
            int(line[word]) for word in (PlaceWord.TURN, PlaceWord.BUSY_NS, PlaceWord.STEPS)
        )
        trace = self._rows.trace
        trace.publish(arrays.origins)
        trace.limit(sum(leaf.nbytes for leaf in self._actions))
        num_objects = self._layout.num_objects
        self._objects: list[list[Any]] = [[None] * self.num_envs for _ in range(num_objects)]
        self._final_objects: list[list[Any]] = [[None] * self.num_envs for _ in range(num_objects)]
        self._writers = [self._layout.writer(out.observations, self._objects) for out in self._outputs]
        bare: list[Any] = [None] * self.num_envs
        self._buffers = [self._layout.buffers(out.observations) or bare for out in self._outputs]
        outputs = self._outputs if self._is_same_step else []
        self._final_writers = [self._layout.writer(out.finals, self._final_objects) for out in outputs]
        self._has_flags = [True] * len(self._outputs)  # a worker that was here before may have left some
        values = [out.info_values for out in self._outputs if out.info_values is not None]
        present = [out.info_present for out in self._outputs if out.info_present is not None]
        self._columns = ColumnWriter(values, present) if values else None

    def guard(self, line: Any, guard: Callable[[Turns], Turns]) -> None:
        """Tell by `line` where it is, and take turns through `guard`: they keep an interrupt to the row it is for."""
        self._progress, self._guard = line, guard

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
        self._reply = _NO_REPLY  # of a step that was interrupted
        progress, columns, direct, trace = self._progress, self._columns, self._rows.direct, self._rows.trace
        if trace.count >= direct.next_due:
            direct.restore_due()
        steps, buffers = direct.steps, self._buffers[generation]
        # Copies, because a sub-environment may keep or change the action it is given.
        if rows is None:
            actions = self._action_layout.reader(self._actions, objects, self.num_envs)
            if columns is not None:
                columns.begin(generation)
            if self._has_flags[generation]:
                self._outputs[generation].flags[...] = self._has_flags[generation] = False
        else:
            actions = self._action_layout.reader([leaf[list(rows)] for leaf in self._actions], objects, len(rows))
            if columns is not None:
                for row in rows:
                    columns.begin(generation, row)
            self._outputs[generation].clear(list(rows))
            steps, buffers = [steps[row] for row in rows], [buffers[row] for row in rows]
        trace.add(rows, actions)
        # What a row steps by changes in its own turn at most, so all of them can be looked up ahead.
        turns: Turns = zip(self._all_rows if rows is None else rows, actions, steps, buffers, strict=True)
        if self._is_watched:
            self._turn += 1
            progress[_TURN], progress[_BEGUN] = self._turn, trace.count
            self._step_watched(turns if self._guard is None else self._guard(turns), generation, rows is None)
            progress[_ROW] = 0
        else:
            self._step_rows(turns, generation, rows is None)
        self._num_steps += len(actions)
        self._busy_ns += time.perf_counter_ns() - start_ns
        progress[_STEPS], progress[_BUSY_NS] = self._num_steps, self._busy_ns
        if self._objects or self._reply or (columns is not None and columns.has_new):
            return self._finish(rows)
        return None

    def _step_watched(self, turns: Turns, generation: int, whole: bool) -> None:
        self._is_handling = False
        while True:
            try:
                return self._step_rows(turns, generation, whole)
            except StepInterrupted:  # between two rows: too late for the one it was meant for, and not for the next
                if self.is_abandoned or self._is_handling:
                    raise

    def _step_rows(self, turns: Turns, generation: int, whole: bool) -> None:
        write, columns = self._writers[generation], self._columns
        rewards, terminated_out, truncated_out = self._outputs[generation].flat
        awaiting, progress, is_watched = self._awaiting, self._progress, self._is_watched
        caught, everything = self._rows.caught, slice(None)
        for row, action, step, buffer in turns:
            if is_watched:
                progress[_ROW] = row + 1
            result = UNSET
            try:
                if awaiting[row]:
                    self._step_ended(row, generation, whole)
                    continue
                result = step(action)
                if is_watched and self.is_abandoned:
                    raise StepInterrupted
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
                    self._has_flags[generation] = True  # first: Ctrl-C may come between any two
                    terminated_out[row], truncated_out[row] = terminated, truncated
                    info = self._end_episode(row, generation, observation, info)
                if info and (columns is None or not columns.write(row, info)):
                    self._add_info(row, info)
            except caught as error:
                self._is_handling = True
                self._handle_failure(row, generation, explain_result(error, result), action, whole)
                self._is_handling = False

    def _step_ended(self, row: int, generation: int, whole: bool) -> None:
        """Step a row whose episode is over: answer as lost, or reset it (`NEXT_STEP`)."""
        why = self._lost[row]
        if why is not None:
            self._lost[row] = None
            self._write_truncated(row, generation, {"env_error": why, "restarted": True}, whole)
            return
        info = self._renew(row, generation, None, None, self._spares)
        self._outputs[generation].flat[0][row] = 0.0  # the flags are down since the step began
        self._add_info(row, info)

    def _end_episode(self, row: int, generation: int, observation: Any, info: dict[str, Any]) -> dict[str, Any]:
        """Apply the autoreset mode to an episode that ended just now; returns the infos of the step."""
        if not self._is_same_step:
            self._awaiting[row] = True
            return info
        self._final_writers[generation](row, observation)
        if self._final_objects:
            index = self._options.first_index + row
            self._report().final_objects[index] = [leaf[row] for leaf in self._final_objects]
        # First the infos of the step: of that everything stands, whatever comes of the reset.
        return {"final_info": own_info(info), **self._renew(row, generation, None, None, self._spares)}

    def _reset_env(self, row: int, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        env = self._rows.envs[row]
        self._rows.next_seeds[row] = None
        self._rows.trace.begin(row, env, seed, options)
        plain = seed is None and options is None
        observation, info = read_reset(env.reset() if plain else env.reset(seed=seed, options=options))
        if self.is_abandoned:
            raise StepInterrupted
        self._rows.direct.begin(row)
        return observation, info

    def _finish(self, rows: Sequence[int] | None) -> Reply | None:
        reply, self._reply = self._reply, None
        new_columns = self._columns.take_new() if self._columns is not None and self._columns.has_new else []
        if self._objects or new_columns:
            reply = reply or Reply()
            reply.columns = new_columns
            first = self._options.first_index
            for row in range(self.num_envs) if rows is None else rows:
                values = [leaf[row] for leaf in self._objects]
                if any(value is not None for value in values):  # a lost sub-environment has not observed anything yet
                    reply.objects[first + row] = values
        return reply

    def _report(self) -> Reply:
        self._reply = self._reply or Reply()
        return self._reply

    def _add_info(self, row: int, info: dict[str, Any]) -> None:
        if info:
            self._report().infos.append((self._options.first_index + row, own_info(info)))

    def reset(self, generation: int, payload: ResetPayload) -> Reply | None:
        """Reset the sub-environments in `payload`, writing their rows of `generation`."""
        self._reply = None
        for row, seed, options in zip(*payload, strict=True):
            info = None
            while info is None:
                try:
                    self._turn_to(row)
                    info = self._renew(row, generation, seed, options, None)
                    self._progress[_ROW] = 0
                except StepInterrupted:  # while a failure of its reset was dealt with: it is reset again
                    if self.is_abandoned:
                        raise
            self._outputs[generation].clear(row)
            self._add_info(row, info)
        return self._finish(payload.indices)

    def _renew(
        self, row: int, generation: int, seed: int | None, options: dict[str, Any] | None, spares: Spares | None
    ) -> dict[str, Any]:
        """Reset a row; one that fails gets a second chance after a rebuild, if failures restart. Returns the infos."""
        try:
            return self._reset_row(row, generation, seed, options, spares)
        except self._rows.caught as error:
            if self.is_abandoned:
                raise
            failure = self._rows.describe_failure(row, "reset", error)
        if self._options.on_failure == "raise":
            self._report().failures.append(failure)
        elif self._rebuild(row, failure):
            try:
                return self._reset_row(row, generation, seed, options, None) | tell_repair(failure)
            except self._rows.caught as second:
                if self.is_abandoned:
                    raise
                self._report().failures.append(self._rows.describe_failure(row, "reset", second))
        return {}

    def _reset_row(
        self, row: int, generation: int, seed: int | None, options: dict[str, Any] | None, spares: Spares | None
    ) -> dict[str, Any]:
        seed = self._rows.next_seeds[row] if seed is None else seed
        if spares is None or seed is not None:
            observation, info = self._reset_env(row, seed, options)
        else:
            observation, info = spares.swap_in(row)
        self._writers[generation](row, observation)
        self._awaiting[row], self._lost[row] = False, None
        self._progress[_ROW] = 0  # it is over: an interrupt from here on would hit something else
        return info

    def _handle_failure(self, row: int, generation: int, error: BaseException, action: Any, whole: bool) -> None:
        if self.is_abandoned:
            raise error
        failure = self._rows.describe_failure(row, "step", error, action)
        self._outputs[generation].clear(row)
        if self._options.on_failure == "raise":
            self._report().failures.append(failure)
        elif self._rebuild(row, failure):
            self._write_truncated(row, generation, tell_repair(failure), whole)

    def _rebuild(self, row: int, failure: Failure) -> bool:
        """Rebuild a sub-environment that failed; False, and one more failure to report, if that fails too."""
        self._report().restarts.append(failure)
        self._progress[PlaceWord.BUILDING] = self._turn + 1
        self._turn_to(row)  # with a limit of its own, as has what follows
        second = self._rows.rebuild(row)
        self._turn_to(row)
        if second is not None:
            self._report().failures.append(second)
        return second is None

    def _write_truncated(self, row: int, generation: int, told: dict[str, Any], whole: bool) -> None:
        """Answer a step of a sub-environment that was lost: its last observation again, reward 0, truncated."""
        out = self._outputs[generation]
        # A step of all rows alternates generations, so the last observation lies in the other one.
        last = self._outputs[1 - generation] if whole else out
        for leaf, last_leaf in zip(out.observations, last.observations, strict=True):
            leaf[row] = last_leaf[row]
        out.clear(row)
        self._has_flags[generation] = True
        out.truncated[row] = True
        if self._rows.next_seeds[row] is None:
            self._rows.next_seeds[row] = self._rows.derive_seed(row)
        if self._is_same_step:
            observation = self._layout.row(out.observations, self._objects, row)
            told = self._end_episode(row, generation, observation, {}) | told
        else:
            self._awaiting[row] = True
        self._add_info(row, told)

    def call(self, payload: CallPayload, rows: Sequence[int] | None) -> Reply:
        """Look `payload.name` up on every sub-environment, call it if it can be called."""
        return self._for_each(rows, "call", lambda row: self._rows.call(row, payload))

    def set_attr(self, name: str, values: Sequence[Any], rows: Sequence[int] | None) -> Reply:
        """Set an attribute on every sub-environment, one value each."""
        wanted = dict(zip(range(self.num_envs) if rows is None else rows, values, strict=True))
        return self._for_each(rows, "set_attr", lambda row: self._rows.envs[row].set_wrapper_attr(name, wanted[row]))

    def get_state(self, generation: int, rows: Sequence[int]) -> Reply:
        """Save sub-environments; the reply's value is one `RowState` per row."""
        out = self._outputs[generation]

        def save(row: int) -> RowState:
            observation = self._layout.row(out.observations, self._objects, row)
            env = save_env(self._rows.envs[row])
            return RowState(env, observation, self._awaiting[row], self._rows.trace.length(row))

        return self._for_each(rows, "get_state", save)

    def set_state(self, generation: int, states: Sequence[tuple[int, RowState]]) -> Reply:
        """Bring saved sub-environments back and write their last observations."""

        def load(row: int) -> None:
            state = wanted[row]
            self._awaiting[row], self._lost[row] = state.is_awaiting, None
            if state.env is None:
                self._rows.next_seeds[row] = self._rows.derive_seed(row)
                return
            self._rows.install(row, load_env(self._rows.envs[row], state.env))
            self._rows.trace.resume(row, state.length)
            self._rows.next_seeds[row] = None
            self._writers[generation](row, state.observation)
            self._outputs[generation].clear(row)

        wanted = dict(states)
        reply = self._for_each(list(wanted), "set_state", load)
        first = self._options.first_index
        reply.objects = {first + row: [leaf[row] for leaf in self._objects] for row in wanted if self._objects}
        return reply

    def _for_each(self, rows: Iterable[int] | None, verb: str, action: Callable[[int], Any]) -> Reply:
        def turn_and_act(row: int) -> Any:
            try:
                self._turn_to(row)
                return action(row)
            finally:  # an interrupt that comes too late for it is still a failure of this row, and of no other
                self._progress[_ROW] = 0

        return self._rows.for_each(range(self.num_envs) if rows is None else rows, verb, turn_and_act)

    def _turn_to(self, row: int) -> None:
        self._turn += 1
        self._progress[_TURN], self._progress[_ROW] = self._turn, row + 1

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> list[Failure]:
        """Close every sub-environment, also after one of them raised; returns what they raised. See `Group.close`."""
        spare_failures = self._spares.close(timeout_s / 2) if self._spares is not None else []
        return self._rows.close() + spare_failures
