"""References of a kernel's functions: compiled, found, and distinguished."""

from __future__ import annotations

import types
from typing import Any

import numba
import numpy as np
import pytest

from envfleet.kernels import maths
from envfleet.native.jitting import FunctionTree, can_be_repeated, outlined
from envfleet.native.numba_cpu import make_function

geometry = types.ModuleType("geometry")
exec(  # a module that only this test knows
    "def area(x): return x * side(x)\n"
    "def side(x): return x + 1.0\n"
    "def endless(n): return endless(n - 1)\n"
    "def collect(): return __import__('gymnasium')\n",
    geometry.__dict__,
)

TABLE = np.arange(2000.0)
TABLES = (np.arange(2000.0), np.zeros(3))


def exp(x: float) -> float:
    return x + geometry.area(x)


def look_up(x: float) -> float:
    return TABLES[0][int(x)]


def count(x: float) -> float:
    while x > 1.0:
        x -= 1.0
    return x


def calls_count(x: float) -> float:
    return count(x) + 1.0


def collect(values: Any) -> float:
    return sum([value * value for value in values])


def take_first(action: Any) -> float:
    return action[0] + action[1, 0]


def take(action: Any, index: int) -> float:
    return action[index]


def put(values: Any, index: int) -> None:
    values[index] = 1.0


def insist(x: float) -> float:
    if x > 3.0:
        raise ValueError("beyond the end")
    return x


MIXED = (2, 0.5)


def add(x: int, more: int) -> int:
    return x + more


def add_constants(x: int) -> int:
    return add(x, 1) + add(x, 2) + add(x, x)


def choose(index: int) -> float:
    return float(MIXED[index])


def choose_both() -> float:
    return choose(0) + choose(1)


def test_a_function_is_compiled_once_for_all_constants() -> None:
    assert numba.njit(make_function(add_constants).py_func)(3) == 15
    assert len(make_function(add).signatures) == 1


def test_a_constant_that_decides_a_type_is_kept() -> None:
    assert numba.njit(make_function(choose_both).py_func)() == 2.5


def test_a_function_of_no_module_is_made() -> None:
    names: dict[str, Any] = {"__name__": None}
    exec("def twice(x): return 2.0 * x", names)
    assert names["twice"].__module__ is None
    assert numba.njit(make_function(names["twice"]).py_func)(2.0) == 4.0


def test_of_a_module_only_what_is_named_is_made() -> None:
    assert FunctionTree(numba.njit)(exp)(2.0) == 8.0


def test_functions_in_tuples_and_defaults_are_made_too() -> None:
    def look_up_side(x: float, side: Any = geometry.side) -> float:
        return pair[1](x) + side(x)

    pair = (TABLE, geometry.area)
    copy = FunctionTree(lambda function: ("made", function))(look_up_side)[1]
    assert copy.__closure__[0].cell_contents[0] is TABLE
    assert copy.__closure__[0].cell_contents[1][0] == "made"
    assert copy.__defaults__[0][0] == "made"


def test_a_function_is_recompiled_when_its_references_change(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = FunctionTree(lambda function: function)
    before = tree(exp)
    assert tree(exp) is before
    monkeypatch.setattr(geometry, "side", lambda x: x)
    assert (before(2.0), tree(exp)(2.0)) == (8.0, 6.0)


def test_a_function_is_made_for_each_form_of_records() -> None:
    """A compiler that has a function for records of some fields takes it, with a warning, for those of more."""
    tree = FunctionTree(lambda function: function)
    assert tree(exp, "x") is tree(exp, "x")
    assert tree(exp, "x") is not tree(exp, "x, y")
    assert tree(exp, "x").__globals__["geometry"].area is not tree(exp, "x, y").__globals__["geometry"].area
    assert tree(maths.sin, "x") is tree(maths.sin, "x, y")


def test_a_step_that_loops_or_looks_up_or_raises_is_not_repeated() -> None:
    assert can_be_repeated(exp)
    assert can_be_repeated(take_first)
    for step in (calls_count, look_up, take, put, insist, collect):
        assert not can_be_repeated(step)


def test_outlined_functions_are_made_by_a_decorator_of_their_own() -> None:
    @outlined
    def large(x: float) -> float:
        return x

    def small(x: float) -> float:
        return large(x)

    make = FunctionTree(lambda function: ("inlined", function), lambda function: ("called", function))
    (kind, function) = make(small)
    assert kind == "inlined"
    assert function.__closure__[0].cell_contents[0] == "called"
    assert FunctionTree(lambda function: ("inlined", function))(large)[0] == "inlined"
