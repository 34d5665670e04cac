"""Fixtures of the tests of training, as `rl_hockey` trains."""

from tests.unit.training.conftest import _one_thread, _polars_runtime

__all__ = ["_one_thread", "_polars_runtime"]
