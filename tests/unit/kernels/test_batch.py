"""Arrays that a kernel's batch hands out, and for how long they are valid."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.unit.kernels.samples import Walker, ones

import envfleet


class Interface:
    """An array of another library, by NumPy's protocol."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    @property
    def __array_interface__(self) -> Any:
        return self.array.__array_interface__


def holders(array: Any) -> dict[str, Any]:
    """Ways to keep an array alive without its name."""
    holders_by_name: dict[str, Any] = {
        "array": array,
        "view": array[1:],
        "memoryview": memoryview(array),
        "dlpack": np.from_dlpack(array),
        "buffer": np.frombuffer(memoryview(array).cast("B"), array.dtype),
        "interface": np.asarray(Interface(array)),
    }
    try:
        import torch
    except ImportError:
        return holders_by_name
    return {**holders_by_name, "torch": torch.from_numpy(array)}


@pytest.mark.parametrize("name", holders(np.zeros(4)))
def test_what_a_caller_holds_is_never_written_again(walkers: Any, name: str) -> None:
    kept = []
    for _ in range(12):
        result = walkers.step(ones(walkers))
        for array in result[:4]:
            holder = holders(array)[name]
            kept.append((holder, np.from_dlpack(holder).copy() if name == "torch" else np.array(holder)))
    del array, result, holder
    look = np.from_dlpack if name == "torch" else np.asarray
    assert all(np.array_equal(look(holder), before) for holder, before in kept)


@pytest.mark.parametrize("copy", [True, False], ids=["copied", "shown"])
def test_final_observations_are_the_callers_own(copy: bool) -> None:
    with envfleet.make(Walker, 4, backend="kernel", autoreset_mode="SAME_STEP", copy=copy) as fleet:
        fleet.reset(seed=0)
        for _ in range(7):  # the time limit
            fleet.step(ones(fleet))
        kept = fleet.final_observations
        before = kept.copy()
        for _ in range(7):
            fleet.step(ones(fleet))
        assert np.array_equal(kept, before) == copy
        assert np.shares_memory(kept, fleet.final_observations) != copy


def test_infos_that_are_kept_tell_of_their_own_step(walkers: Any) -> None:
    kept = []
    for _ in range(12):
        before = walkers.get_attr("x")
        infos = walkers.step(ones(walkers))[4]
        assert walkers.get_attr("x") != before
        kept.append((infos, walkers.get_attr("x")))
        del infos
    assert all(tuple(infos["x"].tolist()) == xs for infos, xs in kept)


def test_a_loop_that_drops_its_arrays_gets_them_again(walkers: Any) -> None:
    addresses = {walkers.step(ones(walkers))[0].ctypes.data for _ in range(20)}
    assert len(addresses) <= 2


def test_without_copies_two_generations_are_valid() -> None:
    with envfleet.make(Walker, 4, backend="kernel", copy=False) as fleet:
        fleet.reset(seed=0)
        last, kept = fleet.step(ones(fleet))[0], None
        for _ in range(10):
            before = last.copy()
            now = fleet.step(ones(fleet))[0]
            np.testing.assert_array_equal(last, before)
            last, kept = now, last
        assert np.shares_memory(fleet.step(ones(fleet))[0], kept) or np.shares_memory(kept, last)
