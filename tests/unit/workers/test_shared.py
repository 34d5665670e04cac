"""Shared data: named arrays that are in memory once."""

from __future__ import annotations

import os

import numpy as np
import pytest

from envfleet.errors import InvalidArgument
from envfleet.workers.shared import form_of, map_shared, put_shared, read_shared


def test_arrays_are_read_only_views() -> None:
    table = np.arange(6.0)
    arrays = read_shared({"table": table, "row": [1, 2]})
    assert np.shares_memory(arrays["table"], table)
    assert not arrays["table"].flags.writeable
    assert arrays["row"].tolist() == [1, 2]
    assert read_shared(None) == {}


def test_objects_are_refused_by_name() -> None:
    with pytest.raises(InvalidArgument, match=r"shared\['model'\] is dict"):
        read_shared({"model": {"a": 1}})


def test_arrays_go_through_shared_memory() -> None:
    arrays = {"table": np.arange(6.0).reshape(2, 3), "flags": np.array([True, False]), "empty": np.zeros((0, 4))}
    file = put_shared(arrays)
    mapped = map_shared(os.dup(file.fd), form_of(arrays))
    file.close()
    for name, array in arrays.items():
        np.testing.assert_array_equal(mapped[name], array, strict=True)
        assert not mapped[name].flags.writeable
