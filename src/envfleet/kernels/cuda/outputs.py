"""Sets of results on the device, handed out and used again."""

from __future__ import annotations

import sys
from typing import Any

from envfleet.kernels.buffers import BufferPlan
from envfleet.kernels.cuda.arrays import DeviceArray
from envfleet.kernels.cuda.memory import Layout, Piece, room_for

_MAX_SETS = 4
_CAN_COUNT = getattr(sys, "_is_gil_enabled", lambda: True)()


class DeviceSet:
    """One set of results.

    Args:
        plan: The kernel's buffers.
        layout: Of a set.
        num_envs: Leading dimension of every array.
        has_finals: Whether it has what `SAME_STEP` alone keeps.

    Attributes:
        piece: Its memory.
        handed: Observations, rewards, terminated, truncated, and infos; then the ended episodes and, in `SAME_STEP`,
            the final observations and infos.
    """

    def __init__(self, plan: BufferPlan, layout: Layout, num_envs: int, *, has_finals: bool) -> None:
        before = None if has_finals else plan.finals[0].name
        self.piece = Piece(layout, num_envs, room_for(num_envs), before=before)
        spec = plan.spec
        infos = [spec.state.dtype[name].shape for name in spec.kernel.info_fields]
        shapes: list[tuple[int, ...]] = [spec.observation.shape, (), (), (), *infos, ()]
        buffers = [*plan.outputs, plan.ended]
        if has_finals:
            shapes += [spec.observation.shape, *infos]
            buffers += plan.finals
        self.handed = [
            DeviceArray(self.piece.bytes_of(buffer.name), (num_envs, *shape), buffer.dtype)
            for buffer, shape in zip(buffers, shapes, strict=True)
        ]

    def count_references(self) -> int:
        """How many there are to its arrays."""
        return sum(map(sys.getrefcount, self.handed))


class DevicePool:
    """Sets of results, used again once nobody else holds an array of a set, as `OutputPool` does on the CPU.

    Args:
        plan: The kernel's buffers.
        layout: Of a set.
        num_envs: Leading dimension of every array.
        has_finals: Whether sets have what `SAME_STEP` alone keeps.
        copy: Otherwise two sets take turns, whoever holds them.
    """

    def __init__(self, plan: BufferPlan, layout: Layout, num_envs: int, *, has_finals: bool, copy: bool) -> None:
        self._form: dict[str, Any] = {"plan": plan, "layout": layout, "num_envs": num_envs, "has_finals": has_finals}
        self._copy = copy
        self._sets = [self._make(), self._make()]
        self._unheld = self._sets[0].count_references()
        self._turn = 0

    def take(self) -> DeviceSet:
        """A set to write results to."""
        if not self._copy:
            self._turn = 1 - self._turn
            return self._sets[self._turn]
        if _CAN_COUNT:
            for chosen in self._sets:
                if chosen.count_references() == self._unheld:
                    return chosen
        made = self._make()
        self._sets = [made, *self._sets[: _MAX_SETS - 1]]
        return made

    def _make(self) -> DeviceSet:
        return DeviceSet(**self._form)
