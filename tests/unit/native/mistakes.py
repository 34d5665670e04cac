"""A user's kernel in a separate file, compiled without the loops around it."""

from __future__ import annotations

import importlib.util
import sys
import textwrap
from pathlib import Path
from typing import Any

from envfleet.kernels.kernel import read_kernel
from envfleet.kernels.program import check_functions, fingerprint_of
from envfleet.native.generated_code import compiling
from envfleet.native.rules import read_only_type

HEAD = """
import enum, math, random
from typing import NamedTuple
import numpy as np
from gymnasium import spaces
from envfleet.kernels import Kernel, array

HISTORY, TABLE, COUNT, ODDS = [], {"a": 1.0}, 0, np.ones(3)
def once(x): return x
def twice(x): return 2.0 * x
FUNCTIONS = once, twice
class Way(enum.IntEnum):
    LEFT = 0
class Thing:
    value = 1.0
THING = Thing()
def change(record): record.goal = 3.0
class Ways(NamedTuple):
    first: object
WAYS = Ways(change)
def halve(record): record.n *= 0.5
def scale(x, *, by): return x * by
def gather(x, **more): return x
def factorial(n): return 1.0 if n < 2 else n * factorial(n - 1)

class Base(Kernel):
    SPEED = 2.0
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(2)
    class State:
        x: float
        n: int
        cells: np.ndarray = array(3, np.int32)
        few: np.ndarray = array((2, 3), np.uint8)
    class Params:
        goal: float = 1.0
        goals: np.ndarray = np.zeros(3)
    @staticmethod
    def reset(state, rng, params):
        state.x = rng.random()
        state.n = 0
    @staticmethod
    def step(state, action, rng, params):
        return 1.0, False
    @staticmethod
    def observe(state, out):
        out[0] = state.x
        out[1] = state.n
"""


RARELY = "if state.n > 1000: "


def load(tmp_path: Path, text: str) -> Any:
    path = tmp_path / "mine.py"
    path.write_text(HEAD + textwrap.dedent(text))
    spec = importlib.util.spec_from_file_location("mine", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mine"] = module
    spec.loader.exec_module(module)
    return module.Mine


def check(kernel: Any) -> None:
    """All that is looked at before anything is compiled, then the functions compiled, without loops around them."""
    import numba

    from envfleet.kernels.buffers import BufferPlan
    from envfleet.native import numba_cpu

    spec = read_kernel(kernel)
    fingerprint_of(spec)
    check_functions(spec)
    plan = BufferPlan(spec)
    state, params = (numba.from_dtype(dtype) for dtype in (plan.state.dtype, plan.params.dtype))
    action, out = (
        numba.types.Array(numba.from_dtype(form.dtype), len(form.shape), "C")
        if form.shape
        else numba.from_dtype(form.dtype)
        for form in (spec.action, spec.observation)
    )
    seen, action, params = (read_only_type(numba.types, kind) for kind in (state, action, params))
    with compiling(spec.name, "the CPU"):
        numba_cpu.make_function(spec.step).compile((state, action, numba_cpu.GENERATOR, params))
        numba_cpu.make_function(spec.observe).compile((seen, out))


def with_step(tmp_path: Path, body: str) -> Any:
    return load(
        tmp_path,
        f"""
        class Mine(Base):
            @staticmethod
            def step(state, action, rng, params):
                {body}
                return 1.0, False
        """,
    )


def compile_step(tmp_path: Path, body: str) -> None:
    """Compile a step, for a state with more fields."""
    text = "class Mine(Base):\n    class State(Base.State):\n        is_on: bool\n        half: np.float32\n"
    text += f"    @staticmethod\n    def step(state, action, rng, params):\n        {body}\n        return 1.0, False\n"
    check(load(tmp_path, text))
