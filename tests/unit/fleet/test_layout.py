"""Layouts of spaces: the same batches as Gymnasium's own functions, strict about what does not fit."""

from __future__ import annotations

import pickle
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from envfleet.fleet.layout import SpaceLayout, plan


class Celsius(gymnasium.Space[float]):
    """A space Gymnasium knows nothing of."""

    def sample(self, mask: Any = None, probability: Any = None) -> float:
        return float(self.np_random.normal())

    def contains(self, x: Any) -> bool:
        return isinstance(x, float)

    @property
    def is_np_flattenable(self) -> bool:
        return False


SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)
INTEGERS = st.sampled_from([np.int8, np.uint8, np.int32, np.int64])
BOXES = st.one_of(
    st.builds(lambda shape, dtype: spaces.Box(-1, 1, shape, dtype), SHAPES, st.sampled_from(["f2", "f4", "f8"])),
    st.builds(lambda shape: spaces.Box(-np.inf, np.inf, shape), SHAPES),
    st.builds(lambda shape, dtype: spaces.Box(0, 100, shape, dtype), SHAPES, INTEGERS),
    st.builds(lambda shape: spaces.Box(0, 1, shape, cast(Any, np.bool_)), SHAPES),
)
FIXED: st.SearchStrategy[Any] = st.one_of(
    BOXES,
    st.builds(
        lambda n, start, dtype: spaces.Discrete(n, start=start, dtype=dtype),
        st.integers(1, 9),
        st.integers(0, 5),
        INTEGERS,
    ),
    st.builds(spaces.MultiDiscrete, st.lists(st.integers(1, 5), min_size=1, max_size=4)),
    st.builds(lambda: spaces.MultiDiscrete(np.full((2, 3), 4), dtype=np.int32)),
    st.builds(spaces.MultiBinary, st.sampled_from([1, 4, [2, 3]])),
)
OBJECTS: st.SearchStrategy[Any] = st.one_of(
    st.builds(spaces.Text, st.integers(1, 5)),
    st.builds(lambda stack: spaces.Sequence(spaces.Box(0, 1, (2,)), stack=stack), st.booleans()),
    st.builds(lambda: spaces.Graph(spaces.Box(-1, 1, (2,)), spaces.Discrete(3))),
    st.builds(lambda: spaces.OneOf([spaces.Discrete(2), spaces.Box(0, 1, (3,))])),
    st.builds(Celsius),
)


def nested(leaves: st.SearchStrategy[Any], min_size: int = 0) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.dictionaries(st.sampled_from("abcd"), inner, min_size=min_size, max_size=3).map(spaces.Dict),
            st.lists(inner, min_size=min_size, max_size=3).map(spaces.Tuple),
        ),
        max_leaves=5,
    )


SPACES = nested(FIXED | OBJECTS)
"""Every space, empty dicts and tuples too."""

ITERABLE_SPACES = nested(FIXED | OBJECTS, min_size=1)
"""Spaces with batches that Gymnasium can iterate over: it cannot count the rows of an empty one."""


def allocate(layout: SpaceLayout, n: int) -> tuple[list[NDArray[Any]], list[list[Any]]]:
    arrays = [np.full((n, *leaf.shape), 77, leaf.dtype) for leaf in layout.leaves]
    return arrays, [[None] * n for _ in range(layout.num_objects)]


def fill(layout: SpaceLayout, values: list[Any]) -> tuple[list[NDArray[Any]], list[list[Any]]]:
    columns = allocate(layout, len(values))
    write = layout.writer(*columns)
    for row, value in enumerate(values):
        write(row, value)
    return columns


def samples(space: gymnasium.Space[Any], n: int, seed: int = 0) -> list[Any]:
    space.seed(seed)
    return [space.sample() for _ in range(n)]


def is_same(a: Any, b: Any) -> bool:
    """Same types, keys, dtypes, shapes and values; NaN equals NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(is_same(a[key], b[key]) for key in a)
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(is_same, a, b))
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and bool(np.array_equal(a, b))
    return bool(a == b)


# --- the same as Gymnasium ---------------------------------------------------------------------------------------


@given(SPACES, st.integers(1, 4), st.integers(0, 99))
def test_batch_equals_gymnasiums_concatenate(space, n, seed):
    layout, values = SpaceLayout(space), samples(space, n, seed)
    expected = concatenate(space, values, create_empty_array(space, n))
    batched = layout.batch(*fill(layout, values))
    assert is_same(batched, expected)
    assert batched in batch_space(space, n) or "Celsius" in str(space)


@given(ITERABLE_SPACES, st.integers(1, 4))
def test_reader_equals_gymnasiums_iterate(space, n):
    layout = SpaceLayout(space)
    batched_space = batch_space(space, n)
    batched_space.seed(0)
    batched = batched_space.sample()
    columns = layout.unbatch(batched, n)
    values = layout.reader(*columns)
    assert is_same(values, list(iterate(batched_space, batched)))


@given(SPACES, st.integers(1, 4))
def test_values_survive_writing_and_reading(space, n):
    layout, values = SpaceLayout(space), samples(space, n)
    columns = fill(layout, values)
    again = layout.reader(*columns, n)
    assert len(again) == n
    assert is_same(layout.batch(*fill(layout, again)), layout.batch(*columns))
    rows = [layout.row(*columns, i) for i in range(n)]
    assert is_same(layout.batch(*fill(layout, rows)), layout.batch(*columns))


@given(SPACES, st.integers(1, 4))
def test_unbatch_is_the_inverse_of_batch(space, n):
    layout, values = SpaceLayout(space), samples(space, n)
    columns = fill(layout, values)
    arrays, objects = layout.unbatch(layout.batch(*columns), n)
    assert len(arrays) == len(columns[0])
    assert all(array is kept for array, kept in zip(arrays, columns[0], strict=True)), "it copied"
    assert is_same(objects, columns[1])


def test_leaves_are_listed_depth_first():
    space = spaces.Dict(
        {
            "robot": spaces.Tuple([spaces.Box(-1, 1, (3,)), spaces.Text(4), spaces.Discrete(2)]),
            "camera": spaces.Box(0, 255, (8, 8, 3), np.uint8),
        }
    )
    layout = SpaceLayout(space)
    assert [str(leaf) for leaf in layout.leaves] == [
        '["camera"] (8, 8, 3) uint8',  # Gymnasium's Dict sorts the keys of a plain dict
        '["robot"][0] (3,) float32',
        '["robot"][2] () int64',
    ]
    assert layout.num_objects == 1


def test_discrete_actions_are_integers_and_box_actions_copies():
    (action,) = SpaceLayout(spaces.Discrete(3)).reader([np.array([2])])
    assert type(action) is np.int64
    rows = np.zeros((2, 3), np.float32)
    values = SpaceLayout(spaces.Box(-1, 1, (3,))).reader([rows])
    values[1][:] = 5
    assert not rows.any()


def test_row_is_private_and_has_ints_for_discrete_parts():
    parts = [spaces.Box(-1, 1, (2,)), spaces.Sequence(spaces.Discrete(3)), spaces.Dict(x=spaces.Discrete(4))]
    layout = SpaceLayout(spaces.Tuple(parts))
    arrays, objects = [np.zeros((2, 2), np.float32), np.array([2, 3])], [[[1], [2]]]
    value = layout.row(arrays, objects, 1)
    arrays[0][1] = 5
    objects[0][1].append(3)
    assert value[0].tolist() == [0, 0]
    assert value[1:] == ([2], {"x": 3})
    assert type(value[2]["x"]) is int


@given(SPACES)
def test_pickled_layout_is_as_quick(space):
    layout = pickle.loads(pickle.dumps(SpaceLayout(space)))
    assert [str(leaf) for leaf in layout.leaves] == [str(leaf) for leaf in SpaceLayout(space).leaves]
    assert all(leaf.dtype is np.zeros(1, leaf.dtype.str).dtype for leaf in layout.leaves)


def test_a_new_type_of_space_is_registered_from_outside():
    class Angle(gymnasium.Space[Any]):
        pass

    box = spaces.Box(-np.pi, np.pi, (), np.float32)
    plan.register(Angle, lambda space, path, inventory: plan(box, path, inventory))
    layout = SpaceLayout(spaces.Dict({"angle": Angle()}))
    assert [str(leaf) for leaf in layout.leaves] == ['["angle"] () float32']
