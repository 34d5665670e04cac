"""Shaped rewards: weights by the number of the episode in its phase, kept until it ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from envfleet.envs.games import known_game
from envfleet.errors import InvalidArgument
from envfleet.training.arena.arena import in_step
from envfleet.training.arena.shaping import RewardShaper, weight_at
from envfleet.training.phases import Phase

SHAPING = {
    "N": 2, "K": 4, "CLOSENESS_START": 20.0, "CLOSENESS_FINAL": 4.0, "TOUCH_START": 8.0, "TOUCH_FINAL": 0.0,
    "DIRECTION_START": 0.0, "DIRECTION_FINAL": 2.0,
}  # fmt: skip
TERMS = known_game("hockey").terms
BONUS = {"N": 1, "K": 2, "WIN_BONUS_START": 10.0, "WIN_BONUS_FINAL": 2.0}


def phase(shaping: dict[str, float] | None = None, bonus: dict[str, float] | None = None) -> Phase:
    return Phase.model_validate(
        {"name": "a", "episodes": 9, "opponent": {"type": "none"}, "reward_shaping": shaping, "reward_bonus": bonus}
    )


def rows(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


def test_a_schedule_holds_moves_and_holds() -> None:
    numbers = rows(0, 599, 600, 700, 1000, 5000)
    assert np.allclose(weight_at(numbers, 20.0, 1.5, 600, 400), np.interp(numbers, [600, 1000], [20.0, 1.5]))
    assert weight_at(rows(599, 600), 20.0, 1.5, 600, 0).tolist() == [20.0, 1.5]


def test_the_learners_reward_is_the_sum_of_its_parts() -> None:
    shaper = RewardShaper(3, reward_scale=0.5, terms=TERMS)
    shaper.begin_phase(phase(SHAPING, BONUS))
    shaper.begin_episodes(rows(0, 1, 2))
    terms = np.array([[-1.0, 0.5, 0.25], [0.0, 0.0, 1.0], [-0.5, 1.0, 0.0]])
    has_won = np.array([False, True, False])
    # Episode 0 and 1 have the first weights, episode 2 is at the end of those; the bonus is 10 for both.
    expected = 0.5 * (np.array([-0.1, 10.0, 0.0]) + terms @ [20.0, 8.0, 0.0] + [0.0, 10.0, 0.0])
    assert shaper.shape(np.array([-0.1, 10.0, 0.0]), [*terms.T], has_won).tolist() == pytest.approx(expected.tolist())


@pytest.mark.parametrize("num_envs", [1, 2, 5])
def test_episode_weights_do_not_depend_on_num_envs(num_envs: int) -> None:
    shaper = RewardShaper(num_envs, terms=TERMS)
    shaper.begin_phase(phase(SHAPING))
    seen: list[list[float]] = []
    while len(seen) < 10:
        shaper.begin_episodes(np.arange(num_envs))
        seen += shaper._weights[:, :-1].tolist()
    closeness = np.interp(np.arange(10), [2, 6], [20.0, 4.0])
    assert [weights[0] for weights in seen[:10]] == pytest.approx(closeness.tolist())


def test_running_episodes_keep_their_weights() -> None:
    shaper = RewardShaper(2, terms=TERMS)
    shaper.begin_phase(phase(SHAPING))
    shaper.begin_episodes(rows(0, 1))
    for _ in range(20):
        shaper.begin_episodes(rows(1))
    assert shaper._weights[:, :-1].tolist() == [[20.0, 8.0, 0.0], [4.0, 0.0, 2.0]]


def test_a_phase_without_shaping_leaves_rewards_as_they_are() -> None:
    shaper = RewardShaper(2, terms=TERMS)
    shaper.begin_phase(phase(SHAPING, BONUS))
    shaper.begin_episodes(rows(0, 1))
    shaper.begin_phase(phase())
    shaper.begin_episodes(rows(0, 1))
    rewards = np.array([1.0, -2.0])
    assert not shaper.terms
    assert shaper.shape(rewards, [], np.array([True, False])).tolist() == [1.0, -2.0]


def test_a_missing_shaping_term_is_not_zero() -> None:
    last = {"touch": np.array([0.0, 7.0])}
    infos = {"touch": np.array([1.0, 2.0]), "puck": np.ones(2), "_puck": np.ones(2, bool), "final_info": last}
    assert in_step(infos, "touch", rows(1), 2).tolist() == [1.0, 7.0]
    assert in_step(infos, "puck", rows(), 2).tolist() == [1.0, 1.0]
    with pytest.raises(InvalidArgument, match=r"use the info 'touhc', .* have puck, touch: "):
        in_step(infos, "touhc", rows(), 2)
    with pytest.raises(InvalidArgument, match=r"use the info 'puck', .* have touch: "):
        in_step(infos, "puck", rows(1), 2)


def test_a_failed_sub_env_needs_no_terms_but_others_do() -> None:
    failed = {"env_error": np.array(["it fell", ""], object), "_env_error": np.array([True, False])}
    alone = {name: array[:1] for name, array in failed.items()}
    assert in_step(alone, "touch", rows(0), 1).tolist() == [0.0]
    infos = {"touch": np.array([1.0, 2.0]), **failed}
    assert in_step(infos, "touch", rows(0), 2).tolist() == [0.0, 2.0]
    with pytest.raises(InvalidArgument, match="use the info 'touch'"):
        in_step(infos, "touch", rows(0, 1), 2)
