"""How long kernels take to compile: each in a process of its own, with an empty cache, then with what that left.

python benchmarks/kernel_compile.py [ID ...]    # CartPole and hockey by default: a minute or two
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence

_PROGRAM = """
import sys, time
import envfleet
import numba
start_s = time.process_time()
envfleet.make(sys.argv[1], 8, backend="kernel").reset(seed=0)
print(time.process_time() - start_s)
"""


@dataclasses.dataclass(frozen=True)
class Compiling:
    """CPU time that a first `make` and `reset` took; imports are not included.

    Attributes:
        env: The environment's id.
        cold_s: With nothing compiled.
        cached_s: In another process afterwards.
    """

    env: str
    cold_s: float
    cached_s: float


def measure_compiling(env_ids: Sequence[str]) -> list[Compiling]:
    """Measure some kernels."""
    found = []
    for env_id in env_ids:
        with tempfile.TemporaryDirectory() as folder:
            found.append(Compiling(env_id, _measure(env_id, folder), _measure(env_id, folder)))
    return found


def _measure(env_id: str, folder: str) -> float:
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM, env_id],
        env={**os.environ, "ENVFLEET_CACHE_DIR": folder},
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise RuntimeError(f"{env_id} could not be made:\n{ran.stderr}")
    return float(ran.stdout)


if __name__ == "__main__":
    print("CPU time of the first make() and reset(): nothing compiled / from the cache")
    for one in measure_compiling(sys.argv[1:] or ["envfleet/CartPole-v1", "envfleet/Hockey-v0"]):
        print(f"  {one.env:38}{one.cold_s:6.1f} s {one.cached_s:7.2f} s", flush=True)
