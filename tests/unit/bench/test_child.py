"""A child process answers calls, and whatever happens in it is an error with a reason, never a hang."""

import os
import re
import time

import numpy as np
import psutil
import pytest
from tests.unit.bench import fakes

from envfleet.bench.child import Child, ChildFailed


def test_calls_share_a_state_and_return_values():
    with Child("pat") as child:
        assert child.call(fakes.remember, 30.0, 1) is None
        assert child.call(fakes.remember, 30.0, 2) == 1
        large = np.arange(1_000_000)
        np.testing.assert_array_equal(child.call(fakes.echo, 30.0, large), large)


def test_what_environments_print_does_not_disturb():
    with Child("pat") as child:
        assert child.call(fakes.shout, 30.0) == "heard"
        assert child.call(fakes.echo, 30.0, 5) == 5


def test_an_exception_is_named_and_the_child_goes_on():
    with Child("pat") as child:
        with pytest.raises(ChildFailed, match=r"^pat: ValueError: first line$"):
            child.call(fakes.raise_error, 30.0)
        assert child.is_alive
        assert child.call(fakes.echo, 30.0, 5) == 5


def test_a_death_is_told_with_the_last_words():
    with Child("pat") as child:
        with pytest.raises(ChildFailed, match=r"exited with code 7; the last it said: about to leave"):
            child.call(fakes.exit_now, 30.0)
        assert not child.is_alive
        with pytest.raises(ChildFailed):
            child.call(fakes.echo, 30.0, 5)


def test_a_hang_ends_with_the_time_limit():
    with Child("pat") as child:
        with pytest.raises(ChildFailed, match=r"took longer than 0\.5 s"):
            child.call(fakes.hang, 0.5)
        assert not child.is_alive


def test_descendants_end_with_the_child():
    with Child("pat") as child, pytest.raises(ChildFailed) as caught:
        child.call(fakes.spawn_and_hang, 30.0)
    found = re.search(r"grandchild (\d+)", str(caught.value))
    assert found is not None
    for _ in range(100):
        if not psutil.pid_exists(int(found[1])) or psutil.Process(int(found[1])).status() == psutil.STATUS_ZOMBIE:
            return
        time.sleep(0.05)
    os.kill(int(found[1]), 9)
    pytest.fail("the grandchild outlived the child")


def test_kill_twice():
    child = Child("pat")
    child.kill()
    child.kill()
    assert not child.is_alive
