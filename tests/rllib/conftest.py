"""The Ray cluster of tests/ray, for all modules that train."""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Iterator

import pytest
import torch
from tests.conftest import Resources, take_stock
from tests.ray.conftest import pytest_runtest_teardown, shared_cluster
from tests.waiting import PATIENCE_S

__all__ = ["pytest_runtest_teardown"]  # which ends the cluster

# RLlib registers its single-agent environment again for every EnvRunner in a process.
OVERRIDING = "ignore:.*Overriding environment rllib-single-agent-env-v0:UserWarning"
# Ray's own settings, as its data sets take stock of them once Learners are processes.
DEPRECATED = r"ignore:`use_\w+` is deprecated:DeprecationWarning"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/rllib" in item.path.as_posix():
            item.add_marker(pytest.mark.filterwarnings(OVERRIDING, DEPRECATED))


@pytest.fixture(scope="module")
def local_ray(request: pytest.FixtureRequest) -> Iterator[None]:
    """A cluster that this process is connected to."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    shared_cluster(request.config)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", autouse=True)
def _nothing_leaks(_folders: None) -> Iterator[None]:
    """As everywhere, but for what Ray keeps as long as this process lives."""
    before = take_stock()
    yield
    deadline = time.monotonic() + PATIENCE_S
    while True:
        gc.collect()
        leaked = _without_ray(take_stock()).beyond(before)
        if not leaked:
            return
        if time.monotonic() > deadline:
            pytest.fail(f"left behind by this module: {leaked}")
        time.sleep(0.05)


def _without_ray(resources: Resources) -> Resources:
    return dataclasses.replace(
        resources,
        threads=frozenset(name for name in resources.threads if not name.startswith(("PythonGCThread", "ray_"))),
        children=frozenset(name for name in resources.children if "ray" not in name),
        shared_memory=frozenset(),
        descriptors=frozenset(name for name in resources.descriptors if "envfleet" in name or "pipe:" in name),
    )
