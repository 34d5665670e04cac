"""Calls that a fleet of a kernel refuses; errors name the call and the remedy."""

from __future__ import annotations

import functools
import re
from typing import Any

import numpy as np
import pytest
from tests.unit.kernels.samples import Walker, ones

import envfleet
from envfleet.errors import CallPending, FleetClosed, InvalidArgument, NothingPending, ResetNeeded


def test_send_and_recv_take_turns(walkers: Any) -> None:
    with pytest.raises(NothingPending, match="call send"):
        walkers.recv()
    saved = walkers.get_state()
    walkers.send(ones(walkers), np.arange(4))
    for verb, call in (
        ("send", lambda: walkers.send(ones(walkers))),
        ("step", lambda: walkers.step(ones(walkers))),
        ("reset", lambda: walkers.reset(seed=5)),
        ("reset_envs", lambda: walkers.reset_envs([1])),
        ("rollout", lambda: walkers.rollout("random", 2)),
        ("set_state", lambda: walkers.set_state(saved)),
        ("get_state", walkers.get_state),
        ("set_attr", lambda: walkers.set_attr("x", 1.0)),
        ("render", walkers.render),
    ):
        with pytest.raises(CallPending, match=rf"^{verb}\(\).*call recv\(\)"):
            call()
    assert walkers.recv().rewards.shape == (4,)
    walkers.reset(seed=5)
    with pytest.raises(NothingPending):
        walkers.recv()


def test_rollouts_that_cannot_be_are_refused(walkers: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"num_steps=2\.5 \(type float\): pass a whole number"):
        walkers.rollout("random", num_steps=2.5)
    with pytest.raises(InvalidArgument, match=r"seed='a' \(type str\): pass a whole number"):
        walkers.rollout("random", 2, seed="a")
    with pytest.raises(InvalidArgument, match="out is a int, expected an earlier rollout"):
        walkers.rollout("random", 2, out=3)


def test_options_that_are_no_dict_are_refused(walkers: Any) -> None:
    for options, call in (([], walkers.reset), (5, walkers.reset), ([{}], functools.partial(walkers.reset_envs, [0]))):
        with pytest.raises(InvalidArgument, match=rf"options={re.escape(repr(options))} \(type \w+\), expected a dict"):
            call(options=options)
    with pytest.raises(InvalidArgument, match=r"options\['params'\]=5 \(type int\), expected a dict"):
        walkers.reset(options={"params": 5})


@pytest.mark.parametrize("backend", ["kernel", "serial"])
def test_invalid_time_limits_and_render_modes_are_refused(backend: Any) -> None:
    for limit in (0, -2, 1.5, "5", True):
        with pytest.raises(InvalidArgument, match=rf"max_episode_steps={limit!r}.*whole number of at least 1"):
            envfleet.make(Walker, 2, backend=backend, max_episode_steps=limit)
    with pytest.raises(InvalidArgument, match="render_mode='human': pass one of None, 'rgb_array'"):
        envfleet.make(Walker, 2, backend=backend, render_mode="human")


@pytest.mark.parametrize("backend", ["kernel", "serial"])
def test_a_time_limit_of_minus_one_is_none_as_in_gymnasium(backend: Any) -> None:
    with envfleet.make(Walker, 2, backend=backend, max_episode_steps=-1, goal=np.inf) as fleet:
        fleet.reset(seed=0)
        assert not any(fleet.step(np.zeros(2, np.int64))[3].any() for _ in range(20))


def test_messages_name_the_call_that_was_made() -> None:
    fleet: Any = envfleet.make(Walker, 2, backend="kernel")
    with pytest.raises(ResetNeeded, match=r"^send\(\) before the first reset"):
        fleet.send(ones(fleet))
    with pytest.raises(ResetNeeded, match=r"^reset\(\) with a mask before"):
        fleet.reset(options={"reset_mask": np.array([True, False])})
    fleet.close()
    with pytest.raises(FleetClosed, match=r"^reset\(\) on a closed fleet"):
        fleet.reset()


def test_what_only_objects_have_is_refused_in_words(walkers: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"read attributes with get_attr\(\)"):
        walkers.apply(len)
    with pytest.raises(InvalidArgument, match="runs no Python here"):
        walkers.stacks()
    assert walkers.batch_size == 4


def test_nothing_is_active_before_the_first_reset() -> None:
    with envfleet.make(Walker, 4, backend="kernel") as fleet:
        assert fleet.active_count == 0
        fleet.reset(seed=0)
        assert fleet.active_count == 4
