"""Infos that travel in columns arrive as those that travel by mail."""

from __future__ import annotations

import enum
import pickle
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given, settings

from envfleet.fleet.infos import SparseInfos, batch_infos
from envfleet.testing.compare import mismatches
from envfleet.workers.arrays import MAX_COLUMNS
from envfleet.workers.columns import ColumnReader, ColumnWriter

SPANS = (range(2), range(2, 3), range(3, 6))
NUM_ENVS = 6

Infos = dict[int, dict[str, Any]]


def key_order(infos: Any) -> Any:
    return [(key, key_order(value)) for key, value in infos.items()] if isinstance(infos, dict) else None


def assert_same(actual: Any, expected: Any) -> None:
    assert key_order(actual) == key_order(expected)
    assert [str(mismatch) for mismatch in mismatches(expected, actual, "infos")] == []


class Side(enum.Enum):
    SHORT = 0
    LONG = 1


class Level(enum.IntEnum):
    LOW = 0
    HIGH = 1


class Wire:
    """Workers and an owner that share arrays; values without a column go by mail."""

    def __init__(self) -> None:
        # Only the known columns hold what a worker that died has left: new shared memory is zero.
        self.values = np.zeros((1 + MAX_COLUMNS, NUM_ENVS), np.int64)
        self.has_values = np.zeros((1 + MAX_COLUMNS, NUM_ENVS), np.bool_)
        self.reader = ColumnReader(self.values, self.has_values)
        self.writers = [self.start(worker) for worker in range(len(SPANS))]
        self.mailed: SparseInfos = []

    def start(self, worker: int) -> ColumnWriter:
        rows = slice(SPANS[worker].start, SPANS[worker].stop)
        writer = ColumnWriter(self.values[:, rows], self.has_values[:, rows])
        writer.learn(pickle.loads(pickle.dumps(self.reader.table)))
        return writer

    def step(self, infos: Infos, rows: list[int] | None = None) -> dict[str, Any]:
        """One step of all rows, or of some; returns the infos of those in their order."""
        self.mailed = []
        for writer, span in zip(self.writers, SPANS, strict=True):
            local = [row - span.start for row in (range(NUM_ENVS) if rows is None else rows) if row in span]
            if writer.is_dirty:  # as `EnvGroup.step` does
                writer.clear(slice(None) if rows is None else local)
                writer.is_dirty = rows is not None
            for row in local:
                rest = writer.write(row, infos.get(span.start + row, {}))
                if rest:
                    place = span.start + row
                    self.mailed.append((place if rows is None else rows.index(place), rest))
        dense, numbers = self.reader.read(rows or slice(None))
        self.reader.learn(self.mailed, numbers)
        for writer in self.writers:
            writer.learn(self.reader.table)
        size = NUM_ENVS if rows is None else len(rows)
        sparse = sorted(self.mailed, key=lambda pair: pair[0])
        return batch_infos(size, sparse, dense, self.reader.order(sparse, numbers, None))


SCALARS = (
    st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([2**53 + 1, 2**63 - 1, -(2**63), 2**63, 2**70])
    | st.floats()
    | st.booleans().map(np.bool_)
    | st.floats().map(np.float64)
    | st.floats(width=32).map(np.float32)
    | st.integers(0, 255).map(np.uint8)
    | st.integers(-(2**15), 2**15 - 1).map(np.int16)
    | st.integers(0, 2**64 - 1).map(np.uint64)
    | st.integers(-(2**63), 2**63 - 1).map(np.int64)
)
OTHERS: st.SearchStrategy[Any] = (
    st.floats(width=16).map(np.float16)
    | st.none()
    | st.text(max_size=2)
    | st.sampled_from(["low", "high", b"low", *Side, *Level])
    | st.just({})
    | st.dictionaries(st.sampled_from("ab"), SCALARS, max_size=2)
    | st.lists(st.floats(), min_size=1, max_size=2).map(np.array)
)
KEYS = st.sampled_from(["a", "b", "c", "_a", "final_obs"])
# Mostly infos of the same few types, so that columns are used; but every mixture occurs.
CALM = st.fixed_dictionaries({"x": st.floats(), "n": st.integers(-9, 9)}, optional={"won": st.booleans()})
WILD = st.dictionaries(KEYS, SCALARS, max_size=4) | st.dictionaries(KEYS, SCALARS | OTHERS, max_size=4)
STEP = st.dictionaries(st.integers(0, NUM_ENVS - 1), CALM | WILD)


@settings(max_examples=300)
@given(st.lists(STEP, max_size=6))
@example([{0: {"a": 1.5}}, {}, {3: {"a": 2.5}}])
@example([{0: {"final_obs": 1.5}}, {1: {"final_obs": 2.5}}])
@example([{0: {"a": np.uint8(1)}}, {0: {"a": np.uint8(1)}, 1: {"a": np.int16(1)}}])
def test_equals_infos_by_mail(steps):
    wire = Wire()
    for infos in steps:
        assert_same(wire.step(infos), batch_infos(NUM_ENVS, sorted(infos.items())))


@given(st.lists(st.tuples(st.permutations(range(NUM_ENVS)), st.integers(1, NUM_ENVS), STEP), max_size=4))
def test_rows_that_step_one_by_one(batches):
    """Some rows, in any order: values that other rows reported before are not repeated."""
    wire = Wire()
    for order, size, infos in batches:
        rows = order[:size]
        expected = [(place, infos[row]) for place, row in enumerate(rows) if row in infos]
        assert_same(wire.step(infos, rows), batch_infos(size, expected))


def test_numbers_of_known_keys_need_no_mail():
    wire = Wire()
    for step in range(4):
        infos = {i: {"x": step + i / 2, "n": i, "won": i > step, "s": np.float32(i)} for i in range(NUM_ENVS)}
        assert_same(wire.step(infos), batch_infos(NUM_ENVS, list(infos.items())))
        assert bool(wire.mailed) == (step == 0)


def test_constants_of_known_keys_need_no_mail():
    wire = Wire()
    for step in range(5):
        infos = {i: {"side": Side(i % 2), "x": 1.5, "label": "low", "level": Level(i % 2)} for i in range(NUM_ENVS)}
        assert_same(wire.step(infos), batch_infos(NUM_ENVS, list(infos.items())))
        assert bool(wire.mailed) == (step == 0)


def test_numbers_replace_constants_in_the_column_of_a_key():
    wire = Wire()
    for step, value in enumerate([None, None, 1.5, None, 2.5, 3.5]):
        infos = {i: {"x": value} for i in range(NUM_ENVS)}
        assert_same(wire.step(infos), batch_infos(NUM_ENVS, list(infos.items())))
        assert bool(wire.mailed) == (step not in (1, 4, 5))


def test_there_are_no_more_columns_than_there_is_room():
    wire = Wire()
    infos: Infos = {0: {f"key{i}": i for i in range(MAX_COLUMNS + 3)}}
    for _ in range(2):
        assert_same(wire.step(infos), batch_infos(NUM_ENVS, list(infos.items())))
    assert wire.mailed == [(0, {f"key{i}": i for i in range(MAX_COLUMNS, MAX_COLUMNS + 3)})]


@pytest.mark.parametrize("info", [{"x": 2**70}, {"x": "text"}, {"x": np.float64(1)}, {3: 4, None: 5}])
def test_what_fits_no_column_goes_by_mail(info):
    wire = Wire()
    wire.step({0: {"x": 1}})
    assert_same(wire.step({0: info, 1: {"x": 7}}), batch_infos(NUM_ENVS, [(0, info), (1, {"x": 7})]))
    assert wire.mailed == [(0, info)]


def test_a_successor_finds_nothing_of_the_worker_before():
    wire = Wire()
    for _ in range(2):
        wire.step({0: {"x": 5}, 1: {"x": 7}})
    wire.writers[0] = wire.start(0)
    assert_same(wire.step({1: {"x": 3}}), batch_infos(NUM_ENVS, [(1, {"x": 3})]))


def test_what_was_read_stays_as_it_was():
    wire = Wire()
    wire.step({0: {"x": 5}})
    merged = wire.step({0: {"x": 5}})
    wire.step({0: {"x": 6}, 1: {"x": 7}})
    assert merged["x"].tolist() == [5, 0, 0, 0, 0, 0]
    assert merged["_x"].tolist() == [True, False, False, False, False, False]
