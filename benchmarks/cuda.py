"""Kernels on a CUDA device, on the CPU and in gymnax."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from benchmarks.case import Record, Session, rate_of
from benchmarks.rollouts import make_layers
from benchmarks.worker import Worker

import envfleet
from envfleet.errors import InvalidArgument
from envfleet.kernels import MLP
from envfleet.kernels.cuda.availability import import_cuda, require_cuda

STEPS_IN_A_ROW, ROLLOUT_STEPS = 50, 32
BYTES_PER_STEP = 2 * 4 * 8 + 16 + 8 + 16 + 1 + 8 + 2
"""CartPole: state and counters read and written, observation, reward, flags, action; resets left out."""


def compare_cuda(
    session: Session, *, sizes: tuple[int, ...] = (1024, 16_384, 131_072, 1_048_576), jax: str = ""
) -> None:
    """Compare CartPole on a CUDA device with gymnax on the same device and with the CPU.

    Actions are on the device, and the clock stops when the device has finished. `graph` replays a step that torch
    captured, `random` and `network` are rollouts of 32 steps in one call, `limit` is the rate at which the device
    copies the bytes of a step. `jax` is an interpreter that has gymnax, and JAX for the device.
    """
    try:
        require_cuda()
    except InvalidArgument as error:
        session.progress(f"nothing measured: {error}\n")
        return
    limit = _copy_rate(import_cuda()) / BYTES_PER_STEP
    for num_envs in sizes:
        with contextlib.ExitStack() as stack:
            session.compare(f"{num_envs:,}", _contenders(stack, num_envs, jax, session.seconds))
        session.add(Record(f"{num_envs:,}", "limit", [limit]))


def _contenders(stack: contextlib.ExitStack, num_envs: int, jax: str, seconds: float) -> dict[str, Callable[[], float]]:
    cuda = import_cuda()
    make = partial(envfleet.make, "envfleet/CartPole-v1", num_envs, backend="kernel")
    cpu, fleet = (stack.enter_context(make(device=device)) for device in ("cpu", "cuda"))
    cpu.reset(seed=0)
    fleet.reset(seed=0)
    cpu.action_space.seed(0)
    actions = cpu.action_space.sample()
    on_device = cuda.to_device(actions)

    def steps() -> None:
        for _ in range(STEPS_IN_A_ROW):
            fleet.step(on_device)
        cuda.synchronize()

    def rollout(policy: Any, out: Any) -> None:
        fleet.rollout(policy, ROLLOUT_STEPS, seed=0, out=out)
        cuda.synchronize()

    rates = {
        "step": rate_of(steps, STEPS_IN_A_ROW * num_envs, seconds),
        "CPU": rate_of(partial(cpu.step, actions), num_envs, seconds),
    }
    network = MLP(make_layers(4, 64, 64, 2), head="categorical")
    for name, policy in {"random": "random", "network": network}.items():
        out = fleet.rollout(policy, ROLLOUT_STEPS, seed=0)
        rates[name] = rate_of(partial(rollout, policy, out), ROLLOUT_STEPS * num_envs, seconds)
    with contextlib.suppress(ImportError):
        import torch

        if torch.cuda.is_available():
            stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            captured = stack.enter_context(make(device="cuda", stream=stream.cuda_stream, copy=False))
            replay = partial(_replay, _capture(captured, stream, actions), stream)
            rates["graph"] = rate_of(replay, STEPS_IN_A_ROW * num_envs, seconds)
    if jax:
        game = stack.enter_context(Worker("jax_side", "game", "gymnax", "CartPole-v1", num_envs, python=jax))
        rollouts = stack.enter_context(Worker("jax_side", "rollout", num_envs, ROLLOUT_STEPS, python=jax))
        rates |= {"gymnax step": partial(game.ask, seconds), "gymnax network": partial(rollouts.ask, seconds)}
    return rates


def _capture(fleet: Any, stream: Any, actions: Any) -> Any:
    """Return a CUDA graph of one step, captured by torch, and its actions."""
    import torch

    with torch.cuda.stream(stream):
        actions = torch.as_tensor(actions, device="cuda")
        fleet.reset(seed=0)
        fleet.step(actions)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            fleet.step(actions)
    return graph, actions  # which must outlive the graph


def _replay(captured: tuple[Any, Any], stream: Any) -> None:
    import torch

    with torch.cuda.stream(stream):
        for _ in range(STEPS_IN_A_ROW):
            captured[0].replay()
    stream.synchronize()


def _copy_rate(cuda: Any) -> float:
    """Return the bytes per second that a copy on the device reads and writes."""
    size_bytes = 1 << 30
    source, target = (cuda.device_array(size_bytes, np.uint8) for _ in range(2))
    target.copy_to_device(source)
    cuda.synchronize()
    start_s = time.perf_counter()
    for _ in range(10):
        target.copy_to_device(source)
    cuda.synchronize()
    return 10 * 2 * size_bytes / (time.perf_counter() - start_s)
