"""Number of threads of SciPy's BLAS during compiled updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from envfleet.native import blas

FUNCTIONS = blas._thread_functions()


@pytest.fixture
def get_count() -> Callable[[], int]:
    assert FUNCTIONS is not None, "SciPy's wheels have OpenBLAS"
    return FUNCTIONS[0]


@pytest.fixture(autouse=True)
def _two_threads() -> Any:
    assert FUNCTIONS is not None
    before = FUNCTIONS[0]()
    FUNCTIONS[1](2)
    yield
    FUNCTIONS[1](before)


def test_one_thread_until_the_last_user_leaves(get_count: Callable[[], int]) -> None:
    first, second = blas.one_blas_thread(), blas.one_blas_thread()
    first.__enter__()
    second.__enter__()
    assert get_count() == 1
    first.__exit__(None, None, None)
    assert get_count() == 1
    second.__exit__(None, None, None)
    assert get_count() == 2


def test_an_exception_restores_the_threads(get_count: Callable[[], int]) -> None:
    with pytest.raises(KeyError), blas.one_blas_thread():
        raise KeyError
    assert get_count() == 2


def test_another_blas_is_left_alone(monkeypatch: pytest.MonkeyPatch, get_count: Callable[[], int]) -> None:
    monkeypatch.setattr(blas, "_thread_functions", lambda: None)
    with blas.one_blas_thread():
        assert get_count() == 2
