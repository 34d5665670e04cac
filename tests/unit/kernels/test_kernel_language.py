"""Python that kernels may use beyond numbers and loops: enumerations, constants of classes, limits, choices."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray
from tests.unit.kernels.samples import Painter

import envfleet
from envfleet.errors import InvalidArgument, SubEnvError
from envfleet.kernels import Kernel, array
from envfleet.kernels.kernel import read_kernel
from envfleet.kernels.program import fingerprint_of


class Way(enum.IntEnum):
    LEFT = 0
    RIGHT = 1
    STAY = 2


FIRST = Way.STAY
WAYS = (Way.LEFT, Way.RIGHT)


def is_move(way: int, still: int = Way.STAY) -> bool:
    return way != still


class Dealer(Kernel):
    """Deals cards; everything that a choice, a shuffle, an enumeration and a class may be used for."""

    observation_space: ClassVar[Any] = spaces.Box(-1e5, 1e5, (14,), np.float64)
    action_space = spaces.Discrete(3)
    max_episode_steps: ClassVar[int | None] = 9
    info_fields: ClassVar[tuple[str, ...]] = ("place", "last")
    LIMIT = 3.5
    ODDS = np.array([0.25, 0.5, 0.25])

    class State:
        deck: NDArray[np.int16] = array(6, np.int16)
        place: float
        last: Way = FIRST
        few: NDArray[np.uint8] = array(2, np.uint8)
        low: np.uint8
        high: np.uint32
        weights: NDArray[np.float32] = array(2, np.float32)
        normal: float
        counts: NDArray[np.uint8] = array((2, 4), np.uint8)
        words: NDArray[np.uint64] = array(3, np.uint64)

    class Params:
        random: float = 0.5
        gravity: float = 1.0
        most: float = 5.0
        odds: NDArray[np.float64] = np.array([0.5, 0.5])

    @classmethod
    def check_params(cls, values: Any) -> None:
        if np.any(values["gravity"] > values["most"]):
            raise InvalidArgument(f"gravity={values['gravity']} is above most={values['most']}")

    @staticmethod
    def twice(x: float) -> float:
        return 2.0 * x

    @staticmethod
    def reset(state: Any, rng: Any, params: Any) -> None:
        for k in range(6):
            state.deck[k] = k
        rng.shuffle(state.deck)
        state.place = rng.choice((-1.5, 0.0, 1.5), p=Dealer.ODDS)
        state.last = FIRST
        state.few[0], state.few[1] = 3, 5
        state.low, state.high = 7, 70_000
        state.weights[0], state.weights[1] = rng.random(), rng.random()
        state.normal = rng.normal() + params.random
        state.counts[:] = 3
        state.words[:] = 5

    @staticmethod
    def step(state: Any, action: int, rng: Any, params: Any) -> tuple[float, bool]:
        reward = 0.0
        if params.gravity > 4.0:
            raise ValueError("too heavy")
        if action == Way.RIGHT:
            state.place = np.clip(state.place + Dealer.twice(params.gravity), -Dealer.LIMIT, Dealer.LIMIT)
        elif action == WAYS[0]:
            state.place = np.clip(state.place - 0.5, -3, 3)
        if is_move(action):
            state.last = WAYS[rng.choice(2, p=params.odds)] + 0
            reward = 1.0 * rng.choice(state.deck)
        state.deck[:] = rng.permutation(state.deck)
        rng.shuffle(state.deck[1:4])
        limited = np.clip(state.deck, 1, 4)
        state.few[:] = rng.choice(200, 2, replace=False)
        state.counts[0, :2] = rng.choice(state.few, size=2)
        state.weights[:] = rng.choice((1.0, 2.0, 4.0), size=2, replace=False, p=Dealer.ODDS)
        state.words[2] = rng.poisson(3.0) + rng.poisson(lam=50.0) + rng.integers(3, endpoint=True)
        state.normal = rng.exponential(2.0) + rng.exponential() + rng.standard_exponential()
        state.counts[0, 1:3] += 1
        state.counts[1] *= action
        state.counts[:, 3] -= state.few
        state.deck[2:] += action
        state.words[1:] += 2
        state.words[0] <<= 1
        state.weights[:] *= 0.5
        state.last = max(state.last, int(np.clip(action, 0, 1)))
        return reward + limited[0], state.place == Dealer.LIMIT

    @staticmethod
    def observe(state: Any, out: NDArray[np.float64]) -> None:
        out[:6] = state.deck
        out[6] = state.place
        out[7] = state.last
        # Unsigned numbers are as wide as Python's.
        out[8] = state.few[0] - state.few[1]
        out[9] = abs(state.low - state.high) + min(state.low - state.few[1], 0)
        out[10] = -state.few[0] * 0.5
        gap = state.low
        gap -= state.high
        out[11] = float(gap)
        out[13] = (np.uint64(2**63 + 8) ^ state.few[1]) - np.uint64(2**63)
        out[12] = state.weights[0] * state.weights[1]  # in float32, in plain Python in float64


def test_a_kernel_may_use_all_of_it(check_without_indices: Callable[..., int]) -> None:
    assert check_without_indices(Dealer, num_steps=60, seeds=[0, 1, 2]) == 180


def test_numbers_of_an_enumeration_count_as_they_are_now(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint_of(read_kernel(Dealer))
    monkeypatch.setitem(globals(), "WAYS", (Way.RIGHT, Way.LEFT))
    assert fingerprint_of(read_kernel(Dealer)) != before


@pytest.mark.parametrize("backend", ["kernel", "serial"])
def test_nan_is_no_parameter(backend: Any) -> None:
    with pytest.raises(InvalidArgument, match="gravity=nan has a NaN, expected numbers"):
        envfleet.make(Dealer, 2, backend=backend, gravity=np.nan)
    with envfleet.make(Dealer, 2, backend="kernel") as fleet:
        fleet.reset(seed=0)
        with pytest.raises(InvalidArgument, match=r"odds=\[0\.5, nan\] has a NaN"):
            fleet.set_attr("odds", [0.5, np.nan])
        with pytest.raises(InvalidArgument, match=r"gravity=.*has a NaN"):
            fleet.reset(options={"params": {"gravity": [1.0, np.nan]}})


@pytest.mark.parametrize(("name", "value"), [("ink", [1e300, 1.0]), ("strokes", [2**40, 0])])
def test_a_number_beyond_its_field_is_refused(name: str, value: list[float]) -> None:
    with envfleet.make(Painter, 2, backend="kernel") as fleet:
        fleet.reset(seed=0)
        with pytest.raises(InvalidArgument, match=rf"{name}=.* does not fit into \w+32: pass a smaller number"):
            fleet.set_attr(name, value)
        fleet.set_attr("ink", [np.inf, 1e30])
        assert fleet.get_attr("ink") == (np.inf, np.float32(1e30))


def test_parameters_are_checked_together() -> None:
    last = {"reset_mask": np.array([False, False, True])}
    with envfleet.make(Dealer, 3, backend="kernel") as fleet:
        fleet.reset(seed=0)
        with pytest.raises(InvalidArgument, match=r"gravity=\[7\.\] is above most=\[5\.\]"):
            fleet.set_attr("gravity", 7.0)
        with pytest.raises(InvalidArgument, match=r"gravity=\[7\.\] is above most=\[5\.\]"):
            fleet.reset(options={**last, "params": {"gravity": 7.0}})
        assert fleet.get_attr("gravity") == (1.0, 1.0, 1.0)
        fleet.set_attr("most", 9.0)
        fleet.set_attr("gravity", 7.0)
        with pytest.raises(InvalidArgument, match=r"gravity=\[7\.\] is above most=\[6\.\]"):
            fleet.reset(options={**last, "params": {"most": 6.0}})
        assert fleet.get_attr("most") == (9.0, 9.0, 9.0)


def test_an_error_of_a_kernel_says_how_to_find_the_row() -> None:
    with envfleet.make(Dealer, 3, backend="kernel", gravity=4.5) as fleet:
        fleet.reset(seed=0)
        with pytest.raises(ValueError, match="too heavy") as caught:
            fleet.step(np.zeros(3, np.int64))
    assert "backend='serial' to find the row" in caught.value.__notes__[0]
    with envfleet.make(Dealer, 3, backend="serial", gravity=4.5) as fleet:
        fleet.reset(seed=0)
        with pytest.raises(SubEnvError, match=r"sub-environment 0.*too heavy"):
            fleet.step(np.zeros(3, np.int64))
