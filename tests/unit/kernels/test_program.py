"""Compiled kernels are kept on disk, found again, and never found when anything they are made of has changed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from tests.unit.kernels import strokes
from tests.unit.kernels.samples import Painter, Switches, Walker

from envfleet.kernels import Kernel, program
from envfleet.kernels.buffers import BufferPlan
from envfleet.kernels.kernel import read_kernel
from envfleet.kernels.source import Source

KERNEL = """
import math, os, sys
import numpy as np
from gymnasium import spaces
import envfleet
from envfleet.kernels import Kernel

def squared(x): return x * x

def make():
    class Little(Kernel):
        observation_space = spaces.Box(-9.0, 9.0, (1,), np.float64)
        action_space = spaces.Discrete(2)
        class State:
            x: float
        @staticmethod
        def reset(state, rng, params):
            state.x = rng.random()
        @staticmethod
        def step(state, action, rng, params):
            state.x = squared(state.x)
            return float(action), False
        @staticmethod
        def observe(state, out):
            out[0] = state.x
    return Little

with envfleet.make(make(), 3, backend="kernel", workers=1) as fleet:
    fleet.reset(seed=5)
    print(fleet.step(np.ones(3, np.int64))[0].ravel().tolist())
"""


def expected() -> list[float]:
    return [np.random.default_rng(5 + row).random() ** 2 for row in range(3)]


def start(cache: Path, *command: str, text: str | None = None) -> subprocess.Popen[str]:
    environment = {**os.environ, "ENVFLEET_CACHE_DIR": str(cache)}
    process = subprocess.Popen(
        [sys.executable, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdin is not None
    process.stdin.write(text or "")
    process.stdin.close()
    return process


def finish(process: subprocess.Popen[str]) -> tuple[list[float], str]:
    assert process.stdout is not None
    assert process.stderr is not None
    out, err = process.stdout.read(), process.stderr.read()
    process.stdout.close()
    process.stderr.close()
    assert process.wait() == 0, err
    return eval(out), err


def test_kernels_without_a_file_compile_once_for_all_processes(tmp_path: Path) -> None:
    """Two processes compile at the same time, as commands and from stdin; a third, in an exec'ed cell, compiles not."""
    processes = [start(tmp_path, "-c", KERNEL), start(tmp_path, "-", text=KERNEL)]
    for found, note in [finish(process) for process in processes]:
        assert found == expected()
        assert "envfleet: compiling Little for the CPU (once, then cached) ..." in note
    script = tmp_path / "main.py"
    script.write_text(f"exec(compile({KERNEL!r}, '<cell 1>', 'exec'), {{'__name__': 'cell'}})")
    found, note = finish(start(tmp_path, str(script)))
    assert found == expected()
    assert note == ""
    assert len(list(tmp_path.glob("Little-*"))) == 1


# ---------------------------------------------------------------------------------------- what decides the machine code


def place(kernel: type[Kernel], *, has_own_params: bool = False) -> Path:
    """Where the machine code of a kernel is kept."""
    spec = read_kernel(kernel)
    module = program.load_module(spec, Source(BufferPlan(spec), has_own_params=has_own_params).text(), "loops")
    assert module.__file__ is not None
    return Path(module.__file__)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVFLEET_CACHE_DIR", str(tmp_path))


def test_the_folder_is_the_one_that_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert place(Walker).is_relative_to(tmp_path)
    monkeypatch.delenv("ENVFLEET_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert program.cache_folder() == tmp_path / "xdg" / "envfleet" / "kernels"


def test_the_same_kernel_has_the_same_place() -> None:
    assert place(Walker) == place(Walker)
    assert place(Walker) != place(Walker, has_own_params=True)
    assert place(type("Walker", (Walker,), {})) == place(Walker)


def variant(base: type[Kernel], **changes: Any) -> type[Kernel]:
    return type(base.__name__, (base,), changes)


CHANGES: dict[str, Callable[[], tuple[type[Kernel], type[Kernel]]]] = {
    "range of actions": lambda: (Painter, variant(Painter, action_space=spaces.MultiDiscrete([5, 4]))),
    "start of actions": lambda: (Walker, variant(Walker, action_space=spaces.Discrete(3))),
    "shape of observations": lambda: (
        Painter,
        variant(Painter, observation_space=spaces.Box(0, 255, (4, 3, 2), np.uint8)),
    ),
    "dtype of observations": lambda: (
        Switches,
        variant(Switches, observation_space=spaces.MultiBinary(2)),
    ),
    "info fields": lambda: (Walker, variant(Walker, info_fields=("x",))),
    "a function": lambda: (Walker, variant(Walker, reset=Switches.reset)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_kernel_has_another_place(change: str) -> None:
    one, other = CHANGES[change]()
    assert place(one) != place(other)


def test_a_changed_helper_or_constant_of_another_module_has_another_place(monkeypatch: pytest.MonkeyPatch) -> None:
    before = place(Painter)
    monkeypatch.setattr(strokes, "FACTOR", 4.0)
    changed = place(Painter)
    assert changed != before
    monkeypatch.setattr(strokes, "tripled", lambda value: value)
    assert place(Painter) not in (before, changed)


def test_a_kernel_whose_helper_has_changed_is_compiled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = read_kernel(Painter)
    before = program.compile_kernel(spec, False)
    assert program.compile_kernel(spec, False) is before
    monkeypatch.setattr(strokes, "FACTOR", 4.0)
    factors = []
    for made in (before, program.compile_kernel(spec, False)):
        helper = vars(made.module)["step_"].py_func.__globals__["strokes"].weighted
        factors.append(helper.py_func.__globals__["tripled"].py_func.__globals__["FACTOR"])
    assert factors == [3.0, 4.0]


def test_a_changed_table_or_closure_has_another_place(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.unit.kernels import samples

    before = place(Switches), place(Walker)
    monkeypatch.setattr(samples, "_KICKS", samples._KICKS + 1.0)
    monkeypatch.setattr(samples, "halve", samples.make_scaler(0.25))
    assert place(Switches) != before[0]
    assert place(Walker) != before[1]


def test_a_folder_that_cannot_be_written_is_replaced_with_one_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    monkeypatch.setenv("ENVFLEET_CACHE_DIR", str(blocked / "kernels"))
    found = place(Walker)
    assert found.exists()
    assert not found.is_relative_to(tmp_path / "file")
    place(Switches)
    note = capsys.readouterr().err
    assert note.count("\n") == 1
    assert str(blocked) in note
    assert "ENVFLEET_CACHE_DIR" in note
