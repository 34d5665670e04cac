"""Sub-environments that are saved in the middle of their episodes go on exactly, or say that they cannot."""

from __future__ import annotations

import contextlib
import itertools

import numpy as np
import pytest

import envfleet
from envfleet.errors import StateUnsupported, SubEnvError

# Gymnasium pickles both by the arguments of their constructors alone (`gymnasium.utils.EzPickle`).
MUJOCO, BOX2D = "Hopper-v5", "LunarLander-v3"


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_what_pickles_as_its_arguments_is_saved_as_it_is(backend: str) -> None:
    with contextlib.closing(envfleet.make(MUJOCO, 2, backend=backend)) as fleet:
        fleet.action_space.seed(0)
        fleet.reset(seed=0)
        actions = [fleet.action_space.sample() for _ in range(90)]
        for action in actions[:5]:
            fleet.step(action)
        state = fleet.get_state()
        first = [fleet.step(action)[:4] for action in actions[5:]]
        fleet.set_state(state)
        second = [fleet.step(action)[:4] for action in actions[5:]]
    for one, other in zip(itertools.chain(*first), itertools.chain(*second), strict=True):
        np.testing.assert_array_equal(one, other)
    assert any(step[2].any() for step in first)  # and so do the generators, which draw the next episodes


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_what_cannot_be_saved_says_so_and_goes_on(backend: str) -> None:
    with contextlib.closing(envfleet.make(BOX2D, 1, backend=backend)) as fleet:
        fleet.reset(seed=0)
        with pytest.raises(SubEnvError, match=r"LunarLander.*cannot be pickled.*give it get_state\(\)") as caught:
            fleet.get_state()
        assert isinstance(caught.value.__cause__, StateUnsupported)
        fleet.step(np.zeros(1, np.int64))
