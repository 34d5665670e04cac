"""Sets of results on the device, which an `OutputPool` hands out."""

from __future__ import annotations

from envfleet.kernels.buffers import BufferPlan
from envfleet.kernels.cuda.arrays import DeviceArray
from envfleet.kernels.cuda.availability import Stream
from envfleet.kernels.cuda.memory import COUNT_BYTES, Layout, Piece, room_for


class DeviceSet:
    """One set of results.

    Args:
        plan: The kernel's buffers.
        layout: Of a set.
        stream: On which it is written.
        num_envs: Leading dimension of every array.
        has_finals: Whether it has what `SAME_STEP` alone keeps.

    Attributes:
        piece: Its memory.
        count: That of the number of ended episodes.
        arrays: Observations, rewards, terminated, truncated, and infos; then the ended episodes and, in `SAME_STEP`,
            the final observations and infos.
    """

    def __init__(self, plan: BufferPlan, layout: Layout, stream: Stream, num_envs: int, *, has_finals: bool) -> None:
        before = None if has_finals else plan.finals[0].name
        self.piece = Piece(stream, layout, num_envs, room_for(num_envs), before=before)
        self.count = self.piece.data[:COUNT_BYTES]
        self.arrays = [
            DeviceArray(
                self.piece.bytes_of(buffer.name),
                (num_envs, *buffer.shape),
                buffer.dtype,
                stream,
                None if layout.is_packed(buffer.name) else self.piece.room,
            )
            for buffer in (*plan.outputs, plan.ended, *(plan.finals if has_finals else ()))
        ]
