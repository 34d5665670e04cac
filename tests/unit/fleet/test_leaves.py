"""Values of sub-environments: any form of the right numbers is accepted, all else is refused clearly."""

from __future__ import annotations

import collections
import re
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.errors import ObservationError
from envfleet.fleet.layout import SpaceLayout


def one_row(space: gymnasium.Space[Any]) -> tuple[Callable[[int, Any], None], Callable[[], Any]]:
    """Return a writer over two rows and a function that reads the first."""
    layout = SpaceLayout(space)
    arrays = [np.full((2, *leaf.shape), 77, leaf.dtype) for leaf in layout.leaves]
    objects: list[list[Any]] = [[None, None] for _ in range(layout.num_objects)]
    return layout.writer(arrays, objects), lambda: layout.row(arrays, objects, 0)


BOX = spaces.Box(-np.inf, np.inf, (4,), np.float32)
IMAGE = spaces.Box(0, 255, (2, 2, 3), np.uint8)
UNITS = [1, 2, 3, 4]


@pytest.mark.parametrize(
    "value",
    [
        np.array(UNITS, np.float32),
        np.array(UNITS, np.float64),
        np.array(UNITS, np.float16),
        np.array(UNITS, np.int64),
        np.array(UNITS, ">f8"),
        np.arange(8, dtype=np.float32).reshape(4, 2)[:, 0] / 2 + 1,
        np.array(UNITS, np.float32).view(np.recarray),
        np.array(UNITS, np.float32)[::-1].copy()[::-1],
        UNITS,
        tuple(UNITS),
        [np.float32(unit) for unit in UNITS],
        torch.tensor(UNITS, dtype=torch.float32),
        torch.tensor(UNITS),
    ],
)
def test_writer_takes_what_casts(value):
    write, read = one_row(BOX)
    write(0, value)
    assert read().dtype == np.float32
    assert read().tolist() == UNITS


def test_writer_reads_frozen_arrays():
    write, read = one_row(BOX)
    value = np.array(UNITS, np.float32)
    value.flags.writeable = False
    write(0, value)
    assert read().tolist() == UNITS


@pytest.mark.parametrize("value", [2, True, np.int64(2), np.uint8(2), np.array(2), np.bool_(True), torch.tensor(2)])
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.int8])
def test_discrete_writer_takes_integers(value, dtype):
    write, read = one_row(spaces.Discrete(3, dtype=dtype))
    write(0, value)
    assert type(read()) is int  # as environments return it
    assert read() == int(value)


def test_writer_takes_python_integers_for_unsigned_images():
    write, read = one_row(spaces.Box(0, 255, (2,), np.uint8))
    write(0, [0, 255])
    assert read().tolist() == [0, 255]
    with pytest.raises(ObservationError, match="OverflowError"):
        write(0, [0, 256])


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "?", ">f4", ">i8"])
@pytest.mark.parametrize("shape", [(), (0,), (2,), (2, 0), (2, 3)])
def test_every_dtype_and_shape(dtype, shape):
    space = spaces.Box(0, 1, shape, np.dtype(dtype))
    value = np.ones(shape, dtype)
    for given_value in (value, value[()], value.astype("?"), value.tolist()):
        write, read = one_row(space)
        write(0, given_value)
        assert np.array_equal(read(), value)
        assert read().dtype == value[()].dtype
        assert read().shape == shape


def test_dict_writer_takes_any_mapping():
    space = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Discrete(3)})
    for value in (collections.OrderedDict(b=1, a=2), collections.UserDict(b=1, a=2), {"b": 1, "a": 2}):
        write, read = one_row(space)
        write(0, value)
        assert read() == {"a": 2, "b": 1}


WRONG_OBSERVATIONS = [
    (BOX, np.zeros(3, np.float32), r"observation has shape \(3,\), expected \(4,\) = observation_space.shape: return"),
    (BOX, np.zeros(1, np.float32), r"shape \(1,\)"),
    (BOX, np.zeros((1, 4), np.float32), r"shape \(1, 4\)"),
    (BOX, np.zeros((4, 1), np.float64), r"shape \(4, 1\)"),
    (BOX, np.zeros((), np.float32), r"shape \(\)"),
    (BOX, np.float32(1), r"shape \(\)"),
    (BOX, 1.0, r"shape \(\)"),
    (BOX, None, "observation is None"),
    (BOX, "abcd", r"observation is 'abcd' \(str\)"),
    (BOX, b"abcd", "bytes"),
    (BOX, np.array([None] * 4), "expected numbers of dtype float32"),
    (BOX, np.zeros(4, np.complex64), "complex64"),
    (BOX, np.zeros(4, "datetime64[s]"), "datetime64"),
    (BOX, [[1, 2], [3]], "does not convert to an array"),
    (BOX, {"a": 1}, "dict"),
    (BOX, (np.zeros(4, np.float32), {}), "does not convert|tuple"),
    (IMAGE, np.zeros((2, 2, 3), np.float32), r"dtype float32, expected uint8.*astype\(np.uint8\)"),
    (IMAGE, np.zeros((2, 2, 3), np.int64), "dtype int64, expected uint8"),
    (IMAGE, np.zeros((3, 2, 2), np.uint8), r"shape \(3, 2, 2\)"),
    (IMAGE, np.zeros(12, np.uint8), r"shape \(12,\)"),
    (IMAGE, bytes(12), "bytes"),
    (spaces.Discrete(3), 1.0, "dtype float64, expected int64"),
    (spaces.Discrete(3), np.float32(1), "dtype float32"),
    (spaces.Discrete(3), np.array([1]), r"shape \(1,\), expected \(\)"),
    (spaces.Discrete(3), None, "is None"),
    (spaces.Discrete(3), "1", "str"),
    (spaces.Discrete(3, dtype=np.int8), 300, "OverflowError"),
    (spaces.Box(-1, 1, ()), np.zeros(1), r"shape \(1,\)"),
    (spaces.Box(-1, 1, ()), "1", "str"),
    (spaces.MultiBinary(2), np.zeros(2), "dtype float64, expected int8"),
    (spaces.MultiDiscrete([2, 2]), [0.5, 1], "dtype float64, expected int64"),
]


@pytest.mark.parametrize(("space", "value", "message"), WRONG_OBSERVATIONS)
def test_writer_refuses(space, value, message):
    write, read = one_row(space)
    before = read()
    with pytest.raises(ObservationError, match=message) as caught:
        write(0, value)
    assert caught.value.code == "bad_observation"
    assert isinstance(caught.value, ValueError)
    assert np.array_equal(read(), before)


NESTED = spaces.Dict({"camera": spaces.Tuple([BOX, IMAGE]), "note": spaces.Text(5)})
FRAMES = (np.zeros(4, np.float32), np.zeros((2, 2, 3), np.uint8))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"camera": (FRAMES[0], FRAMES[1][0]), "note": ""}, 'observation["camera"][1] has shape (2, 3)'),
        ({"camera": FRAMES}, "observation has keys ['camera'], expected ['camera', 'note'] as in observation_space"),
        ({"camera": FRAMES, "note": "", "more": 1}, "has keys ['camera', 'note', 'more']"),
        ({"camera": FRAMES, "nota": ""}, "has keys ['camera', 'nota']"),
        ({"camera": FRAMES[:1], "note": ""}, 'observation["camera"] is a tuple of length 1, expected a tuple of 2'),
        ({"camera": 3, "note": ""}, 'observation["camera"] is of type int'),
        ({"camera": {0: FRAMES[0], 1: FRAMES[1]}, "note": ""}, 'observation["camera"] is a dict of length 2'),
        ({"camera": "ab", "note": ""}, 'observation["camera"] is of type str'),
        ({"camera": np.zeros(3), "note": ""}, 'observation["camera"] is an array of shape (3,)'),
        ({"camera": None, "note": ""}, 'observation["camera"] is None'),
        (None, "observation is None, expected a dict with keys ['camera', 'note']"),
        ([1, 2], "observation is a list of length 2, expected a dict"),
        (np.zeros(2), "observation is an array of shape (2,), expected a dict"),
    ],
)
def test_nested_writer_says_where(value, message):
    write, _ = one_row(NESTED)
    with pytest.raises(ObservationError, match=re.escape(message)):
        write(0, value)


def test_dict_with_other_keys_is_not_taken_for_a_key_error():
    class Odd:
        def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
            raise KeyError("own trouble")

    write, _ = one_row(spaces.Dict({"a": BOX}))
    with pytest.raises(ObservationError, match="own trouble"):
        write(0, {"a": Odd()})
