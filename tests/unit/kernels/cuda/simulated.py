"""The CUDA life of kernels against their CPU life, under numba's CUDA simulator; `test_batch.py` runs this file."""

from __future__ import annotations

import ctypes
import importlib
import pickle
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numba
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from tests.unit.kernels.cuda import simulator
from tests.unit.kernels.cuda.deck import Deck, Ledge, Screen
from tests.unit.kernels.test_kernel_masks import Pair
from tests.unit.kernels.test_policies import Barred, Pull, Turn, network_of

import envfleet
from envfleet.envs.classic.cartpole import CartPole
from envfleet.envs.classic.pendulum import Pendulum
from envfleet.errors import InvalidArgument, KernelError, ResetNeeded
from envfleet.kernels.cuda import target
from envfleet.kernels.cuda.arrays import DeviceArray
from envfleet.kernels.kernel import Kernel
from envfleet.kernels.policies import MLP

if numba.config.ENABLE_CUDASIM:  # pytest imports this file in other processes, too, in search of doctests
    sys.modules["envfleet.kernels.cuda.numba_cuda"] = simulator

N = 5
MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED]
KERNELS = [CartPole, Pendulum, Deck]


def make_pair(kernel: type[Kernel], mode: AutoresetMode = AutoresetMode.NEXT_STEP, **options: Any) -> Any:
    options = {"max_episode_steps": 12, **options}
    return tuple(
        envfleet.make(kernel, N, backend="kernel", autoreset_mode=mode, device=device, **options)
        for device in ("cpu", "cuda")
    )


@pytest.fixture
def pair(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A fleet on each device, reset with the same seeds."""
    fleets = make_pair(*getattr(request, "param", (CartPole,)))
    for fleet in fleets:
        fleet.reset(seed=7)
    yield fleets
    for fleet in fleets:
        fleet.close()


def assert_same(expected: Any, actual: Any, error: float = 1e-6) -> None:
    """Assert equal infos or arrays, except for the times of episodes."""
    if isinstance(expected, dict):
        assert set(expected) == set(actual)
        for key in expected:
            if key != "t":
                assert_same(expected[key], actual[key], error)
    elif np.asarray(expected).dtype.kind == "O":
        assert [value is None for value in expected] == [value is None for value in actual]
        for one, other in zip(expected, actual, strict=True):
            if one is not None:
                assert_same(one, other)
    else:
        actual = np.asarray(actual)
        assert actual.dtype == np.asarray(expected).dtype
        np.testing.assert_allclose(actual, expected, rtol=error, atol=error)


def draw(fleet: Any, rng: np.random.Generator) -> Any:
    fleet.action_space.seed(int(rng.integers(2**31)))
    return fleet.action_space.sample()


@pytest.mark.parametrize(
    ("kernel", "mode"), [*((kernel, MODES[1]) for kernel in KERNELS), (Deck, MODES[0]), (CartPole, MODES[2])]
)
def test_steps_infos_and_resets_are_the_cpus(kernel: type[Kernel], mode: AutoresetMode) -> None:
    cpu, cuda = make_pair(kernel, mode)
    rng = np.random.default_rng(0)
    assert_same(cpu.reset(seed=[3, 1, 4, 1, 5])[0], cuda.reset(seed=[3, 1, 4, 1, 5])[0])
    num_ended = 0
    for _ in range(16):
        actions = draw(cpu, rng)
        expected, actual = cpu.step(actions), cuda.step(actions)
        assert all(isinstance(array, DeviceArray) for array in actual[:4])
        for one, other in zip(expected, actual, strict=True):
            assert_same(one, other)
        ended = expected[2] | expected[3]
        num_ended += ended.sum()
        if mode is AutoresetMode.DISABLED and ended.any():
            with pytest.raises(ResetNeeded):
                cuda.step(actions)
            options = {"reset_mask": ended}
            for one, other in zip(cpu.reset(options=options), cuda.reset(options=options), strict=True):
                assert_same(one, other)
        if mode is AutoresetMode.SAME_STEP:
            assert_same(cpu.final_observations[ended], np.asarray(cuda.final_observations)[ended])
        for name in ("episode_ids", "episode_lengths", "episode_returns", "active_count", "terminated_indices"):
            assert_same(np.asarray(getattr(cpu, name)), getattr(cuda, name))
    assert num_ended >= N
    assert [g.random() for g in cpu.np_random] == [g.random() for g in cuda.np_random]


def test_the_number_of_environments_does_not_matter() -> None:
    few, many = (
        envfleet.make(Deck, n, backend="kernel", device="cuda", max_episode_steps=4) for n in (1, 130)
    )  # two blocks
    np.testing.assert_array_equal(few.reset(seed=100)[0], np.asarray(many.reset(seed=0)[0])[100:101])
    actions = np.ones((130, 2), np.int64)
    for _ in range(6):
        np.testing.assert_array_equal(few.step(actions[:1])[0], np.asarray(many.step(actions)[0])[100:101])


def test_infos_wait_until_somebody_looks(pair: Any) -> None:
    cpu, cuda = pair
    kept = []
    for _ in range(16):
        actions = np.ones(N, np.int64)
        kept.append((cpu.step(actions), cuda.step(actions)))
    for expected, actual in kept:
        for one, other in zip(expected, actual, strict=True):
            assert_same(one, other)


def test_memory_of_results_is_used_again_once_nobody_holds_them(pair: Any) -> None:
    _, cuda = pair
    addresses = {cuda.step(np.ones(N, np.int64))[0].address for _ in range(8)}
    assert len(addresses) <= 2
    held = [cuda.step(np.ones(N, np.int64))[0] for _ in range(8)]
    assert len({array.address for array in held}) == 8


def test_addresses_stay_so_that_a_step_can_be_captured() -> None:
    cpu, cuda = make_pair(Deck, AutoresetMode.SAME_STEP, copy=False)
    numba_cuda: Any = importlib.import_module("numba.cuda")
    actions = DeviceArray(numba_cuda.to_device(np.ones(16 * N, np.uint8) * 0), (N, 2), np.dtype(np.int64))
    batch: Any = cuda.engine._batch
    launched, launch = [], batch._launch

    def note_launch(*args: int) -> None:
        launched.append(args[:-1])
        launch(*args)

    batch._launch = note_launch
    assert_same(cpu.reset(seed=0)[0], cuda.reset(seed=0)[0])
    addresses = set()
    for _ in range(5):
        expected, actual = cpu.step(np.zeros((N, 2), np.int64)), cuda.step(actions)
        addresses.add(tuple(array.address for array in (*actual[:4], actual[4]["cards"])))
    assert len(addresses) == len(set(launched)) == 1
    # What a graph replays: a count cleared, a launch with the same numbers. Results are found where they were.
    expected = cpu.step(np.zeros((N, 2), np.int64))
    batch._clear(batch._last.place.count, 0)
    launch(*launched[0], 0)
    for one, other in zip(expected[:4], actual[:4], strict=True):
        assert_same(one, other)


def test_some_are_reset_with_seeds_of_their_own(pair: Any) -> None:
    cpu, cuda = pair
    expected, actual = (fleet.reset_envs([4, 1], seeds=[99, None]) for fleet in pair)
    assert isinstance(actual[0], DeviceArray)
    assert_same(expected[0], actual[0])
    assert_same(cpu.step(np.zeros(N, np.int64))[0], cuda.step(np.zeros(N, np.int64))[0])
    assert cpu.np_random_seed == cuda.np_random_seed


def test_rows_and_parameters_stay_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, cuda = make_pair(Deck)
    for fleet in (cpu, cuda):
        fleet.reset(seed=0)
    batch: Any = cuda.engine._batch
    address = batch._params_piece.address
    expected = cpu.reset_envs([4, 1], seeds=[9, None])
    with monkeypatch.context() as patch:
        patch.setattr(DeviceArray, "numpy", lambda *_: pytest.fail("copied to the host"))
        actual = cuda.reset_envs([4, 1], seeds=[9, None])
        for fleet in (cpu, cuda):
            fleet.set_attr("bonus", 3.0)
    for one, other in zip(expected, actual, strict=True):
        assert_same(one, other)
    assert_same(cpu.step(np.ones((N, 2), np.int64))[1], cuda.step(np.ones((N, 2), np.int64))[1])
    assert batch._params_piece.address == address
    with pytest.raises(IndexError):
        actual[0].take(np.array([2]))


def test_parameters_for_all_and_for_each() -> None:
    cpu, cuda = make_pair(CartPole, force_mag=np.arange(1.0, N + 1))
    for fleet in (cpu, cuda):
        fleet.reset(seed=0)
        fleet.set_attr("gravity", 5.0)
        fleet.reset(options={"reset_mask": np.arange(N) < 2, "params": {"length": [0.4, 0.9]}})
    for _ in range(4):
        assert_same(cpu.step(np.ones(N, np.int64))[0], cuda.step(np.ones(N, np.int64))[0])
    assert_same(cpu.engine.params, cuda.engine.params)
    assert cpu.get_attr("force_mag") == cuda.get_attr("force_mag")
    for fleet in (cpu, cuda):
        fleet.set_attr("x", np.linspace(-1.0, 1.0, N))
    assert_same(cpu.step(np.ones(N, np.int64))[0], cuda.step(np.ones(N, np.int64))[0])


@pytest.mark.parametrize("pair", [(CartPole,), (Deck,)], indirect=True)
@pytest.mark.parametrize("is_pickled", [False, True])
def test_saved_states_go_on_exactly_and_on_either_device(pair: Any, is_pickled: bool) -> None:
    cpu, cuda = pair
    rng = np.random.default_rng(1)
    for _ in range(5):
        actions = draw(cpu, rng)
        cpu.step(actions)
        cuda.step(actions)
    saved = cuda.get_state()
    if is_pickled:
        saved = pickle.loads(pickle.dumps(saved))
    later = [draw(cpu, rng) for _ in range(10)]
    first = [np.asarray(cuda.step(actions)[0]) for actions in later]
    again = np.asarray(cuda.set_state(saved))
    assert_same(np.asarray(cpu.set_state(saved)), again)
    for actions, expected in zip(later, first, strict=True):
        np.testing.assert_array_equal(np.asarray(cuda.step(actions)[0]), expected)
        assert_same(cpu.step(actions)[0], expected)
    part = cpu.get_state([0, 3])
    assert_same(cpu.set_state(part, [1, 2]), cuda.set_state(part, [1, 2]))
    with pytest.raises(InvalidArgument, match="other fields"):
        make_pair(Pendulum)[1].set_state(saved)


def test_host_actions_are_checked_before_a_step(pair: Any) -> None:
    cpu, cuda = pair
    with pytest.raises(InvalidArgument, match=r"sub-environment 2 is 7.*nothing was stepped"):
        cuda.step([0, 1, 7, 1, 0])
    with pytest.raises(InvalidArgument, match="shape"):
        cuda.step([0, 1])
    with pytest.raises(InvalidArgument, match="dtype"):
        cuda.step(np.full(N, 0.5))
    assert_same(cpu.step(np.ones(N, np.int64))[0], cuda.step(np.ones(N, np.int64))[0])


def test_actions_of_the_device_are_taken_where_they_lie(pair: Any) -> None:
    cpu, cuda = pair
    numba_cuda: Any = importlib.import_module("numba.cuda")

    def on_device(values: list[int], dtype: Any = np.int64) -> DeviceArray:
        array = np.array(values, dtype)
        return DeviceArray(numba_cuda.to_device(array.view(np.uint8)), array.shape, array.dtype)

    assert_same(cpu.step(np.ones(N, np.int64))[0], cuda.step(on_device([1] * N))[0])
    with pytest.raises(InvalidArgument, match=r"dtype int32, expected int64"):
        cuda.step(on_device([1] * N, np.int32))
    with pytest.raises(InvalidArgument, match="shape"):
        cuda.step(on_device([1] * 2))
    before = cuda.get_attr("x")
    rewards = np.asarray(cuda.step(on_device([1, 0, 2, 1, 0]))[1])
    assert np.isnan(rewards).tolist() == [False, False, True, False, False]
    with pytest.raises(InvalidArgument, match=r"sub-environment 2 was not in"):
        cuda.step(np.ones(N, np.int64))
    assert [one == other for one, other in zip(before, cuda.get_attr("x"), strict=True)] == (np.isnan(rewards).tolist())


class Borrower:
    """Memory of the simulated device, which is the host's; the two interfaces have one form."""

    def __init__(self, array: DeviceArray) -> None:
        self.array, self.__array_interface__ = array, array.__cuda_array_interface__


def test_other_libraries_take_results_without_a_copy(pair: Any) -> None:
    _, cuda = pair
    observations, rewards, terminated, _, _ = cuda.step(np.ones(N, np.int64))
    for array in (observations, rewards, terminated):
        taken = np.asarray(Borrower(array))
        assert taken.ctypes.data == array.address
        np.testing.assert_array_equal(taken, array.numpy())
        assert taken.strides == array.strides
        interface = array.__cuda_array_interface__
        assert (interface["shape"], interface["typestr"]) == (taken.shape, taken.dtype.str)
        assert interface["data"] == (array.address, False)
    held = np.asarray(Borrower(observations))
    was = held.copy()
    del observations, taken, array
    for _ in range(4):
        cuda.step(np.ones(N, np.int64))
    np.testing.assert_array_equal(held, was)


def test_small_rows_lie_side_by_side() -> None:
    cpu, cuda = make_pair(Deck)
    for fleet in (cpu, cuda):
        fleet.reset(seed=0)
    expected, actual = cpu.step(np.ones((N, 2), np.int64)), cuda.step(np.ones((N, 2), np.int64))
    for one, other in ((expected[0], actual[0]), (expected[4]["cards"], actual[4]["cards"])):
        neighbors = np.frombuffer(memoryview((ctypes.c_uint8 * N).from_address(other.address)), np.uint8)
        np.testing.assert_array_equal(neighbors, one[:, 0, 0])
    kept: Any = cuda.engine._batch._kept
    words = kept.data[kept.layout.span("s", kept.room)].copy_to_host().view(np.uint64).reshape(-1, kept.room)[:, :N]
    np.testing.assert_array_equal(words.T, cpu.get_state().arrays["s"][:, None].view(np.uint64))


def test_large_rows_lie_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "MAX_COPIED_BYTES", 5)  # as if those of this kernel were large
    target._compile.cache_clear()
    cpu, cuda = make_pair(Deck, bonus=np.arange(N, dtype=float))
    assert_same(cpu.reset(seed=0)[0], cuda.reset(seed=0)[0])
    for _ in range(12):
        actions = np.ones((N, 2), np.int64)
        expected, actual = cpu.step(actions), cuda.step(actions)
        assert actual[0].strides == expected[0].strides == (6, 3, 1)
        for one, other in zip(expected, actual, strict=True):
            assert_same(one, other)
    check_rollouts((cpu, cuda), "random")
    assert_same(cpu.set_state(saved := cuda.get_state()), cuda.set_state(saved))
    target._compile.cache_clear()


@pytest.mark.parametrize(("mode", "num_envs"), [(MODES[0], N), (MODES[1], N), (MODES[0], 130)])  # two blocks
def test_frames_are_written_row_after_row(monkeypatch: pytest.MonkeyPatch, mode: AutoresetMode, num_envs: int) -> None:
    monkeypatch.setattr(target, "MAX_COPIED_BYTES", 30)  # as if they were large
    target._compile.cache_clear()
    options: Any = {"backend": "kernel", "autoreset_mode": mode, "max_episode_steps": 2}
    fleets = tuple(envfleet.make(Screen, num_envs, device=device, **options) for device in ("cpu", "cuda"))
    assert_same(fleets[0].reset(seed=0)[0], fleets[1].reset(seed=0)[0])
    for _ in range(3):
        expected, actual = (fleet.step(np.ones(num_envs, np.int64)) for fleet in fleets)
        assert actual[0].strides == expected[0].strides
        for one, other in zip(expected, actual, strict=True):
            assert_same(one, other)
    if num_envs == N and mode is AutoresetMode.SAME_STEP:
        check_rollouts(fleets, "random")
    elif num_envs == N:
        check_rollouts(fleets, MLP([(np.ones((2, 35)), np.zeros(2))], critic=[(np.ones((1, 35)), np.zeros(1))]), 1e-5)
    target._compile.cache_clear()


class Lucky(CartPole):
    """Draw that ignores the seed, on a path that the rehearsal does not take."""

    @staticmethod
    def step(state: Any, action: Any, rng: Any, params: Any) -> tuple[float, bool]:
        return (np.random.random() if state.x > 1000 else 1.0), False  # noqa: NPY002


def test_rules_hold_on_the_device_too() -> None:
    with pytest.raises(KernelError, match=r"in step .*uses np\.random\.random, whose draws ignore the seed"):
        envfleet.make(Lucky, 2, backend="kernel", device="cuda")


def check_rollouts(fleets: Any, policy: Any, error: float = 0.0) -> tuple[Any, Any]:
    """Roll out on both devices, twice, and compare everything; to the bit without a network."""
    for _ in range(2):
        expected, actual = (fleet.rollout(policy, 8, seed=4) for fleet in fleets)
        for field in ("all_observations", "actions", "rewards", "terminated", "truncated", "is_reset", "infos"):
            assert_same(getattr(expected, field), getattr(actual, field), error)
        for field in ("log_probs", "values", "next_values"):
            one, other = getattr(expected, field), getattr(actual, field)
            assert (one is None) == (other is None)
            if one is not None:
                assert isinstance(other, DeviceArray)
                assert_same(one, other, error)
        assert_same(vars(expected.episodes), vars(actual.episodes), error)
        assert_same(expected.last_observations, actual.last_observations, error)
        one, other = (fleet.engine.observe(np.array([3, 1])) for fleet in fleets)
        assert_same(one, other, error)
    assert len(expected.episodes) > 0
    return expected, actual


@pytest.mark.parametrize(
    ("kernel", "mode"), [*((kernel, MODES[1]) for kernel in (*KERNELS, Ledge, Pair)), (Deck, MODES[0])]
)
def test_random_rollouts_are_the_cpus(kernel: type[Kernel], mode: AutoresetMode) -> None:
    fleets = make_pair(kernel, mode, max_episode_steps=6)
    for fleet in fleets:
        fleet.reset(seed=3)
    check_rollouts(fleets, "random")
    actions = draw(fleets[0], np.random.default_rng(0))
    for one, other in zip(*(fleet.step(actions) for fleet in fleets), strict=True):
        assert_same(one, other)


@pytest.mark.parametrize(
    ("kernel", "head", "mode"),
    [
        (Turn, "categorical", MODES[1]),
        (Barred, "categorical", MODES[1]),
        (Pull, "tanh_gaussian", MODES[1]),
        (Pull, "linear", MODES[0]),
        pytest.param(Turn, "argmax", MODES[0], marks=pytest.mark.slow),
        *(pytest.param(Pull, head, MODES[1], marks=pytest.mark.slow) for head in ("tanh", "gaussian")),
    ],
)
def test_rollouts_of_networks_are_the_cpus(kernel: type[Kernel], head: str, mode: AutoresetMode) -> None:
    fleets = make_pair(kernel, mode, max_episode_steps=6)
    for fleet in fleets:
        fleet.reset(seed=3)
    expected, actual = check_rollouts(fleets, network_of(head), 2e-5)
    if expected.values is not None:
        for one, other in zip(*(rollout.advantages(0.9, 0.8) for rollout in (expected, actual)), strict=True):
            assert_same(one, other, 1e-4)


@pytest.mark.parametrize("is_on_device", [False, True])
def test_rollouts_of_given_actions(is_on_device: bool) -> None:
    fleets = make_pair(Deck, AutoresetMode.SAME_STEP)
    for fleet in fleets:
        fleet.reset(seed=3)
    actions = np.random.default_rng(0).integers(0, 3, (15, N, 2))
    values: Any = actions
    if is_on_device:
        numba_cuda: Any = importlib.import_module("numba.cuda")
        values = DeviceArray(numba_cuda.to_device(actions.reshape(-1).view(np.uint8)), actions.shape, actions.dtype)
    expected, actual = fleets[0].rollout(actions, 15), fleets[1].rollout(values, 15)
    for field in ("all_observations", "actions", "rewards", "terminated", "infos"):
        assert_same(getattr(expected, field), getattr(actual, field))
    wrong = actions.copy()
    wrong[3, 2] = 9
    with pytest.raises(InvalidArgument, match=r"at step 3 the action of sub-environment 2 is .*nothing was stepped"):
        fleets[1].rollout(wrong, 15)
    with pytest.raises(InvalidArgument, match="shape"):
        fleets[1].rollout(values, 14)


def test_rollouts_use_memory_again(pair: Any) -> None:
    first = pair[1].rollout("random", 4, seed=1)
    second = pair[1].rollout("random", 4, seed=1, out=first)
    assert first.rewards.address == second.rewards.address
    assert len(second.episodes) == 0
    with pytest.raises(InvalidArgument, match="read them before"):
        len(first.episodes)
    with pytest.raises(InvalidArgument, match=r"out is a rollout of \(T, N\) = \(4, 5\)"):
        pair[1].rollout("random", 5, out=second)


def test_a_wrong_action_of_a_network_is_told_after_the_rollout() -> None:
    _, cuda = make_pair(Pull)
    cuda.reset(seed=0)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # infinity less infinity
        weights = [(np.full((2, 3), 3e38), np.full(2, 3e38)), (np.array([[3e38, -3e38]] * 2), np.zeros(2))]
        rollout = cuda.rollout(MLP(weights, "relu", "linear"), 3)
    assert np.isnan(rollout.rewards[0]).any()
    with pytest.raises(InvalidArgument, match=r"sub-environment \d was not in"):
        len(rollout.episodes)


def test_rows_and_slices_are_views(pair: Any) -> None:
    array = pair[1].step(np.ones(N, np.int64))[0]
    host = array.numpy()
    for key in (2, -1, slice(1, 4), slice(None, None, 2), slice(4, 2)):
        view = array[key]
        assert isinstance(view, DeviceArray)
        np.testing.assert_array_equal(view, host[key])
    assert array[1:][0].address == array.address + array.strides[0]
    assert array[1][2] == host[1, 2]
    np.testing.assert_array_equal(array[::-1], host[::-1])
    np.testing.assert_array_equal(array[host[:, 0] > 0], host[host[:, 0] > 0])
    with pytest.raises(IndexError):
        array[N]
    with pytest.raises(InvalidArgument, match=r"expected evenly spaced rows"):
        pair[1].rollout("random", 3).all_observations.take(np.array([0]))
