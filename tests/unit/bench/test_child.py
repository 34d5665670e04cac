"""A child process answers calls, and whatever happens in it is an error with a reason, never a hang."""

import re

import numpy as np
import pytest
from tests.fault.programs import is_running
from tests.unit.bench import fakes
from tests.waiting import PATIENCE_S, wait_until

from envfleet.bench.child import Child, ChildFailed


def test_calls_share_a_state_and_return_values():
    with Child("pat") as child:
        assert child.call(fakes.remember, PATIENCE_S, 1) is None
        assert child.call(fakes.remember, PATIENCE_S, 2) == 1
        large = np.arange(1_000_000)
        np.testing.assert_array_equal(child.call(fakes.echo, PATIENCE_S, large), large)


def test_what_environments_print_does_not_disturb():
    with Child("pat") as child:
        assert child.call(fakes.shout, PATIENCE_S) == "heard"
        assert child.call(fakes.echo, PATIENCE_S, 5) == 5


def test_an_exception_is_named_and_the_child_goes_on():
    with Child("pat") as child:
        with pytest.raises(ChildFailed, match=r"^pat: ValueError: first line$"):
            child.call(fakes.raise_error, PATIENCE_S)
        assert child.is_alive
        assert child.call(fakes.echo, PATIENCE_S, 5) == 5


def test_a_death_is_told_with_the_last_words():
    with Child("pat") as child:
        with pytest.raises(ChildFailed, match=r"exited with code 7; its last output: about to leave"):
            child.call(fakes.exit_now, PATIENCE_S)
        assert not child.is_alive
        with pytest.raises(ChildFailed):
            child.call(fakes.echo, PATIENCE_S, 5)


def test_a_hang_ends_with_the_time_limit():
    with Child("pat") as child:
        with pytest.raises(ChildFailed, match=r"took longer than 0\.5 s"):
            child.call(fakes.hang, 0.5)
        assert not child.is_alive


def test_descendants_end_with_the_child():
    with Child("pat") as child, pytest.raises(ChildFailed) as caught:
        child.call(fakes.spawn_and_hang, PATIENCE_S)
    match = re.search(r"grandchild (\d+)", str(caught.value))
    assert match is not None
    wait_until(lambda: not is_running(int(match[1])), "the end of the grandchild")


def test_kill_twice():
    child = Child("pat")
    child.kill()
    child.kill()
    assert not child.is_alive
