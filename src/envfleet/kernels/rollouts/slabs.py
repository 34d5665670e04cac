"""The arrays that a rollout hands out, on whatever device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from envfleet.kernels.buffers import NUMBERS, BufferPlan

FindEnded = Callable[[], tuple[Any, Any, list[Any]]]
"""Returns records of the ended episodes by step, then row, these steps, and their last outputs."""


class RolloutArrays:
    """The arrays of a rollout.

    Args:
        plan: The kernel's buffers.
        whole: `outputs` of the plan, its `actions`, `IS_RESET` and `NUMBERS` by name, each `(T + 1, N, …)`.

    Attributes:
        outputs: An array for each of the outputs, `(T, N, …)`; the first, observations, `(T + 1, N, …)`.
        actions: `(T, N, …)`, for actions that are chosen.
        is_reset: bool `(T, N)`.
        log_probs: float32 `(T, N)`, for actions that are drawn by a network.
        all_values: float32 `(T + 1, N)`, for networks with a critic.
        values: All but the last.
        next_values: float32 `(T, N)`, likewise.
        last_observations: `(N, …)`.
    """

    def __init__(self, plan: BufferPlan, whole: Mapping[str, Any]) -> None:
        slabs = {name: array if name in ("observations", "values") else array[:-1] for name, array in whole.items()}
        self.outputs = [slabs[one.name] for one in plan.outputs]
        self.actions, self.is_reset = slabs["actions"], slabs["is_reset"]
        self.log_probs, self.all_values, self.next_values = (slabs[one.name] for one in NUMBERS)
        self.values, self.last_observations = self.all_values[:-1], self.outputs[0][-1]
