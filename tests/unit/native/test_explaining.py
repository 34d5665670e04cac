"""Errors about kernels name the author's line, the mistake, and the correct code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import pytest
from tests.unit.native.mistakes import HEAD, RARELY, check, compile_step, load, with_step

from envfleet.errors import EnvfleetError, KernelError
from envfleet.kernels import Kernel
from envfleet.kernels.kernel import read_kernel
from envfleet.kernels.program import compile_kernel
from envfleet.kernels.registration import register

pytestmark = pytest.mark.filterwarnings("ignore:.*First-class function type feature is experimental")

# Body of `step`, and what the message must say.
STEPS: dict[str, tuple[str, ...]] = {
    "return state.y, False": ("'y'", "fields are: x, n, cells"),
    "state.speed = 1.0": ("'speed'", "fields are: x, n, cells"),
    RARELY + "state.speed = 1.0": ("'speed'", "fields are: x, n, cells"),
    RARELY + "return params.gaol, False": ("'gaol'", "fields are: goal, goals"),
    "return params.gaol, False": ("'gaol'", "fields are: goal, goals"),
    "params.goal = 2.0": ("'goal'", "field of the state"),
    RARELY + "params.goal += 2.0": ("writes to a parameter", "field of the state"),
    RARELY + "params.goals[0] = 2.0": ("writes to a parameter", "field of the state"),
    "params.goals[0] = 2.0": ("read-only", "the state"),
    RARELY + "ODDS[0] = 2.0": ("a constant", "field of the state"),
    "state.cells = np.zeros(3)": ("'cells'", "state.cells[:] = values"),
    RARELY + "state.cells = np.zeros(3)": ("'cells'", "state.cells[:] = values"),
    "state.x = np.ones(2)": ("'x'", "array", "assign a number"),
    "return sped, False": ("sped", "not defined"),
    RARELY + "return sped, False": ("sped", "not defined"),
    RARELY + "return math.sinus(1.0), False": ("math.sinus", "does not exist"),
    RARELY + "return None, False": ("may return None", "return reward, terminated"),
    "return np.random.rand(), False": ("np.random.rand", "draw from `rng`, as in `rng.random()`"),
    "return random.random(), False": ("random.random", "draw from `rng`, as in `rng.random()`"),
    "return rng.gamma(3), False": ("rng.gamma", "uniform"),
    RARELY + "rng.shuffle(params.goals)": ("writes to a parameter", "field of the state"),
    "return Base().SPEED, False": ("Base, a type", "members of modules and classes"),
    RARELY + "return Thing().value, False": ("Thing, a type", "members of modules and classes"),
    RARELY + "return Thing.worth, False": ("Thing.worth", "does not exist"),
    RARELY + "return Way.LEFT.value, False": ("uses .value", "IntEnum members are numbers", "leave it out"),
    "global COUNT; COUNT += 1": ("assigns to a global", "field of the state"),
    "return FUNCTIONS[action](state.x), False": ("function from a tuple", "`if` and `elif`"),
    "for one in FUNCTIONS: state.x = one(state.x)": ("function from a tuple", "`if` and `elif`"),
    "return 0.0, any(state.x > k for k in range(3))": ("generator expression", "write a loop"),
    "return 0.0, any([state.x > 0.0])": ("calls any", "loop, or np.any of an array"),
    "return 0.0, all([state.x > 0.0])": ("calls all", "loop, or np.all of an array"),
    "HISTORY.append(1.0)": ("HISTORY", "list", "array"),
    "return TABLE['a'], False": ("TABLE", "dict", "array"),
    "return THING.value, False": ("THING", "Thing", "numbers"),
    "return spaces.Discrete(2).n, False": ("spaces.Discrete", "modules"),
    "return change(state, 1), False": ("change", "positional argument"),
    RARELY + "return change(state, 1), False": ("calls a function wrongly: too many positional",),
    "return f'{state.x:.1f}' != '', False": ("f-strings",),
    "return 1.0 / (0 * state.n), False": ("ZeroDivisionError", "divisor"),
    "return action[0], False": ("TypeError",),
    "state.n = state.n + 0.5": ("0.5, of type float, to the int64 field 'n'", "`n: float`, or write `int(...)`"),
    "state.n += 0.5": ("int64 field 'n'", "cuts off its fraction"),
    "return np.einsum('i,i', params.goals, params.goals), False": ("uses numpy.einsum, which compiled",),
    "return 0.0, math.isclose(state.x, 1.0)": (
        "it uses math.isclose, which compiled code does not have: write it out",
    ),
    "return scale(1.0, by=2.0), False": ("uses scale, which has", "`*`", "positional"),
    RARELY + "return gather(1.0), False": ("uses gather, which has", "`**`", "positional"),
    "return (y := state.x) + y, False": ("assigns by `:=`", "a separate line"),
    "state.few[state.few > 1] = 0": ("a mask of several dimensions", "np.where(mask, value, array)"),
    "return 1.0 * state.few[state.few > 1].size, False": ("a mask of several dimensions", "or a loop"),
    RARELY + "state.few[0, :2] += 0.5": ("an array of uint8", "float64", "values.astype("),
    RARELY + "state.few[0] += state.cells": ("an array of uint8", "int32", "values.astype("),
    RARELY + "state.few[0] /= 2": ("an array of uint8", "float64", "values.astype("),
    "for k in reversed(range(3)): state.x += k": ("calls reversed", "range(n - 1, -1, -1)"),
    "return 1.0 * len(bin(3)), False": ("calls bin", "write a loop"),
    "first, *others = 1.0, 2.0, 3.0": ("unpacks by a star", "by its index"),
    "return 1.0 * state.cells.tolist()[0], False": ("uses .tolist", "which compiled code does not have"),
    "import cmath": ("imports in a function", "import at the top of the module"),
}


def test_a_numba_error_without_a_line_names_the_compiled_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from numba.core.lowering import Lower

    def fail(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(Lower, "lower_assign", fail)
    with pytest.raises(KernelError, match=r"mine\.py:\d+ .*: AssertionError"):
        check(with_step(tmp_path, "return 1.0, state.x > 8.5"))


@pytest.mark.parametrize("body", STEPS)
def test_a_mistake_in_step_names_the_line(tmp_path: Path, body: str) -> None:
    with pytest.raises(KernelError) as caught:
        check(with_step(tmp_path, body))
    message = str(caught.value)
    line = HEAD.count("\n") + 5
    assert f"{tmp_path}/mine.py:{line}" in message, message
    assert f"`{body}`" in message
    assert message.startswith("Mine")
    for clue in STEPS[body]:
        assert clue in message, message


@pytest.mark.parametrize("call", ["change(params)", "WAYS[0](params)", "WAYS.first(params)"])
def test_a_mistake_in_a_helper_names_the_helper(tmp_path: Path, call: str) -> None:
    with pytest.raises(KernelError, match=r"mine\.py:\d+ \(`def change.*writes to a parameter"):
        check(with_step(tmp_path, RARELY + call))


def test_a_function_that_calls_itself_is_named(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match=r"mine\.py:\d+, in factorial .*calls itself: write a loop"):
        check(with_step(tmp_path, "return factorial(3), False"))


OBSERVES = {
    "out[0] = state.x": r"leaves 1 of 2 elements of `out` unwritten, the first is out\[1\]",
    "out[0] = out[1] = out[2] = 0.0": r"mine\.py.*IndexError.*an observation has shape \(2,\)",
    "out[:] = 0.0\n        if state.n > 1000: state.n += 1": r"mine\.py:\d+ \(.*in observe, the state, .*in reset",
    "state.x += 1.0; out[:] = state.x": r"mine\.py:\d+, in observe .*assigns to 'x', .*in observe, the state, ",
    "state.cells[0] = 1; out[:] = 0.0": r"mine\.py:\d+, in observe .*in observe, the state, .*write that in reset",
    "out[:] = 0.0; return out": "expected no return value: it writes the elements of `out`",
}


@pytest.mark.parametrize("body", OBSERVES)
def test_a_mistake_in_observe(tmp_path: Path, body: str) -> None:
    text = f"class Mine(Base):\n    @staticmethod\n    def observe(state, out):\n        {body}\n"
    with pytest.raises(KernelError, match=OBSERVES[body]):
        check(load(tmp_path, text))


PARTS = {
    "out['a'][:] = 0.0": r"leaves 1 of 1 elements of `out\['b'\]` unwritten, the first is out\['b'\], or",
    "out['a'] = np.zeros(2); out['b'] = 1": r"assigns to the part a of `out`, an array: .*`out\[…\]\[:\] = values`",
}


@pytest.mark.parametrize("body", PARTS)
def test_a_mistake_in_observing_several_parts(tmp_path: Path, body: str) -> None:
    text = f"""
    class Mine(Base):
        observation_space = spaces.Dict({{"a": spaces.Box(-1, 1, (2,)), "b": spaces.Discrete(3)}})
        @staticmethod
        def observe(state, out):
            {body}
    """
    with pytest.raises(KernelError, match=PARTS[body]):
        check(load(tmp_path, text))


RESULTS = {
    "return 1.0": "returned 1.0, expected two values",
    "return 1.0, False, 0, 0": r"returned \(1.0, False, 0, 0\), expected two values",
    "state.n += 1; return (1.0, False, False)[: 4 - state.n]": "returned 2 values, and 3 before",
    "pass": "returned None, expected two values",
    "return 'one', False": "returned 'one', a str, as reward",
    "return 1.0, np.zeros(2)": "as terminated, expected a bool such as `state.x > 1.0`",
    "return state.x >= 0.0, 1.0": "returned 1.0, a float, as terminated, expected a bool such as",
    "return 1.0, np.float32(0.7)": "a float32, as terminated, expected a bool",
    "return 1.0, False, 0.5": "returned 0.5, a float, as truncated, expected a bool",
    "return 1j, False": "returned 1j, a complex, as reward, expected one number",
}


@pytest.mark.parametrize("body", RESULTS)
def test_a_wrong_result_of_step(tmp_path: Path, body: str) -> None:
    text = f"class Mine(Base):\n    @staticmethod\n    def step(state, action, rng, params):\n        {body}\n"
    with pytest.raises(KernelError, match=RESULTS[body] + ".*return reward, terminated"):
        check(load(tmp_path, text))


def test_a_step_that_does_not_always_return(tmp_path: Path) -> None:
    text = "class Mine(Base):\n    @staticmethod\n    def step(state, action, rng, params):\n"
    text += "        if state.n < 1000:\n            return 1.0, False\n"
    with pytest.raises(KernelError, match=r"mine\.py:\d+, in step.*may return None: end it"):
        check(load(tmp_path, text))


DECLARATIONS = {
    "observation_space = None": "no observation_space: write `observation_space = spaces.Box",
    "observation_space = spaces.Dict({})": "is a Dict, expected Box, Discrete, MultiDiscrete or MultiBinary",
    "observation_space = spaces.Dict(map=spaces.Box(0, 1, (2,), bool))": "is an array of bool, which parts",
    "State = Kernel.State": "Mine has no state: write `class State:`",
    "class State:\n        x: str": r"Mine\.State\.x is annotated as <class 'str'>, expected float",
    "class State:\n        x: 'flaot'": "annotated with an undefined name .*flaot",
    "class State:\n        x: object = array(-1, np.int32)": r"array\(-1.*a positive int",
    "class State:\n        x: object = array('3', np.int32)": r"array\('3'.*a positive int",
    "class State:\n        x: object = array(3, object)": "one of numbers, such as",
    "class Params:\n        goal: float": r"Mine\.Params\.goal has no default: write `goal: float = 1.0`",
    "class State:\n        x: np.float16": "Mine.State.x is float16, which compiled code does not support: use",
    "class State:\n        x: object = array(2, np.float16)": "Mine.State.x is float16",
    "observation_space = spaces.Box(-1, 1, (2,), np.float16)": "Mine.observation_space is float16",
    "class Params:\n        goal = 1.0": "Mine.Params.goal lacks a type, so it is not a field: write `goal:",
    "class Params:\n        goal: float = 'far'": "Mine.Params.goal = 'far' is not a float64: use a default",
    "class State:\n        n: int = 1.5": "Mine.State.n = 1.5 is not a int64",
    "info_fields = ('y',)": "no field 'y'; its fields are: x, n, cells",
    "info_fields = 'x'": r"is a str, expected a tuple: write `\('x',\)`",
    "max_episode_step = 5": "Mine.max_episode_step is unknown to envfleet: did you mean max_episode_steps",
    "info_field = ('x',)": "Mine.info_field is unknown to envfleet: did you mean info_fields",
    "class State:\n        action_mask: object = array(2, np.int8)": r"write `info_fields = \(\"action_mask\",\)`",
    "max_episode_steps = 0": "is 0, expected a whole number of at least 1",
    "max_episode_steps = 2.5": "is 2.5, expected a whole number of at least 1",
    "step = None": "has no function 'step': write `@staticmethod`",
    "def step(self, state, action, rng, params): return 1.0, False": r"takes \(self, .*write `@staticmethod`",
    "@staticmethod\n    def step(state, action): return 1.0, False": r"takes \(state, action\): write",
    "@staticmethod\n    def step(a, b, *, c, d): return 1.0, False": r"takes \(a, b, c, d\): write",
    "@classmethod\n    def step(cls, a, b, c, d): return 1.0, False": "is a classmethod, expected a function",
}


@pytest.mark.parametrize("declaration", DECLARATIONS)
def test_a_mistake_in_the_declaration(tmp_path: Path, declaration: str) -> None:
    with pytest.raises(KernelError, match=DECLARATIONS[declaration]):
        check(load(tmp_path, f"class Mine(Base):\n    {declaration}\n"))


def test_no_kernel_at_all() -> None:
    message = "is not a kernel: pass a subclass"
    with pytest.raises(KernelError, match=message):
        read_kernel(dict)  # type: ignore[arg-type]
    for value in (dict, Kernel()):
        with pytest.raises(KernelError, match=message):
            register("nothing/Nothing-v0", value)  # type: ignore[arg-type]
    assert "nothing/Nothing-v0" not in gymnasium.registry


def test_helpers_and_constants_may_share_names_of_functions(tmp_path: Path) -> None:
    check(load(tmp_path, "class Mine(Base):\n    steps, reset_, action_spread, render_size = 1, 2, 3, 4\n"))


TYPES = {
    "if state.n > 1000: state.n = state.n + 0.5": (
        "it assigns a number of type float64 to the int64 field 'n', which cuts off its fraction: declare the "
        "field as `n: float`, or write `int(...)`"
    ),
    "if state.n > 1000: halve(state)": "(`def halve(record): record.n *= 0.5`): it assigns a number of type float64",
    "if state.n > 1000: state.is_on = state.x": "float64 to the bool field 'is_on', which keeps only whether",
    "if state.n > 1000: state.is_on = state.n": "declare the field as `is_on: int`, or write `bool(...)`",
    "value = (1.0, 2.0) if state.n > 1000 else 1.0": "assigns values of two types to an expression",
    "return sum(k * 1.0 for k in range(3)), False": "generator expression, which compiled code does not support",
    "return rng.random(3)[0], False": "arguments that kernels do not have, such as size",
    "value = state.x[0] if state.n > 1000 else 1.0": "getitem",
    "return 1.0, ~(state.x > 1.0)": "calculates ~ of a bool, which is -1 or -2 in Python: write `not`",
    "try: value = 1.0 / state.x\n        except ZeroDivisionError: value = 0.0": "exceptions by type",
}


@pytest.mark.parametrize("body", TYPES)
def test_what_only_types_show_names_the_line_too(tmp_path: Path, body: str) -> None:
    with pytest.raises(KernelError) as caught:
        compile_step(tmp_path, body)
    message = str(caught.value)
    assert f"Mine cannot be compiled, {tmp_path}/mine.py:" in message
    assert TYPES[body] in message, message
    assert "loops.py" not in message


def test_all_of_them_are_errors_of_ours_and_nothing_is_compiled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(EnvfleetError):
        compile_kernel(read_kernel(with_step(tmp_path, "return state.y, False")), False)
    assert capsys.readouterr().err == ""
