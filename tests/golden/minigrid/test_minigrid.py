"""MiniGrid kernels against minigrid's own environments, from the same seeds."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

import envfleet
from envfleet.envs.minigrid.world import DROP, FORWARD, GREEN_GOAL, IN, KEY, LAVA, OPEN_DOOR, PICK_UP, TOGGLE
from envfleet.kernels.kernel import find_kernel, read_kernel
from envfleet.kernels.plain import PlainEnv
from envfleet.registry import ENVIRONMENTS

KERNELS = {
    env_id.removeprefix("envfleet/"): find_kernel(environment.target)
    for env_id, environment in ENVIRONMENTS.items()
    if env_id.startswith("envfleet/MiniGrid-")
}
# One size of each layout; the others differ in nothing that is compiled but the shape.
COMPILED = (
    "MiniGrid-Empty-Random-6x6-v0",
    "MiniGrid-DoorKey-5x5-v0",
    "MiniGrid-FourRooms-v0",
    "MiniGrid-LavaCrossingS9N2-v0",
    "MiniGrid-MultiRoom-N2-S4-v0",
)
# Each layout is compiled separately, and all step alike.
QUICK = {
    "MiniGrid-DoorKey-5x5-v0": AutoresetMode.SAME_STEP,
    "MiniGrid-LavaCrossingS9N2-v0": AutoresetMode.NEXT_STEP,
    "MiniGrid-MultiRoom-N2-S4-v0": AutoresetMode.SAME_STEP,
}
CASES = [
    pytest.param(env_id, mode, marks=[] if QUICK.get(env_id) == mode else pytest.mark.slow)
    for env_id in COMPILED
    for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP)
]
NUM_ENVS = 40
NUM_STEPS = 125
LIMIT = 50  # steps, so that there are many episodes
SEED = 3000


def make(env_id: str, **options: Any) -> gym.Env[Any, Any]:
    return gym.make(f"minigrid:{env_id}", disable_env_checker=True, **options)


def make_images(env_id: str, **options: Any) -> gym.Env[Any, Any]:
    from minigrid.wrappers import ImgObsWrapper

    wrapped: gym.Env[Any, Any] = ImgObsWrapper(make(env_id, **options))
    return wrapped


def cells(env: Any) -> NDArray[Any]:
    """Cells of an original as kernels have them."""
    kind, color, state = env.unwrapped.grid.encode().T.astype(np.int64)
    codes = {(4, 1): 10, (4, 2): 11}
    return np.vectorize(lambda one, of: codes.get((one, of), one))(kind, state) + IN * color


def act(view: NDArray[Any], rng: np.random.Generator) -> int:
    """Mostly do what is sensible in a view, else anything."""
    ahead, carried = view[3, 5], view[3, 6, 0]
    action = int(rng.choice(7, p=(0.15, 0.15, 0.52, 0.05, 0.05, 0.05, 0.03)))
    if rng.random() < 0.3:
        return action
    if ahead[0] == KEY and carried != KEY:
        return PICK_UP
    if ahead[0] == OPEN_DOOR and ahead[2] > 0:
        return TOGGLE
    if ahead[0] == LAVA:
        return int(rng.integers(0, 2))
    goals = np.argwhere(view[..., 0] == GREEN_GOAL % IN)
    if len(goals):
        aside = int(goals[0, 0]) - 3
        return FORWARD if aside == 0 or (ahead[0] == 1 and rng.random() < 0.5) else int(aside > 0)
    return action


@pytest.mark.parametrize("env_id", KERNELS)
def test_spaces_and_limits_are_the_same(env_id: str) -> None:
    original, kernel = make_images(env_id), KERNELS[env_id]
    unwrapped: Any = original.unwrapped
    params = read_kernel(kernel).params.default_record()
    assert kernel.observation_space == original.observation_space
    assert kernel.action_space == original.action_space
    assert kernel.render_fps == original.metadata["render_fps"]
    assert params["max_steps"][0] == unwrapped.max_steps
    assert kernel.max_episode_steps is gym.spec(env_id).max_episode_steps


@pytest.mark.parametrize("env_id", KERNELS)
def test_layouts_are_the_same(env_id: str) -> None:
    original: Any = make(env_id)
    env = PlainEnv(read_kernel(KERNELS[env_id]))
    for seed in range(100):
        expected, _ = original.reset(seed=seed)
        actual = env.reset(seed)
        np.testing.assert_array_equal(env.state.cells, cells(original), err_msg=str(seed))
        np.testing.assert_array_equal(actual, expected["image"], err_msg=str(seed))
        state = (env.state.x, env.state.y, env.state.direction)
        assert state == (*original.unwrapped.agent_pos, expected["direction"])


@pytest.mark.parametrize(("env_id", "mode"), CASES)
def test_whole_episodes_are_the_same(env_id: str, mode: AutoresetMode) -> None:
    originals: Any = SyncVectorEnv([lambda: make_images(env_id, max_steps=LIMIT)] * NUM_ENVS, autoreset_mode=mode)
    rng = np.random.default_rng(0)
    seen: set[Any] = set()
    num_ended = 0
    with envfleet.make(f"envfleet/{env_id}", NUM_ENVS, backend="kernel", autoreset_mode=mode, max_steps=LIMIT) as fleet:
        expected, _ = originals.reset(seed=SEED)
        actual, infos = fleet.reset(seed=SEED)
        for step in range(NUM_STEPS):
            np.testing.assert_array_equal(actual, expected, err_msg=str(step))
            np.testing.assert_array_equal(infos["direction"], originals.get_attr("agent_dir"), err_msg=str(step))
            actions = np.array([act(view, rng) for view in expected])
            seen |= {("carry", int(kind)) for kind in expected[:, 3, 6, 0]}
            seen |= {("do", int(action), int(kind)) for action, kind in zip(actions, expected[:, 3, 5, 0], strict=True)}
            expected, rewards, terminated, truncated, _ = originals.step(actions)
            actual, found_rewards, found_terminated, found_truncated, infos = fleet.step(actions)
            np.testing.assert_array_equal(found_rewards, rewards, err_msg=str(step))
            np.testing.assert_array_equal(found_terminated, terminated, err_msg=str(step))
            np.testing.assert_array_equal(found_truncated, truncated, err_msg=str(step))
            num_ended += int((terminated | truncated).sum())
            seen |= {"reward" for reward in rewards if reward > 0} | {"limit" for is_cut in truncated if is_cut}
    originals.close()
    assert num_ended > NUM_ENVS
    assert {"reward", "limit"} <= seen
    if "DoorKey" in env_id:
        assert {("carry", KEY), ("do", DROP, 1), ("do", FORWARD, OPEN_DOOR), ("do", TOGGLE, OPEN_DOOR)} <= seen
    if "Lava" in env_id:
        assert ("do", FORWARD, LAVA) in seen
