"""HockeyEnv as a Gymnasium environment: seeds, starts, ends, and defects that only quirks restore."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium.utils.env_checker import check_env
from tests.waiting import PATIENCE_S

from envfleet.envs.hockey import (
    PUBLIC_QUIRKS,
    BasicOpponent,
    HockeyEnv,
    HockeyOneEnv,
    Mode,
    Quirks,
    compat,
)
from envfleet.errors import InvalidArgument

REST = np.zeros(8)
IDS = ("Hockey-v0", "Hockey-One-v0", "envfleet/Hockey-Box2D-v0", "envfleet/Hockey-One-Box2D-v0")


def state(**numbers: list[float]) -> np.ndarray:
    """An observation of player one with both rackets in place and the puck away from them."""
    parts = {
        "one": [-3, 0, 0, 0, 0, 0],
        "two": [3, 0, 0, 0, 0, 0],
        "puck": [0, 2, 0, 0],
        "holds": [0, 0],
        **numbers,
    }
    return np.concatenate([parts[name] for name in ("one", "two", "puck", "holds")]).astype(float)


def placed(**numbers: list[float]) -> HockeyEnv:
    env = HockeyEnv()
    env.reset(seed=0)
    env.set_state(state(**numbers))
    return env


@pytest.mark.filterwarnings("ignore:.*(infinity|action_space):UserWarning")
@pytest.mark.parametrize("name", IDS)
def test_gymnasium_has_nothing_to_say(name: str) -> None:
    env = gymnasium.make(name, render_mode="rgb_array")
    check_env(env.unwrapped)
    env.close()


@pytest.mark.parametrize("keep_mode", [True, False])
@pytest.mark.parametrize("mode", list(Mode))
def test_observations_are_in_their_space(keep_mode: bool, mode: Mode) -> None:
    env = HockeyEnv(keep_mode, mode)
    observation, _ = env.reset(seed=3)
    for _ in range(20):
        assert observation in env.observation_space
        assert env.obs_agent_two() in env.observation_space
        observation, *_ = env.step(env.action_space.sample())
    assert observation.shape == ((18,) if keep_mode else (16,))


def test_player_two_sees_the_field_turned_around() -> None:
    env = placed(one=[-2, 1, 0.1, 1, 2, 3], two=[1, -1, 0.2, 4, 5, 6], puck=[0.5, 0.25, -1, 7], holds=[4, 9])
    expected = [-1, 1, 0.2, -4, -5, 6, 2, -1, 0.1, -1, -2, 3, -0.5, -0.25, 1, -7, 9, 4]
    np.testing.assert_allclose(env.obs_agent_two(), expected, rtol=1e-5)


def test_a_seed_gives_the_same_games_again() -> None:
    def games(env: HockeyEnv) -> list[np.ndarray]:
        observations = [env.reset(seed=5)[0]]
        for _ in range(2):
            observations += [env.step(np.full(8, 0.5))[0] for _ in range(30)]
            observations.append(env.reset()[0])
        return observations

    env = HockeyEnv()
    first = games(env)
    np.testing.assert_array_equal(first, games(env))
    np.testing.assert_array_equal(first, games(HockeyEnv()))
    assert not np.array_equal(first[0], first[31])


def test_players_take_turns_from_a_seeded_reset_on() -> None:
    env = HockeyEnv()
    env.reset()
    sides = [np.sign(env.reset(seed=seed)[0][12]) for seed in (1, None, None, 1, None)]
    assert sides == [1, -1, 1, 1, -1]
    assert env.reset(True)[0][12] < 0 < env.reset(False)[0][12]
    assert env.reset(options={"one_starting": True})[0][12] < 0


def test_a_public_start_ignores_the_seed() -> None:
    env = compat.HockeyEnv()
    sides = [np.sign(env.reset(seed=1)[0][12]) for _ in range(4)]
    assert sides == [1, -1, 1, -1]
    assert not np.array_equal(env.reset(True, seed=1)[0], env.reset(True)[0])


def test_modes_by_value_name_and_number() -> None:
    env = HockeyEnv()
    for mode in (Mode.TRAIN_DEFENSE, "TRAIN_DEFENSE", 2, np.int64(2)):
        env.reset(mode="NORMAL", seed=1)
        assert env.max_timesteps == 250
        env.reset(mode=mode, seed=1)
        assert (env.mode, env.max_timesteps) == (Mode.TRAIN_DEFENSE, 80)
    assert HockeyEnv(True, "TRAIN_SHOOTING").mode is Mode.TRAIN_SHOOTING
    for bad in ("normal", 3, 1.0, None):
        with pytest.raises(InvalidArgument, match="pass a Mode"):
            env.mode = bad  # type: ignore[assignment]


@pytest.mark.parametrize(("mode", "steps"), [("NORMAL", 251), ("TRAIN_SHOOTING", 81)])
def test_the_time_limit_truncates(mode: str, steps: int) -> None:
    ends = []
    for quirks in (Quirks(), PUBLIC_QUIRKS):
        env = HockeyEnv(mode=mode, quirks=quirks)
        env.reset(seed=1)
        flags = [env.step(REST)[2:4] for _ in range(steps)]
        assert set(flags[:-1]) == {(False, False)}
        ends.append(flags[-1])
    assert ends == [(False, True), (True, False)]


@pytest.mark.parametrize("side", [1, -1])
def test_a_goal_ends_the_game(side: int) -> None:
    env = placed(two=[3, 2, 0, 0, 0, 0], one=[-3, 2, 0, 0, 0, 0], puck=[3.7 * side, 0, 20 * side, 0])
    for _ in range(10):
        observation, reward, terminated, truncated, info = env.step(REST)
        if terminated:
            break
    info_two = env.get_info_agent_two()
    assert (terminated, truncated, info["winner"], info_two["winner"]) == (True, False, side, -side)
    assert reward == 10 * side + info["reward_closeness_to_puck"]
    assert env.get_reward_agent_two(info_two) == -10 * side + info_two["reward_closeness_to_puck"]
    assert abs(observation[12]) > 4
    env.reset(seed=0)
    assert env.winner == 0


def test_a_hold_ends_with_the_game_unless_asked_otherwise() -> None:
    held = []
    for env in (HockeyEnv(), compat.HockeyEnv()):
        env.reset(seed=0)
        env.set_state(state(holds=[9, 0]))
        held.append(env.reset(one_starting=True, seed=0)[0][16])
    assert held == [0, 9]


def test_full_force_and_full_torque() -> None:
    env = placed()
    observation, *_ = env.step([1, 0, 1, 0, 1, 0, 0, 0])
    assert observation[3] == pytest.approx(2.069 * 0.9, rel=1e-3)
    assert observation[5] == pytest.approx(2.157 * 0.96, rel=1e-3)
    assert observation[9] == pytest.approx(-2.069 * 0.9, rel=1e-3)


def test_a_caught_puck_is_shot_and_slows_down() -> None:
    env = placed(one=[-3, 2.5, 0, 0, 0, 0], puck=[-3, 2.5, 0, 0], holds=[15, 0])
    holds = [env.step(REST)[0][16] for _ in range(13)]
    assert holds == list(range(14, 1, -1))
    speeds = [float(np.hypot(*env.step(REST)[0][14:16])) for _ in range(5)]
    assert speeds == pytest.approx([59.9, 48.0, 38.4, 30.7, 24.5], rel=0.01)
    early = placed(one=[-3, 2.5, 0, 0, 0, 0], puck=[-3, 2.5, 0, 0], holds=[15, 0])
    assert early.step([0, 0, 0, 1, 0, 0, 0, 0])[0][14] > 55


def test_actions_are_clipped() -> None:
    observations = []
    for size in (1, 5):
        env = placed()
        observations.append(env.step(np.full(8, size, np.float32))[0])
    np.testing.assert_array_equal(observations[0], observations[1])


@pytest.mark.parametrize("action", [np.zeros(4), np.zeros((1, 8)), np.full(8, np.nan)])
def test_bad_actions_are_refused(action: np.ndarray) -> None:
    env = HockeyEnv()
    env.reset(seed=0)
    with pytest.raises(InvalidArgument, match="followed by that of player two"):
        env.step(action)


@pytest.mark.parametrize("action", [np.zeros(8), np.array([0, np.nan, 0, 0])])
def test_bad_actions_name_the_player_that_sent_them(action: np.ndarray) -> None:
    with pytest.raises(InvalidArgument, match=r"expected numbers of shape \(4,\): pass only the action of player one"):
        HockeyOneEnv().step(action)


def test_bad_states_options_and_render_modes_are_refused() -> None:
    env = HockeyEnv()
    for bad in (np.zeros(16), np.full(18, np.inf), np.full(18, np.nan), np.full(18, -1e30)):
        with pytest.raises(InvalidArgument, match="18 finite numbers"):
            env.set_state(bad)
    with pytest.raises(InvalidArgument, match="starter"):
        env.reset(options={"starter": 1})
    with pytest.raises(InvalidArgument, match="expected a dict"):
        env.reset(options=5)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="ansi"):
        HockeyEnv(render_mode="ansi")
    with pytest.raises(InvalidArgument, match="render_mode="):
        env.render()


def test_a_state_can_be_set_without_keep_mode() -> None:
    env = HockeyEnv(keep_mode=False)
    env.set_state(state()[:16])
    assert env.obs_agent_two()[12:14].tolist() == [0, -2]


def test_copies_go_on_exactly() -> None:
    for env in (HockeyEnv(mode="TRAIN_DEFENSE"), HockeyOneEnv(), compat.HockeyEnv()):
        env.reset(seed=1)
        rng = np.random.default_rng(0)
        actions = rng.uniform(-1, 1, (120, len(env.action_space.sample()))).astype(np.float32)
        for action in actions[:20]:
            env.step(action)
        env.set_state(state(puck=[-2.5, 0, -3, 0]))
        others = [copy.deepcopy(env), pickle.loads(pickle.dumps(env))]
        expected = [env.step(action)[:2] for action in actions[20:]] + [env.reset(seed=3)]
        for other in others:
            actual = [other.step(action)[:2] for action in actions[20:]] + [other.reset(seed=3)]
            for one, two in zip(actual, expected, strict=True):
                np.testing.assert_array_equal(one[0], two[0])
                assert one[1] == two[1]


def test_copies_keep_their_arguments() -> None:
    env = HockeyEnv(False, "TRAIN_SHOOTING", quirks=PUBLIC_QUIRKS)
    for other in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        assert (other.keep_mode, other.mode, other.action_space) == (False, Mode.TRAIN_SHOOTING, env.action_space)
        assert other.reset(seed=0)[0].dtype == np.float64
    for one in (HockeyOneEnv(weak_opponent=True), compat.HockeyEnv_BasicOpponent(weak_opponent=True)):
        assert pickle.loads(pickle.dumps(one)).opponent.weak
    public = compat.HockeyEnv(False, Mode.TRAIN_DEFENSE, True)
    other = copy.deepcopy(public)
    assert (other.keep_mode, other.mode, other.verbose) == (False, Mode.TRAIN_DEFENSE, True)


def test_one_player_games_are_two_player_games_with_a_script() -> None:
    one, two = HockeyOneEnv(), HockeyEnv()
    first, _ = one.reset(seed=4)
    np.testing.assert_array_equal(first, two.reset(seed=4)[0])
    player = BasicOpponent(weak=False, seed=np.random.SeedSequence(4, spawn_key=(1,)))
    for own in np.random.default_rng(0).uniform(-1, 1, (60, 4)).astype(np.float32):
        both = np.concatenate([own, player.act(two.obs_agent_two())])
        np.testing.assert_array_equal(one.step(own)[0], two.step(both)[0])


def test_another_opponent_can_be_put_in() -> None:
    class Still:
        def act(self, observation: np.ndarray) -> np.ndarray:
            return np.zeros(4)

    env = HockeyOneEnv()
    env.opponent = Still()
    env.reset(seed=1)
    assert env.step(np.zeros(4))[0][6:9].tolist() == [3, 0, 0]


def test_a_subclass_decides_the_rewards_of_both() -> None:
    class Touching(HockeyEnv):
        def get_reward(self, info: dict[str, Any]) -> float:
            return 7.0 + info["winner"]

    env = Touching()
    env.reset(seed=0)
    assert env.step(REST)[1] == env.get_reward_agent_two(env.get_info_agent_two()) == 7.0


def test_the_public_constructor_and_spelling() -> None:
    env = compat.HockeyEnv(keep_mode=True, mode=Mode.NORMAL, verbose=True)
    assert env.discrete_to_continous_action(3).tolist() == [0, -1, 0, 0]
    assert env.reset(seed=0)[0].dtype == np.dtype(np.float64)
    assert env.discrete_action_space.n == 7


def test_games_leave_no_memory_behind() -> None:
    """Box2D keeps every fixture definition that was ever made: 4 kB a game, if each game makes its own."""
    env, process = HockeyEnv(), psutil.Process()
    env.reset(seed=0)
    before = process.memory_info().rss
    for _ in range(1500):
        env.reset()
    assert process.memory_info().rss - before < 1500 * 1500


def test_nothing_needs_box2d_or_pygame_until_a_game_begins() -> None:
    script = (
        "import sys; sys.modules['Box2D'] = sys.modules['pygame'] = None\n"
        "from envfleet.envs.hockey import HockeyEnv, constants, rules\n"
        "try:\n    HockeyEnv()\nexcept ImportError as error:\n    print(error)\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert "pip install 'envfleet[hockey]'" in ran.stdout
