"""Kernels: environments written once as scalar Python functions, compiled to batched CPU and CUDA code."""

from envfleet.kernels.fields import array
from envfleet.kernels.jitting import outlined
from envfleet.kernels.kernel import Kernel
from envfleet.kernels.rollouts.policies import MLP

__all__ = ["MLP", "Kernel", "array", "outlined"]
