"""Checks of arguments: accepted forms, and errors that name the argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from envfleet.errors import InvalidArgument
from envfleet.fleet import checks


@pytest.mark.parametrize(
    ("check", "argument"),
    [
        (lambda: checks.check_choice("mode", "fast", ("a", "b")), "mode='fast'"),
        (lambda: checks.check_whole("workers", 0, 1), "workers=0"),
        (lambda: checks.check_whole("workers", 9, 1, 4, most_name="num_envs"), "num_envs=4"),
        (lambda: checks.check_whole("workers", True, 1), "type bool"),
        (lambda: checks.check_whole("workers", 1.5, 1), "type float"),
        (lambda: checks.check_flag("copy", "yes"), "copy='yes'"),
        (lambda: checks.check_seconds("timeout_s", float("nan")), "timeout_s=nan"),
        (lambda: checks.check_seconds("timeout_s", 0), "above 0"),
        (lambda: checks.check_name("get_attr()", 3), "type int"),
        (lambda: checks.check_seeds(-1, 2), "seed=-1"),
        (lambda: checks.check_seeds([1], 2), "seed has 1 entries"),
        (lambda: checks.check_seeds(3, 2, one_for_all=False), "seeds=3"),
        (lambda: checks.check_seeds([1, -1], 2), r"\[1, -1\]"),
        (lambda: checks.check_options("fast"), "options='fast'"),
        (lambda: checks.check_options([{}, 3], 2), "an entry of options=3"),
        (lambda: checks.check_mask([True], 1), "a list"),
        (lambda: checks.check_mask(np.ones(3, bool), 2), r"shape \(3,\)"),
        (lambda: checks.check_mask(np.zeros(2, bool), 2), "no sub-environment"),
        (lambda: checks.check_rows([], 2), r"indices=\[\]"),
        (lambda: checks.check_rows([0, 2], 2), "num_envs=2"),
        (lambda: checks.check_rows([-1], 2), "negative"),
        (lambda: checks.check_rows([1, 1], 2), "twice"),
        (lambda: checks.check_reward_shape(1.0, (2,)), r"shape \(2,\)"),
    ],
)
def test_invalid_arguments_are_named(check: Callable[[], Any], argument: str) -> None:
    with pytest.raises(InvalidArgument, match=argument):
        check()


def test_valid_arguments_become_plain_values() -> None:
    assert checks.check_whole("workers", np.int64(3), 1, 3) == 3
    assert checks.check_seeds(np.int32(7), 2) == 7
    assert checks.check_seeds([np.int64(1), None], 2) == [1, None]
    assert checks.check_seeds(None, 2) is None
    assert checks.check_mask(np.array([False, True]), 2).tolist() == [1]
    rows = checks.check_rows([1, 0], 2)
    assert rows.tolist() == [1, 0]
    assert rows.dtype == np.int64
    checks.check_flag("copy", np.True_)
    checks.check_seconds("timeout_s", -1, is_positive=False)
    checks.check_options([None, {"a": 1}], 2)
    checks.check_reward_shape([1.0, 2.0], (2,))
