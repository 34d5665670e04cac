"""The toy text kernels against Gymnasium's own environments from the same seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from numpy.typing import NDArray

import envfleet
from envfleet.envs.toy_text.blackjack import Blackjack
from envfleet.envs.toy_text.cliff_walking import CliffWalking
from envfleet.envs.toy_text.frozen_lake import FrozenLake, FrozenLake8x8, read_map
from envfleet.envs.toy_text.taxi import Taxi
from envfleet.envs.toy_text.taxi_v4 import TaxiV4
from envfleet.errors import InvalidArgument
from envfleet.kernels import Kernel
from envfleet.kernels.kernel import read_kernel
from envfleet.kernels.plain import PlainEnv
from envfleet.kernels.registration import find_twin
from envfleet.testing import check_kernel, mismatches

NUM_ENVS = 50
SEED = 500
TWO_STARTS = ["SFFG", "FHHF", "FFFF", "HFFS"]


class FloatProb(gym.Wrapper):
    """Reports probabilities as floats: the int 1 of a reset would make Gymnasium's vector environment store ints."""

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(**options)
        return observation, {**info, "prob": float(info["prob"])} if info else info


def solve(table: Mapping[int, Mapping[int, list[tuple[float, int, float, bool]]]]) -> NDArray[np.int64]:
    """Return the best action of each state by value iteration over Gymnasium's own table of transitions."""
    values = np.zeros(len(table))
    for _ in range(100):
        returns = np.array(
            [
                [sum(p * (reward + 0.98 * values[s] * (not end)) for p, s, reward, end in row) for row in rows.values()]
                for rows in table.values()
            ]
        )
        values = returns.max(axis=1)
    return returns.argmax(axis=1)


@dataclasses.dataclass(frozen=True)
class Pair:
    """A kernel, and its original in Gymnasium with the same arguments."""

    kernel: type[Kernel]
    original: str
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    params: Mapping[str, Any] | None = None  # where they are not the arguments
    num_steps: int = 300

    def make(self, **options: Any) -> gym.Env[Any, Any]:
        return gym.make(self.original, disable_env_checker=True, **{**self.arguments, **options})

    def fleet(self, num_envs: int = NUM_ENVS) -> envfleet.Fleet:
        params = self.arguments if self.params is None else self.params
        return envfleet.make(self.kernel, num_envs, backend="kernel", **params)

    def __str__(self) -> str:
        return "-".join((self.original, *self.arguments))


HAS_NEW_TAXI = "Taxi-v4" in gym.registry  # Gymnasium has one of them


def taxi(num_steps: int = 250, **arguments: Any) -> Pair:
    return Pair(TaxiV4 if HAS_NEW_TAXI else Taxi, "Taxi-v4" if HAS_NEW_TAXI else "Taxi-v3", arguments, None, num_steps)


TAXIS = [taxi(), taxi(is_rainy=True), taxi(is_rainy=True, fickle_passenger=True)]
if HAS_NEW_TAXI:
    TAXIS.append(taxi(500, is_rainy=True, fickle_passenger=True, rainy_probability=0.5, fickle_probability=0.9))
PAIRS = (
    Pair(FrozenLake, "FrozenLake-v1"),
    Pair(FrozenLake, "FrozenLake-v1", {"is_slippery": False}),
    Pair(FrozenLake, "FrozenLake-v1", {"success_rate": 0.7, "reward_schedule": (2.0, -1.0, -0.25)}),
    Pair(FrozenLake, "FrozenLake-v1", {"desc": TWO_STARTS}, {"desc": read_map(TWO_STARTS)}),
    Pair(FrozenLake8x8, "FrozenLake8x8-v1", num_steps=500),
    *TAXIS,
    Pair(CliffWalking, "CliffWalking-v1"),
    Pair(CliffWalking, "CliffWalking-v1", {"is_slippery": True}, num_steps=500),
    Pair(Blackjack, "Blackjack-v1", num_steps=100),
    Pair(Blackjack, "Blackjack-v1", {"sab": False, "natural": True}, num_steps=100),
    Pair(Blackjack, "Blackjack-v1", {"sab": False}, num_steps=100),
)
DEFAULTS = tuple(pair for pair in PAIRS if not pair.arguments)


def compare_infos(pair: Pair, actual: dict[str, Any], expected: dict[str, Any], when: object) -> None:
    for name in pair.kernel.info_fields:
        np.testing.assert_array_equal(actual[name], expected[name], err_msg=f"{name}, {when}")
        np.testing.assert_array_equal(actual[f"_{name}"], expected[f"_{name}"])


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_hundreds_of_episodes_are_the_same(pair: Pair) -> None:
    table: Any = getattr(pair.make().unwrapped, "P", None)
    best = None if table is None else solve(table)
    originals: Any = SyncVectorEnv([lambda: FloatProb(pair.make())] * NUM_ENVS)
    rng = np.random.default_rng(0)
    num_ended = num_truncated = 0
    with pair.fleet() as fleet:
        (actual, found_infos), (expected, infos) = fleet.reset(seed=SEED), originals.reset(seed=SEED)
        for step in range(pair.num_steps):
            assert not mismatches(expected, actual), step
            compare_infos(pair, found_infos, infos, step)
            actions = rng.integers(0, originals.single_action_space.n, NUM_ENVS)
            if best is not None:  # for every other row
                actions[::2] = best[expected[::2]]
            expected, rewards, terminated, truncated, infos = originals.step(actions)
            actual, found_rewards, found_terminated, found_truncated, found_infos = fleet.step(actions)
            np.testing.assert_array_equal(found_rewards, rewards, err_msg=str(step))
            np.testing.assert_array_equal(found_terminated, terminated, err_msg=str(step))
            np.testing.assert_array_equal(found_truncated, truncated, err_msg=str(step))
            num_ended += int((terminated | truncated).sum())
            num_truncated += int(truncated.sum())
    originals.close()
    assert num_ended >= 150
    assert num_ended > num_truncated


@pytest.mark.parametrize("pair", DEFAULTS, ids=str)
def test_spaces_limits_and_frame_rates_are_the_same(pair: Pair) -> None:
    original, spec = pair.make(), gym.spec(pair.original)
    assert pair.kernel.observation_space == original.observation_space
    assert find_twin(pair.original) == f"envfleet/{pair.original}"
    assert pair.kernel.action_space == original.action_space
    assert pair.kernel.render_fps == original.metadata["render_fps"]
    assert gym.spec(f"envfleet/{pair.original}").max_episode_steps == spec.max_episode_steps
    assert pair.kernel.max_episode_steps == spec.max_episode_steps


@pytest.mark.parametrize("pair", DEFAULTS, ids=str)
def test_compiled_code_does_as_plain_python(pair: Pair, check_without_indices: Callable[..., int]) -> None:
    assert check_without_indices(pair.kernel, num_steps=60) == 240


@pytest.mark.slow  # compiles once more
@pytest.mark.parametrize("pair", DEFAULTS, ids=str)
def test_indices_are_within_bounds(pair: Pair) -> None:
    assert check_kernel(pair.kernel, num_steps=60) == 240


@pytest.mark.parametrize("pair", DEFAULTS, ids=str)
def test_frames_are_the_same(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_AUDIODRIVER", "dummy")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    env, original = PlainEnv(read_kernel(pair.kernel)), pair.make(render_mode="rgb_array")
    render: Any = env.spec.render
    actions = np.random.default_rng(1).integers(0, env.spec.action.space.n, 100).tolist()
    for seed in range(6):
        env.reset(seed)
        original.reset(seed=seed)
        ended = False
        for _ in range(4):
            frame = render(env.state, env.params)
            assert frame.dtype == np.uint8
            np.testing.assert_array_equal(frame, original.render())
            if ended:
                break
            action = actions.pop()
            ended = env.step(action)[2]
            original.step(action)
    original.close()


def test_maps_may_differ_between_sub_environments() -> None:
    maps = np.stack([read_map(["SFFF", "FFFF", "FFFF", "FFFG"]), read_map(["GFFF", "FFFF", "FFFF", "FFFS"])])
    with envfleet.make(FrozenLake, 2, backend="kernel", desc=maps, is_slippery=False) as fleet:
        assert fleet.reset(seed=0)[0].tolist() == [0, 15]
        assert fleet.step(np.array([2, 0]))[0].tolist() == [1, 14]


@pytest.mark.parametrize(
    ("rows", "clue"), [(["SFFF", "FXFF", "FFFF", "FFFG"], "'X'"), (["FFFF", "FFFF", "FFFF", "FFFG"], "without S")]
)
def test_a_map_that_cannot_be_played_is_refused(rows: list[str], clue: str) -> None:
    with pytest.raises(InvalidArgument, match=clue):
        envfleet.make(FrozenLake, 1, backend="kernel", desc=read_map(rows))


def test_both_taxis_are_equal_in_the_sun() -> None:
    with envfleet.make(Taxi, 50, backend="kernel") as old, envfleet.make(TaxiV4, 50, backend="kernel") as new:
        old.reset(seed=0)
        new.reset(seed=0)
        rollouts = [fleet.rollout("random", 300, seed=1) for fleet in (old, new)]
    for name in ("all_observations", "rewards", "terminated", "truncated"):
        assert np.array_equal(getattr(rollouts[0], name), getattr(rollouts[1], name))
    assert rollouts[0].infos.keys() == rollouts[1].infos.keys()
