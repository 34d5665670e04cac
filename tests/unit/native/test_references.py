"""References of functions are found in every container, and distinguished by value and by code."""

from __future__ import annotations

import enum
import functools
import subprocess
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest
from gymnasium import spaces
from tests.unit.kernels import strokes
from tests.unit.kernels.samples import Painter
from tests.waiting import PATIENCE_S

import envfleet
from envfleet.errors import KernelError
from envfleet.kernels import Kernel, outlined
from envfleet.kernels.kernel import read_kernel
from envfleet.kernels.program import compile_kernel, fingerprint_of
from envfleet.native.references import fingerprint, reachable, references


def module(text: str) -> types.ModuleType:
    """A module that only this test knows."""
    result = types.ModuleType("geometry")
    exec(text, result.__dict__)
    return result


geometry = module("def area(x): return x * side(x)\ndef side(x): return x + 1.0\nspeed = object()")


def named(name: str, *fields: str) -> Any:
    make: Any = NamedTuple  # of which mypy wants to see the fields
    return make(name, [(field, Any) for field in fields])


def pair(first: str, second: str) -> Any:
    """A NamedTuple `Pair` of 1.0 and 3.0 with such names."""
    return named("Pair", first, second)(1.0, 3.0)


class Color(enum.Enum):
    RED = 1
    BLUE = 2


def function(result: str) -> Any:
    """A function `act(x, y)` that returns so."""
    return module(f"def act(x, y): return {result}").act


add, subtract = function("x + y"), function("x - y")


def holder_of(value: Any) -> Callable[[], Any]:
    def hold() -> Any:
        return value

    return hold


def with_default(value: Any) -> Callable[[], Any]:
    def hold(default: Any = value) -> Any:
        return default

    return hold


TABLE = np.arange(2000.0)
NEAR = np.where(np.arange(2000) == 1000, TABLE + 1e-9, TABLE)

# Values that differ in what a kernel can see of them.
DIFFERENT: dict[str, tuple[Any, Any]] = {
    "a number": (1, 2),
    "types of numbers": (1, 1.0),
    "truth and numbers": (True, 1),
    "signs of zero": (0.0, -0.0),
    "precisions": (np.float32(1.0), np.float64(1.0)),
    "a number deep in a table": (TABLE, NEAR),
    "a number of a table in a tuple": ((TABLE, 1), (NEAR, 1)),
    "shapes of arrays": (np.zeros((2, 3)), np.zeros((3, 2))),
    "fields of a NamedTuple": (pair("one", "two"), pair("two", "one")),
    "functions": (add, subtract),
    "functions in a tuple": ((add, add), (add, subtract)),
    "compiled functions in a tuple": ((numba.njit(add),), (numba.njit(subtract),)),
    "functions in a default": (with_default(add), with_default(subtract)),
    "functions in a closure": (holder_of(add), holder_of(subtract)),
    "what numba vectorizes": (numba.vectorize(add), numba.vectorize(subtract)),
    "what converts numbers": (numba.float32, numba.float64),
    "functions of a library": (np.sin, np.cos),
    "members of an enum": (Color.RED, Color.BLUE),
    "sets": (frozenset({1, 2}), frozenset({1, 3})),
    "places in a tuple": (((1,), 2), (1, (2,))),
    "inlining": (outlined(lambda x: x), lambda x: x),
}


@pytest.mark.parametrize("what", DIFFERENT)
@pytest.mark.parametrize("hold", [holder_of, with_default])
def test_values_that_differ_are_told_apart(what: str, hold: Callable[[Any], Any]) -> None:
    one, other = DIFFERENT[what]
    assert fingerprint([hold(one)]) == fingerprint([hold(one)])
    assert fingerprint([hold(one)]) != fingerprint([hold(other)])


def test_members_of_a_module_are_told_apart_by_name() -> None:
    def measure(lengths: Any) -> Callable[[], float]:
        return lambda: float(lengths.near - lengths.far)

    one, other = module("near, far = 1.0, 2.0"), module("far, near = 1.0, 2.0")
    assert fingerprint([measure(one)]) != fingerprint([measure(other)])


def test_only_what_is_named_counts() -> None:
    def speed_up(state: Any) -> None:
        state.speed += geometry.area(1.0)  # the module has a `speed`, too

    assert list(references(speed_up)) == ["geometry.area"]
    assert {one.__name__ for one in reachable(speed_up)} == {"speed_up", "area", "side"}
    before = fingerprint([speed_up])
    vars(geometry)["speed"] = "another"
    assert fingerprint([speed_up]) == before


def test_functions_that_come_back_to_themselves_are_refused() -> None:
    endless = module("def even(n): return n == 0 or odd(n - 1)\ndef odd(n): return n != 0 and even(n - 1)")
    with pytest.raises(KernelError, match="in odd: it uses even, which calls itself: write a loop"):
        fingerprint([holder_of(endless.even)])


def test_places_count_where_they_are_asked_for() -> None:
    text = "def area(x): return x"
    here, below = module(text).area, module("\n\n" + text).area
    assert fingerprint([here]) == fingerprint([below])
    assert fingerprint([here], has_places=True) != fingerprint([below], has_places=True)


def test_another_process_finds_the_same(tmp_path: Path) -> None:
    """Sets of strings have another order in every process."""
    script = tmp_path / "mine.py"
    script.write_text(
        "from envfleet.native.references import fingerprint\n"
        "def check(x): return x in {'left', 'right', 'up', 'down'}\n"
        "print(fingerprint([check]))\n"
    )
    digests = {
        subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE_S,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(digests) == 1


class Thing:
    value = 1.0


REFUSED: Sequence[tuple[Any, str]] = [
    (Thing(), "it uses value, a Thing"),
    ((1.0, Thing()), r"it uses value\[1\], a Thing"),
    (pair("one", "two")._replace(one=Thing()), r"it uses value\['one'\], a Thing"),
    (with_default(Thing()), "it uses a default, a Thing"),
    (functools.partial(add, 1.0), "it uses value, a partial"),
    ([add], "it uses value, a list"),
    ({"a": 1.0}, "it uses value, a dict"),
    (np.array([Thing()]), "it uses value, a ndarray"),
    (Thing, "it uses value, a type"),
    (geometry, "it uses value, a module"),
]


@pytest.mark.parametrize(("value", "clue"), REFUSED)
def test_what_cannot_be_told_apart_is_refused(value: Any, clue: str) -> None:
    with pytest.raises(KernelError, match=rf"test_references\.py:\d+, in .*{clue}.*: use numbers, arrays, functions"):
        fingerprint([holder_of(value)])


# ---------------------------------------------------------------------------------------- kernels

WEIGHTS: Any = pair("one", "two")


class Weighing(Kernel):
    """Its reward is a difference of constants."""

    observation_space = spaces.Box(0.0, 1.0, (1,), np.float64)
    action_space = spaces.Discrete(2)

    class State:
        x: float

    @staticmethod
    def reset(state: State, rng: np.random.Generator, params: Any) -> None:
        state.x = 0.0

    @staticmethod
    def step(state: State, action: int, rng: np.random.Generator, params: Any) -> tuple[float, bool]:
        return WEIGHTS.one - WEIGHTS.two, False

    @staticmethod
    def observe(state: State, out: Any) -> None:
        out[0] = state.x


def test_a_kernel_whose_helper_has_changed_is_compiled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def first_rewards() -> Any:
        with envfleet.make(Painter, 3, backend="kernel", workers=1) as fleet:
            fleet.reset(seed=0)
            return fleet.step(np.zeros((3, 2), np.int64))[1]

    spec = read_kernel(Painter)
    before, rewards = compile_kernel(spec, False), first_rewards()
    assert compile_kernel(spec, False) is before
    monkeypatch.setattr(strokes, "FACTOR", 6.0)
    np.testing.assert_array_equal(first_rewards(), 2 * rewards)


def test_the_kernel_that_is_refused_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    mixed = named("Mixed", "one", "two", "thing")
    monkeypatch.setitem(globals(), "WEIGHTS", mixed(1.0, 3.0, Thing()))
    with pytest.raises(
        KernelError, match=r"^Weighing, .*`return WEIGHTS\.one.*`\): it uses WEIGHTS\['thing'\], a Thing"
    ):
        fingerprint_of(read_kernel(Weighing))
    monkeypatch.setitem(globals(), "WEIGHTS", types.SimpleNamespace(one=1.0, two=3.0))
    with pytest.raises(KernelError, match=r"Weighing.*`return WEIGHTS\.one.*it uses WEIGHTS, a SimpleNamespace"):
        fingerprint_of(read_kernel(Weighing))
