"""Errors where kernels cannot run on CUDA."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from typing import Any

import pytest

import envfleet
from envfleet.errors import InvalidArgument
from envfleet.kernels.cuda.availability import require_cuda


def test_without_numba_cuda_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "numba_cuda" else real(name, *rest)
    )
    with pytest.raises(
        InvalidArgument, match=r"requires numba-cuda, which is not installed: pip install 'envfleet\[cuda\]'"
    ):
        require_cuda()


def test_without_a_device_it_says_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        require_cuda()
    except InvalidArgument:
        options: dict[str, Any] = {"num_envs": 2, "backend": "kernel", "device": "cuda"}
        with pytest.raises(InvalidArgument, match=r"device='cuda', but .*driver.*pip install 'envfleet\[cuda\]'"):
            envfleet.make("envfleet/CartPole-v1", **options)
        with pytest.raises(InvalidArgument, match="workers"):
            envfleet.make("envfleet/CartPole-v1", workers=2, **options)
    else:
        pytest.skip("there is a device")


def test_a_stream_needs_a_device() -> None:
    with pytest.raises(InvalidArgument, match=r"stream=7 with device='cpu'.*add device='cuda'"):
        envfleet.make("envfleet/CartPole-v1", 2, backend="kernel", stream=7)


def test_numbas_simulator_says_what_it_lacks() -> None:
    code = "import envfleet; envfleet.make('envfleet/CartPole-v1', 2, backend='kernel', device='cuda')"
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert "InvalidArgument: NUMBA_ENABLE_CUDASIM=1 replaces numba-cuda's compiler by a simulator" in done.stderr
