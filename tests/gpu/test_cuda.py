"""Kernels on a real CUDA device; skipped without one (the simulator's tests run everywhere)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from tests.unit.kernels.cuda.deck import Reshaper, Screen

import envfleet
from envfleet.errors import InvalidArgument, KernelError
from envfleet.kernels import MLP
from envfleet.kernels.registration import is_kernel

IDS = ["CartPole-v1", "Pendulum-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Acrobot-v1"]
N = 1000
OF_PARTS = ("Masked", "Blackjack")
REGISTERED = [env_id for env_id, spec in gymnasium.registry.items() if is_kernel(spec)]


class LargeScreen(Screen):
    """Has frames above 1 KiB, of a size that no tile divides."""

    observation_space = spaces.Box(0, 255, (37, 31), np.uint8)

    @staticmethod
    def observe(state: Any, out: Any) -> None:
        for row in range(37):
            for column in range(31):
                out[row, column] = (7 * row + column + state.x) % 200


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
        expected, actual = cpu.step(actions), cuda.step(actions)
        for one, other in zip(expected[:4], actual[:4], strict=True):
            np.testing.assert_allclose(np.asarray(other), one, rtol=1e-5, atol=1e-5)
        assert set(expected[4]) == set(actual[4])
        if "episode" in expected[4]:
            np.testing.assert_array_equal(expected[4]["episode"]["l"], actual[4]["episode"]["l"])
            np.testing.assert_array_equal(expected[4]["episode"]["id"], actual[4]["episode"]["id"])


@pytest.mark.parametrize("env_id", [env_id for env_id in REGISTERED if not any(part in env_id for part in OF_PARTS)])
def test_registered_kernels_are_the_cpus(env_id: str) -> None:
    options: dict[str, Any] = {"num_envs": 200, "backend": "kernel", "autoreset_mode": "same_step"}
    with (
        envfleet.make(env_id, **options) as cpu,
        envfleet.make(env_id, device="cuda", **options) as cuda,
    ):
        cpu.action_space.seed(0)
        pairs: list[Any] = [(cpu.reset(seed=3)[:1], cuda.reset(seed=3)[:1])]
        for _ in range(120):
            actions = cpu.action_space.sample()
            pairs.append((cpu.step(actions)[:4], cuda.step(actions)[:4]))
        for expected, actual in pairs:
            for one, other in zip(expected, actual, strict=True):
                is_close = np.isclose(np.asarray(other), one, rtol=1e-4, atol=1e-4).reshape(200, -1).all(1)
                assert is_close.mean() > 0.95  # what hangs by the last bit of a sine may go another way


@pytest.mark.parametrize("env_id", [env_id for env_id in REGISTERED if any(part in env_id for part in OF_PARTS)])
def test_parts_of_observations_are_refused(env_id: str) -> None:
    with pytest.raises(InvalidArgument, match="device='cuda'"):
        envfleet.make(env_id, 4, backend="kernel", device="cuda")


def test_random_rollouts_are_the_cpus(pair: Any) -> None:
    expected, actual = (fleet.rollout("random", 50, seed=1) for fleet in pair)
    for field in ("all_observations", "actions", "rewards", "terminated", "truncated", "is_reset"):
        np.testing.assert_allclose(np.asarray(getattr(actual, field)), getattr(expected, field), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(expected.episodes.ids, actual.episodes.ids)
    np.testing.assert_allclose(actual.episodes.observations, expected.episodes.observations, rtol=1e-5, atol=1e-5)


def test_network_and_critic_rollouts_match_numpy() -> None:
    rng = np.random.default_rng(0)
    layers, critic = (
        [(rng.normal(size=(16, 4)), np.zeros(16)), (rng.normal(size=(n, 16)), np.zeros(n))] for n in (2, 1)
    )
    with envfleet.make("envfleet/CartPole-v1", num_envs=N, backend="kernel", device="cuda") as fleet:
        fleet.reset(seed=0)
        rollout = fleet.rollout(MLP(layers, head="categorical", critic=critic), 20, seed=1)
    seen, values = np.asarray(rollout.observations, np.float64), np.asarray(rollout.values)
    outputs = [np.tanh(seen @ first.T) @ last.T for (first, _), (last, _) in (layers, critic)]
    logits, actions = outputs[0], np.asarray(rollout.actions)
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    chosen = np.take_along_axis(shares, actions[..., None], -1)[..., 0]
    np.testing.assert_allclose(np.asarray(rollout.log_probs), np.log(chosen), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(values, outputs[1][..., 0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("num_envs", [1, 130])
def test_frames_are_the_cpus(num_envs: int) -> None:
    options: Any = {"num_envs": num_envs, "backend": "kernel", "max_episode_steps": 5}
    fleets = [envfleet.make(LargeScreen, device=device, **options) for device in ("cpu", "cuda")]
    firsts = [fleet.reset(seed=0)[0] for fleet in fleets]
    assert firsts[1].strides == firsts[0].strides
    np.testing.assert_array_equal(np.asarray(firsts[1]), firsts[0])
    expected, actual = (fleet.rollout("random", 12, seed=1) for fleet in fleets)
    np.testing.assert_array_equal(np.asarray(actual.all_observations), expected.all_observations)
    for fleet in fleets:
        fleet.close()


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
    tensor = torch.as_tensor(actions, device="cuda")
    expected, actual = cpu.step(actions), cuda.step(tensor)
    for one, array in zip(expected[:4], actual[:4], strict=True):
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
                actual = fleet.step(actions)
            for _ in range(20):
                graph.replay()
        for _ in range(21):
            expected = cpu.step(np.ones(N, np.int64))
        for one, array in zip(expected[:4], actual[:4], strict=True):
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


def test_reshaping_is_refused_with_a_remedy() -> None:
    with pytest.raises(KernelError, match=r"write `out\.flat\[k\] = …`"):
        envfleet.make(Reshaper, 4, backend="kernel", device="cuda")
