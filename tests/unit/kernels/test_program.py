"""Compiled kernels are kept on disk, found again, and never found when anything they are made of has changed."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from tests.unit.kernels import strokes
from tests.unit.kernels.samples import Painter, Switches, Walker

import envfleet
from envfleet.kernels import Kernel, buffers
from envfleet.kernels.buffers import ENDED_DTYPE, BufferPlan
from envfleet.kernels.cpu_target import CpuTarget
from envfleet.kernels.kernel import read_kernel
from envfleet.kernels.program import cache_key
from envfleet.kernels.source import Source
from envfleet.native.generated_code import make_module

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
    """Of two processes, a command and one fed from stdin, one compiles and the other waits; a third only loads."""
    processes = [start(tmp_path, "-c", KERNEL), start(tmp_path, "-", text=KERNEL)]
    results = [finish(process) for process in processes]
    assert [actual for actual, _ in results] == [expected(), expected()]
    notes = " ".join(note for _, note in results)
    assert notes.count("envfleet: compiling Little for the CPU (once, then cached) ...") == 1
    assert notes.count("waiting for another process to compile Little for the CPU ...") == 1
    (lock,) = tmp_path.glob("Little-*/loops.lock")
    lock.unlink()
    lock.mkdir()  # loading must work where the lock cannot be opened, as in the cache of another user
    script = tmp_path / "main.py"
    script.write_text(f"exec(compile({KERNEL!r}, '<cell 1>', 'exec'), {{'__name__': 'cell'}})")
    actual, note = finish(start(tmp_path, str(script)))
    assert actual == expected()
    assert note == ""
    assert len(list(tmp_path.glob("Little-*"))) == 1


def test_damaged_files_and_stale_locks_are_replaced(tmp_path: Path) -> None:
    process = start(tmp_path, "-c", KERNEL)
    while not list(tmp_path.glob("Little-*/loops.lock")):
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    for pipe in (process.stdout, process.stderr):
        assert pipe is not None
        pipe.close()
    (source,) = tmp_path.glob("Little-*/loops.py")
    text = source.read_text()
    source.write_text(text[:100])
    source.with_suffix(".code").write_bytes(b"damaged")
    # Once numba has compiled, it answers for the fields of records, too; the generator's methods must come first.
    used_before = "import numba; numba.njit(lambda x: x + 1)(1)\n"
    actual, note = finish(start(tmp_path, "-c", used_before + KERNEL))
    assert actual == expected()
    assert note.count("is damaged") == 1
    assert "compiling Little" in note
    assert source.read_text() == text
    assert finish(start(tmp_path, "-c", KERNEL)) == (expected(), "")


def test_a_changed_class_counts_from_the_next_fleet() -> None:
    def end(state: Any, action: Any, rng: Any, params: Any) -> tuple[float, bool]:
        return 7.0, True

    class Later(Switches):
        class State(Switches.State):
            extra: int = 3

        class Params:
            start: float = 2.0

    kernel: Any = variant(Switches)
    assert read_kernel(kernel) == read_kernel(kernel)
    with envfleet.make(kernel, 2, backend="kernel", workers=1) as before:
        kernel.step, kernel.State, kernel.Params = staticmethod(end), Later.State, Later.Params
        kernel.action_space, kernel.info_fields = spaces.Discrete(9), ("extra",)
        with envfleet.make(kernel, 2, backend="kernel", workers=1) as after:
            assert after.single_action_space == spaces.Discrete(9)
            assert after.reset(seed=0)[1]["extra"].tolist() == [3, 3]
            assert after.step(np.array([0, 8]))[1].tolist() == [7.0, 7.0]
            Later.Params.start = 4.0
            assert (after.get_attr("start"), before.get_attr("render_fps")) == ((2.0, 2.0), (30, 30))
        with envfleet.make(kernel, 2, backend="kernel", workers=1) as last:
            assert last.get_attr("start") == (4.0, 4.0)
        before.reset(seed=0)
        assert before.single_action_space == Switches.action_space


# ---------------------------------------------------------------------------------------- what decides the machine code


def place(kernel: type[Kernel], *, has_own_params: bool = False) -> Path:
    """Return the path of a kernel's machine code."""
    spec = read_kernel(kernel)
    text = CpuTarget(Source(BufferPlan(spec), has_own_params=has_own_params)).text()
    module = make_module(spec.name, text, "loops", key=cache_key(spec))
    assert module.__file__ is not None
    return Path(module.__file__)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVFLEET_CACHE_DIR", str(tmp_path))


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


def test_changes_in_another_module_change_the_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    before = place(Painter)
    monkeypatch.setattr(strokes, "FACTOR", 4.0)
    changed = place(Painter)
    assert changed != before
    monkeypatch.setattr(strokes, "tripled", lambda value: value)
    assert place(Painter) not in (before, changed)


def test_a_changed_table_or_closure_has_another_place(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.unit.kernels import samples

    before = place(Switches), place(Walker)
    monkeypatch.setattr(samples, "_KICKS", samples._KICKS + 1.0)
    monkeypatch.setattr(samples, "halve", samples.make_scaler(0.25))
    assert place(Switches) != before[0]
    assert place(Walker) != before[1]


def test_layouts_and_versions_decide_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """With two fields swapped, the code of before was found, and all lengths were zero."""
    before, fields = place(Walker), ENDED_DTYPE.descr
    with monkeypatch.context() as patch:
        patch.setattr(buffers, "ENDED_DTYPE", np.dtype([fields[k] for k in (0, 2, 1, 3, 4)], align=True))
        assert place(Walker) != before
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: "another")
    assert place(Walker) != before


def test_a_read_only_folder_that_was_filled_before_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As in a container: every process compiled again."""
    finish(start(tmp_path, "-c", KERNEL))
    files = sorted(tmp_path.rglob("*"))
    refuse = "def refuse(*_args, **_kwargs): raise PermissionError(13, 'Permission denied')"
    blocked = f"import os, tempfile\n{refuse}\ntempfile.TemporaryFile = os.utime = refuse\n"
    assert finish(start(tmp_path, "-c", blocked + KERNEL)) == (expected(), "")
    assert sorted(tmp_path.rglob("*")) == files
