"""Kernels' games as plain Python, for tests that look at a state."""

from __future__ import annotations

from envfleet.kernels import Kernel
from envfleet.kernels.kernel import read_kernel
from envfleet.kernels.plain import PlainEnv


def begin(kernel: type[Kernel], seed: int = 0, **params: float) -> PlainEnv:
    """Reset a kernel that is not compiled."""
    spec = read_kernel(kernel)
    values = spec.params.default_record()
    for name, value in params.items():
        values[name] = value
    env = PlainEnv(spec, values)
    env.reset(seed)
    return env
