"""Kernels run as plain Python against Gymnasium's own environments: spaces, episodes, parameters, frames."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from tests.golden.classic.originals import (
    ACROBOT,
    CART_POLE,
    MOUNTAIN_CAR,
    MOUNTAIN_CAR_CONTINUOUS,
    PAIRS,
    PENDULUM,
    Pair,
    assert_same,
)

from envfleet.kernels.kernel import read_kernel
from envfleet.kernels.plain import PlainEnv
from envfleet.kernels.registration import find_original, find_twin
from envfleet.registry import ENVIRONMENTS

each_pair = pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.id)


def make_plain(pair: Pair, **params: Any) -> PlainEnv:
    spec = read_kernel(pair.kernel)
    values = spec.params.default_record()
    for name, value in params.items():
        values[name] = value
    return PlainEnv(spec, values)


def compare_episode(
    pair: Pair,
    env: PlainEnv,
    original: gym.Env[Any, Any],
    seed: int,
    *,
    options: dict[str, Any] | None = None,
    action_scale: float = 1.0,
) -> None:
    rng = np.random.default_rng(seed)
    expected, _ = original.reset(seed=seed, options=options)
    assert_same(env.reset(seed), expected)
    ended = False
    step = 0
    while not ended:
        rows = np.repeat(np.asarray(expected)[None], 3, axis=0)
        actions = pair.actions(rows, step, rng)
        action = actions[seed % 3] if actions.ndim == 2 else int(actions[seed % 3])
        action = action * np.float32(action_scale) if actions.ndim == 2 else action
        expected, reward, terminated, truncated, _ = original.step(action)
        actual = env.step(action)
        assert_same(actual[0], expected, step)
        assert_same(actual[1], float(reward), step)
        assert actual[2] == terminated
        ended = terminated or truncated
        step += 1


def test_every_twin_is_compared_here() -> None:
    assert {pair.id: find_twin(pair.id) for pair in PAIRS} == {pair.id: f"envfleet/{pair.id}" for pair in PAIRS}
    ours = [one.id for one in ENVIRONMENTS.values() if one.target.startswith("envfleet.envs.classic.")]
    assert {find_original(env_id) for env_id in ours} == {pair.id for pair in PAIRS}


@each_pair
def test_spaces_limits_and_frame_rates_are_the_same(pair: Pair) -> None:
    original, spec = pair.make(), gym.spec(pair.id)
    assert pair.kernel.observation_space == original.observation_space
    assert pair.kernel.action_space == original.action_space
    assert pair.kernel.max_episode_steps == spec.max_episode_steps
    assert pair.kernel.render_fps == original.metadata["render_fps"]


@each_pair
def test_episodes_are_the_same(pair: Pair) -> None:
    for seed in range(3):
        compare_episode(pair, make_plain(pair), pair.make(), seed)


@pytest.mark.parametrize("pair", [PENDULUM, MOUNTAIN_CAR_CONTINUOUS], ids=lambda pair: pair.id)
def test_actions_out_of_bounds_are_clipped_as_there(pair: Pair) -> None:
    compare_episode(pair, make_plain(pair), pair.make(), 0, action_scale=1.7)


# Of each parameter: a value, and what has to be set in Gymnasium's environment for the same.
PARAMS: list[tuple[Pair, dict[str, Any], dict[str, Any]]] = [
    (CART_POLE, {"gravity": 5.0}, {"gravity": 5.0}),
    (CART_POLE, {"masscart": 2.0}, {"total_mass": 2.1}),
    (CART_POLE, {"masspole": 0.2}, {"masspole": 0.2, "total_mass": 1.2, "polemass_length": 0.1}),
    (CART_POLE, {"length": 1.0}, {"length": 1.0, "polemass_length": 0.1}),
    (CART_POLE, {"force_mag": 4.0}, {"force_mag": 4.0}),
    (CART_POLE, {"tau": 0.01}, {"tau": 0.01}),
    (CART_POLE, {"x_threshold": 0.3}, {"x_threshold": 0.3}),
    (CART_POLE, {"theta_threshold_radians": 0.6}, {"theta_threshold_radians": 0.6}),
    (CART_POLE, {"sutton_barto_reward": True}, {"_sutton_barto_reward": True}),
    *((PENDULUM, {name: 1.3}, {name: 1.3}) for name in ("g", "m", "l", "max_speed", "max_torque")),
    (PENDULUM, {"dt": 0.03}, {"dt": 0.03}),
    (MOUNTAIN_CAR, {"min_position": -1.0}, {"min_position": -1.0}),
    (MOUNTAIN_CAR, {"max_position": 0.2}, {"max_position": 0.2}),
    (MOUNTAIN_CAR, {"max_speed": 0.03}, {"max_speed": 0.03}),
    (MOUNTAIN_CAR, {"goal_position": 0.1}, {"goal_position": 0.1}),
    (MOUNTAIN_CAR, {"goal_velocity": 0.05}, {"goal_velocity": 0.05}),
    (MOUNTAIN_CAR, {"force": 0.002}, {"force": 0.002}),
    (MOUNTAIN_CAR, {"gravity": 0.001}, {"gravity": 0.001}),
    (MOUNTAIN_CAR_CONTINUOUS, {"min_position": -1.0}, {"min_position": -1.0}),
    (MOUNTAIN_CAR_CONTINUOUS, {"max_position": 0.2}, {"max_position": 0.2}),
    (MOUNTAIN_CAR_CONTINUOUS, {"max_speed": 0.03}, {"max_speed": 0.03}),
    (MOUNTAIN_CAR_CONTINUOUS, {"goal_position": 0.1}, {"goal_position": 0.1}),
    (MOUNTAIN_CAR_CONTINUOUS, {"goal_velocity": 0.05}, {"goal_velocity": 0.05}),
    (MOUNTAIN_CAR_CONTINUOUS, {"power": 0.003}, {"power": 0.003}),
    (ACROBOT, {"torque": 2.0}, {"AVAIL_TORQUE": [-2.0, 0.0, 2.0]}),
    *(
        (ACROBOT, {name: value}, {name if name == "dt" else name.upper(): value})
        for name, value in {
            "dt": 0.1,
            "link_length_1": 1.2,
            "link_mass_1": 1.2,
            "link_mass_2": 0.8,
            "link_com_pos_1": 0.6,
            "link_com_pos_2": 0.4,
            "link_moi": 1.3,
            "max_vel_1": 1.0,
            "max_vel_2": 2.0,
        }.items()
    ),
]


@pytest.mark.parametrize(("pair", "params", "attributes"), PARAMS, ids=lambda value: str(value)[:40])
def test_parameters_mean_the_same(pair: Pair, params: dict[str, Any], attributes: dict[str, Any]) -> None:
    original = pair.make()
    for name, value in attributes.items():
        assert hasattr(original.unwrapped, name)
        setattr(original.unwrapped, name, value)
    compare_episode(pair, make_plain(pair, **params), original, 2)


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair is not PENDULUM], ids=lambda pair: pair.id)
def test_bounds_of_the_start_are_the_same(pair: Pair) -> None:
    env = make_plain(pair, start_low=-0.5, start_high=-0.3)
    expected, _ = pair.make().reset(seed=5, options={"low": -0.5, "high": -0.3})
    assert_same(env.reset(5), expected)


def test_bounds_of_the_pendulum_are_the_same() -> None:
    expected, _ = PENDULUM.make().reset(seed=5, options={"x_init": 0.5, "y_init": 3.0})
    assert_same(make_plain(PENDULUM, x_init=0.5, y_init=3.0).reset(5), expected)


@each_pair
def test_frames_are_the_same(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_AUDIODRIVER", "dummy")  # Gymnasium starts all of pygame, sound included
    env, original = make_plain(pair), pair.make(render_mode="rgb_array")
    env.reset(0)
    original.reset(seed=0)
    render: Any = env.spec.render
    for step in range(8):
        frame = render(env.state, env.params)
        assert frame.dtype == np.uint8
        np.testing.assert_array_equal(frame, original.render(), err_msg=str(step))
        action = (
            0 if isinstance(pair.kernel.action_space, gym.spaces.Discrete) else np.array([1 - 0.5 * step], np.float32)
        )
        env.step(action)
        original.step(action)
    original.close()


def test_frames_show_the_parameters() -> None:
    inked = []
    for length in (0.5, 1.0):
        env = make_plain(CART_POLE, length=length)
        env.reset(0)
        render: Any = env.spec.render
        inked.append((render(env.state, env.params) != 255).sum())
    assert inked[0] < inked[1]
