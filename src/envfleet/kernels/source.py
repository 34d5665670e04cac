"""The source of what is done with one row of a batch, in Python that numba compiles, for whatever target.

A `Source` writes lines about row `i`: load its records, step it, begin an episode, observe. A target puts them into a
module and decides what lies around them: `cpu_target` loops over tiles of rows, and rollouts around a policy;
`cuda.target` has a thread for each row. It alone knows where arrays lie and what an episode's end sets off.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from envfleet.kernels.buffers import Buffer, BufferPlan, RecordBuffers
from envfleet.native.jitting import can_be_repeated, reads_argument

MODES = {mode: number for number, mode in enumerate(AutoresetMode)}
SAME_STEP = MODES[AutoresetMode.SAME_STEP]


class Source:
    """Writes what is done with one row of a kernel.

    Args:
        plan: Its buffers.
        has_own_params: Every sub-environment has parameters of its own, rather than one set for all.
        truncates: Steps return `truncated`, too.
        copied: Records that lie interleaved in memory, so that functions of a row get copies: `"state"`, `"params"`.

    Attributes:
        plan: As given.
        has_own_params: As given.
        is_repeatable: A step may be taken of any row, even one that awaits its reset, and be taken back. One that draws
            or changes the state where it lies cannot be taken back, and one that loops or looks up tables may go
            astray from a state that ended.
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
        """Bring records of the row into their variables."""
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
        """Write a record of the row back, if it is not changed where it lies."""
        if not records.is_split:
            call = f"write_{records.variable}({records.prefix}, i, {records.variable})"
            return [call] if records.variable in self._copied else []
        return [f"{records.prefix}_{name}[i] = {records.variable}.{name}" for name in records.dtype.names or ()]

    # ------------------------------------------------------------------ what happens to a row

    def step(self, row: str = "i", *, is_masked: bool = False) -> list[str]:
        """Step the row, whose state and parameters are loaded; the state is not stored.

        Leaves `earned`, `steps`, `is_terminated` and `is_truncated`.

        Args:
            row: Of the action.
            is_masked: Step rows that are `pending`, too, and take back what comes of it.
        """
        plan, unless = self.plan, " and not pending" if is_masked else ""
        results = "reward, terminates, truncates" if self._truncates else "reward, terminates"
        late = "(steps >= limit or bool(truncates))" if self._truncates else "steps >= limit"
        action = f"action_row(actions, {row})" if plan.spec.action.shape else f"actions[{row}]"
        return [
            *(self.load(plan.life) if self._is_drawing else ["life = new_life()"]),
            f"{results} = step_(state, read_only({action}), as_generator(life.rng), read_only(params))",
            *(self.store(plan.life) if self._is_drawing else []),
            *(
                f"state.{name} = s_{name}[i] if pending else state.{name}"
                for name in plan.spec.state.names
                if is_masked
            ),
            "steps = elapsed[i] + 1",
            f"earned = {'0.0 if pending else ' if is_masked else ''}reward * 1.0",
            f"is_terminated = bool(terminates){unless}",
            f"is_truncated = {late}{unless}",
            "elapsed[i] = steps",
            "returns[i] += earned",
        ]

    def begin(self) -> list[str]:
        """Begin an episode in the row, whose state and parameters are loaded; the state is not stored."""
        return [
            *self.load(self.plan.life),
            "reset_(state, as_generator(life.rng), read_only(params))",
            "life.episodes += 1",
            "life.begun = now",
            *self.store(self.plan.life),
            "elapsed[i] = 0",
            "returns[i] = 0.0",
            "awaiting[i] = 0",
        ]

    def seed(self) -> list[str]:
        """Seed the row's generator, if request `k` has a seed for it."""
        lines = [*self.load(self.plan.life), "seed_(as_generator(life.rng), seeds[k])", *self.store(self.plan.life)]
        return ["if is_seeded[k] != 0:", *deeper(lines)]

    def record(self) -> list[str]:
        """Write entry `count` of the ended episodes, but for the row."""
        return [
            *self.load(self.plan.life),
            "episode = ended[count]",
            "episode.length = elapsed[i]",
            "episode.episode = life.episodes - 1",
            "episode.begun = life.begun",
            "episode.total = returns[i]",
        ]

    def show(self, prefix: str = "", row: str = "i", canvas: str = "") -> list[str]:
        """Write observation and infos of the row, whose state is loaded.

        Args:
            prefix: Of the names of the arrays.
            row: Where in them.
            canvas: What the observation is drawn to, if not to its row.
        """
        spec = self.plan.spec
        array = f"{prefix}observations"
        place = f"{array}[{row}]" if spec.observation.parts else f"observation_row({array}, {row})"
        lines = [f"observe_(read_only(state), {canvas or place})"]
        for name in spec.info_fields:
            shape = spec.state.dtype[name].shape
            # Element by element, as device code has no memory in which to copy arrays.
            for axis, length in enumerate(shape):
                lines += deeper([f"for k{axis} in range({length}):"], axis)
            index = f"[{', '.join(f'k{axis}' for axis in range(len(shape)))}]"
            info = f"{prefix}i_{name}"
            target = f"info_row_{name}({info}, {row}){index}" if shape else f"{info}[{row}]"
            lines += deeper([f"{target} = state.{name}{index if shape else ''}"], len(shape))
        return lines

    def is_wrong(self) -> str:
        """Return the condition that element `k` of the `flat` actions cannot be."""
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


def _is_outside(element: str, *bounds: Any) -> str:
    return f"{element} < {bounds[0]} or {element} >= {bounds[1]}" if bounds else f"{element} != {element}"


def names_of(buffers: Iterable[Buffer]) -> str:
    """Return the names, as arguments."""
    return ", ".join(buffer.name for buffer in buffers)


def indent(lines: Iterable[str], depth: int = 1) -> str:
    """Return the lines as text, indented."""
    return textwrap.indent("\n".join(lines), "    " * depth)


def deeper(lines: Iterable[str], depth: int = 1) -> list[str]:
    """Return the lines, indented."""
    return [f"{'    ' * depth}{line}" for line in lines]
