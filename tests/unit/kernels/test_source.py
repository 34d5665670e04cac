"""Code for one row of a kernel: which actions it refuses, and which steps it can undo."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces
from tests.unit.kernels.samples import Drifter, Painter, Switches, Walker

from envfleet.kernels import Kernel
from envfleet.kernels.buffers import BufferPlan
from envfleet.kernels.kernel import read_kernel
from envfleet.kernels.source import Source

SPACES: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(3, start=-1),
    "box": spaces.Box(-1.0, 1.0, (2,), np.float32),
    "multi-discrete": spaces.MultiDiscrete([2, 5, 3]),
    "multi-binary": spaces.MultiBinary(3),
    "dict": spaces.Dict({"gear": spaces.Discrete(3), "keys": spaces.MultiDiscrete([2, 4])}),
}


def source_of(kernel: type[Kernel], **changes: Any) -> Source:
    return Source(BufferPlan(read_kernel(type(kernel.__name__, (kernel,), changes))))


@pytest.mark.parametrize("name", SPACES)
def test_actions_are_wrong_where_the_space_does_not_contain_them(name: str) -> None:
    space = SPACES[name]
    source = source_of(Switches, action_space=space)
    form = source.plan.spec.action
    names: dict[str, Any] = dict(zip(("action_low", "action_high"), form.limits or (), strict=False))
    is_wrong = compile(source.is_wrong(), "condition", "eval")
    rng = np.random.default_rng(0)
    for _ in range(300):
        flat = np.zeros(form.size if not form.parts else 1, form.dtype)
        values = rng.integers(-2, 6, 3)
        if form.parts:
            flat[0] = (values[0], values[1:])
            action: Any = {"gear": flat[0]["gear"], "keys": flat[0]["keys"]}
        else:
            flat[:] = values[: len(flat)] if name != "box" else np.where(values[: len(flat)] < 0, np.nan, 0.5)
            action = flat.reshape(form.shape) if form.shape else flat[0]
        refused = any(eval(is_wrong, {"flat": flat, "k": k, **names}) for k in range(len(flat)))
        contained = not np.isnan(flat).any() if name == "box" else space.contains(action)
        assert refused != contained, action


class Looping(Drifter):
    @staticmethod
    def step(state: Any, action: Any, rng: Any, params: Any) -> tuple[float, bool, bool]:
        while state.place > 9:
            state.place -= 1
        return 0.0, False, False


class Drawing(Drifter):
    @staticmethod
    def step(state: Any, action: Any, rng: Any, params: Any) -> tuple[float, bool, bool]:
        state.place += rng.integers(0, 2)
        return 0.0, False, False


class Plain(Kernel):
    observation_space: ClassVar[spaces.Box] = spaces.Box(-9.0, 9.0, (1,), np.float64)
    action_space = spaces.Discrete(2)

    class State:
        x: float

    @staticmethod
    def reset(state: Any, rng: Any, params: Any) -> None:
        state.x = rng.random()

    @staticmethod
    def step(state: Any, action: Any, rng: Any, params: Any) -> tuple[float, bool]:
        state.x += 0.5 * action
        return state.x, state.x > 4.0

    @staticmethod
    def observe(state: Any, out: Any) -> None:
        out[0] = state.x


@pytest.mark.parametrize(
    ("kernel", "expected"), [(Plain, True), (Looping, False), (Drawing, False), (Painter, False)], ids=str
)
def test_steps_that_draw_loop_or_write_arrays_are_not_undone(kernel: type[Kernel], expected: bool) -> None:
    assert source_of(kernel).is_repeatable is expected


def test_records_with_arrays_stay_where_they_are() -> None:
    split, whole = source_of(Walker), source_of(Painter)
    assert split.store(split.plan.state)
    assert whole.store(whole.plan.state) == []
    assert whole.load(whole.plan.state) == ["state = s[i]"]
