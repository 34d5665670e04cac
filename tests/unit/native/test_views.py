"""Views, records and draws of compiled code against NumPy on the same memory."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numba
import numpy as np
import pytest

from envfleet.native import numba_cpu, views
from envfleet.native.rng import RNG_DTYPE

pytestmark = pytest.mark.timeout(600)  # compiles, on a busy machine

interleaved_row_view = functools.partial(
    views.make_row_view, numba.extending.intrinsic, numba.types, is_interleaved=True
)


@pytest.mark.parametrize("shape", [(3,), (2, 3)])
def test_a_row_view_is_the_row_of_a_flat_array(shape: tuple[int, ...]) -> None:
    view: Any = numba_cpu.row_view(shape)

    @numba.njit
    def double_row(flat: Any, index: int) -> float:
        row = view(flat, index)
        total = row.sum()
        row[...] = 2 * row
        return float(total)

    rows = np.random.default_rng(0).random((4, *shape))
    expected = rows.copy()
    expected[2] *= 2
    assert double_row(rows.reshape(-1), 2) == pytest.approx(expected[2].sum() / 2)
    np.testing.assert_array_equal(rows, expected)


def test_an_interleaved_row_view_has_the_stride_of_the_rows() -> None:
    view: Any = interleaved_row_view((2, 3))

    @numba.njit
    def fill(first_elements: Any, index: int) -> None:
        row = view(first_elements, index)
        for i in range(2):
            for k in range(3):
                row[i, k] = 10 * i + k

    elements = np.zeros((6, 5))  # the first elements of five rows, the second ones, …
    fill(elements[0], 3)
    expected = np.zeros((6, 5))
    expected[:, 3] = [0, 1, 2, 10, 11, 12]
    np.testing.assert_array_equal(elements, expected)


def test_an_array_at_an_address_is_that_memory() -> None:
    view: Any = numba_cpu.array_at(np.dtype(np.int16))

    @numba.njit
    def add_one(address: int, size: int) -> int:
        values = view(address, size)
        values += 1
        return len(values)

    values = np.arange(7, dtype=np.int16)
    assert add_one(values.ctypes.data, 5) == 5
    assert values.tolist() == [1, 2, 3, 4, 5, 5, 6]


def test_a_new_record_has_the_fields_of_its_dtype() -> None:
    make: Any = numba_cpu.new_record(np.dtype([("place", np.int64), ("speed", np.float32, 2)]))

    @numba.njit
    def use(place: int) -> float:
        record = make()
        record.place = place
        record.speed[0], record.speed[1] = 0.5, 0.25
        return float(record.place + record.speed[0] + record.speed[1])

    assert use(3) == 3.75


def test_draws_are_methods_of_generators_only() -> None:
    @numba.njit
    def draw(records: Any) -> Any:
        rng = numba_cpu.as_generator(records[0])
        return rng.random(), rng.integers(10)

    @numba.njit
    def read(records: Any) -> Any:
        return records[0].random, records[0].integers

    generator = np.random.default_rng(3)
    state = generator.bit_generator.state["state"]
    halves = [half for name in ("state", "inc") for half in divmod(state[name], 1 << 64)]
    assert draw(np.array([(*halves, 0, 0)], RNG_DTYPE)) == (generator.random(), generator.integers(10))
    others = np.array([(2.5, 7)], [("random", np.float64), ("integers", np.int64)])
    assert read(others) == (2.5, 7)


def test_clip_equals_that_of_numpy() -> None:
    @numba.njit
    def clip(value: Any, low: Any, high: Any) -> Any:
        return views.clip(value, low, high)

    numbers = (-np.inf, -2.0, -0.0, 0.5, 3.0, np.inf, np.nan)
    for value, low, high in itertools.product(numbers, numbers, numbers):
        np.testing.assert_array_equal(clip(value, low, high), np.clip(value, low, high))
    assert clip(7, 0, 5) == 5
    values = np.linspace(-2.0, 2.0, 9)
    np.testing.assert_array_equal(clip(values, -1.0, 0.5), np.clip(values, -1.0, 0.5))
