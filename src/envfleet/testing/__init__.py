"""Tools for tests: difficult environments, environments that fail on demand, and a conformance suite for backends.

They are public, for authors of vector environments and trainers. A conformance test of another backend is:

    def test_backend() -> None:
        envfleet.testing.check_backend(lambda env_fns, **options: MyVectorEnv(env_fns, **options))
"""

from envfleet.testing.cases import CASES, Case
from envfleet.testing.check_kernel import KernelCheckError, check_kernel
from envfleet.testing.check_task import check_task
from envfleet.testing.compare import Mismatch, mismatches
from envfleet.testing.conformance import CHECKS, ConformanceError, Difference, check_backend
from envfleet.testing.envs import CountingEnv
from envfleet.testing.faults import FAULTS, FaultyEnv, once_marker
from envfleet.testing.infos import InfoEnv

__all__ = [
    "CASES",
    "CHECKS",
    "FAULTS",
    "Case",
    "ConformanceError",
    "CountingEnv",
    "Difference",
    "FaultyEnv",
    "InfoEnv",
    "KernelCheckError",
    "Mismatch",
    "check_backend",
    "check_kernel",
    "check_task",
    "mismatches",
    "once_marker",
]
