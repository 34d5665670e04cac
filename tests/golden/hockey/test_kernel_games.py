"""Compiled hockey against the Box2D game: bodies, whole games step by step, scripted players, and results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.golden.hockey.compiled import COMPILE_TIMEOUT_S

import envfleet
from envfleet import Fleet
from envfleet.envs.hockey import BasicOpponent, HockeyEnv, HockeyTwoEnv, constants
from envfleet.envs.hockey.constants import STRONG, WEAK
from envfleet.envs.hockey.kernel import shapes
from envfleet.envs.hockey.kernel.game import Hockey, HockeyOne
from envfleet.envs.hockey.opponents import scripted_action
from envfleet.kernels.env import KernelEnv

pytestmark = pytest.mark.timeout(COMPILE_TIMEOUT_S)


def test_tables_are_what_box2d_makes_of_the_outlines() -> None:
    env = HockeyEnv()
    bodies = [*env._game.world._world.bodies]
    fixtures = [fixture for body in bodies for fixture in body.fixtures]
    # Box2D lists the fixtures of a body newest first: the solid half of a goal before its sensor.
    order = [*range(6), 7, 6, 9, 8, 10, 11, 12]
    for k, fixture in zip(order, fixtures, strict=True):
        shape = fixture.shape
        assert shapes.RADIUS[k] == np.float32(shape.radius)
        if k == shapes.PUCK_FIXTURE:
            continue
        count = shapes.VERTEX_COUNT[k]
        np.testing.assert_array_equal(np.array([shapes.VERTEX_X[k], shapes.VERTEX_Y[k]]).T[:count], shape.vertices)
        np.testing.assert_array_equal(np.array([shapes.NORMAL_X[k], shapes.NORMAL_Y[k]]).T[:count], shape.normals)
        assert (shapes.CENTROID_X[k], shapes.CENTROID_Y[k]) == tuple(shape.centroid)
    for k, body in enumerate(bodies[8:]):
        assert body.mass == (*constants.RACKET_MASSES, constants.PUCK_MASS)[k]
        assert tuple(body.localCenter) == (shapes.CENTER_X[k], shapes.CENTER_Y[k])
        about_center = body.inertia - body.mass * (body.localCenter.x**2 + body.localCenter.y**2)
        np.testing.assert_allclose(shapes.INVERSE_INERTIA[k], 1 / about_center, rtol=1e-5)
        np.testing.assert_allclose(shapes.INVERSE_MASS[k], 1 / body.mass, rtol=1e-7)


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_games_run_side_by_side(mode: int) -> None:
    env, compiled = HockeyEnv(mode=mode), KernelEnv(Hockey, mode=mode)
    for seed in range(8):
        starter = 1 + seed % 2
        players = [BasicOpponent(weak=bool(seed & 2), seed=seed), BasicOpponent(weak=bool(seed & 4), seed=seed + 99)]
        observation, _ = env.reset(starter == 1, seed=seed)
        got, _ = compiled.reset(seed=seed, options={"params": {"starter": starter}})
        ended = False
        while not ended:
            np.testing.assert_array_equal(got, [observation, env.obs_agent_two()])
            actions = [player.act(view) for player, view in zip(players, got, strict=True)]
            observation, reward, terminated, truncated, info = env.step(np.concatenate(actions))
            got, got_reward, got_terminated, is_late, got_info = compiled.step(np.array(actions, np.float32))
            assert (got_reward, got_terminated, is_late and not terminated) == (reward, terminated, truncated)
            info_two = env.get_info_agent_two()
            assert got_info["reward_two"] == env.get_reward_agent_two(info_two)
            assert {key: got_info[key] for key in info} == info
            assert {key: got_info[f"{key}_two"] for key in info_two if key != "winner"} == {
                key: value for key, value in info_two.items() if key != "winner"
            }
            ended = terminated or truncated


def fleet_of(kernel: Any, num_envs: int, **params: Any) -> Fleet:
    return envfleet.make(kernel, num_envs, backend="kernel", max_episode_steps=None, **params)


def test_scripted_players_are_those_of_the_box2d_game() -> None:
    with fleet_of(Hockey, 6, player_one=STRONG, player_two=WEAK) as scripted, fleet_of(Hockey, 6) as played:
        observations, _ = scripted.reset(seed=5)
        # The phases are drawn last, so both begin with the same game.
        played.reset(seed=5)
        nothing = np.zeros((6, 2, 4), np.float32)
        for _ in range(120):
            before = observations
            observations, rewards, terminated, *_ = scripted.step(nothing)
            phases = scripted.get_attr("phases")
            actions = [
                [scripted_action(view.tolist(), weak, True, phase) for view, weak, phase in zip(*row, strict=True)]
                for row in zip(before, [(False, True)] * 6, phases, strict=True)
            ]
            got, got_rewards, *_ = played.step(np.array(actions, np.float32))
            if terminated.any():
                break
            np.testing.assert_array_equal(got, observations)
            np.testing.assert_array_equal(got_rewards, rewards)


def test_a_saved_game_goes_on_exactly() -> None:
    with fleet_of(Hockey, 8, player_one=STRONG, player_two=STRONG) as fleet:
        fleet.reset(seed=1)
        nothing = np.zeros((8, 2, 4), np.float32)
        for _ in range(70):
            fleet.step(nothing)
        saved = fleet.get_state()
        first = [fleet.step(nothing)[:2] for _ in range(100)]
        fleet.set_state(saved)
        for observations, rewards in first:
            again = fleet.step(nothing)
            np.testing.assert_array_equal(again[0], observations)
            np.testing.assert_array_equal(again[1], rewards)


def test_nothing_of_a_game_is_left_in_the_next() -> None:
    with fleet_of(Hockey, 4, player_one=STRONG, player_two=STRONG) as fleet:
        fleet.reset(seed=9)
        fresh = fleet.get_state()
        for _ in range(200):
            fleet.step(np.zeros((4, 2, 4), np.float32))
        fleet.reset(seed=9)
        again = fleet.get_state()
        np.testing.assert_array_equal(fresh.arrays["s"], again.arrays["s"])


def test_both_games_look_alike() -> None:
    env, compiled = HockeyEnv(render_mode="rgb_array"), KernelEnv(Hockey, render_mode="rgb_array", starter=1)
    env.reset(True, seed=2)
    compiled.reset(seed=2)
    for _ in range(10):
        env.step(np.full(8, 0.5))
        compiled.step(np.full((2, 4), 0.5, np.float32))
    np.testing.assert_array_equal(compiled.render(), env.render())


# Player one wins, draws, player two wins, in 20,000 games of a program that plays to the last bit.
RATES = {
    (STRONG, WEAK): (0.391, 0.463, 0.146),
    (WEAK, STRONG): (0.141, 0.464, 0.395),
    (STRONG, STRONG): (0.317, 0.367, 0.316),
    (WEAK, WEAK): (0.209, 0.589, 0.201),
}


def play_games(players: tuple[int, int], num_games: int) -> np.ndarray:
    """Shares of games won by player one, drawn, and won by player two; every row plays equally many games."""
    rows = 500
    counts = np.zeros(3)
    with fleet_of(Hockey, rows, player_one=players[0], player_two=players[1]) as fleet:
        nothing = np.zeros((rows, 2, 4), np.float32)
        for game in range(num_games // rows):
            fleet.reset(seed=1000 * game)
            winners = np.zeros(rows)
            is_playing = np.ones(rows, bool)
            while is_playing.any():
                _, _, terminated, truncated, infos = fleet.step(nothing)
                ended = is_playing & (terminated | truncated)
                winners[ended] = infos["winner"][ended]
                is_playing &= ~ended
            counts += [(winners == 1).sum(), (winners == 0).sum(), (winners == -1).sum()]
    return counts / counts.sum()


@pytest.mark.parametrize("players", RATES)
def test_winners_are_those_of_the_original(players: tuple[int, int]) -> None:
    expected = np.array(RATES[players])
    deviation = np.sqrt(expected * (1 - expected) / 1000)
    np.testing.assert_array_less(np.abs(play_games(players, 1000) - expected), 3.5 * deviation)


@pytest.mark.slow
@pytest.mark.parametrize("players", RATES)
def test_winners_of_20000_games(players: tuple[int, int]) -> None:
    # Both numbers of a comparison vary: 0.007 is the half width of a 95 % interval of one.
    np.testing.assert_allclose(play_games(players, 20_000), RATES[players], atol=1.5 * 0.007)


@pytest.mark.slow
def test_one_player_plays_the_same_game() -> None:
    rng = np.random.default_rng(0)
    with fleet_of(HockeyOne, 16) as one, fleet_of(Hockey, 16, player_two=STRONG) as two:
        seen, _ = one.reset(seed=3)
        both, _ = two.reset(seed=3)
        for _ in range(600):
            np.testing.assert_array_equal(seen, both[:, 0])
            actions = rng.uniform(-1, 1, (16, 2, 4)).astype(np.float32)
            seen, rewards, terminated, truncated, _ = one.step(actions[:, 0])
            both, *results = two.step(actions)
            for got, expected in zip((rewards, terminated, truncated), results, strict=False):
                np.testing.assert_array_equal(got, expected)


SETTINGS: tuple[dict[str, Any], ...] = (
    {"shooting_share": 0.4, "defense_share": 0.3},
    {"player_one": STRONG, "player_two": WEAK, "shooting_share": 0.2},
    {"player_two": STRONG, "keep_mode": False, "mode": 2},
    {"starter": 2, "player_one": WEAK},
)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_two_player_environment_plays_the_same_games(settings: dict[str, Any]) -> None:
    """Game after game from one seed: modes and starters that are drawn, scripted players, ends, infos."""
    env, compiled = HockeyTwoEnv(**settings), KernelEnv(Hockey, **settings)
    rng = np.random.default_rng(0)
    for game in range(12):
        seed = 3 if game == 0 else None
        expected, info = env.reset(seed=seed)
        actual, found_info = compiled.reset(seed=seed)
        np.testing.assert_array_equal(actual, expected)
        assert found_info == info
        ended = False
        while not ended:
            actions = rng.uniform(-1.2, 1.2, (2, 4)).astype(np.float32)
            expected, *results = env.step(actions)
            actual, *found_results = compiled.step(actions)
            np.testing.assert_array_equal(actual, expected)
            assert found_results == results
            ended = bool(results[1] or results[2])


def test_settings_of_running_fleets() -> None:
    with fleet_of(Hockey, 400, mode=np.arange(400) % 3) as fleet:
        _, infos = fleet.reset(seed=0)
        np.testing.assert_array_equal(infos["mode"], np.arange(400) % 3)
        fleet.set_attr("mode", 0)
        fleet.set_attr("shooting_share", 0.5)
        fleet.set_attr("defense_share", np.full(400, 0.25))
        assert fleet.get_attr("mode") == (0,) * 400
        lengths = []
        for _ in range(600):
            observations, _, _, truncated, infos = fleet.step(np.zeros((400, 2, 4), np.float32))
            lengths += list(zip(infos["mode"][truncated], fleet.episode_lengths[truncated], strict=True))
        assert set(lengths) == {(0, 251), (1, 81), (2, 81)}
        assert observations.shape == (400, 2, 18)
        fleet.reset()
        shares = np.bincount(fleet.reset()[1]["mode"]) / 400
        np.testing.assert_allclose(shares, [0.25, 0.5, 0.25], atol=0.1)
