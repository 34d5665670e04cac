"""Kernels: environments written once as scalar Python functions, compiled to batched CPU and CUDA code."""

from envfleet.kernels.kernel import Kernel
from envfleet.kernels.policies import MLP
from envfleet.native.fields import array
from envfleet.native.jitting import outlined

__all__ = ["MLP", "Kernel", "array", "outlined"]
