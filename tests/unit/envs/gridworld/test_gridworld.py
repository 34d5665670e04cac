"""The grid world against a search, rules written as tables, and closed forms."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from tests.unit.envs.plain import begin

import envfleet
from envfleet.envs.frames import AGENT_COLOR, COLORS
from envfleet.envs.gridworld import GridWorld, GridWorldPixels
from envfleet.envs.gridworld.gridworld import FLOOR, GOAL, LAVA, WALL
from envfleet.kernels import Kernel, array
from envfleet.kernels.plain import PlainEnv

MOVES = {0: (-1, 0), 1: (0, 1), 2: (1, 0), 3: (0, -1)}


class Wide(GridWorld):
    """Another size, not square."""

    observation_space = spaces.Box(0, 1, (5, 12, 4), np.uint8)
    max_episode_steps = 60

    class State(GridWorld.State):
        """As declared by its base, with other cells."""

        cells: NDArray[np.uint8] = array((5, 12), np.uint8)


class WidePixels(GridWorldPixels):
    """An image with cells that are not square."""

    observation_space = spaces.Box(0, 255, (10, 36, 3), np.uint8)

    class State(Wide.State):
        """As above."""


def place(env: PlainEnv) -> tuple[int, int]:
    return int(env.state.row), int(env.state.column)


def find_path(cells: NDArray[np.uint8], start: tuple[int, int]) -> list[int] | None:
    """Breadth-first search: the actions of a shortest way to the goal."""
    ways: dict[tuple[int, int], list[int]] = {start: []}
    queue = deque([start])
    while queue:
        here = queue.popleft()
        if cells[here] == GOAL:
            return ways[here]
        for action, (down, right) in MOVES.items():
            there = here[0] + down, here[1] + right
            is_inside = 0 <= there[0] < cells.shape[0] and 0 <= there[1] < cells.shape[1]
            if is_inside and there not in ways and cells[there] not in (WALL, LAVA):
                ways[there] = [*ways[here], action]
                queue.append(there)
    return None


@pytest.mark.parametrize(("walls", "lava"), [(0.25, 0.1), (0.9, 0.1), (0.0, 1.0)])
@pytest.mark.parametrize("kernel", [GridWorld, Wide], ids=lambda kernel: kernel.__name__)
def test_every_layout_has_one_goal_and_a_way_there(kernel: type[Kernel], walls: float, lava: float) -> None:
    for seed in range(60):
        env = begin(kernel, seed, wall_fraction=walls, lava_fraction=lava)
        assert (env.state.cells == GOAL).sum() == 1
        assert env.state.cells[place(env)] == FLOOR
        path = find_path(env.state.cells, place(env))
        assert path
        total = 0.0
        for action in path:
            _, reward, terminated, _ = env.step(action)
            total += reward
        assert terminated
        assert total == pytest.approx(1.0 - 0.01 * (len(path) - 1))


def test_layouts_differ_and_are_as_full_as_asked() -> None:
    layouts = [begin(Wide, seed, wall_fraction=0.3, lava_fraction=0.2).state.cells.copy() for seed in range(200)]
    assert len({layout.tobytes() for layout in layouts}) == 200
    full = (
        np.mean([(layout == WALL).mean() for layout in layouts]),
        np.mean([(layout == LAVA).mean() for layout in layouts]),
    )
    assert 0.1 < full[1] < full[0] < 0.3  # less than asked: the way is kept free
    assert full[0] / full[1] == pytest.approx(1.5, rel=0.1)


def test_starts_and_goals_are_everywhere_and_apart() -> None:
    starts, goals = np.zeros((8, 8)), np.zeros((8, 8))
    for seed in range(1500):
        env = begin(GridWorld, seed)
        starts[place(env)] += 1
        goals += env.state.cells == GOAL
    for counts in (starts, goals):
        expected = 1500 / 64
        assert ((counts - expected) ** 2 / expected).sum() < 63 + 5 * np.sqrt(2 * 63)  # five standard deviations


def test_an_open_world_pays_by_distance() -> None:
    for seed in range(30):
        env = begin(GridWorld, seed, wall_fraction=0.0, lava_fraction=0.0, step_reward=-0.1, goal_reward=5.0)
        row, column = place(env)
        goal_row, goal_column = np.argwhere(env.state.cells == GOAL)[0]
        actions = [2 if goal_row > row else 0] * abs(goal_row - row) + [1 if goal_column > column else 3] * abs(
            goal_column - column
        )
        results = [env.step(action)[1:3] for action in actions]
        assert [terminated for _, terminated in results] == [False] * (len(actions) - 1) + [True]
        assert sum(reward for reward, _ in results) == pytest.approx(5.0 - 0.1 * (len(actions) - 1))


def test_walls_and_edges_stop_and_lava_ends() -> None:
    seen = set()
    rng = np.random.default_rng(0)
    for seed in range(150):
        env = begin(GridWorld, seed)
        for action in rng.integers(0, 4, 20).tolist():
            before = place(env)
            there = before[0] + MOVES[action][0], before[1] + MOVES[action][1]
            is_inside = min(there) >= 0 and max(there) < 8
            kind = int(env.state.cells[there]) if is_inside else -1
            seen.add(kind)
            _, reward, terminated, _ = env.step(action)
            assert place(env) == (before if kind in (-1, WALL) else there)
            assert (reward, terminated) == {GOAL: (1.0, True), LAVA: (-1.0, True)}.get(kind, (-0.01, False))
            if terminated:
                break
    assert seen == {-1, FLOOR, WALL, LAVA, GOAL}


def test_planes_show_the_world() -> None:
    env = begin(Wide, 3)
    planes = env.observe()
    assert planes[..., 0].sum() == 1
    assert planes[(*place(env), 0)] == 1
    for plane, kind in ((1, GOAL), (2, WALL), (3, LAVA)):
        np.testing.assert_array_equal(planes[..., plane], env.state.cells == kind)


@pytest.mark.parametrize(("kernel", "tall", "wide"), [(GridWorldPixels, 8, 8), (WidePixels, 2, 3)])
def test_pixels_show_the_world(kernel: type[Kernel], tall: int, wide: int) -> None:
    env = begin(kernel, 3)
    expected = np.array(COLORS, np.uint8)[env.state.cells]
    expected[place(env)] = AGENT_COLOR
    np.testing.assert_array_equal(env.observe(), np.kron(expected, np.ones((tall, wide, 1), np.uint8)))


def test_frames_show_the_world() -> None:
    env = begin(Wide, 3)
    render: Any = env.spec.render
    frame = render(env.state, env.params)
    assert frame.shape == (5 * 32, 12 * 32, 3)
    assert frame.dtype == np.uint8
    expected = np.array(COLORS, np.uint8)[env.state.cells]
    expected[place(env)] = AGENT_COLOR
    np.testing.assert_array_equal(frame[16::32, 16::32], expected)


@pytest.mark.parametrize(
    ("kernel", "mode"), [(GridWorldPixels, AutoresetMode.NEXT_STEP), (Wide, AutoresetMode.SAME_STEP)]
)
def test_compiled_is_as_plain(kernel: type[Kernel], mode: AutoresetMode) -> None:
    num_envs, limit = 6, 25
    envs = [begin(kernel, 40 + row) for row in range(num_envs)]
    steps = [0] * num_envs
    rng = np.random.default_rng(0)
    with envfleet.make(kernel, num_envs, backend="kernel", max_episode_steps=limit, autoreset_mode=mode) as fleet:
        observations, _ = fleet.reset(seed=40)
        np.testing.assert_array_equal(observations, [env.observe() for env in envs])
        for _ in range(80):
            actions = rng.integers(0, 4, num_envs)
            observations, rewards, terminated, truncated, _ = fleet.step(actions)
            for row, env in enumerate(envs):
                result = (env.reset(), 0.0, False, False) if steps[row] < 0 else env.step(int(actions[row]))
                steps[row] += 1
                is_over = steps[row] >= limit
                assert (rewards[row], terminated[row], truncated[row]) == (*result[1:3], is_over), row
                observation = result[0]
                if result[2] or is_over:
                    observation = env.reset() if mode is AutoresetMode.SAME_STEP else observation
                    steps[row] = 0 if mode is AutoresetMode.SAME_STEP else -1
                np.testing.assert_array_equal(observations[row], observation)
