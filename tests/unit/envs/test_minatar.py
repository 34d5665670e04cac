"""MinAtar's games against the package `minatar`, which is given the kernel's draws."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

import envfleet
from envfleet.envs.minatar.breakout import Breakout
from envfleet.envs.minatar.minimal import SpaceInvadersMinimal
from envfleet.envs.minatar.space_invaders import SpaceInvaders
from envfleet.kernels import Kernel
from envfleet.kernels.kernel import read_kernel
from envfleet.kernels.plain import PlainEnv
from envfleet.registry import ENVIRONMENTS, resolve
from envfleet.testing import check_kernel

if TYPE_CHECKING:
    import minatar

SEED = 300
GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
NOTHING, LEFT, UP, RIGHT, DOWN, FIRE = range(6)
Act = Callable[[NDArray[np.bool_], np.random.Generator], int]


class Draws:
    """The methods of `RandomState` that the package calls, with the kernel's draws."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def rand(self, size: int | None = None) -> Any:
        return self._rng.random() if size is None else np.array([self._rng.random() for _ in range(size)])

    def randint(self, low: int, high: int | None = None, size: int | None = None) -> Any:
        if size is None:
            return int(self._rng.integers(low, high))
        return np.array([int(self._rng.integers(low, high)) for _ in range(size)])


def make_original(seed: int, game: str, options: Mapping[str, Any]) -> minatar.Environment:
    import minatar  # imports seaborn, too long for every process that collects this file

    env = minatar.Environment(game, **options)
    env.random = env.env.random = Draws(seed)
    return env


def begin(env: minatar.Environment) -> NDArray[np.bool_]:
    env.reset()
    env.last_action = 0  # the package keeps that of the episode before
    return env.state()


def at_random(board: NDArray[np.bool_], rng: np.random.Generator) -> int:
    return int(rng.integers(6))


def follow_ball(board: NDArray[np.bool_], rng: np.random.Generator) -> int:
    """Go where the ball will come down, so that walls are broken and built again."""
    (y, x), (last_y, last_x) = (np.argwhere(board[..., plane])[0].tolist() for plane in (1, 2))
    paddle = int(np.argmax(board[9, :, 0]))
    right = x - last_x
    while last_y < y < 9:
        y, x = y + 1, x + right
        right = -right if not 0 <= x <= 9 else right
        x = min(max(x, 0), 9)
    return RIGHT if x > paddle else (LEFT if x < paddle else NOTHING)


def go_up(board: NDArray[np.bool_], rng: np.random.Generator) -> int:
    return UP if rng.random() < 0.9 else int(rng.integers(6))


def avoid(*planes: int, rows: tuple[int, int] = (1, 8)) -> Act:
    """Return a policy that moves at random within rows, but not into, below or next to a deadly cell."""

    def act(board: NDArray[np.bool_], rng: np.random.Generator) -> int:
        y, x = np.argwhere(board[..., 0])[0].tolist()
        danger = np.pad(board[..., planes].any(axis=2), 1)
        near = (danger | np.roll(danger, 1, 0) | np.roll(danger, 1, 1) | np.roll(danger, -1, 1))[1:-1, 1:-1]
        moves = {NOTHING: (0, 0), FIRE: (0, 0), LEFT: (0, -1), UP: (-1, 0), RIGHT: (0, 1), DOWN: (1, 0)}
        safe = [
            action
            for action, (down, right) in moves.items()
            if not near[min(max(y + down, rows[0]), rows[1]), min(max(x + right, 0), 9)]
        ]
        return int(rng.choice(safe or [NOTHING]))

    return act


def kernel_of(game: str) -> type[Kernel]:
    kernel: type[Kernel] = resolve(f"envfleet.envs.minatar.{game}:{game.title().replace('_', '')}")
    return kernel


@dataclasses.dataclass(frozen=True)
class Case:
    """A comparison; `attributes` have the package's and the kernel's names of what is set after each reset."""

    game: str
    act: Act
    num_envs: int
    num_steps: int
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    attributes: Mapping[tuple[str, str], int] = dataclasses.field(default_factory=dict)
    name: str = "random"

    @property
    def kernel(self) -> type[Kernel]:
        return kernel_of(self.game)

    def __str__(self) -> str:
        return f"{self.game}-{self.name}"


PLAIN = {"sticky_action_prob": 0.0, "difficulty_ramping": False}
LATE = {("move_speed", "move_interval"): 2, ("e_spawn_speed", "spawn_interval"): 1, ("e_spawn_timer", "spawn_timer"): 1}
FULL = {("diver_count", "divers_on_board"): 6, ("ramp_index", "ramp_index"): 1}
CASES = (
    Case("asterix", at_random, 60, 400),
    Case("asterix", avoid(1), 40, 800, name="careful"),
    Case("asterix", avoid(1), 20, 700, PLAIN, name="plain"),
    Case("breakout", at_random, 60, 300),
    Case("breakout", follow_ball, 20, 2000, {"sticky_action_prob": 0.02}, name="good"),
    Case("freeway", at_random, 8, 2510),
    Case("freeway", go_up, 40, 2510, name="upwards"),
    Case("seaquest", at_random, 60, 500),
    Case("seaquest", avoid(4, 5, 6), 40, 500, name="careful"),
    Case("seaquest", avoid(4, 5, 6), 40, 300, {"sticky_action_prob": 0.0}, LATE, name="crowded"),
    Case("seaquest", at_random, 40, 300, {}, {**LATE, **FULL}, name="crowded-with-divers"),
    Case("seaquest", avoid(4, 5, 6), 20, 300, PLAIN, FULL, name="plain"),
    Case("space_invaders", at_random, 60, 400),
    Case("space_invaders", avoid(1, 5, rows=(9, 9)), 40, 700, name="careful"),
    Case("space_invaders", avoid(1, 5, rows=(9, 9)), 20, 600, PLAIN, name="plain"),
)


def set_rows(fleet: envfleet.Fleet, originals: list[minatar.Environment], case: Case, rows: NDArray[np.bool_]) -> None:
    """Give some rows of both sides the case's attributes."""
    for (theirs, ours), value in case.attributes.items():
        fleet.set_attr(ours, np.where(rows, value, fleet.get_attr(ours)).tolist())
        for row in np.flatnonzero(rows):
            assert hasattr(originals[row].env, theirs)
            setattr(originals[row].env, theirs, value)


@pytest.mark.parametrize("part", [8, pytest.param(1, marks=pytest.mark.slow)], ids=["eighth", "whole"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_episodes_are_the_same(case: Case, part: int) -> None:
    case = dataclasses.replace(case, num_envs=case.num_envs // part)
    rng = np.random.default_rng(1)
    params = {name: value for name, value in case.options.items() if hasattr(case.kernel.Params, name)}
    originals = [make_original(SEED + row, case.game, case.options) for row in range(case.num_envs)]
    begins, num_ended, total = np.ones(case.num_envs, np.bool_), 0, 0.0
    with envfleet.make(case.kernel, case.num_envs, backend="kernel", autoreset_mode="disabled", **params) as fleet:
        actual, _ = fleet.reset(seed=SEED)
        boards = np.zeros_like(actual)
        for step in range(case.num_steps):
            for row in np.flatnonzero(begins):
                boards[row] = begin(originals[row])
            np.testing.assert_array_equal(actual, boards, err_msg=str(step))
            set_rows(fleet, originals, case, begins)
            actions = np.array([case.act(board, rng) for board in boards])
            actual, rewards, terminated, truncated, _ = fleet.step(actions)
            results = [one.act(action) for one, action in zip(originals, actions.tolist(), strict=True)]
            boards = np.stack([one.state() for one in originals])
            expected, begins = (np.array(part) for part in zip(*results, strict=True))
            np.testing.assert_array_equal(actual, boards, err_msg=str(step))
            np.testing.assert_array_equal(rewards, expected, err_msg=str(step))
            np.testing.assert_array_equal(terminated, begins, err_msg=str(step))
            assert not truncated.any()
            num_ended += int(begins.sum())
            total += float(expected.sum())
            if begins.any():
                actual, _ = fleet.reset(options={"reset_mask": begins})
    assert num_ended >= case.num_envs // 4
    assert total > 0 or case.game == "freeway"


@pytest.mark.parametrize("game", GAMES)
def test_compiled_code_does_as_plain_python(game: str, check_without_indices: Callable[..., int]) -> None:
    assert check_without_indices(kernel_of(game), num_steps=150) == 600


@pytest.mark.slow  # compiles once more
@pytest.mark.timeout(400)
@pytest.mark.parametrize("game", GAMES)
def test_indices_are_within_bounds(game: str) -> None:
    assert check_kernel(kernel_of(game), num_steps=150) == 600


@pytest.mark.parametrize("game", GAMES)
@pytest.mark.parametrize("version", [0, 1])
def test_spaces_and_actions_are_those_of_the_package(game: str, version: int) -> None:
    from minatar.gym import BaseEnv

    original = BaseEnv(game, use_minimal_action_set=version == 1)
    entry = ENVIRONMENTS[f"envfleet/MinAtar-{kernel_of(game).__name__}-v{version}"]
    kernel: type[Kernel] = resolve(entry.target)
    assert kernel.action_space == original.action_space
    assert kernel.observation_space == original.observation_space
    assert entry.max_episode_steps is kernel.max_episode_steps is None
    assert read_kernel(kernel).params.defaults["action_set"].tolist() == original.action_set


def test_the_minimal_actions_do_what_they_stand_for() -> None:
    full, minimal = (PlainEnv(read_kernel(kernel)) for kernel in (SpaceInvaders, SpaceInvadersMinimal))
    for seed in range(3):
        np.testing.assert_array_equal(minimal.reset(seed), full.reset(seed))
        for action in np.random.default_rng(seed).integers(0, 4, 50):
            board = full.step((NOTHING, LEFT, RIGHT, FIRE)[action])[0]
            np.testing.assert_array_equal(minimal.step(action)[0], board)


@pytest.mark.parametrize("game", GAMES)
def test_frames_show_what_is_on_the_board(game: str) -> None:
    env = PlainEnv(read_kernel(kernel_of(game)))
    render: Any = env.spec.render
    board = env.reset(0)
    for _ in range(12):
        board = env.step(RIGHT)[0]
    frame = render(env.state, env.params)
    assert (frame.shape, frame.dtype) == ((320, 320, 3), np.uint8)
    middles = frame[16::32, 16::32]
    np.testing.assert_array_equal(middles.any(axis=2), board.any(axis=2))
    for plane in range(board.shape[2]):
        is_top = board[..., plane] & ~board[..., plane + 1 :].any(axis=2)
        assert len(np.unique(middles[is_top], axis=0)) <= 1


def test_a_lost_ball_stays_on_the_board() -> None:
    env = PlainEnv(read_kernel(Breakout))
    for seed in range(5):
        env.reset(seed)
        results = [env.step(NOTHING) for _ in range(60)]
        last = next(step for step, result in enumerate(results) if result[2])
        assert all(result[1:3] == (0.0, True) for result in results[last + 1 :])
        np.testing.assert_array_equal(results[-1][0], results[last][0])
