"""The shipped kernels become PTX, all of their entry points; that takes CUDA's compiler, no device."""

from __future__ import annotations

import importlib
import re
import types
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest
from gymnasium import spaces
from tests.unit.kernels.cuda.deck import Deck, Ledge, Reshaper, Screen
from tests.unit.kernels.test_kernel_masks import Pair
from tests.unit.kernels.test_policies import Barred, Pull, Turn, network_of

from envfleet.envs.classic.cartpole import CartPole
from envfleet.errors import KernelError
from envfleet.kernels import Kernel
from envfleet.kernels.kernel import read_kernel
from envfleet.kernels.policy_source import GIVEN, policy_source
from envfleet.native.generated_code import compiling

HOPPER = (9, 0)
NUM_ARGUMENTS = {"step": 13, "reset": 8, "observe": 5}
NUM_POLICY_ARGUMENTS = 3
SHIPPED = (
    "classic.acrobot:Acrobot",
    "gridworld.gridworld:GridWorld",
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in (
            "classic.mountain_car:MountainCar",
            "classic.mountain_car_continuous:MountainCarContinuous",
            "classic.pendulum:Pendulum",
            "hockey.kernel.game:Hockey",
        )
    ),
)


class Sorter(Kernel):
    """Uses what compiled code does not have, and only a rehearsal in Python can do."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    class State(Kernel.State):
        x: float

    @staticmethod
    def reset(state: Any, rng: Any, params: Any) -> None:
        state.x = next(iter({"a": 1.0}.values()))

    @staticmethod
    def step(state: Any, action: Any, rng: Any, params: Any) -> tuple[float, bool]:
        return 0.0, False

    @staticmethod
    def observe(state: Any, out: Any) -> None:
        out[0] = state.x


class Cutter(Sorter):
    """Assigns a float to an int, in code that a rehearsal does not reach."""

    class State(Kernel.State):
        x: float
        n: int

    @staticmethod
    def reset(state: Any, rng: Any, params: Any) -> None:
        state.x, state.n = 0.0, 0
        if state.x > 1.0:
            state.n = state.n + 0.5


class Writer(Cutter):
    """Writes to a parameter or to the state it observes, in code that a rehearsal does not reach."""

    class Params(Kernel.Params):
        goals: Any = np.zeros(3)

    @staticmethod
    def reset(state: Any, rng: Any, params: Any) -> None:
        state.x, state.n = 0.0, 0
        if state.x > 1.0:
            params.goals[0] = 0.5

    @staticmethod
    def observe(state: Any, out: Any) -> None:
        out[:] = state.x
        if state.x > 1.0:
            state.n = 1


Compiler = Callable[..., str]


@pytest.fixture
def to_ptx(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Compiler:
    if getattr(numba.config, "ENABLE_CUDASIM", 0):
        pytest.skip("the simulator compiles nothing")
    monkeypatch.setenv("ENVFLEET_CACHE_DIR", str(tmp_path))
    cuda: Any = importlib.import_module("numba.cuda")
    dispatcher = importlib.import_module("numba.cuda.dispatcher")
    program = importlib.import_module("envfleet.kernels.cuda.target")
    target = importlib.import_module("envfleet.kernels.cuda.availability").cuda_target()
    # Typing a call asks the present device for its compute capability.
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: types.SimpleNamespace(compute_capability=HOPPER))

    def compiled(kernel: type[Kernel], has_own_params: bool, entry: str, policy: Any = None) -> str:
        spec = read_kernel(kernel)
        chooser = GIVEN if policy is None else policy_source(spec, policy)
        module = program.compile_for_cuda(spec, has_own_params, chooser)
        num_arguments = NUM_ARGUMENTS[entry] + (NUM_POLICY_ARGUMENTS if entry == "step" and chooser.lines else 0)
        with compiling(spec.name, "CUDA"), target.translating():
            text, _ = cuda.compile_ptx(getattr(module, entry).py_func, (numba.int64,) * num_arguments, cc=HOPPER)
        return str(text)

    return compiled


def find(name: str) -> type[Kernel]:
    module, _, attribute = name.partition(":")
    kernel: type[Kernel] = getattr(importlib.import_module(f"envfleet.envs.{module}"), attribute)
    return kernel


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_kernels_become_ptx(to_ptx: Compiler, name: str) -> None:
    text = to_ptx(find(name), False, "step")
    assert f".target sm_{HOPPER[0]}{HOPPER[1]}" in text
    assert "atom.global.add" in text  # the count of ended episodes


@pytest.mark.parametrize(
    ("entry", "has_own_params"), [("step", False), ("step", True), ("reset", False), ("observe", False)]
)
def test_arrays_draws_and_infos_become_ptx(to_ptx: Compiler, entry: str, has_own_params: bool) -> None:
    assert ".entry" in to_ptx(Deck, has_own_params, entry)


@pytest.mark.parametrize(
    ("kernel", "policy"),
    [
        (Deck, "random"),
        (Ledge, "random"),
        (Pair, "random"),
        (Turn, "categorical"),
        (Barred, "categorical"),
        (Pull, "tanh_gaussian"),
        pytest.param(Turn, "argmax", marks=pytest.mark.slow),
        *(pytest.param(Pull, head, marks=pytest.mark.slow) for head in ("random", "linear", "tanh", "gaussian")),
    ],
)
def test_rollouts_become_ptx(to_ptx: Compiler, kernel: type[Kernel], policy: str) -> None:
    chosen: Any = policy if policy == "random" else network_of(policy)
    text = to_ptx(kernel, False, "step", chosen)
    assert "ld.f64" not in text  # memory is known to be global


@pytest.mark.parametrize("entry", ["step", "observe"])
def test_frames_become_ptx(to_ptx: Compiler, monkeypatch: pytest.MonkeyPatch, entry: str) -> None:
    monkeypatch.setattr("envfleet.kernels.cuda.target.MAX_COPIED_BYTES", 30)
    text = to_ptx(Screen, False, entry)
    assert text.count("bar.sync") >= 2  # before a tile is written out, and before the next one is brought in
    assert "ld.shared.u8" in text or "ld.shared.b8" in text


def test_frames_are_not_reshaped(to_ptx: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envfleet.kernels.cuda.target.MAX_COPIED_BYTES", 1)
    with pytest.raises(KernelError, match=r"Reshaper cannot be compiled.*: it reshapes .* write `out\.flat\[k\] = …`"):
        to_ptx(Reshaper, False, "observe")


def test_gathering_rows_becomes_ptx(to_ptx: Compiler) -> None:  # for its stand-in of a device
    gather = importlib.import_module("envfleet.kernels.cuda.gather").gather
    text, _ = importlib.import_module("numba.cuda").compile_ptx(gather.py_func, (numba.int64,) * 8, cc=HOPPER)
    assert "st.global.u8" in text or "st.global.b8" in text


def test_a_step_is_what_it_should_be(to_ptx: Compiler) -> None:
    text = to_ptx(CartPole, False, "step")
    # Products and sums stay apart, as on the CPU, so that both give the same numbers.
    assert re.search(r"\bmul\.rn\.f64", text)
    assert not re.search(r"\bfma\.rn\.f64", text)
    # Records become registers: what is spilt to a thread's local memory costs bandwidth.
    assert ".local" not in text
    # Memory is known to be global.
    assert "ld.global.f64" in text
    assert "ld.f64" not in text


def test_what_cannot_be_compiled_is_explained(to_ptx: Compiler) -> None:
    with pytest.raises(KernelError, match=r"Sorter cannot be compiled"):
        to_ptx(Sorter, False, "reset")


def test_assignments_that_lose_a_part_are_refused(to_ptx: Compiler) -> None:
    with pytest.raises(KernelError, match=r"`state\.n = state\.n \+ 0\.5`.* assigns .*float64 to the int64 field 'n'"):
        to_ptx(Cutter, False, "reset")


@pytest.mark.parametrize(("entry", "line"), [("reset", r"params\.goals\[0\] = 0\.5"), ("observe", r"state\.n = 1")])
def test_what_may_only_be_read_is_not_written(to_ptx: Compiler, entry: str, line: str) -> None:
    with pytest.raises(
        KernelError, match=f"`{line}`.* writes to a parameter, an action, a constant or, in observe, the state"
    ):
        to_ptx(Writer, False, entry)
