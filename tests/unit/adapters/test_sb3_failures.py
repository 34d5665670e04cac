"""`FleetVecEnv`: calls in two halves, errors, and what it refuses."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import stable_baselines3.common.env_util
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv
from tests.unit.adapters.peers import Make
from tests.unit.adapters.sb3_cases import OURS, PROCESS, SERIAL
from tests.waiting import PATIENCE_S

import envfleet
from envfleet.adapters.sb3 import FleetVecEnv
from envfleet.errors import (
    CallPending,
    FleetBroken,
    FleetClosed,
    InvalidArgument,
    NothingPending,
    SubEnvError,
    WorkerDied,
)
from envfleet.testing import CountingEnv, FaultyEnv, once_marker
from envfleet.testing.faults import PlainError


@pytest.mark.parametrize("ours", OURS)
def test_calls_in_two_halves(ours: Make, close_later: Make) -> None:
    env = close_later(ours, [CountingEnv] * 2)
    env.reset()
    with pytest.raises(NothingPending):
        env.step_wait()
    env.step_async(np.zeros(2, int))
    with pytest.raises(CallPending):
        env.step_async(np.zeros(2, int))
    assert env.step_wait()[1].tolist() == [1, 1]
    env.step_async(np.zeros(2, int))
    assert env.reset()[:, 0].tolist() == [0, 0]
    with pytest.raises(NothingPending):
        env.step_wait()
    assert env.step(np.zeros(2, int))[1].tolist() == [1, 1]
    env.step_async(np.zeros(2, int))
    env.close()
    env.close()
    with pytest.raises(FleetClosed):
        env.reset()


def test_ctrl_c_in_a_step(close_later: Make) -> None:
    """Training is stopped that way; the environment can be used for an evaluation afterwards."""
    env = close_later(PROCESS, [functools.partial(FaultyEnv, "slow", nth=1, duration_s=1.0)] * 2)
    env.reset()
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        env.step(np.zeros(2, int))
    timer.join()
    assert env.reset()[:, 0].tolist() == [0, 0]
    assert env.step(np.zeros(2, int))[1].tolist() == [1, 1]


# ------------------------------------------------------------------------------------------------ failures


@pytest.mark.parametrize("ours", OURS)
@pytest.mark.parametrize("when", ["constructor", "reset", "step"])
def test_errors_keep_their_type(ours: Make, when: Any, close_later: Make) -> None:
    """SubprocVecEnv: `EOFError`, or a hang."""

    def use() -> None:
        env = close_later(ours, [CountingEnv, functools.partial(FaultyEnv, "raise", when)])
        env.reset()
        env.step(np.zeros(2, int))

    with pytest.raises(PlainError, match="broken on purpose") as caught:
        use()
    if when != "constructor" or ours is PROCESS:
        assert isinstance(caught.value.__cause__, SubEnvError)
        assert caught.value.__cause__.env_index == 1


def test_worker_that_dies(close_later: Make) -> None:
    env = close_later(PROCESS, [CountingEnv, functools.partial(FaultyEnv, "sigkill")])
    env.reset()
    with pytest.raises(WorkerDied, match="SIGKILL"):
        env.step(np.zeros(2, int))
    with pytest.raises(FleetBroken):
        env.reset()
    env.close()


@pytest.mark.parametrize("ours", OURS)
def test_restarts_look_like_a_time_limit(ours: Make, close_later: Make, tmp_path: Path) -> None:
    """A trainer bootstraps from the last observation and continues; `info["env_error"]` has the error."""
    env_fns = [CountingEnv, functools.partial(FaultyEnv, "raise", nth=3, once=once_marker(str(tmp_path)))]
    env = close_later(ours, env_fns, on_failure="restart")
    env.reset()
    for _ in range(2):
        env.step(np.zeros(2, int))
    observations, _, dones, infos = env.step(np.zeros(2, int))
    assert dones.tolist() == [False, True]
    assert "broken on purpose" in infos[1]["env_error"]
    assert infos[1]["TimeLimit.truncated"]
    assert infos[1]["terminal_observation"][0] == 2
    assert "env_error" not in env.reset_infos[1]
    assert observations[:, 0].tolist() == [3, 0]
    assert env.step(np.zeros(2, int))[1].tolist() == [4, 1]


# ------------------------------------------------------------------------------------------------ the class


def test_takes_a_fleet(close_later: Make) -> None:
    fleet = envfleet.make("CartPole-v1", num_envs=2, backend="serial", autoreset_mode=AutoresetMode.SAME_STEP)
    env = close_later(FleetVecEnv, fleet)
    assert issubclass(FleetVecEnv, VecEnv)
    assert env.fleet is fleet
    assert repr(env) == f"FleetVecEnv({fleet!r})"
    env.close()
    assert fleet.closed


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_refuses_other_autoreset_modes(mode: AutoresetMode) -> None:
    with (
        envfleet.make("CartPole-v1", 2, backend="serial", autoreset_mode=mode) as fleet,
        pytest.raises(InvalidArgument, match=rf"{mode.name}, expected SAME_STEP.*FleetVecEnv\(env, num_envs\)"),
    ):
        FleetVecEnv(fleet)
    with pytest.raises(InvalidArgument, match="SAME_STEP"):
        FleetVecEnv("CartPole-v1", 2, backend="serial", autoreset_mode=mode)


def test_refuses_what_it_cannot_use() -> None:
    other: Any = gymnasium.make("CartPole-v1")
    with pytest.raises(InvalidArgument, match="is an environment, expected a callable"):
        FleetVecEnv(other, 2)
    with (
        envfleet.make("CartPole-v1", 2, backend="serial", autoreset_mode="SAME_STEP") as fleet,
        pytest.raises(InvalidArgument, match=r"num_envs=2 and \{\} with an existing fleet"),
    ):
        FleetVecEnv(fleet, 2)


@pytest.mark.parametrize("seed", ["a", 1.5, -1, [1, 2, 3]])
def test_seeds_that_are_none(seed: Any, close_later: Make) -> None:
    env = close_later(SERIAL, [CountingEnv] * 3)
    with pytest.raises(InvalidArgument, match=r"^seed=.*: pass a whole number of at least 0"):
        env.seed(seed)
    assert env.seed(np.int64(4)) == [4, 5, 6]
    env.reset()


@pytest.mark.parametrize(
    ("options", "words"),
    [([{}, {}], "options has 2 entries, expected one for each of 3"), (5, "options=5"), ([{}, 1, {}], "an entry of")],
)
def test_options_that_do_not_fit(options: Any, words: str, close_later: Make) -> None:
    env = close_later(SERIAL, [CountingEnv] * 3)
    with pytest.raises(InvalidArgument, match=words):
        env.set_options(options)
    env.reset()


@pytest.mark.parametrize("indices", [5, -4, [0, 5], "a", 1.5, [0.5], [True, False, True]])
def test_indices_of_no_sub_environment(indices: Any, close_later: Make) -> None:
    env = close_later(SERIAL, [CountingEnv] * 3)
    calls = {
        "get": lambda: env.get_attr("length", indices),
        "set": lambda: env.set_attr("length", 2, indices),
        "call": lambda: env.env_method("reset", indices=indices),
        "wrapper": lambda: env.env_is_wrapped(Monitor, indices),
    }
    for call in calls.values():
        with pytest.raises(InvalidArgument, match=r"^indices=.*: pass a whole number from -3 to 2"):
            call()
    assert env.get_attr("length", np.int64(-1)) == env.get_attr("length", [2])


def test_options_of_make(close_later: Make) -> None:
    env = close_later(FleetVecEnv, "CartPole-v1", num_envs=3, backend="thread", workers=2, copy=False)
    assert env.fleet.plan.num_workers == 2
    env.reset()
    first = env.step(np.zeros(3, int))[0].copy()
    second = env.step(np.zeros(3, int))[0]
    assert not np.array_equal(first, second)


def test_start_method_is_taken_as_subproc_vec_env_takes_it(close_later: Make) -> None:
    close_later(FleetVecEnv, "CartPole-v1", 2, backend="process", start_method="forkserver")
    with pytest.raises(InvalidArgument, match=r"start_method='spawn', expected 'forkserver' or None: .* leave it out"):
        FleetVecEnv("CartPole-v1", 2, start_method="spawn")


def test_envs_are_in_reach_where_they_are_in_this_thread(close_later: Make) -> None:
    env = close_later(FleetVecEnv, "CartPole-v1", 2, backend="serial")
    assert [one.unwrapped.spec.id for one in env.envs] == ["CartPole-v1"] * 2
    env.envs[1].unwrapped.mark = 7
    assert env.get_attr("mark", 1) == [7]
    other = close_later(FleetVecEnv, "CartPole-v1", 2, backend="process", workers=1)
    with pytest.raises(AttributeError, match=r"sub-environments are not objects of this process: call env_method"):
        other.envs  # noqa: B018
    assert not hasattr(other, "envs")


def test_made_by_make_vec_env(close_later: Make) -> None:
    """SB3's own helper, which puts its `Monitor` around each."""
    make_vec_env = stable_baselines3.common.env_util.make_vec_env
    options = {"backend": "process", "workers": 2}
    env = close_later(make_vec_env, "CartPole-v1", 3, seed=4, vec_env_cls=FleetVecEnv, vec_env_kwargs=options)
    assert isinstance(env, FleetVecEnv)
    assert env.fleet.plan.num_workers == 2
    expected = close_later(make_vec_env, "CartPole-v1", 3, seed=4)
    np.testing.assert_array_equal(env.reset(), expected.reset())
    assert env.env_is_wrapped(gymnasium.wrappers.TimeLimit) == [True] * 3


def test_workers_do_not_import_a_trainer(close_later: Make) -> None:
    """Torch in every worker would cost seconds and hundreds of megabytes."""
    env = close_later(PROCESS, [CountingEnv] * 2)
    env.get_attr("length")
    env.env_is_wrapped(Monitor)
    env.env_is_wrapped(gymnasium.wrappers.TimeLimit)
    names = ("torch", "stable_baselines3")
    # A lambda, because a worker imports the module of a function with a name, and this module imports both.
    assert env.fleet.apply(lambda _: [name for name in names if name in sys.modules]) == [[], []]


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_envfleet_alone_imports_no_trainer() -> None:
    code = "import sys, envfleet, envfleet.adapters; print({'torch', 'stable_baselines3'} & set(sys.modules))"
    assert run_python(code).stdout.strip() == "set()"


def test_without_stable_baselines() -> None:
    code = "import sys; sys.modules['stable_baselines3'] = None; import envfleet.adapters.sb3"
    result = run_python(code)
    assert result.returncode == 1
    assert "ImportError: envfleet.adapters.sb3 needs Stable-Baselines3" in result.stderr
    assert "pip install 'stable-baselines3>=2.7'" in result.stderr


def test_the_warnings_of_stable_baselines_are_none(close_later: Make) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = close_later(SERIAL, [CountingEnv] * 2)
        env.seed(0)
        env.reset()
        env.step(np.zeros(2, int))
