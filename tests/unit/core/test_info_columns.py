"""Infos that travel in columns arrive as those that travel as objects."""

from __future__ import annotations

import pickle
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given, settings

from envfleet.core.info_columns import MAX_COLUMNS, ColumnReader, ColumnSpec, ColumnWriter, build_infos
from envfleet.core.infos import batch_infos
from envfleet.testing.compare import mismatches

SPANS = ((0, 2), (2, 3), (3, 6))
NUM_ENVS = 6


def assert_same(found: Any, expected: Any) -> None:
    assert [str(mismatch) for mismatch in mismatches(expected, found, "infos")] == []


class Wire:
    """Workers and a fleet that share arrays; what does not fit the columns travels as objects."""

    def __init__(self, spans: tuple[tuple[int, int], ...] = SPANS) -> None:
        self.spans = spans
        self.num_envs = spans[-1][1]
        # What is in memory must not matter: slots hold garbage, and a worker that died left its flags.
        self.values = np.full((2, MAX_COLUMNS, self.num_envs), -1, np.int64)
        self.present = np.ones((2, MAX_COLUMNS, self.num_envs), np.bool_)
        self.reader = ColumnReader(list(self.values), list(self.present), spans)
        self.writers = [self.start(start, stop) for start, stop in spans]
        self.specs: list[list[ColumnSpec]] = [[] for _ in spans]
        self.num_sparse = 0

    def start(self, start: int, stop: int) -> ColumnWriter:
        return ColumnWriter([v[:, start:stop] for v in self.values], [p[:, start:stop] for p in self.present])

    def announce(self, worker: int) -> None:
        specs = self.writers[worker].take_new()
        if specs:
            self.specs[worker] += pickle.loads(pickle.dumps(specs))
            self.reader.know(worker, self.specs[worker])

    def step(self, generation: int, infos: dict[int, dict[str, Any]]) -> dict[str, Any]:
        """One step of all workers; returns the fleet's infos."""
        sparse = []
        for worker, (start, stop) in enumerate(self.spans):
            self.writers[worker].begin(generation)
            for index in range(start, stop):
                info = infos.get(index)
                if info and not self.writers[worker].write(index - start, info):
                    sparse.append((index, info))
            self.announce(worker)
        self.num_sparse += len(sparse)
        return build_infos(self.num_envs, sparse, self.reader.snapshot(generation))


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
@given(st.lists(st.tuples(st.integers(0, 1), STEP), max_size=6))
@example([(0, {0: {"a": 1.5}}), (1, {}), (0, {}), (0, {3: {"a": 2.5}})])
def test_equals_infos_sent_as_objects(steps):
    wire = Wire()
    for generation, infos in steps:
        expected = batch_infos(NUM_ENVS, sorted(infos.items()))
        assert_same(wire.step(generation, infos), expected)


def test_scalars_of_known_keys_need_no_objects():
    wire = Wire()
    for step in range(4):
        infos = {i: {"x": step + i / 2, "n": i, "won": i > step, "s": np.float32(i), "b": np.True_} for i in range(6)}
        assert_same(wire.step(step % 2, infos), batch_infos(6, list(infos.items())))
    assert wire.num_sparse == 0
    assert all(writer.take_new() == [] for writer in wire.writers)


def test_a_key_of_several_types_needs_no_objects():
    wire = Wire()
    infos: dict[int, dict[str, Any]] = {0: {"a": 1}, 1: {"a": 0.5}, 2: {"a": 2}, 4: {"a": 3}}
    found = wire.step(0, infos)
    assert_same(found["a"], np.array([1, 0.5, 2, 0, 3, 0]))
    assert wire.num_sparse == 0


def test_workers_that_learn_in_different_order_agree():
    wire = Wire()
    infos: dict[int, dict[str, Any]] = {0: {"a": 1, "b": 2.0}, 2: {"b": 3.0, "a": 4}, 5: {"c": True, "a": 5}}
    assert_same(wire.step(0, infos), batch_infos(6, list(infos.items())))
    assert wire.num_sparse == 0


@pytest.mark.parametrize(
    "info",
    [
        {"x": 1.0, "name": "a"},
        {"x": 1.0, "final_obs": 3},
        {"x": 1.0, "n": 2**70},
        {"n": 2**70},
        {"x": 1.0, "half": np.float16(1)},
        {"x": 1.0, **{f"key{i}": i for i in range(MAX_COLUMNS)}},
        {"x": 1.0, 3: 4},
    ],
    ids=["text", "final_obs", "big-later", "big-at-once", "no-column-type", "too-many", "key-not-text"],
)
def test_an_info_that_does_not_fit_leaves_nothing_behind(info):
    wire = Wire()
    writer = wire.writers[0]
    writer.begin(0)
    assert writer.write(0, {"x": 9.0})
    assert writer.write(1, {"x": 8.0, "n": 1})
    writer.begin(0)
    assert not writer.write(0, info)
    assert not wire.present[0, :, :2].any()
    assert writer.write(1, {"x": 2.0})  # and its neighbour is as it was
    wire.announce(0)
    assert_same(build_infos(6, [], wire.reader.snapshot(0)), batch_infos(6, [(1, {"x": 2.0})]))


def test_what_does_not_fit_takes_no_columns():
    writer = Wire().writers[0]
    writer.begin(0)
    assert not writer.write(0, {"x": 1.0, "name": "a"})
    assert not writer.write(0, {"x": 1.0, **{f"key{i}": i for i in range(MAX_COLUMNS)}})
    assert writer.take_new() == []
    assert writer.write(0, {f"key{i}": i for i in range(MAX_COLUMNS)})
    assert writer.take_new() == [ColumnSpec(i, f"key{i}", int) for i in range(MAX_COLUMNS)]
    assert not writer.write(0, {"x": 1.0})


def test_a_snapshot_stays_as_it_was():
    wire = Wire()
    infos = {i: {"x": float(i)} for i in range(6)}
    wire.step(0, infos)
    snapshot = wire.reader.snapshot(0)
    for step in range(3):
        wire.step(step % 2, {0: {"y": 7, "x": 3.5, "z": True}, 5: {"x": 5}})
    assert_same(build_infos(6, [], snapshot), batch_infos(6, list(infos.items())))


def test_nothing_written_costs_no_snapshot():
    wire = Wire()
    assert wire.reader.snapshot(0) is None
    wire.step(0, {3: {"x": 1.0}})
    wire.step(1, {})
    assert wire.reader.snapshot(1) is None
    assert wire.reader.snapshot(0) is not None


def test_objects_of_the_same_sub_environment_come_first():
    wire = Wire()
    wire.step(0, {4: {"x": 2.0}})
    sparse: list[Any] = [(4, {"x": 1.0, "final_info": {"x": 5}}), (1, {"x": 3.0})]
    found = build_infos(6, sparse, wire.reader.snapshot(0))
    assert_same(found, batch_infos(6, [*sparse, (4, {"x": 2.0})]))


def test_a_new_worker_begins_anew():
    wire = Wire()
    wire.step(0, {1: {"a": 1}, 2: {"b": 2, "a": 3}, 4: {"c": 3}})
    wire.step(1, {1: {"a": 1}, 2: {"b": 2, "a": 3}, 4: {"c": 3}})
    wire.specs[1] = []
    wire.reader.know(1, [])
    assert set(build_infos(6, [], wire.reader.snapshot(0))) == {"a", "_a", "c", "_c"}
    wire.writers[1] = wire.start(*SPANS[1])
    infos: dict[int, dict[str, Any]] = {1: {"a": 5}, 2: {"z": 0.5, "b": 1.5}}
    assert_same(wire.step(0, infos), batch_infos(6, list(infos.items())))
    assert wire.num_sparse == 0


@given(st.lists(st.tuples(st.permutations(range(NUM_ENVS)), st.integers(1, NUM_ENVS), STEP), max_size=4))
def test_rows_that_step_one_by_one(batches):
    """Asynchronous stepping: some rows, in any order; the others' flags stay as they were and are not taken."""
    wire = Wire()
    for order, size, infos in batches:
        indices = order[:size]
        expected, sparse = [], []
        for k, index in enumerate(indices):
            worker = next(w for w, (start, stop) in enumerate(SPANS) if start <= index < stop)
            writer, row = wire.writers[worker], index - SPANS[worker][0]
            writer.begin(0, row)
            info = infos.get(index)
            if info:
                expected.append((k, info))
                if not writer.write(row, info):
                    sparse.append((k, info))
            wire.announce(worker)
        snapshot = wire.reader.snapshot(0, np.array(indices))
        assert_same(build_infos(size, sparse, snapshot), batch_infos(size, expected))
