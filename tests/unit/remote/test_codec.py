"""Values, infos and spaces go over the wire and come back; other bytes are refused, whatever they are."""

from __future__ import annotations

import contextlib
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

import envfleet
from envfleet.errors import InvalidArgument, WireError
from envfleet.remote.codec import (
    infos_from_plain,
    pack,
    shrink,
    space_from_plain,
    unpack,
)
from envfleet.service.hosting.plain import infos_to_plain, space_to_plain

dtypes = st.sampled_from(["?", "i1", "u1", "<i4", ">i4", "<f4", ">f8", "<i8", "<u8", "<f2"])


@given(dtypes.flatmap(lambda dtype: st_numpy.arrays(dtype, st_numpy.array_shapes(min_dims=0, min_side=0, max_dims=4))))
def test_arrays_come_back_bit_by_bit(array: Any) -> None:
    back = unpack(pack({"array": array}))["array"]
    assert back.dtype == array.dtype.newbyteorder("<")
    assert back.shape == array.shape
    assert back.tobytes() == array.astype(back.dtype).tobytes()
    assert back.ctypes.data % max(1, back.dtype.alignment) == 0


@given(dtypes.flatmap(lambda dtype: st_numpy.arrays(dtype, st_numpy.array_shapes(min_side=0, max_dims=2))))
def test_numbers_are_the_same_in_fewer_bytes(array: Any) -> None:
    small = shrink(array)
    assert (small.dtype.kind in "iu") == (array.dtype.kind in "iu")
    assert small.itemsize <= array.itemsize
    assert small.astype(array.dtype).tobytes() == array.tobytes()


def test_small_numbers_take_a_byte_and_large_ones_stay_whole() -> None:
    assert shrink(np.array([0, 200])).dtype == np.uint8
    assert shrink(np.array([-1, 100])).dtype == np.int8
    assert shrink(np.array([-1, 2**62])).dtype == np.int64


@given(st.binary(max_size=300))
def test_bytes_of_any_kind_are_read_or_refused(body: bytes) -> None:
    with contextlib.suppress(WireError):
        unpack(body)


@given(st.binary(max_size=80))
@example(b"\x01a\x00" + bytes(13))  # a dtype that NumPy has, but would rather not
def test_arrays_of_any_bytes_are_read_or_refused(data: bytes) -> None:
    import msgpack

    try:
        array = unpack(msgpack.packb(msgpack.ExtType(1, data)))
    except WireError:
        return
    assert array.dtype.kind in "biuf"


def test_what_cannot_be_sent_says_so() -> None:
    for value in (object(), np.array([object()]), {1, 2}, 2**70, np.array(["a"])):
        with pytest.raises(WireError, match="cannot be sent"):
            pack(value)
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(WireError):
        pack(deep)


SPACES = [
    spaces.Box(-np.inf, np.inf, (3, 2), np.float32),
    spaces.Box(np.array([0, -1], np.int16), np.array([5, 9], np.int16), dtype=np.int16),
    spaces.Discrete(5, start=-2),
    spaces.MultiDiscrete([3, 4]),
    spaces.MultiBinary((2, 3)),
    spaces.MultiBinary(4),
    spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 1, (2,))])}),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_spaces_come_back(space: gym.Space[Any]) -> None:
    assert space_from_plain(unpack(pack(space_to_plain(space)))) == space


def test_other_spaces_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="Text cannot be sent"):
        space_to_plain(spaces.Text(5))
    with pytest.raises(WireError, match="unknown type of space 'Cube'"):
        space_from_plain({"type": "Cube"})


def test_infos_of_a_fleet_come_back() -> None:
    with envfleet.make("CartPole-v1", 6, backend="serial", autoreset_mode="SAME_STEP", record_episodes=True) as fleet:
        fleet.reset(seed=1)
        for _ in range(40):
            *_, infos = fleet.step(np.ones(6, np.int64))
            back = infos_from_plain(unpack(pack(infos_to_plain(infos))), 6)
            assert set(back) == set(infos)
            if infos:
                break
    mask = infos["_final_obs"]
    np.testing.assert_array_equal(back["_final_obs"], mask)
    for row in range(6):
        if mask[row]:
            np.testing.assert_array_equal(back["final_obs"][row], infos["final_obs"][row])
        else:
            assert back["final_obs"][row] is None
    np.testing.assert_array_equal(back["episode"]["r"], infos["episode"]["r"])
    np.testing.assert_array_equal(back["episode"]["l"], infos["episode"]["l"])


def test_infos_of_objects_and_texts_come_back() -> None:
    names = np.array(["left", None, "right"], object)
    infos = {"name": names, "_name": np.array([True, False, True]), "x": np.arange(3.0), "_x": np.ones(3, np.bool_)}
    back = infos_from_plain(unpack(pack(infos_to_plain(infos))), 3)
    assert back["name"].tolist() == ["left", None, "right"]
    np.testing.assert_array_equal(back["x"], infos["x"])
