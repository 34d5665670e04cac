"""The turbofan's rules: blocks of flights, ends inside a block, and what stays hidden."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import envfleet
from envfleet.envs.turbofan import FAILURE, SOLD, Turbofan, turbofan
from envfleet.envs.turbofan.engines import make_engines
from envfleet.envs.turbofan.plots import EngineLog, plot_rewards, plot_sensors
from envfleet.errors import InvalidArgument
from envfleet.kernels.kernel import read_kernel
from envfleet.kernels.plain import PlainEnv
from envfleet.testing import check_kernel


def test_compiled_as_written(check_without_indices: Callable[..., int]) -> None:
    assert check_without_indices(Turbofan, seeds=(0, 1)) == 200


@pytest.mark.slow  # compiles once more
def test_indices_are_within_bounds() -> None:
    assert check_kernel(Turbofan, seeds=(0, 1)) == 200


def test_lives_do_not_depend_on_the_length_of_a_block() -> None:
    with (
        envfleet.make("envfleet/Turbofan-v0", 8, backend="kernel") as long,
        envfleet.make("envfleet/Turbofan-v0", 8, backend="kernel", step_size=5, reveal=True) as short,
    ):
        long.reset(seed=3)
        short.reset(seed=3)
        fly = np.zeros(8, np.int64)
        for block in range(6):
            actions = np.full(8, block == 3, np.int64)
            observations, rewards, *_ = long.step(actions)
            parts = [short.step(each)[:2] for each in (actions, fly)]
            np.testing.assert_array_equal(observations, np.concatenate([part[0] for part in parts], axis=1))
            np.testing.assert_allclose(rewards, parts[0][1] + parts[1][1], rtol=1e-12)


def test_a_sale_has_one_row_that_repeats() -> None:
    env = gymnasium.make("envfleet/Turbofan-v0")
    env.reset(seed=1)
    observation, reward, terminated, truncated, info = env.step(2)
    assert (terminated, truncated, info["num_rows"], info["reason"]) == (True, False, 1, SOLD)
    assert observation.dtype == np.float32
    np.testing.assert_array_equal(observation, np.repeat(observation[:1], 10, axis=0))
    assert 149 < float(reward) <= 150


def test_a_failure_costs_1000_and_ends_within_a_block() -> None:
    env = PlainEnv(read_kernel(Turbofan))
    env.reset(seed=2)
    terminated, reward = False, 0.0
    while not terminated:
        observation, reward, terminated = env.step(0)[:3]
    count = int(env.state.num_rows)
    assert env.state.reason == FAILURE
    assert 1 <= count <= 10
    assert -1000 - 20 * count < reward < -1000 + 20 * count
    np.testing.assert_array_equal(
        observation[count - 1 :], np.repeat(observation[count - 1 : count], 11 - count, axis=0)
    )


def test_a_decision_may_be_for_fewer_flights_than_it_has_rows() -> None:
    with envfleet.make("envfleet/Turbofan-v0", 2, backend="kernel", flights=3) as fleet:
        fleet.reset(seed=0)
        assert fleet.step(np.array([0, 1]))[-1]["num_rows"].tolist() == [3, 3]


def test_variants_pickle_and_hide_the_degradation() -> None:
    kernel = turbofan(3, return_all_states=False)
    assert kernel is turbofan(3, False)
    assert pickle.loads(pickle.dumps(kernel)) is kernel
    assert kernel.observation_space.shape == (9,)
    assert "degradation" not in kernel.info_fields
    assert "degradation" in turbofan(3, reveal=True).info_fields
    with pytest.raises(InvalidArgument, match="from 1 to 1000"):
        turbofan(0)


@pytest.mark.parametrize("return_all_states", [True, False])
def test_a_logbook_holds_sensors_and_flight_counts(return_all_states: bool) -> None:
    plain = PlainEnv(read_kernel(turbofan(5, return_all_states)))
    logbook = PlainEnv(read_kernel(turbofan(5, return_all_states, logbook=True)))
    flights = repairs = 0
    terminated = False
    shown, seen = logbook.reset(seed=6), plain.reset(seed=6)
    for action in [0, 0, 1, 0, 0, 0, 1, 0, 0, 2]:
        np.testing.assert_array_equal(shown[..., :9], seen)
        np.testing.assert_array_equal(shown[..., -1, 9:] if return_all_states else shown[9:], [flights, repairs])
        assert not terminated
        seen, _, terminated = plain.step(action)[:3]
        shown, _, other, *_ = logbook.step(action)
        assert other == terminated
        repairs += action == 1
        flights += int(plain.state.num_rows) if action != 2 else 0
    assert terminated
    np.testing.assert_array_equal(shown[..., 9:].reshape(-1, 2)[-1], [flights, repairs])
    assert pickle.loads(pickle.dumps(turbofan(5, logbook=True))) is turbofan(5, logbook=True)
    log = EngineLog()
    log.add(shown, 2, 100.0)
    assert log.sensors.shape[1] == 9


def test_pictures_show_repairs_and_the_end() -> None:
    log = EngineLog()
    with envfleet.make("envfleet/Turbofan-v0", 1, backend="kernel", step_size=5, reveal=True) as fleet:
        fleet.reset(seed=4)
        for action in [0] * 6 + [1] + [0] * 3 + [2]:
            observations, rewards, *_, infos = fleet.step(np.array([action]))
            info = {name: infos[name][0] for name in ("num_rows", "reason", "degradation")}
            log.add(observations[0], action, rewards[0], info=info)
    assert log.sensors.shape == (51, 9)
    assert log.repairs.tolist() == [31]
    sensors = plot_sensors(log)
    assert len(sensors.axes) == 9
    assert [text.get_text() for text in sensors.legends[0].get_texts()] == ["repair", "sale"]
    assert len(plot_rewards(log).axes[0].patches) == 11
    assert len(log.degradation) == 11


def test_last_rows_alone_count_all_flights() -> None:
    spec, logs = gymnasium.spec("envfleet/Turbofan-v0"), []
    for is_whole in (True, False):
        logs.append(log := EngineLog())
        options = {"step_size": 10, "return_all_states": is_whole}
        with make_engines(spec, 1, AutoresetMode.DISABLED, options) as fleet:
            fleet.reset(seed=3)
            for action in (0, 0, 1, 0, 2):
                observations, rewards, *_, infos = fleet.step(np.array([action]))
                info = {name: infos[name][0] for name in ("num_rows", "reason")}
                log.add(observations[0], action, rewards[0], info=info)
    whole, last = (log.portrait() for log in logs)
    assert last.text == whole.text == "Repaired at flight 21. Sale at flight 41."
    assert last.ends.tolist() == whole.ends.tolist()
    assert {len(line.values) for line in last.lines} == {41}
