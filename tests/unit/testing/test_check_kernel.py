"""`check_kernel` passes kernels that are right, and says where others go wrong first."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any, Self

import pytest
from tests.unit.kernels.samples import Drifter, Painter, Switches, Walker

from envfleet.kernels import Kernel
from envfleet.kernels.kernel import read_kernel
from envfleet.testing import KernelCheckError, check_kernel
from envfleet.testing.check_kernel import _Trial


@pytest.mark.parametrize("kernel", [Walker, Painter])
def test_right_kernels_pass(kernel: type[Kernel]) -> None:
    assert check_kernel(kernel, num_steps=40, seeds=[3, 2**40]) == 80


@pytest.mark.parametrize("kernel", [Drifter, Switches])
def test_other_right_kernels_pass(kernel: type[Kernel], check_without_indices: Callable[..., int]) -> None:
    assert check_without_indices(kernel, num_steps=40, seeds=[3, 2**40]) == 80


def test_parameters_are_taken() -> None:
    assert check_kernel(Walker, params={"goal": 2.0, "push": 3.0}, num_steps=20, seeds=[1]) == 20


class Faulty(Drifter):
    """On request, its reset continues the last episode, or its observation leaves the space."""

    class Params:
        is_keeping: bool = False

    @staticmethod
    def reset(state: Any, rng: Any, params: Any) -> None:
        state.place = min(9, abs(state.place) + 1) if params.is_keeping else 0

    @staticmethod
    def step(state: Any, action: Any, rng: Any, params: Any) -> tuple[float, bool, bool]:
        state.place = state.place if params.is_keeping else 11
        return 0.0 if params.is_keeping else math.inf, False, False


def fail(**params: Any) -> KernelCheckError:
    with pytest.raises(KernelCheckError) as caught:
        check_kernel(Faulty, params=params, num_steps=30, seeds=[4, 9])
    return caught.value


def test_a_reset_that_does_not_repeat_is_found() -> None:
    error = fail(is_keeping=True)
    assert (error.step, error.field) == (0, "state.place")
    assert "set this field in reset" in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_an_observation_outside_the_space_is_found() -> None:
    error = fail()
    assert (error.seed, error.step, error.field, error.actual) == (4, 1, "observation", 11)
    assert "seed 4, step 1: observation is" in str(error)


def test_a_mismatch_names_the_field_and_both_values(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = _Trial(read_kernel(Drifter), {}, 10, [5])
    compiled = trial._make

    class Off:
        """A fleet with compiled code that adds one at the third step."""

        def __init__(self, fleet: Any) -> None:
            self.fleet, self.steps = fleet, 0

        def __getattr__(self, name: str) -> Any:
            return getattr(self.fleet, name)

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *exc_info: object) -> None:
            self.fleet.close()

        def step(self, actions: Any) -> Any:
            result = self.fleet.step(actions)
            self.steps += 1
            if self.steps == 3:
                self.fleet.engine._batch.field("place")[0] += 1
            return result

    monkeypatch.setattr(trial, "_make", lambda *args: Off(compiled(*args)))
    with pytest.raises(KernelCheckError, match="plain Python and compiled code differ") as caught:
        trial.compare_plain()
    error = caught.value
    assert (error.seed, error.step, error.field) == (5, 3, "state.place")
    assert error.actual == error.expected + 1
