"""Result arrays of a rollout, for any device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from envfleet.kernels.buffers import NUMBERS, BufferPlan

FindEnded = Callable[[], tuple[Any, Any, list[Any]]]
"""Function that returns records of the ended episodes by step, then row, their steps, and their last outputs."""


class RolloutArrays:
    """Arrays of a rollout.

    Args:
        plan: The kernel's buffers.
        whole: Arrays of the plan's `outputs`, its `actions`, `IS_RESET` and `NUMBERS` by name, each `(T + 1, N, …)`.

    Attributes:
        outputs: Arrays of the outputs, `(T, N, …)`; the first, observations, is `(T + 1, N, …)`.
        actions: Actions of a policy, `(T, N, …)`.
        is_reset: Steps that only reset the row, bool `(T, N)`.
        log_probs: Log-probabilities of actions that a network draws, float32 `(T, N)`.
        all_values: Values of a critic, float32 `(T + 1, N)`.
        values: Values of the observations before each step, float32 `(T, N)`.
        next_values: Values of the observations after each step, float32 `(T, N)`.
        last_observations: Observations after the last step, `(N, …)`.
    """

    def __init__(self, plan: BufferPlan, whole: Mapping[str, Any]) -> None:
        slabs = {name: array if name in ("observations", "values") else array[:-1] for name, array in whole.items()}
        self.outputs = [slabs[each.name] for each in plan.outputs]
        self.actions, self.is_reset = slabs["actions"], slabs["is_reset"]
        self.log_probs, self.all_values, self.next_values = (slabs[each.name] for each in NUMBERS)
        self.values, self.last_observations = self.all_values[:-1], self.outputs[0][-1]
