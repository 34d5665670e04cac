"""The kernels' generator draws what NumPy's draws, uncompiled and compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium.utils.seeding
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from tests.unit.kernels.jitted import jitted

from envfleet.errors import InvalidArgument
from envfleet.native import rng as kernel_rng
from envfleet.native.rng import (
    METHODS,
    find_method,
    from_generator,
    poisson,
    standard_exponential,
    standard_normal,
    to_generator,
)
from envfleet.native.ziggurat import EDGE, EXPONENTIAL_EDGE

EDGE_SEEDS = [0, 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**63 - 1, 2**63, 2**64 - 1]
SPANS = [1, 2, 3, 10, 2**31 + 1, 3 * 2**30, 2**32 - 1, 2**32, 2**32 + 1, 2**33, 2**62 + 1, 3 * 2**61]
INT64 = np.iinfo(np.int64)

Way = Callable[[Callable[..., Any]], Callable[..., Any]]


@pytest.fixture(scope="module", params=["uncompiled", "compiled"])
def way(request: pytest.FixtureRequest) -> Iterator[Way]:
    with np.errstate(over="ignore"):
        yield jitted if request.param == "compiled" else lambda function: function


@pytest.fixture(autouse=True)
def wrap_around() -> Iterator[None]:
    with np.errstate(over="ignore"):
        yield


def new_record() -> np.record:
    return from_generator(np.random.default_rng(99))


def seeded(way: Way, seed: int) -> np.record:
    record = new_record()
    way(kernel_rng.seed)(record, np.uint64(seed))
    return record


def fill_with_normals(rng: Any, out: np.ndarray) -> None:
    for i in range(out.size):
        out[i] = standard_normal(rng)


def fill_with_exponentials(rng: Any, out: np.ndarray) -> None:
    for i in range(out.size):
        out[i] = standard_exponential(rng)


def fill_with_poissons(rng: Any, out: np.ndarray, lam: float) -> None:
    for i in range(out.size):
        out[i] = poisson(rng, lam)


def assert_same_state(record: np.record, generator: np.random.Generator) -> None:
    assert to_generator(record).bit_generator.state == generator.bit_generator.state


def test_seeds_as_gymnasium_does(way: Way) -> None:
    random_seeds = np.random.default_rng(5).integers(0, 2**64, 300, dtype=np.uint64)
    for seed in [*EDGE_SEEDS, *range(100), *(int(seed) for seed in random_seeds)]:
        expected, _ = gymnasium.utils.seeding.np_random(seed)
        assert_same_state(seeded(way, seed), expected)


def test_seeding_forgets_the_kept_half(way: Way) -> None:
    record = new_record()
    way(kernel_rng.next_uint32)(record)
    assert record.has_uint32 == 1
    way(kernel_rng.seed)(record, np.uint64(3))
    assert_same_state(record, np.random.default_rng(3))


def test_raw_words(way: Way) -> None:
    record, bits = seeded(way, 11), np.random.PCG64(11)
    words = [int(way(kernel_rng.next_uint64)(record)) for _ in range(200)]
    assert words == [int(word) for word in bits.random_raw(200)]


@pytest.mark.parametrize("seed", EDGE_SEEDS)
def test_floats(way: Way, seed: int) -> None:
    record, generator = seeded(way, seed), np.random.default_rng(seed)
    for _ in range(100):
        assert way(METHODS["random"])(record) == generator.random()
        assert way(METHODS["uniform"])(record) == generator.uniform()
        assert way(METHODS["uniform"])(record, -0.05, 0.05) == generator.uniform(-0.05, 0.05)
        assert way(METHODS["uniform"])(record, -0.6, -0.4) == generator.uniform(low=-0.6, high=-0.4)
    assert_same_state(record, generator)


@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize("low", [0, -7, INT64.min])
@pytest.mark.parametrize("endpoint", [False, True])
def test_integers(way: Way, span: int, low: int, endpoint: bool) -> None:
    record, generator = seeded(way, span), np.random.default_rng(span)
    for _ in range(40):
        draw = way(METHODS["integers"])(record, low, low + span, endpoint)
        assert draw == generator.integers(low, low + span, endpoint=endpoint)
    if endpoint:
        assert way(METHODS["integers"])(record, 5, None, True) == generator.integers(5, endpoint=True)
    assert_same_state(record, generator)


@pytest.mark.parametrize(("low", "high"), [(0, 0), (3, 3), (5, -2), (INT64.max, INT64.min)])
def test_integers_between_equal_bounds_are_the_lower_one(way: Way, low: int, high: int) -> None:
    """The draw may be an index; the generator stays as it is."""
    record, generator = seeded(way, 3), np.random.default_rng(3)
    assert way(METHODS["integers"])(record, low, high) == low
    assert_same_state(record, generator)


@pytest.mark.parametrize("endpoint", [False, True])
def test_integers_over_all_of_int64(way: Way, endpoint: bool) -> None:
    record, generator = seeded(way, 8), np.random.default_rng(8)
    for _ in range(100):
        draw = way(METHODS["integers"])(record, INT64.min, INT64.max, endpoint)
        assert draw == generator.integers(INT64.min, INT64.max, endpoint=endpoint)


def test_integers_below_one_bound(way: Way) -> None:
    record, generator = seeded(way, 4), np.random.default_rng(4)
    for bound in (1, 2, 5, 2**40):
        assert way(METHODS["integers"])(record, bound) == generator.integers(bound)
    assert_same_state(record, generator)


def test_a_range_of_one_draws_nothing(way: Way) -> None:
    record = seeded(way, 4)
    before = record.copy()
    assert way(METHODS["integers"])(record, 5, 6) == 5
    assert record == before


finite = st.floats(-1e6, 1e6)
bounds = st.tuples(st.integers(INT64.min, INT64.max), st.integers(INT64.min, INT64.max)).filter(lambda b: b[0] != b[1])
near = st.tuples(st.integers(-100, 100), st.integers(1, 2**33)).map(lambda b: (b[0], b[0] + b[1]))
calls = st.one_of(
    st.tuples(st.just("random"), st.just(())),
    st.tuples(st.just("uniform"), st.tuples(finite, finite).map(lambda b: tuple(sorted(b)))),
    st.tuples(st.just("integers"), bounds.map(lambda b: tuple(sorted(b)))),
    st.tuples(st.just("integers"), near),
    st.tuples(st.just("standard_normal"), st.just(())),
    st.tuples(st.just("normal"), st.tuples(finite, st.floats(0, 1e3))),
    st.tuples(st.just("standard_exponential"), st.just(())),
    st.tuples(st.just("exponential"), st.tuples(st.floats(0, 1e3))),
    st.tuples(st.just("poisson"), st.tuples(st.floats(0, 1e4))),
)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**64 - 1), sequence=st.lists(calls, max_size=30))
def test_any_sequence_of_calls(seed: int, sequence: list[tuple[str, tuple[Any, ...]]]) -> None:
    generator = np.random.default_rng(seed)
    plain, compiled = (from_generator(generator) for _ in range(2))
    for name, arguments in sequence:
        expected = getattr(generator, name)(*arguments)
        assert METHODS[name](plain, *arguments) == expected
        assert jitted(METHODS[name])(compiled, *arguments) == expected
    assert_same_state(plain, generator)
    assert_same_state(compiled, generator)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**64 - 1), halves=st.integers(0, 3))
def test_generators_come_and_go_exactly(seed: int, halves: int) -> None:
    generator = np.random.default_rng(seed)
    for _ in range(halves):
        generator.integers(0, 10, dtype=np.int32)  # 32-bit draws leave a half behind
    copy = to_generator(from_generator(generator))
    assert copy.bit_generator.state == generator.bit_generator.state
    assert copy.integers(0, 5, 9).tolist() == generator.integers(0, 5, 9).tolist()


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_a_million_normals(seed: int) -> None:
    record, generator = seeded(jitted, seed), np.random.default_rng(seed)
    actual = np.empty(1_000_000)
    jitted(fill_with_normals)(record, actual)
    expected = generator.standard_normal(actual.size)
    np.testing.assert_array_equal(actual, expected)
    assert np.count_nonzero(np.abs(expected) > EDGE) > 100  # so that the tail was drawn from, too
    assert_same_state(record, generator)


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_a_million_exponentials(seed: int) -> None:
    record, generator = seeded(jitted, seed), np.random.default_rng(seed)
    actual = np.empty(1_000_000)
    jitted(fill_with_exponentials)(record, actual)
    expected = generator.standard_exponential(actual.size)
    np.testing.assert_array_equal(actual, expected)
    assert np.count_nonzero(expected > EXPONENTIAL_EDGE) > 100  # so that the tail was drawn from, too
    assert_same_state(record, generator)


@pytest.mark.parametrize("lam", [0.0, 1e-3, 0.5, 3.0, 9.99, 10.0, 12.5, 100.0, 1e6])
def test_a_hundred_thousand_poissons(lam: float) -> None:
    record, generator = seeded(jitted, 7), np.random.default_rng(7)
    draws = np.empty(100_000, np.int64)
    jitted(fill_with_poissons)(record, draws, lam)
    np.testing.assert_array_equal(draws, generator.poisson(lam, draws.size))
    assert_same_state(record, generator)


def test_normals_with_mean_and_deviation(way: Way) -> None:
    record, generator = seeded(way, 2), np.random.default_rng(2)
    for _ in range(300):
        assert way(METHODS["normal"])(record) == generator.normal()
        assert way(METHODS["normal"])(record, -1.5, 0.01) == generator.normal(-1.5, 0.01)
        assert way(METHODS["standard_normal"])(record) == generator.standard_normal()
    assert_same_state(record, generator)


CHOICES: list[tuple[str, tuple[Any, ...]]] = [
    ("choice", (7,)),
    ("choice", (1,)),
    ("choice", (np.arange(5) * 1.5,)),
    ("choice", ((3, 5, 9),)),
    ("choice", (4, None, True, np.array([0.1, 0.2, 0.3, 0.4]))),
    ("choice", (np.array([2, 3, 5]), None, True, np.array([0.0, 1.0 / 3.0, 2.0 / 3.0]))),
    ("choice", (7, 3)),
    ("choice", (7, 3, False)),
    ("choice", (7, 7, False)),
    ("choice", (7, 0, False)),
    ("choice", (10_001, 150, False)),
    ("choice", (10_001, 250, False)),
    ("choice", (np.arange(5) * 1.5, 4, False)),
    ("choice", ((3, 5, 9), 2)),
    ("choice", (4, 6, True, np.array([0.1, 0.2, 0.3, 0.4]))),
    ("choice", (4, 3, False, np.array([0.1, 0.2, 0.3, 0.4]))),
    ("choice", (np.array([2, 3, 5]), 2, False, np.array([0.0, 1.0 / 3.0, 2.0 / 3.0]))),
    ("permutation", (9,)),
    ("permutation", (np.arange(6).reshape(3, 2),)),
]
SHUFFLED = ((1,), (2,), (3,), (11,), (300,), (4, 3), (3, 2, 2), (0,))


def test_choices_and_shuffles(way: Way) -> None:
    for seed in range(4000 if way is jitted else 500):  # each call comes with each shape within 450
        record, generator = seeded(way, seed), np.random.default_rng(seed)
        name, arguments = CHOICES[seed % len(CHOICES)]
        is_many = len(arguments) > 1 and arguments[1] is not None
        method = find_method(name, is_int=isinstance(arguments[0], int), is_many=is_many)
        actual = way(method)(record, *arguments)
        np.testing.assert_array_equal(actual, getattr(generator, name)(*arguments))
        expected = np.arange(np.prod(SHUFFLED[seed // 7 % len(SHUFFLED)])).reshape(SHUFFLED[seed // 7 % len(SHUFFLED)])
        shuffled = expected.copy()
        way(METHODS["shuffle"])(record, shuffled)
        generator.shuffle(expected)
        np.testing.assert_array_equal(shuffled, expected)
        assert way(METHODS["random"])(record) == generator.random()
        assert_same_state(record, generator)


def test_a_part_of_an_array_is_shuffled_in_place(way: Way) -> None:
    record, generator = seeded(way, 6), np.random.default_rng(6)
    actual, expected = np.arange(20), np.arange(20)
    for part in (slice(3, 9), slice(None, None, 3)):
        way(METHODS["shuffle"])(record, actual[part])
        generator.shuffle(expected[part])
    assert actual.tolist() == expected.tolist()


def test_another_bit_generator_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="uses MT19937, expected PCG64"):
        from_generator(np.random.Generator(np.random.MT19937(0)))


def test_methods_take_what_numpys_take() -> None:
    generator, record = np.random.default_rng(1), from_generator(np.random.default_rng(1))
    assert METHODS["uniform"](record, low=-1.0, high=3.0) == generator.uniform(low=-1.0, high=3.0)
    assert METHODS["integers"](record, low=2, high=9) == generator.integers(low=2, high=9)
