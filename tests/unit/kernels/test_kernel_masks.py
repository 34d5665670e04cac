"""Action masks: in the infos as in Gymnasium's Taxi, and heeded by random rollouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from tests.unit.kernels.samples import policy_generator
from tests.unit.kernels.test_policies import forward, layers

import envfleet
from envfleet.errors import InvalidArgument, KernelError
from envfleet.kernels import MLP, Kernel, array
from envfleet.kernels.env import KernelEnv
from envfleet.kernels.kernel import read_kernel
from envfleet.kernels.plain import PlainEnv, rehearse


class Corridor(Kernel):
    """Walls at both ends; at place 2 nothing is allowed. Actions 1, 2, 3: left, stay, right."""

    observation_space: ClassVar[Any] = spaces.Discrete(5)
    action_space: ClassVar[Any] = spaces.Discrete(3, start=1)
    max_episode_steps: ClassVar[int | None] = 6
    info_fields: ClassVar[tuple[str, ...]] = ("action_mask",)

    class State:
        place: int
        action_mask: NDArray[np.int8] = array(3, np.int8)

    @staticmethod
    def reset(state: Any, rng: Any, params: Any) -> None:
        state.place = rng.integers(5)
        allow(state)

    @staticmethod
    def step(state: Any, action: int, rng: Any, params: Any) -> tuple[float, bool]:
        is_allowed = state.action_mask[action - 1] == 1
        state.place = min(4, max(0, state.place + action - 2))
        allow(state)
        return (1.0 if is_allowed else -1.0), False

    @staticmethod
    def observe(state: Any, out: NDArray[np.int64]) -> None:
        out[()] = state.place


class Seen(Corridor):
    """The same with the place as a number."""

    observation_space = spaces.Box(0.0, 4.0, (1,), np.float32)

    @staticmethod
    def observe(state: Any, out: Any) -> None:
        out[0] = state.place


def allow(state: Any) -> None:
    state.action_mask[0] = 0 < state.place != 2
    state.action_mask[1] = state.place == 1
    state.action_mask[2] = state.place < 4 and state.place != 2


def mask_of(place: int) -> list[int]:
    return [int(0 < place != 2), int(place == 1), int(place < 4 and place != 2)]


def test_masks_are_in_the_infos_of_resets_and_steps() -> None:
    with envfleet.make(Corridor, 64, backend="kernel") as fleet:
        observations, infos = fleet.reset(seed=0)
        for _ in range(20):
            assert infos["action_mask"].dtype == np.int8
            assert infos["action_mask"].tolist() == [mask_of(place) for place in observations]
            assert infos["_action_mask"].all()
            observations, *_, infos = fleet.step(fleet.action_space.sample())
        assert fleet.reset_envs([3])[1]["action_mask"].shape == (1, 3)


def test_a_mask_is_what_gymnasiums_spaces_take() -> None:
    env: Any = gymnasium.wrappers.TimeLimit(KernelEnv(Corridor), 6)
    _, info = env.reset(seed=3)
    taxi = gymnasium.make("Taxi-v3" if "Taxi-v3" in gymnasium.registry else "Taxi-v4").reset(seed=0)[1]["action_mask"]
    assert (type(info["action_mask"]), info["action_mask"].dtype) == (type(taxi), taxi.dtype)
    assert env.action_space.contains(env.action_space.sample(info["action_mask"]))


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_random_rollouts_draw_allowed_actions_as_the_space_does(mode: Any) -> None:
    with envfleet.make(Corridor, 1500, backend="kernel", autoreset_mode=mode) as fleet:
        fleet.reset(seed=0)
        rollout = fleet.rollout("random", 12, seed=5)
    places, actions = rollout.observations, rollout.actions
    for row in range(0, 1500, 7):
        space: Any = spaces.Discrete(3, start=1)
        space._np_random = policy_generator(5, row)
        drawn = [space.sample(np.array(mask_of(place), np.int8)) for place in places[:, row]]
        assert drawn == actions[:, row].tolist()
    is_blocked = (places == 2) | rollout.is_reset
    assert (rollout.rewards[~is_blocked] == 1.0).all()
    assert set(np.unique(actions[(places == 1)])) == {1, 2, 3}


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_networks_choose_among_allowed_actions(mode: Any) -> None:
    weights = layers(1, 7, 3)
    with envfleet.make(Seen, 300, backend="kernel", autoreset_mode=mode) as fleet:
        fleet.reset(seed=0)
        drawn = fleet.rollout(MLP(weights, head="categorical"), 12, seed=5)
        best = fleet.rollout(MLP(weights), 12)
        free = fleet.rollout(MLP(weights, head="categorical", heeds_mask=False), 12, seed=5)
    for rollout in (drawn, best, free):
        logits = forward(MLP(weights), rollout.observations)
        masks = np.array([mask_of(place) for place in range(5)])[rollout.observations[..., 0].astype(int)] == 1
        allowed = np.where(masks, logits, np.where(masks.any(-1, keepdims=True), -np.inf, 0.0))
        taken = torch.from_numpy(rollout.actions - 1)
        chances = torch.distributions.Categorical(logits=torch.from_numpy(logits if rollout is free else allowed))
        if rollout.log_probs is None:
            np.testing.assert_array_equal(taken, allowed.argmax(-1))
            continue
        np.testing.assert_allclose(rollout.log_probs, chances.log_prob(taken), rtol=3e-6, atol=2e-6)
        is_excluded = ~np.take_along_axis(masks, rollout.actions[..., None] - 1, -1)[..., 0] & masks.any(-1)
        assert is_excluded.any() == (rollout is free)
        assert set(np.unique(rollout.actions[~masks.any(-1)])) == {1, 2, 3}


def test_masks_agree_plain_and_compiled(check_without_indices: Callable[..., int]) -> None:
    assert check_without_indices(Corridor, num_steps=20, seeds=[1]) == 20


def test_masks_of_another_form_are_refused() -> None:
    class Wide(Corridor):
        class State:
            place: int
            action_mask: NDArray[np.int8] = array(4, np.int8)

    class Continuous(Corridor):
        action_space = spaces.Box(0.0, 1.0, (3,))

    with pytest.raises(KernelError, match=r"expected an int8 for each choice.*array\(3, np\.int8\)"):
        read_kernel(Wide)

    class Board(Corridor):
        action_space = spaces.MultiDiscrete(np.array([[3, 3], [2, 2]]))

    with pytest.raises(KernelError, match="expected Discrete, or MultiDiscrete"):
        read_kernel(Continuous)
    with pytest.raises(KernelError, match="MultiDiscrete of one dimension: rename the field"):
        read_kernel(Board)


class OneWay(Corridor):
    """Only action 3 is allowed, and others are mistakes."""

    @staticmethod
    def reset(state: Any, rng: Any, params: Any) -> None:
        state.place = 0
        state.action_mask[:2] = 0
        state.action_mask[2] = 1

    @staticmethod
    def step(state: Any, action: int, rng: Any, params: Any) -> tuple[float, bool]:
        if action != 3:
            raise ValueError("this action is not allowed")
        return 0.0, False


def test_a_rehearsal_heeds_the_mask() -> None:
    rehearse(PlainEnv(read_kernel(OneWay)))


class Pair(Corridor):
    """Two players at once, with 3 and 2 choices, the first of which are -1 and 4; at place 2 nothing is allowed."""

    action_space: ClassVar[Any] = spaces.MultiDiscrete([3, 2], start=[-1, 4])

    class State:
        place: int
        action_mask: NDArray[np.int8] = array(5, np.int8)

    @staticmethod
    def reset(state: Any, rng: Any, params: Any) -> None:
        state.place = rng.integers(5)
        allow_both(state)

    @staticmethod
    def step(state: Any, action: Any, rng: Any, params: Any) -> tuple[float, bool]:
        is_allowed = state.action_mask[action[0] + 1] == 1 and state.action_mask[action[1] - 1] == 1
        state.place = (state.place + action[0] + action[1]) % 5
        allow_both(state)
        return (1.0 if is_allowed else -1.0), False


def allow_both(state: Any) -> None:
    for k in range(5):
        state.action_mask[k] = state.place != 2 and (state.place + k) % 3 != 0


def masks_of(place: int) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    allowed = np.array([place != 2 and (place + k) % 3 != 0 for k in range(5)], np.int8)
    return allowed[:3], allowed[3:]


def test_masks_of_two_players_are_in_the_infos() -> None:
    with envfleet.make(Pair, 64, backend="kernel") as fleet:
        observations, infos = fleet.reset(seed=0)
        for _ in range(20):
            assert infos["action_mask"].dtype == np.int8
            expected = [np.concatenate(masks_of(int(place))).tolist() for place in observations]
            assert infos["action_mask"].tolist() == expected
            observations, *_, infos = fleet.step(fleet.action_space.sample())


def test_the_space_samples_with_the_mask_of_two_players() -> None:
    env = KernelEnv(Pair)
    env.action_space.seed(1)
    place, info = env.reset(seed=3)
    for _ in range(40):
        action = env.action_space.sample(info["action_mask"])
        assert env.action_space.contains(action)
        is_blocked = place == 2
        place, reward, *_, info = env.step(action)
        assert reward == 1.0 or is_blocked


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_random_rollouts_of_two_players_draw_as_the_space_does(mode: Any) -> None:
    with envfleet.make(Pair, 700, backend="kernel", autoreset_mode=mode) as fleet:
        fleet.reset(seed=0)
        rollout = fleet.rollout("random", 12, seed=5)
    for row in range(0, 700, 7):
        space: Any = spaces.MultiDiscrete([3, 2], start=[-1, 4])
        space._np_random = policy_generator(5, row)
        drawn = [space.sample(masks_of(int(place))).tolist() for place in rollout.observations[:, row]]
        assert drawn == rollout.actions[:, row].tolist()
    is_blocked = (rollout.observations == 2) | rollout.is_reset
    assert (rollout.rewards[~is_blocked] == 1.0).all()
    assert len(np.unique(rollout.actions.reshape(-1, 2), axis=0)) > 3


def test_masks_of_two_players_agree_plain_and_compiled(check_without_indices: Callable[..., int]) -> None:
    assert check_without_indices(Pair, num_steps=20, seeds=[1]) == 20


class OnlyLast(Pair):
    """Only the last choice of each player is allowed, and others are mistakes."""

    @staticmethod
    def reset(state: Any, rng: Any, params: Any) -> None:
        state.place = 0
        state.action_mask[:] = 0
        state.action_mask[2] = 1
        state.action_mask[4] = 1

    @staticmethod
    def step(state: Any, action: Any, rng: Any, params: Any) -> tuple[float, bool]:
        if action[0] != 1 or action[1] != 5:
            raise ValueError("this action is not allowed")
        return 0.0, False


def test_a_rehearsal_heeds_the_masks_of_two_players() -> None:
    rehearse(PlainEnv(read_kernel(OnlyLast)))


def test_networks_for_two_players_are_refused_in_words() -> None:
    with envfleet.make(Pair, 2, backend="kernel") as fleet:
        fleet.reset(seed=0)
        with pytest.raises(InvalidArgument, match=r"cannot choose from MultiDiscrete.*pass a callable policy"):
            fleet.rollout(MLP(layers(1, 7, 5)), 2)
