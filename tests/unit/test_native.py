"""The thread that runs compiled functions: results, order, failures, what is left behind, and help with products."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numba
import numpy as np
import pytest
from tests.unit.products import multiply

from envfleet.native import products
from envfleet.native.thread import NativeThread, _thread_of, call_helped


@numba.njit(nogil=True)
def scale(values, factor):
    values += 1
    return values.sum(), values * factor


@numba.njit(nogil=True)
def refuse(value):
    if value > 0:
        raise MemoryError
    return value


def count_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_calls_are_made_in_order_with_whatever_types() -> None:
    values = np.zeros(4)
    with contextlib.closing(NativeThread()) as thread:
        thread.start([(scale, (values, 2.0)), (scale, (values, 3))])
        thread.start([(scale, (np.ones(2, np.float32), 2.0))])
        (first, doubled), (second, tripled) = thread.results()
        assert (first, second) == (4, 8)
        np.testing.assert_array_equal([doubled, tripled, values], [[2] * 4, [6] * 4, [2] * 4])
        [(total, found)] = thread.results()
        assert total == 4
        np.testing.assert_array_equal(found, [4, 4])


def test_a_third_set_is_refused() -> None:
    with contextlib.closing(NativeThread()) as thread:
        for value in (0, -1):
            thread.start([(refuse, (value,))])
        with pytest.raises(RuntimeError, match="take the results of the first"):
            thread.start([(refuse, (0,))])
        assert [thread.results(), thread.results()] == [[0], [-1]]


def test_a_failure_is_raised_once() -> None:
    with contextlib.closing(NativeThread()) as thread:
        thread.start([(refuse, (1,))])
        thread.start([(refuse, (0,))])
        with pytest.raises(MemoryError, match="ran out of memory"):
            thread.results()
        assert thread.results() == [0]


def test_threads_end_and_arguments_are_released() -> None:
    before, values = count_threads(), np.zeros(1000)
    held = sys.getrefcount(values)
    closed, dropped = NativeThread(), NativeThread()
    assert count_threads() == before + 2
    for thread in (closed, dropped):
        thread.start([(scale, (values, 2.0))])
    assert sys.getrefcount(values) > held
    closed.results()
    dropped.results()
    assert sys.getrefcount(values) == held
    dropped.start([(scale, (np.zeros(100_000), 2.0))])  # under way
    closed.close()
    del dropped, thread
    deadline = time.monotonic() + 10
    while count_threads() > before and time.monotonic() < deadline:  # the system lists a thread a little longer
        time.sleep(0.001)
    assert count_threads() == before


@pytest.mark.parametrize(("turned", "inner"), [("neither", 300), ("left", 2000), ("right", 300), ("right", 1025)])
def test_products_with_a_helping_thread_have_the_same_bits(turned: str, inner: int) -> None:
    rng = np.random.default_rng(inner)
    left, right = (rng.standard_normal(shape).astype(np.float32) for shape in ((250, inner), (inner, 130)))
    given, other = left.T.copy() if turned == "left" else left, right.T.copy() if turned == "right" else right
    arguments = (given, other, np.empty((250, 130), np.float32), turned == "left", turned == "right")
    alone = np.empty((250, 130), np.float32)
    multiply(given, other, alone, *arguments[3:])
    products._board[products._UNDONE] = 7  # whatever is shared leaves 0
    with contextlib.closing(NativeThread()) as thread:
        for _ in range(20):
            many = [(*arguments[:2], np.empty_like(alone), *arguments[3:]) for _ in range(10)]
            thread.start([(multiply, one) for one in many])
            thread.results(helps=True)
            assert all(np.array_equal(one[2], alone) for one in many)
    assert products._board[products._UNDONE] == 0


def test_a_part_cannot_be_called_from_python() -> None:
    square = np.ones((2, 2), np.float32)
    multiply(square, square, np.empty_like(square), False, False)
    with pytest.raises(TypeError, match="not callable"):
        products.multiply(square, square, np.empty_like(square), False, False)


def test_a_helper_takes_panels_of_products() -> None:
    """What is left of a product that was begun is written by whoever helps."""
    board, left, right = products._board, np.full((256, 256), 2, np.float32), np.full((256, 64), 3, np.float32)
    result, count = np.zeros((256, 64), np.float32), -(-64 // products.TILE_COLUMNS)
    places = [left.ctypes.data, 256, 1, right.ctypes.data, 64, 1, result.ctypes.data, 256, 256, 64, 256]
    board[products._TASK : products._TASK + len(places)] = places
    board[products._UNDONE], board[products._LEFT] = count, count
    finished = np.ones(1, np.int64)
    helper = threading.Thread(target=products.help_until, args=(finished.ctypes.data, 2))
    helper.start()
    deadline = time.monotonic() + 60
    while board[products._UNDONE] and time.monotonic() < deadline:
        time.sleep(0.001)
    finished[0] = 2
    helper.join()
    assert (result == 2 * 3 * 256).all()
    assert not board[products._HELPERS]


def test_a_call_that_is_helped_returns_its_own_result() -> None:
    """An interrupt may have left the results of an earlier call."""
    values = np.arange(3.0)
    assert call_helped(scale, values, 2.0)[0] == 3 + 3
    _thread_of(os.getpid()).start([(scale, (values, 2.0))])
    assert call_helped(scale, values, 2.0)[0] == 3 + 3 * 3


USES_TWICE = """
from pathlib import Path
from typing import NamedTuple
from envfleet.native.compiling import compile_function

class {name}(NamedTuple):
    number: int

@compile_function
def double(given):
    return 2 * given.number

print(double({name}(4)))
"""
READ_ONLY = "from numba.core import caching; caching._CacheLocator.ensure_cache_path = lambda self: 1 / 0"


def run_file(path: Path, text: str) -> tuple[str, str]:
    path.write_text(text)
    os.utime(path, (len(text), len(text)))  # another time for another text
    command = [sys.executable, "-c", f"import {path.stem}"]
    done = subprocess.run(command, cwd=path.parent, capture_output=True, text=True, check=True)
    return done.stdout, done.stderr


def test_compiling_is_announced_once_and_stale_code_is_rebuilt(tmp_path: Path) -> None:
    told = "envfleet: compiling updates of agents (once, then cached) ...\n"
    path = tmp_path / "own.py"
    assert run_file(path, USES_TWICE.format(name="First")) == ("8\n", told)
    assert run_file(path, USES_TWICE.format(name="First")) == ("8\n", "")
    assert run_file(path, USES_TWICE.format(name="Another")) == ("8\n", told)


def test_what_cannot_be_cached_is_compiled_in_every_process(tmp_path: Path) -> None:
    program = READ_ONLY.replace("1 / 0", "(_ for _ in ()).throw(OSError)") + USES_TWICE.format(name="First")
    out, told = run_file(tmp_path / "own.py", program)
    assert out == "8\n"
    assert told == (
        "envfleet: compiling updates of agents (in every process: set NUMBA_CACHE_DIR to a folder that can be written) "
        "...\n"
    )
