"""Kernels: environments written once as scalar Python functions, compiled to batched CPU and CUDA code."""

from envfleet.kernels.fields import array
from envfleet.kernels.kernel import Kernel

__all__ = ["Kernel", "array"]
