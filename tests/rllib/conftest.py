"""One small local Ray for all modules that train."""

from __future__ import annotations

import dataclasses
import gc
import logging
import time
from collections.abc import Iterator

import pytest
import torch
from tests.conftest import PATIENCE_S, Resources, take_stock

# RLlib registers its single-agent environment again for every EnvRunner in a process.
OVERRIDING = "ignore:.*Overriding environment rllib-single-agent-env-v0:UserWarning"
# Ray's own settings, as its data sets take stock of them once Learners are processes.
DEPRECATED = r"ignore:`use_\w+` is deprecated:DeprecationWarning"


IS_OURS = pytest.StashKey[bool]()  # whether Ray was started here


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/rllib" in item.path.as_posix():
            item.add_marker(pytest.mark.filterwarnings(OVERRIDING, DEPRECATED))


@pytest.fixture(scope="module")
def local_ray(request: pytest.FixtureRequest) -> Iterator[None]:
    """A Ray of this process, or the one that there is; it stays as long as tests of this folder follow."""
    import ray

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    if not ray.is_initialized():
        request.config.stash[IS_OURS] = True
        ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    yield
    torch.set_num_threads(threads)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End it with the last of them."""
    stays = nextitem is not None and nextitem.path.parent == item.path.parent
    if not stays and item.config.stash.get(IS_OURS, False):
        import ray

        item.config.stash[IS_OURS] = False
        ray.shutdown()


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
