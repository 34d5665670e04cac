"""Native implementations of environments, and what `backend="native"` and `"auto"` make of it."""

from __future__ import annotations

import importlib.util
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import envfleet
from envfleet import choice
from envfleet.errors import InvalidArgument
from envfleet.physics import simulations

PENDULUM = "InvertedPendulum-v5"


def pretend(monkeypatch: pytest.MonkeyPatch, **seconds: float) -> None:
    """Let one step of every 4 sub-environments take these seconds, by backend."""
    monkeypatch.setattr(choice, "whole_cores", lambda: 2)
    monkeypatch.setattr(choice, "_step_s", lambda fleet: seconds[fleet.plan.backend] * fleet.num_envs / 4)


def test_auto_says_that_the_task_equals_the_original(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, serial=0.003, native=0.001)
    with envfleet.make(PENDULUM, 8) as fleet:
        assert fleet.plan.backend == "native"
        assert "equal to the original in every bit" in fleet.plan.reason
        assert "stepped 3.00 × as fast as serial" in fleet.plan.reason
        assert [round(rate) for _, rate in fleet.plan.trials] == [1333, 4000]  # workers cannot be that fast
        assert fleet.spec is gym.spec(PENDULUM)


@pytest.mark.parametrize(
    ("thread_s", "process_s", "chosen"), [(0.004, 0.004, "serial"), (0.001, 0.004, "thread"), (0.004, 0.001, "process")]
)
def test_auto_never_returns_a_slower_task(
    thread_s: float, process_s: float, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, serial=0.002, native=0.0021, thread=thread_s, process=process_s)
    with envfleet.make(PENDULUM, 2) as fleet:
        assert fleet.plan.backend == chosen
        assert len(fleet.plan.trials) == 4
        assert fleet.reset(seed=0)[0].shape == (2, 4)


def test_auto_compares_the_task_with_one_thread_only(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, serial=0.002, native=0.0021)
    with envfleet.make(PENDULUM, 1) as fleet:
        assert fleet.plan.backend == "serial"
        assert "native, 1 worker × 1 stepped 0.95 × as fast as serial" in fleet.plan.reason


def test_auto_names_the_wrapper_that_prevents_the_task() -> None:
    spec = (gym.wrappers.ClipReward(gym.make(PENDULUM), -1.0, 1.0)).spec
    assert spec is not None
    with envfleet.make(spec, 1) as fleet:
        assert fleet.plan.backend == "serial"
        assert "the native task cannot be used: it has the wrapper ClipReward" in fleet.plan.reason


def test_auto_names_the_old_mujoco(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envfleet.natives.has_batches", lambda: False)
    with envfleet.make(PENDULUM, 1) as fleet:
        assert fleet.plan.backend == "serial"
        assert "MuJoCo older than 3.17" in fleet.plan.reason


def test_auto_names_the_option_that_prevents_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, serial=0.002, thread=0.004, process=0.004)
    with envfleet.make(PENDULUM, 2, envs_per_worker=1) as fleet:
        assert "the native task cannot be used: it does not have envs_per_worker" in fleet.plan.reason


@pytest.mark.parametrize(
    ("kwargs", "reason"),
    [({"reset_noise_scale": np.float64(0.1)}, "reset_noise_scale"), ({"render_mode": "depth_array"}, "depth_array")],
)
def test_arguments_that_need_the_original(kwargs: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"{reason}.* needs the original"):
        envfleet.make("InvertedPendulum-v5", 2, backend="native", **kwargs)


def test_auto_falls_back_to_the_original() -> None:
    with envfleet.make("InvertedPendulum-v5", 1, reset_noise_scale=np.float64(0.1)) as fleet:
        assert fleet.plan.backend == "serial"
        assert "the native task cannot be used: reset_noise_scale=np.float64(0.1) needs" in fleet.plan.reason


def test_native_names_the_compiled_twin() -> None:
    with envfleet.make("CartPole-v1", 2, backend="native") as fleet:
        assert fleet.plan.backend == "kernel"
        assert fleet.reset(seed=0)[0].shape == (2, 4)


def test_native_adopts_a_registered_vector_environment() -> None:
    with envfleet.make("ale_py:ALE/Pong-v5", 2, backend="native") as fleet:
        assert fleet.plan.backend == "adopted"
        assert fleet.reset(seed=0)[0].shape[0] == 2


def test_native_refuses_what_has_no_twin() -> None:
    with pytest.raises(InvalidArgument, match="no kernel, task or vector_entry_point"):
        envfleet.make("LunarLander-v3", 2, backend="native")


def test_native_kernels_restart_nothing() -> None:
    with pytest.raises(InvalidArgument, match=r"'native' needs a MuJoCo task, this is a compiled kernel.*'process'"):
        envfleet.make("CartPole-v1", 2, backend="native", on_failure="restart")


@pytest.mark.parametrize("env_id", ["CartPole-v1", PENDULUM])
def test_native_takes_one_dict_of_options_for_all(env_id: str) -> None:
    with envfleet.make(env_id, 2, backend="native") as fleet:
        for reset in (fleet.reset, lambda options: fleet.reset_envs([0, 1], options=options)):
            with pytest.raises(InvalidArgument, match="pass one for all"):
                reset(options=[None, {}])


def test_warnings_of_trials_are_printed_once(capfd: pytest.CaptureFixture[str]) -> None:
    simulations._printed.clear()
    for _ in range(2):
        envfleet.make("HalfCheetah-v5", 4, workers=1).close()
    assert capfd.readouterr().err.count("settotalmass") == 1


def test_without_mujoco_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "mujoco" else find_spec(name))
    with pytest.raises(InvalidArgument, match=r"mujoco is not installed \(pip install 'envfleet\[mujoco\]'\)"):
        envfleet.make("HalfCheetah-v5", 2, backend="native")
