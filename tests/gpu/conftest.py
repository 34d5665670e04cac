"""CUDA begins before anything else here, as it keeps threads and descriptors until the process ends."""

from __future__ import annotations

import pytest

from envfleet.errors import InvalidArgument
from envfleet.kernels.cuda.availability import import_cuda, require_cuda


@pytest.fixture(scope="session", autouse=True)
def _device() -> None:
    try:
        require_cuda()
    except InvalidArgument as error:
        pytest.skip(f"no CUDA device: {error}")
    if __import__("numba").config.ENABLE_CUDASIM:
        pytest.skip("numba's CUDA simulator is on")
    import_cuda().to_device([0]).copy_to_host()
