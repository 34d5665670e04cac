"""Environments' modules are imported once, in a server from which workers are forked, if that is safe."""

from __future__ import annotations

import functools
import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from tests.fault.programs import wait_gone

import envfleet
from envfleet.errors import StartTimeout
from envfleet.native.cache import load_source
from envfleet.testing import CountingEnv
from envfleet.workers.builders import EnvBuilder
from envfleet.workers.transports.launch import server
from envfleet.workers.transports.preload import find_modules

NAME = "envfleet_preloaded"
HEAD = f"""
import os, sys, threading, time
from pathlib import Path
import gymnasium as gym
from envfleet.native.cache import load_source
from envfleet.testing import CountingEnv
with open(Path(__file__).with_name("imports"), "a") as file:
    file.write(f"{{os.getpid()}}\\n")
class Env(CountingEnv):
    parent = property(lambda self: os.getppid())
    known = property(lambda self: os.environ.get("KNOWN"))
    word = os.environ.get("ENVFLEET_WORD")
gym.register("Preloaded-v0", entry_point="{NAME}:Env")
"""

Write = Callable[..., Any]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write a module, and import it here."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # which differs before and in a test

    def write_one(body: str = "") -> Any:
        (tmp_path / f"{NAME}.py").write_text(f"{HEAD}\n{body}\n")
        return importlib.import_module(NAME)

    yield write_one
    sys.modules.pop(NAME, None)
    gym.registry.pop("Preloaded-v0", None)


def imports(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "imports").read_text().split()]


def read(env: Any, *names: str) -> list[Any]:
    """Make a fleet of two workers and return what attributes their environments have."""
    with envfleet.make(env, 2, backend="process", workers=2) as fleet:
        fleet.reset(seed=0)
        fleet.step([0, 0])
        return [fleet.get_attr(name) for name in names]


def test_a_module_is_imported_once_for_all_fleets(write: Write, tmp_path: Path) -> None:
    module = write()
    (one,), (other,) = read(module.Env, "parent"), read(functools.partial(gym.make, "Preloaded-v0"), "parent")
    assert imports(tmp_path)[0] == os.getpid()
    assert len(imports(tmp_path)) == 2
    assert set(one) == set(other) == {imports(tmp_path)[1]}


def test_generated_code_that_others_load_leaves_the_server(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process that loads a kernel sets the time of its source, from which no server imports anything."""
    monkeypatch.setenv("ENVFLEET_CACHE_DIR", str(tmp_path / "cache"))
    module, generated = write(), load_source(f"Little-{'0' * 24}", "loops", "")
    assert generated.__file__ is not None
    for time_ns in (10**9, 2 * 10**9):
        os.utime(generated.__file__, ns=(time_ns, time_ns))
        read(module.Env)
    del sys.modules[generated.__name__]
    assert len(imports(tmp_path)) == 2


def test_modules_that_start_threads_are_imported_by_workers(write: Write, tmp_path: Path) -> None:
    """A fork of a process with threads may hang: the lock below is held for good in each."""
    module = write(
        "LOCK, over = threading.Lock(), threading.Event()\n"
        "threading.Thread(target=lambda: [LOCK.acquire(), over.wait()], daemon=True).start()\n"
        "while not LOCK.locked(): time.sleep(0.001)\n"
        "Env.is_free = property(lambda self: LOCK.locked() and threading.active_count() > 1)\n"
    )
    try:
        for _ in range(2):
            parents, are_free = read(module.Env, "parent", "is_free")
            assert server._process is not None
            assert set(parents) == {server._process.pid}
            assert are_free == (True, True)  # each has the thread that holds it
        assert len(imports(tmp_path)) == 1 + 1 + 4
    finally:
        module.over.set()


def test_environment_variables_that_are_read_at_import(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    module = write()
    for word in ("one", "two"):
        monkeypatch.setenv("ENVFLEET_WORD", word)
        assert read(module.Env, "word") == [(word, word)]


def test_environment_variables_that_are_set_at_import(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    module = write("os.environ['KNOWN'] = 'yes'")
    monkeypatch.delenv("KNOWN")  # the owner has lost it
    assert read(module.Env, "known") == [("yes", "yes")]


def test_a_module_that_was_changed(write: Write, tmp_path: Path) -> None:
    module = write("Env.version = 1")
    assert read(module.Env, "version") == [(1, 1)]
    path = tmp_path / f"{NAME}.py"
    path.write_text(path.read_text().replace("version = 1", "version = 2"))
    os.utime(path, ns=(0, 0))  # a clock may be coarse
    assert read(module.Env, "version") == [(2, 2)]


@pytest.mark.parametrize("body", ["raise ValueError('not here')", "sys.exit('not here')", "os._exit(7)"])
def test_a_module_that_cannot_be_imported_by_others(write: Write, body: str, tmp_path: Path) -> None:
    """Its exception is reported as usual; a server that it ends is replaced."""
    module = write(f"if os.getpid() != {os.getpid()}:\n    {body}")
    for _ in range(2):
        with pytest.raises(envfleet.errors.EnvfleetError, match=r"not here|exited with code [17]"):
            read(module.Env)
    assert read(CountingEnv, "length") == [(5, 5)]


def test_an_import_that_does_not_end(write: Write, tmp_path: Path) -> None:
    module = write(f"while os.getpid() != {os.getpid()}:\n    time.sleep(0.1)")
    with pytest.raises(StartTimeout, match=NAME):
        envfleet.make(module.Env, 2, backend="process", workers=2, start_timeout_s=20.0)
    assert not wait_gone(imports(tmp_path)[1:])


def test_what_modules_print_is_printed_once(write: Write, capfd: pytest.CaptureFixture[str]) -> None:
    module = write("print('hello', flush=True)")
    capfd.readouterr()
    read(module.Env)
    assert capfd.readouterr().out == "hello\n"


# ------------------------------------------------------------------------------------------------ which


def find(function: Any) -> list[str]:
    return find_modules([EnvBuilder(function)])


def make_by_id(env_id: Any) -> gym.Env[Any, Any]:
    return gym.make(env_id)


class Config:
    def __init__(self, env_id: str) -> None:
        self.parts = [{"env": env_id}]


def test_modules_are_found_in_what_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    cart_pole = "gymnasium.envs.classic_control.cartpole"
    env_id, config = "CartPole-v1", Config("CartPole-v1")
    own = [make_by_id.__module__]
    assert find(functools.partial(make_by_id, "CartPole-v1")) == sorted([cart_pole, *own])
    monkeypatch.setattr(make_by_id, "__module__", "__main__")
    assert find(make_by_id) == []
    assert find(functools.partial(make_by_id, env_id)) == [cart_pole]
    scope: dict[str, Any] = {"__name__": "__main__", "gym": gym, "config": {"env": "CartPole-v1"}}
    exec("make = lambda: gym.make(config['env'])", scope)
    assert find(scope["make"]) == [cart_pole]
    assert find(functools.partial(make_by_id, config)) == sorted([cart_pole, *own])  # of the class
    assert find(functools.partial(gym.make, gym.spec("CartPole-v1"))) == [cart_pole]
    assert find(CountingEnv) == ["envfleet.testing.envs"]


def test_what_a_callable_imports_itself_is_left_to_it() -> None:
    """It may set an environment variable first."""
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec("def make():\n    import psutil\n    return psutil.Env()", scope)
    assert find(scope["make"]) == []


def test_what_does_not_pickle_is_left_to_the_error_that_says_so() -> None:
    lock = threading.Lock()
    assert find(lambda: lock) == []
    with pytest.raises(envfleet.errors.InvalidArgument, match="cannot be sent"):
        read(lambda: lock, "none")
