"""Sums and means of floats, ints with a uint64, and overlapping slices equal NumPy's to the bit."""

from __future__ import annotations

from typing import Any, ClassVar

import numba
import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.kernels import Kernel, array
from envfleet.kernels.env import KernelEnv

LENGTHS = (0, 1, 5, 8, 100, 128, 129, 300, 8000)


class Sums(Kernel):
    """Sums of what its action chooses, in many forms."""

    observation_space: ClassVar[spaces.Box] = spaces.Box(-np.inf, np.inf, (20,), np.float64)
    action_space = spaces.Discrete(8001)

    class State:
        double: NDArray[np.float64] = array((3, 8000), np.float64)
        single: NDArray[np.float32] = array((3, 40), np.float32)
        out: NDArray[np.float64] = array(20, np.float64)

    @staticmethod
    def reset(state: Any, rng: np.random.Generator, params: Any) -> None:
        for row in range(3):
            for k in range(8000):
                state.double[row, k] = rng.normal()
            for k in range(40):
                state.single[row, k] = rng.normal()

    @staticmethod
    def step(state: Any, action: int, rng: np.random.Generator, params: Any) -> tuple[float, bool]:
        out, double, single = state.out, state.double, state.single
        out[0] = double[0, :action].sum()
        out[1] = np.sum(double[1, 8000 - action :])
        out[2] = double[1, :action:3].sum()
        out[3] = np.mean(double[2])
        out[4] = double.sum()
        out[5] = double[:, :200].sum()
        out[6] = np.abs(double[0, :action]).sum()
        out[7] = single[1].sum()
        out[8] = single[:, 3:33].mean()
        out[9] = single.mean()
        out[10] = single.sum()
        out[11] = double.T[:50].sum()
        out[12] = np.sum(double, 0)[7]
        out[13] = (double[0] > 0).sum()
        out[14] = double.mean()
        return 0.0, False

    @staticmethod
    def observe(state: Any, out: NDArray[np.float64]) -> None:
        out[:] = state.out


def test_sums_and_means_have_numpys_bits() -> None:
    env = KernelEnv(Sums)
    env.reset(seed=0)
    double, single = (env.get_wrapper_attr(name) for name in ("double", "single"))
    for n in LENGTHS:
        expected = [
            double[0, :n].sum(),
            np.sum(double[1, 8000 - n :]),
            double[1, :n:3].sum(),
            np.mean(double[2]),
            double.sum(),
            double[:, :200].sum(),
            np.abs(double[0, :n]).sum(),
            single[1].sum(),
            single[:, 3:33].mean(),
            single.mean(),
            single.sum(),
            double.T[:50].sum(),
            np.sum(double, 0)[7],
            (double[0] > 0).sum(),
            double.mean(),
        ]
        np.testing.assert_array_equal(env.step(n)[0][: len(expected)], np.array(expected, np.float64))


def test_other_numba_code_keeps_its_own_sums() -> None:
    values = np.random.default_rng(0).normal(size=300)

    @numba.njit
    def total(a: Any) -> Any:
        return a.sum(), np.sum(a)

    in_order = 0.0
    for value in values:
        in_order += value
    assert in_order != values.sum()
    KernelEnv(Sums)
    assert total(values) == (in_order, in_order)


class Words(Kernel):
    """Calculates with uint64, and copies within an array."""

    observation_space: ClassVar[spaces.Box] = spaces.Box(0, np.inf, (1,), np.float64)
    action_space = spaces.Discrete(100)

    class State:
        grid: NDArray[np.int64] = array((2, 12), np.int64)
        cube: NDArray[np.int64] = array((2, 3, 12), np.int64)
        results: NDArray[np.uint64] = array(16, np.uint64)
        words: NDArray[np.uint64] = array(3, np.uint64)
        word: np.uint64
        number: int

    @staticmethod
    def reset(state: Any, rng: np.random.Generator, params: Any) -> None:
        state.word = np.uint64(2**63 + 12345)
        state.number = 7
        state.results[:] = 0
        state.words[:] = np.uint64(2**62 + 1)
        for row in range(2):
            for k in range(12):
                state.grid[row, k] = 12 * row + k
                for depth in range(3):
                    state.cube[row, depth, k] = 100 * depth + 12 * row + k

    @staticmethod
    def step(state: Any, action: int, rng: np.random.Generator, params: Any) -> tuple[float, bool]:
        results, word = state.results, state.word
        results[0] = word + 1
        results[1] = word % 1000
        results[2] = word // 7
        results[3] = word ^ 12345
        results[4] = word | state.number
        results[5] = 3 * word % 10
        results[6] = max(word, 5)
        results[7] = (state.words + 1)[1]
        results[8] = word & 255
        results[9] = word >> state.number
        results[10] = word % state.number
        results[11] = word - 1
        state.word += 1
        state.words[0] *= 3
        state.grid[0, 2:10] = state.grid[0, 1:9]
        state.grid[1, 1:9] = state.grid[1, 2:10]
        state.cube[1, 1, 2:] = state.cube[1, 1, :-2]
        state.cube[0, 1:, 4] = state.cube[0, :-1, 4]
        return 0.0, bool(word < state.number)

    @staticmethod
    def observe(state: Any, out: NDArray[np.float64]) -> None:
        out[0] = state.number


def test_ints_beside_a_uint64_and_slices_that_overlap() -> None:
    env = KernelEnv(Words)
    env.reset(seed=0)
    word, words = np.uint64(2**63 + 12345), env.get_wrapper_attr("words").copy()
    grid, cube = (env.get_wrapper_attr(name).copy() for name in ("grid", "cube"))
    with np.errstate(over="ignore"):
        expected: list[Any] = [word + 1, word % 1000, word // 7, word ^ 12345, word | 7, 3 * word % 10, max(word, 5)]
        expected += [(words + 1)[1], word & 255, word >> 7, word % 7, word - 1]
        words[0] *= 3
    assert not env.step(0)[2]
    assert [int(one) for one in env.get_wrapper_attr("results")[:12]] == [int(one) for one in expected]
    assert env.get_wrapper_attr("word") == word + 1
    np.testing.assert_array_equal(env.get_wrapper_attr("words"), words)
    grid[0, 2:10] = grid[0, 1:9]
    grid[1, 1:9] = grid[1, 2:10]
    cube[1, 1, 2:] = cube[1, 1, :-2]
    cube[0, 1:, 4] = cube[0, :-1, 4]
    np.testing.assert_array_equal(env.get_wrapper_attr("grid"), grid)
    np.testing.assert_array_equal(env.get_wrapper_attr("cube"), cube)


def test_a_library_that_numba_shares_stays_as_it_is() -> None:
    arrayobj: Any = pytest.importorskip("numba.np.arrayobj")
    KernelEnv(Words)
    assert arrayobj.FancyIndexer.__module__ == "numba.np.arrayobj"
