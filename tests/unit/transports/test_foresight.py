"""What cannot work is told before any process starts."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest

import envfleet
from envfleet.errors import InvalidArgument
from envfleet.testing import CountingEnv
from envfleet.transports import process

ENV = CountingEnv()
OTHER = CountingEnv()


class StartedError(Exception):
    """A process would have been started."""


@pytest.fixture(autouse=True)
def _nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*args: Any, **options: Any) -> None:
        raise StartedError

    monkeypatch.setattr(process, "launch", start)


def closing_over(env: CountingEnv) -> Callable[[], CountingEnv]:
    return lambda: env


def make(env_fns: Any, **options: Any) -> None:
    envfleet.make(env_fns, backend="process", workers=2, **options)


@pytest.mark.parametrize("function", [lambda: ENV, closing_over(ENV)], ids=["global", "closure"])
def test_the_same_object_again_and_again(function: Callable[[], CountingEnv]) -> None:
    with pytest.raises(InvalidArgument, match="sub-environments 0 and 1 are the same object"):
        make(function, num_envs=2)


def test_the_same_object_by_other_ways() -> None:
    with pytest.raises(InvalidArgument, match="sub-environments 1 and 2 are the same object"):
        make([CountingEnv, lambda: ENV, closing_over(ENV)])


NOTHING_YET = types.FunctionType(closing_over(ENV).__code__, {}, closure=(types.CellType(),))


@pytest.mark.parametrize(
    "env_fns",
    [[lambda: ENV, lambda: OTHER], [lambda: CountingEnv(ENV.length)] * 2, [NOTHING_YET] * 2],
    ids=["others", "new", "nothing yet"],
)
def test_others_may_be_new(env_fns: Any) -> None:
    with pytest.raises(StartedError):
        make(env_fns)


def test_what_does_not_pickle() -> None:
    lock = threading.Lock()
    with pytest.raises(InvalidArgument, match=r"cannot be pickled, so it cannot reach worker processes.*lock"):
        make([CountingEnv, lambda: (lock, CountingEnv())[1]])


def test_cuda_and_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = types.SimpleNamespace(cuda=types.SimpleNamespace(is_initialized=lambda: True))
    monkeypatch.setitem(sys.modules, "torch", torch)
    with pytest.raises(InvalidArgument, match='use start_method="forkserver"'):
        make([CountingEnv] * 2, start_method="fork")
    with pytest.raises(StartedError):
        make([CountingEnv] * 2)
