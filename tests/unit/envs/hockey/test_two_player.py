"""The Box2D game for two players: interface, settings, ends, and saved games."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import envfleet
from envfleet.envs.hockey import HockeyEnv, HockeyTwoEnv
from envfleet.envs.hockey.kernel.game import Hockey, HockeyOne
from envfleet.envs.hockey.opponents import scripted_action
from envfleet.errors import InvalidArgument, StateUnsupported, SubEnvError
from envfleet.kernels.kernel import read_kernel
from envfleet.kernels.requests import check_params
from envfleet.workers.state import save_env

ID = "envfleet/Hockey-Two-Box2D-v0"
NOTHING = np.zeros((2, 4), np.float32)
STRONG = 2


def play_on(env: Any, seed: int, steps: int = 150) -> list[np.ndarray]:
    """Play random actions, over the ends of games; all that comes back."""
    rng = np.random.default_rng(seed)
    played = []
    for _ in range(steps):
        observation, reward, terminated, truncated, info = env.step(rng.uniform(-1, 1, (2, 4)).astype(np.float32))
        numbers = [reward, terminated, truncated, *info.values()]
        if terminated or truncated:
            observation, info = env.reset()
            numbers += info.values()
        played.append(np.array([*observation.ravel(), *numbers]))
    return played


def assert_same(one: list[np.ndarray], other: list[np.ndarray]) -> None:
    for step, (first, second) in enumerate(zip(one, other, strict=True)):
        np.testing.assert_array_equal(first, second, str(step))


@pytest.mark.filterwarnings("ignore:.*infinity:UserWarning")
def test_gymnasium_has_nothing_to_say() -> None:
    env = gymnasium.make(ID, render_mode="rgb_array")
    check_env(env.unwrapped)
    env.close()


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("keep_mode", [True, False])
def test_it_is_the_game_of_the_public_form(mode: int, keep_mode: bool) -> None:
    two, one = HockeyTwoEnv(mode, keep_mode=keep_mode, starter=1), HockeyEnv(keep_mode, mode)
    seen, info = two.reset(seed=5)
    one.reset(True, seed=5)
    rng = np.random.default_rng(0)
    ended = False
    while not ended:
        for row, view in zip(seen, (one._observe(0), one.obs_agent_two()), strict=True):
            np.testing.assert_array_equal(row[: len(view)], view)
            assert not row[len(view) :].any()
        info_two = one.get_info_agent_two()
        assert info["winner"] == one.winner
        assert info["reward_two"] == one.get_reward_agent_two(info_two)
        assert info["reward_puck_direction_two"] == info_two["reward_puck_direction"]
        actions = rng.uniform(-1.2, 1.2, (2, 4)).astype(np.float32)
        seen, reward, terminated, truncated, info = two.step(actions)
        _, expected, is_won, is_late, _ = one.step(actions[:, : one.num_actions].ravel())
        assert (reward, terminated, terminated or truncated) == (expected, is_won, is_won or is_late)
        ended = terminated or truncated


def test_the_limit_is_that_of_the_mode() -> None:
    for mode, steps in ((0, 251), (1, 81), (2, 81)):
        env = HockeyTwoEnv(mode)
        env.reset(seed=1)
        env._game.place([-3, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0])  # type: ignore[union-attr]
        flags = [env.step(NOTHING)[2:4] for _ in range(steps)]
        assert set(flags[:-1]) == {(False, False)}
        assert flags[-1] == (False, True)


def test_scripted_players_take_over_in_the_next_step() -> None:
    env = HockeyTwoEnv()
    before, _ = env.reset(seed=3)
    env.player_two = STRONG
    after, *_ = env.step(NOTHING)
    assert after[0, 3:6].tolist() == [0, 0, 0]
    assert after[1, 3:6].all()
    action = scripted_action(before[1].tolist(), False, True, env._phases[1])
    other = HockeyEnv()
    other.reset(bool(before[0, 12] < 0), seed=3)
    np.testing.assert_array_equal(other.step([0, 0, 0, 0, *action])[0], after[0])


def test_shares_are_drawn_for_every_game() -> None:
    env = HockeyTwoEnv(shooting_share=0.5, defense_share=0.25)
    env.reset(seed=0)
    modes = [env.reset()[1]["mode"] for _ in range(2000)]
    np.testing.assert_allclose(np.bincount(modes) / 2000, [0.25, 0.5, 0.25], atol=0.04)
    env.shooting_share = env.defense_share = 0
    assert env.reset()[1]["mode"] == 0


def test_without_shares_seeds_place_as_in_the_public_game() -> None:
    for seed in range(20):
        seen, _ = HockeyTwoEnv(starter=2).reset(seed=seed)
        np.testing.assert_array_equal(seen[0], HockeyEnv().reset(False, seed=seed)[0])


def test_both_players_begin() -> None:
    env = HockeyTwoEnv()
    starts = [env.reset(seed=seed)[0][0, 12] < 0 for seed in range(200)]
    assert 70 < sum(starts) < 130


@pytest.mark.parametrize("players", [(0, 0), (1, 2)])
def test_a_copy_goes_on_exactly(players: tuple[int, int]) -> None:
    env = HockeyTwoEnv(player_one=players[0], player_two=players[1], shooting_share=0.3, defense_share=0.3)
    env.reset(seed=4)
    play_on(env, 0, 60)
    copies = [pickle.loads(pickle.dumps(env)), copy.deepcopy(env)]
    expected = play_on(env, 1)
    for copied in copies:
        assert_same(play_on(copied, 1), expected)
        assert copied.player_two == players[1]


def test_a_saved_game_goes_on_in_another_process() -> None:
    def play(fleet: Any) -> list[np.ndarray]:
        rng = np.random.default_rng(1)
        steps = [fleet.step(rng.uniform(-1, 1, (3, 2, 4)).astype(np.float32)) for _ in range(60)]
        return [np.append(step[0].ravel(), step[1]) for step in steps]

    with envfleet.make(ID, num_envs=3, backend="serial", mode=2, player_two=2) as fleet:
        fleet.reset(seed=0)
        play(fleet)
        state = fleet.get_state()
        expected = play(fleet)
    with envfleet.make(ID, num_envs=3, backend="process", workers=2) as fleet:
        fleet.set_state(state)
        assert fleet.get_attr("mode") == (2, 2, 2)
        assert_same(play(fleet), expected)


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_a_fleet_sets_one_value_or_one_for_each(backend: Any) -> None:
    with envfleet.make(ID, num_envs=3, backend=backend, workers=None if backend == "serial" else 2) as fleet:
        fleet.set_attr("mode", [0, 1, 2])
        fleet.set_attr("player_two", 1)
        fleet.set_attr("keep_mode", [True, False, True])
        assert fleet.get_attr("player_two") == (1, 1, 1)
        assert fleet.get_attr("keep_mode") == (True, False, True)
        assert fleet.reset(seed=0)[1]["mode"].tolist() == [0, 1, 2]
        fleet.set_attr("mode", 0)
        assert fleet.step(fleet.action_space.sample())[4]["mode"].tolist() == [0, 1, 2]
        _, infos = fleet.reset(options={"reset_mask": np.array([False, True, False]), "params": {"starter": 2}})
        assert infos["mode"][1] == 0
        with pytest.raises(SubEnvError, match="a list of one per sub-environment"):
            fleet.set_attr("player_two", np.array([0, 1, 2]))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mode", 3),
        ("mode", "normal"),
        ("starter", 3),
        ("player_one", "strong"),
        ("player_two", 1.5),
        ("keep_mode", 2),
        ("shooting_share", 1.5),
        ("defense_share", "half"),
    ],
)
def test_wrong_settings_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=rf"{name}=.*expected"):
        setattr(HockeyTwoEnv(), name, value)
    with pytest.raises(InvalidArgument, match=rf"{name}=.*expected"):
        HockeyTwoEnv(**{name: value})
    for kernel in (Hockey, HockeyOne):  # which would look beyond its tables
        for values in (value, [0, 0, value]):
            with pytest.raises(InvalidArgument, match=name):
                check_params(read_kernel(kernel), 3, {name: values}, {})


def test_wrong_calls_are_refused() -> None:
    env = HockeyTwoEnv(shooting_share=0.7)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(NOTHING)
    with pytest.raises(InvalidArgument, match="expected 'params'"):
        env.reset(options={"mode": 1})
    for options, name in ((5, "options"), ({"params": 5}, r"options\['params'\]")):
        with pytest.raises(InvalidArgument, match=f"{name}=5 .*expected a dict"):
            env.reset(options=options)  # type: ignore[arg-type]
    env.reset(options={"params": None})
    with pytest.raises(InvalidArgument, match="unknown setting 'modes'"):
        env.reset(options={"params": {"modes": 1}})
    with pytest.raises(InvalidArgument, match="add up to more than 1"):
        env.reset(options={"params": {"defense_share": 0.7}})
    env.reset(options={"params": {"defense_share": 0.3}})
    for action in (np.zeros(8), np.full((2, 4), np.nan)):
        with pytest.raises(InvalidArgument, match="one row for each player"):
            env.step(action)
    assert env._game is not None
    env._game._events += [NOTHING.ravel()] * 100_001
    for copied in (copy.deepcopy, save_env):
        with pytest.raises(StateUnsupported, match=r"^this game cannot be copied, .*: reset it first$"):
            copied(env)
