"""Kernels on a real CUDA device; skipped where there is none (the simulator's tests run everywhere)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import envfleet
from envfleet.errors import InvalidArgument
from envfleet.kernels.cuda.availability import is_simulated, require_cuda

IDS = ["CartPole-v1", "Pendulum-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Acrobot-v1"]
N = 1000


@pytest.fixture(autouse=True, scope="module")
def _device() -> None:
    try:
        require_cuda()
    except InvalidArgument as error:
        pytest.skip(f"no CUDA device: {error}")
    if is_simulated():
        pytest.skip("numba's CUDA simulator is on")


@pytest.fixture(params=IDS)
def pair(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The same fleet on both devices, reset with the same seeds."""
    options: dict[str, Any] = {"num_envs": N, "backend": "kernel", "autoreset_mode": "same_step"}
    fleets = [envfleet.make(f"envfleet/{request.param}", device=device, **options) for device in ("cpu", "cuda")]
    for fleet in fleets:
        fleet.reset(seed=3)
    yield fleets
    for fleet in fleets:
        fleet.close()


def test_episodes_are_the_cpus(pair: Any) -> None:
    cpu, cuda = pair
    cpu.action_space.seed(0)
    for _ in range(300):
        actions = cpu.action_space.sample()
        expected, found = cpu.step(actions), cuda.step(actions)
        for one, other in zip(expected[:4], found[:4], strict=True):
            np.testing.assert_allclose(np.asarray(other), one, rtol=1e-5, atol=1e-5)
        assert set(expected[4]) == set(found[4])
        if "episode" in expected[4]:
            np.testing.assert_array_equal(expected[4]["episode"]["l"], found[4]["episode"]["l"])
            np.testing.assert_array_equal(expected[4]["episode"]["id"], found[4]["episode"]["id"])


def test_saved_states_go_on_exactly(pair: Any) -> None:
    cpu, cuda = pair
    saved = cuda.get_state()
    actions = [cpu.action_space.sample() for _ in range(20)]
    first = [np.asarray(cuda.step(action)[0]) for action in actions]
    cuda.set_state(saved)
    for action, expected in zip(actions, first, strict=True):
        np.testing.assert_array_equal(np.asarray(cuda.step(action)[0]), expected)


def test_torch_takes_results_and_gives_actions_without_a_copy(pair: Any) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch has no CUDA")
    cpu, cuda = pair
    actions = cpu.action_space.sample()
    given = torch.as_tensor(actions, device="cuda")
    expected, found = cpu.step(actions), cuda.step(given)
    for one, array in zip(expected[:4], found[:4], strict=True):
        taken = torch.as_tensor(array, device="cuda")
        assert taken.data_ptr() == array.address
        np.testing.assert_allclose(taken.cpu().numpy(), one, rtol=1e-5, atol=1e-5)


def test_a_step_is_captured_and_replayed() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch has no CUDA")
    stream = torch.cuda.Stream()
    options: dict[str, Any] = {"num_envs": N, "backend": "kernel"}
    with (
        envfleet.make("envfleet/CartPole-v1", **options) as cpu,
        envfleet.make("envfleet/CartPole-v1", device="cuda", stream=stream.cuda_stream, copy=False, **options) as fleet,
    ):
        cpu.reset(seed=0)
        fleet.reset(seed=0)
        with torch.cuda.stream(stream):
            actions = torch.ones(N, dtype=torch.int64, device="cuda")
            fleet.step(actions)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                found = fleet.step(actions)
            for _ in range(20):
                graph.replay()
        for _ in range(21):
            expected = cpu.step(np.ones(N, np.int64))
        for one, array in zip(expected[:4], found[:4], strict=True):
            np.testing.assert_allclose(np.asarray(array), one, rtol=1e-5, atol=1e-5)


def test_a_wrong_action_on_the_device_is_told_later() -> None:
    cuda: Any = pytest.importorskip("numba.cuda")
    with envfleet.make("envfleet/CartPole-v1", num_envs=N, backend="kernel", device="cuda") as fleet:
        fleet.reset(seed=0)
        actions = np.zeros(N, np.int64)
        actions[70] = 5
        rewards = np.asarray(fleet.step(cuda.to_device(actions))[1])
        assert np.flatnonzero(np.isnan(rewards)).tolist() == [70]
        with pytest.raises(InvalidArgument, match="sub-environment 70"):
            fleet.step(cuda.to_device(np.zeros(N, np.int64)))
