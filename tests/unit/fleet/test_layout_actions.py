"""Accepted forms of actions: Gymnasium's batches, lists, tensors; all others are refused clearly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from envfleet.errors import InvalidArgument
from envfleet.fleet.layout import SpaceLayout


def is_same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and a.dtype == b.dtype and np.array_equal(a, b)


def test_unbatch_takes_lists_and_tensors():
    actions: Any
    layout = SpaceLayout(spaces.Discrete(3))
    for actions in ([0, 2], (0, 2), np.array([0, 2], np.int32), torch.tensor([0, 2]), [np.int64(0), np.int64(2)]):
        (array,), objects = layout.unbatch(actions, 2)
        assert is_same(array, np.array([0, 2]))
        assert objects == []
    layout = SpaceLayout(spaces.Box(-1, 1, (2,)))
    for actions in (
        [[0, 1], [1, 0]],
        np.array([[0.0, 1], [1, 0]]),
        torch.tensor([[0.0, 1], [1, 0]]),
        [np.array([0, 1]), (1, 0)],
    ):
        (array,), _ = layout.unbatch(actions, 2)
        assert is_same(array, np.array([[0, 1], [1, 0]], np.float32))
    (array,), _ = SpaceLayout(spaces.Discrete(2)).unbatch(np.array([True, False]), 2)
    assert array.dtype == np.int64


def test_unbatch_takes_a_dict_per_sub_env():
    layout = SpaceLayout(spaces.Dict({"move": spaces.Discrete(3), "say": spaces.Text(5)}))
    for pack in (list, tuple, lambda values: np.array(values, dtype=object)):
        arrays, objects = layout.unbatch(pack([{"move": 1, "say": "a"}, {"say": "b", "move": 2}]), 2)
        assert arrays[0].tolist() == [1, 2]
        assert objects == [["a", "b"]]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("columns", [1, 2, 500])
def test_unbatch_refuses_nan_only(dtype, columns):
    layout = SpaceLayout(spaces.Box(-np.inf, np.inf, (columns,), dtype))
    big = np.finfo(dtype).max
    for value in (0, big, -big, np.inf, -np.inf):
        actions = np.full((3, columns), value, dtype)
        actions[1] *= -1
        assert layout.unbatch(actions, 3)[0][0] is actions
    for row in range(3):
        actions = np.full((3, columns), -np.inf, dtype)
        actions[row, -1] = np.nan
        with pytest.raises(InvalidArgument, match=rf"actions has NaN in rows \[{row}\]"):
            layout.unbatch(actions, 3)
        with pytest.raises(InvalidArgument, match="NaN"):
            layout.unbatch(actions.tolist(), 3)


def test_unbatch_of_no_rows():
    layout = SpaceLayout(spaces.Box(-1, 1, (2,)))
    assert layout.unbatch(np.zeros((0, 2), np.float32), 0)[0][0].shape == (0, 2)
    assert SpaceLayout(spaces.Box(-1, 1, (0,))).unbatch(np.zeros((2, 0), np.float32), 2)[0][0].shape == (2, 0)


MOVES = spaces.Dict({"move": spaces.Discrete(3), "aim": spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.Text(3)])})
AIM = (np.zeros((2, 2), np.float32), ("a", "b"))


@pytest.mark.parametrize(
    ("space", "actions", "message"),
    [
        (spaces.Discrete(3), [0.0, 1.0], r"actions has dtype float64, expected int64 = action_space.dtype"),
        (spaces.Discrete(3), np.zeros(2, np.float32), r"convert with .astype\(np.int64\)"),
        (
            spaces.Discrete(3),
            [0, 1, 2],
            r"actions has shape \(3,\), expected \(2,\) = \(n, \*action_space.shape\): pass one",
        ),
        (spaces.Discrete(3), 1, r"shape \(\)"),
        (spaces.Discrete(3), None, "actions is None"),
        (spaces.Discrete(3), ["left", "right"], "expected numbers of dtype int64"),
        (spaces.Discrete(3), [[0], [1]], r"shape \(2, 1\)"),
        (spaces.Discrete(3), {"a": 1}, "dict"),
        (spaces.Box(-1, 1, (2,)), np.zeros((2, 1), np.float32), r"shape \(2, 1\)"),
        (spaces.Box(-1, 1, (2,)), np.zeros(2, np.float32), r"shape \(2,\)"),
        (spaces.Box(-1, 1, (2,)), [[0, 1], [0]], "does not convert"),
        (spaces.Box(-1, 1, (2,)), torch.zeros((2, 2), requires_grad=True), r"\.detach\(\)\.cpu\(\)\.numpy\(\)"),
        (spaces.Text(3), "ab", "actions is of type str, expected a tuple of 2 values"),
        (spaces.Text(3), ("a",), "actions is a tuple of length 1"),
        (spaces.Text(3), None, "actions is None"),
        (MOVES, {"move": [0, 1]}, r"actions has keys \['move'\]"),
        (MOVES, [{"move": 0}, {"move": 1}], r"actions has keys \['move'\]"),
        (MOVES, [1, 2], "actions is of type int, expected a dict"),
        (MOVES, {"move": [0.5, 1], "aim": AIM}, r'actions\["move"\] has dtype float64'),
        (MOVES, {"move": [0, 1], "aim": AIM[:1]}, r'actions\["aim"\] is a tuple of length 1.*zip'),
        (MOVES, {"move": [0, 1], "aim": (AIM[0] * np.nan, AIM[1])}, r'actions\["aim"\]\[0\] has NaN in rows \[0, 1\]'),
    ],
)
def test_unbatch_refuses(space, actions, message):
    with pytest.raises(InvalidArgument, match=message):
        SpaceLayout(space).unbatch(actions, 2)
