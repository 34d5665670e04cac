"""Indices out of bounds: where indices are checked, the error names line, index and size, whatever the form."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray
from tests.unit.kernels.samples import Walker

import envfleet
from envfleet.errors import InvalidArgument, KernelIndexError, ResetNeeded
from envfleet.kernels import Kernel, array
from envfleet.kernels.env import KernelEnv
from envfleet.kernels.kernel import read_kernel
from envfleet.kernels.program import cache_key, compile_kernel, fingerprint_of
from envfleet.native.generated_code import make_module
from envfleet.testing import check_kernel

pytestmark = pytest.mark.filterwarnings("ignore:.*First-class function type feature is experimental")

TABLE = np.arange(4.0)


def look_up(table: NDArray[np.float64], index: int) -> float:
    return table[index]


def first(cells: NDArray[np.float64], index: int) -> float:
    return cells[0][index]


LOOKING = (look_up, first)


class Shelf(Kernel):
    """Reads and writes elements in every form; from the fifth step on, `index` is what a parameter says."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(2)

    class State:
        n: int
        cells: NDArray[np.float64] = array((3, 4), np.float64)

    class Params:
        form: int = 0
        index: int = 0
        row: int = 0

    @staticmethod
    def reset(state: Any, rng: Any, params: Any) -> None:
        state.n = 0
        for row in range(3):
            state.cells[row, :] = 1.0 * row
        if params.form == 20:
            state.cells[params.row, 0] = 1.0

    @staticmethod
    def step(state: Any, action: Any, rng: Any, params: Any) -> tuple[float, bool]:
        state.n += 1
        index = params.index if state.n > 4 else 0
        reward = 0.0
        if params.form == 0:
            reward = LOOKING[0](TABLE, index)
        elif params.form == 1:
            state.cells[1, index] += 1.0
        elif params.form == 2:
            reward = first(state.cells, index)
        elif params.form == 3:
            state.cells[index, :] = 0.0
        elif params.form == 4:
            reward = state.cells[..., index].sum()
        elif params.form == 5:
            reward = state.cells[np.array([0, index]), 0].sum()
        elif params.form == 6:
            reward = state.cells.flat[index]
        elif params.form == 7:
            reward = (1.0, 2.0, 3.0)[index]
        elif params.form == 8:
            reward = TABLE[np.uint64(index)]
        return reward, state.n > 6

    @staticmethod
    def observe(state: Any, out: Any) -> None:
        out[0] = state.n
        out[1] = state.cells[0, state.n if state.n < 4 else 0]


def run(**params: Any) -> float:
    """The reward of the sixth step."""
    with envfleet.make(Shelf, 2, backend="kernel", debug=True, **params) as fleet:
        fleet.reset(seed=0)
        return float([fleet.step(np.zeros(2, np.int64))[1][1] for _ in range(6)][-1])


# Form, index, and what the message says.
WRONG = [
    (0, 4, "in look_up (`return table[index]`): index 4 is out of bounds for axis 0 with size 4"),
    (0, -5, "in look_up (`return table[index]`): index -5 is out of bounds for axis 0 with size 4"),
    (1, 4, "in step (`state.cells[1, index] += 1.0`): index 4 is out of bounds for axis 1 with size 4"),
    (2, 10**9, f"in first (`return cells[0][index]`): index {10**9} is out of bounds for axis 0 with size 4"),
    (3, 3, "in step (`state.cells[index, :] = 0.0`): index 3 is out of bounds for axis 0 with size 3"),
    (4, 4, "in step (`reward = state.cells[..., index].sum()`): index 4 is out of bounds for axis 1 with size 4"),
    (5, -4, "in step (`reward = state.cells[np.array([0, index]), 0].sum()`): index -4 is out of bounds for axis 0"),
    (6, 12, "in step (`reward = state.cells.flat[index]`): index 12 is out of bounds for axis 0 with size 12"),
    (8, 4, "in step (`reward = TABLE[np.uint64(index)]`): index 4 is out of bounds for axis 0 with size 4"),
    (7, 3, "in step (`reward = (1.0, 2.0, 3.0)[index]`): index 3 is out of bounds for axis 0 with size 3"),
]


@pytest.mark.parametrize(("form", "index", "words"), WRONG)
def test_an_index_out_of_bounds_is_named(form: int, index: int, words: str) -> None:
    with pytest.raises(KernelIndexError) as caught:
        run(form=form, index=index)
    assert f"{__file__}:" in str(caught.value)
    assert words in str(caught.value)
    assert isinstance(caught.value, IndexError)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.index) == (str(caught.value), index)


def test_negative_indices_count_from_the_end() -> None:
    assert run(form=0, index=-4) == 0.0
    assert run(form=0, index=-1) == 3.0
    assert run(form=2, index=-4) == 0.0
    assert run(form=4, index=-1) == 3.0
    assert run(form=7, index=-3) == 1.0
    assert run(form=8, index=3) == 3.0


def test_a_failed_reset_or_rollout_requires_a_reset() -> None:
    with envfleet.make(Shelf, 2, backend="kernel", debug=True) as fleet:
        assert "checks indices" in repr(fleet)
        fleet.reset(seed=0)
        fleet.reset(options={"params": {"form": 1, "index": -5}})
        with pytest.raises(KernelIndexError, match=r"in step .*index -5 is out of bounds for axis 1 with size 4"):
            fleet.rollout("random", 6)
        with pytest.raises(ResetNeeded):
            fleet.step(np.zeros(2, np.int64))
        fleet.reset()
        with pytest.raises(KernelIndexError, match=r"in reset .*index 3 is out of bounds for axis 0 with size 3"):
            fleet.reset(options={"params": {"form": 20, "row": 3}})
        with pytest.raises(ResetNeeded):
            fleet.step(np.zeros(2, np.int64))


def test_check_kernel_finds_an_index_out_of_bounds_first() -> None:
    with pytest.raises(KernelIndexError, match=r"in first .*index 1000000000 is out of bounds"):
        check_kernel(Shelf, params={"form": 2, "index": 10**9}, num_steps=8, seeds=[1])


def test_an_ordinary_environment_is_checked_too() -> None:
    env = pickle.loads(pickle.dumps(KernelEnv(Shelf, debug=True, form=3, index=3)))
    env.reset(seed=0)
    with pytest.raises(KernelIndexError, match="index 3 is out of bounds"):
        [env.step(0) for _ in range(6)]


def test_checked_code_is_kept_by_itself_and_knows_its_lines() -> None:
    spec = read_kernel(Walker)
    checked, unchecked = compile_kernel(spec, False, debug=True), compile_kernel(spec, False)
    assert checked is not unchecked
    keys = [cache_key(spec, debug=debug) for debug in (False, True)]
    places = [make_module(spec.name, "", "loops", key=key).__file__ for key in keys]
    assert places[0] != places[1]
    assert fingerprint_of(spec, has_places=True) != fingerprint_of(spec)


def test_checked_code_gives_the_same_results() -> None:
    results = []
    for debug in (False, True):
        with envfleet.make(Walker, 50, backend="kernel", debug=debug) as fleet:
            fleet.action_space.seed(0)
            observations = [fleet.reset(seed=3)[0]]
            observations += [fleet.step(fleet.action_space.sample())[0] for _ in range(20)]
            results.append(np.array(observations))
    assert np.array_equal(results[0], results[1])


@pytest.mark.parametrize("backend", ["serial", "thread", "process", "ray"])
def test_other_backends_refuse_debug(backend: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"nothing with backend=.*: pass backend='kernel' or 'native', or"):
        envfleet.make(Walker, 2, backend=backend, debug=True)


def test_debug_is_for_kernels_on_the_cpu() -> None:
    with pytest.raises(InvalidArgument, match=r"means nothing .*: pass backend='kernel' or 'native', or leave it out"):
        envfleet.make("CartPole-v1", 2, debug=True)
    with pytest.raises(InvalidArgument, match="debug='yes'"):
        envfleet.make(Walker, 2, backend="kernel", debug="yes")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"debug=True requires device='cpu' \(got device='cuda'\)"):
        envfleet.make(Walker, 2, backend="kernel", device="cuda", debug=True)
    assert envfleet.make(Walker, 2, debug=True).plan.reason.startswith("compiled code that checks indices")
