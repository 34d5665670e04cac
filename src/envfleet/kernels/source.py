"""Templates of the code for one row of a batch, which numba compiles for any target.

Problem. A kernel is written for one sub-environment. A batch needs loops over rows around it: on the CPU loops that
LLVM turns into vector code, on a GPU one thread per row; for steps, resets and whole rollouts; for states of numbers
and for states with arrays.

What does not work. Closures and generic functions that numba specializes: it compiles each again for every constant and
every tuple type, and a call that is not inlined keeps a loop scalar.

Solution. The code around a kernel is generated as text, a module per kernel, from templates that stand whole at the top
of `source`, `cpu_target`, `cuda.target` and `policy_source`. `Source` fills those about row `i`: load its
records, step it, begin an episode, observe. A target puts them into functions; it alone knows where arrays lie and what
follows the end of an episode. `native.generated_code.fill` replaces the placeholders.

What remains. The names in the templates (`awaiting`, `elapsed`, `s_x`, ...) are those of `buffers.BufferPlan`, which
only tests check. Generated modules are kept in the cache folder, to be read there.

See ADR 9.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from envfleet.kernels.buffers import Buffer, BufferPlan, RecordBuffers
from envfleet.native.generated_code import fill
from envfleet.native.jitting import can_be_repeated, reads_argument

MODES = {mode: number for number, mode in enumerate(AutoresetMode)}
SAME_STEP = MODES[AutoresetMode.SAME_STEP]

_STEP = """
$load_life
$results = step_(state, read_only($action), as_generator(life.rng), read_only(params))
$store_life
steps = elapsed[i] + 1
earned = reward * 1.0
is_terminated = bool(terminates)
is_truncated = $is_late
elapsed[i] = steps
returns[i] += earned
"""

_STEP_UNLESS_PENDING = """
life = new_life()
$results = step_(state, read_only($action), as_generator(life.rng), read_only(params))
$restore_state
steps = elapsed[i] + 1
earned = 0.0 if pending else reward * 1.0
is_terminated = bool(terminates) and not pending
is_truncated = $is_late and not pending
elapsed[i] = steps
returns[i] += earned
"""

_BEGIN = """
$load_life
reset_(state, as_generator(life.rng), read_only(params))
life.episodes += 1
life.begun = now
$store_life
elapsed[i] = 0
returns[i] = 0.0
awaiting[i] = 0
"""

_SEED = """
if is_seeded[k] != 0:
    $load_life
    seed_(as_generator(life.rng), seeds[k])
    $store_life
"""

_RECORD_ENDED = """
$load_life
episode = ended[count]
episode.length = elapsed[i]
episode.episode = life.episodes - 1
episode.begun = life.begun
episode.total = returns[i]
"""

_FOR = """
for $index in range($length):
    $body
"""


class Source:
    """Code for one row of a kernel.

    Args:
        plan: The kernel's buffers.
        has_own_params: True if every sub-environment has its own parameters instead of one set for all.
        truncates: True if the kernel's `step` also returns `truncated`.
        copied: Records that lie interleaved in memory, so functions of a row get copies: `"state"`, `"params"`.

    Attributes:
        plan: The kernel's buffers.
        has_own_params: True if every sub-environment has its own parameters.
        is_repeatable: True if any row may be stepped, even one that awaits its reset, and the step undone. That
            excludes steps that draw, change the state in place, loop or index tables, which could fail on the state of
            an ended episode.
    """

    def __init__(
        self, plan: BufferPlan, *, has_own_params: bool = False, truncates: bool = False, copied: Collection[str] = ()
    ) -> None:
        self.plan, self.has_own_params, self._truncates = plan, has_own_params, truncates
        self._copied = copied
        self._is_drawing = reads_argument(plan.spec.step, 2)
        is_split = plan.state.is_split and plan.params.is_split
        self.is_repeatable = is_split and not self._is_drawing and can_be_repeated(plan.spec.step)

    # ------------------------------------------------------------------ records

    def load(self, *kinds: RecordBuffers) -> list[str]:
        """Load records of the row into their variables."""
        lines: list[str] = []
        for records in kinds:
            row = "i" if records is not self.plan.params or self.has_own_params else "0"
            variable, prefix = records.variable, records.prefix
            if not records.is_split and variable not in self._copied:
                lines += [f"{variable} = {prefix}[{row}]"]
                continue
            lines += [f"{variable} = new_{variable}()"]
            if not records.is_split:
                lines += [f"read_{variable}({prefix}, {row}, {variable})"]
                continue
            lines += [f"{variable}.{name} = {prefix}_{name}[{row}]" for name in records.dtype.names or ()]
        return lines

    def store(self, records: RecordBuffers) -> list[str]:
        """Write a record of the row back, unless it was changed in place."""
        if not records.is_split:
            call = f"write_{records.variable}({records.prefix}, i, {records.variable})"
            return [call] if records.variable in self._copied else []
        return [f"{records.prefix}_{name}[i] = {records.variable}.{name}" for name in records.dtype.names or ()]

    # ------------------------------------------------------------------ events of a row

    def step(self, row: str = "i", *, is_masked: bool = False) -> list[str]:
        """Step the row; its state and parameters are loaded, and the state is not stored.

        Sets `earned`, `steps`, `is_terminated` and `is_truncated`.

        Args:
            row: Index of the action.
            is_masked: Also step rows that are `pending`, and restore them.
        """
        spec = self.plan.spec
        return fill(
            _STEP_UNLESS_PENDING if is_masked else _STEP,
            results="reward, terminates, truncates" if self._truncates else "reward, terminates",
            is_late="(steps >= limit or bool(truncates))" if self._truncates else "steps >= limit",
            action=f"action_row(actions, {row})" if spec.action.shape else f"actions[{row}]",
            load_life=self.load(self.plan.life) if self._is_drawing else ["life = new_life()"],
            store_life=self.store(self.plan.life) if self._is_drawing else [],
            restore_state=[f"state.{name} = s_{name}[i] if pending else state.{name}" for name in spec.state.names],
        )

    def begin(self) -> list[str]:
        """Begin an episode in the row; its state and parameters are loaded, and the state is not stored."""
        return self._fill(_BEGIN)

    def seed(self) -> list[str]:
        """Seed the row's generator, if request `k` has a seed for it."""
        return self._fill(_SEED)

    def record(self) -> list[str]:
        """Write entry `count` of the ended episodes, except its row."""
        return self._fill(_RECORD_ENDED)

    def _fill(self, template: str) -> list[str]:
        life = self.plan.life
        return fill(template, load_life=self.load(life), store_life=self.store(life))

    def show(self, prefix: str = "", row: str = "i", canvas: str = "") -> list[str]:
        """Write observation and infos of the row; its state is loaded.

        Args:
            prefix: Prefix of the arrays' names.
            row: Index into the arrays.
            canvas: Array that the observation is drawn to, instead of its row.
        """
        spec = self.plan.spec
        array = f"{prefix}observations"
        place = f"{array}[{row}]" if spec.observation.parts else f"observation_row({array}, {row})"
        lines = [f"observe_(read_only(state), {canvas or place})"]
        for name in spec.info_fields:
            lines += _write_info(name, f"{prefix}i_{name}", row, spec.state.dtype[name].shape)
        return lines

    def is_wrong(self) -> str:
        """Return the condition that element `k` of the `flat` actions is outside the action space."""
        spec = self.plan.spec
        if not spec.action.parts:
            bounds = zip(("action_low", "action_high"), spec.action.limits or (), strict=False)
            texts = (f"{name}[k % {spec.action.size}]" if len({*one}) > 1 else one[0] for name, one in bounds)
            return _is_outside("flat[k]", *texts)
        tests = []
        for name, (_, part) in zip(spec.action.dtype.names or (), spec.action.parts, strict=True):
            for number, index in enumerate(np.ndindex(part.shape)):
                element = f"flat[k][{name!r}]{list(index) if part.shape else ''}"
                tests.append(_is_outside(element, *(bound[number] for bound in part.limits or ())))
        return " or ".join(tests)


def _write_info(name: str, info: str, row: str, shape: tuple[int, ...]) -> list[str]:
    """Copy a field of the state to its array, element by element, since device code does not allocate arrays."""
    if not shape:
        return [f"{info}[{row}] = state.{name}"]
    index = ", ".join(f"k{axis}" for axis in range(len(shape)))
    lines = [f"info_row_{name}({info}, {row})[{index}] = state.{name}[{index}]"]
    for axis in reversed(range(len(shape))):
        lines = fill(_FOR, index=f"k{axis}", length=shape[axis], body=lines)
    return lines


def _is_outside(element: str, *bounds: Any) -> str:
    return f"{element} < {bounds[0]} or {element} >= {bounds[1]}" if bounds else f"{element} != {element}"


def names_of(buffers: Iterable[Buffer]) -> str:
    """Return the buffers' names, as arguments."""
    return ", ".join(buffer.name for buffer in buffers)
