"""Games between two players: the same for any number at once, fair, and won as often as they should be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from tests.unit.training.duel import Numbered
from tests.unit.training.still import Still

from envfleet.agents import PPO, SAC, PPOConfig, SACConfig
from envfleet.envs.games import find_game
from envfleet.envs.hockey import BasicOpponent
from envfleet.envs.hockey.kernel.game import Hockey
from envfleet.errors import InvalidArgument
from envfleet.kernels.env import KernelEnv
from envfleet.training.games.matches import Games, MatchConfig, play
from envfleet.training.games.players import load_player

pytestmark = [
    pytest.mark.timeout(1200),  # when the game is not compiled yet, on a busy machine
    pytest.mark.usefixtures("one_torch_thread"),
]

ENGINES = ("compiled", "box2d")
VIEW = spaces.Box(-np.inf, np.inf, (18,), np.float32)
MOVE = spaces.Box(-1.0, 1.0, (4,), np.float32)


def sac(seed: int = 0) -> SAC:
    return SAC(VIEW, MOVE, SACConfig(hidden=(64, 64)), seed=seed)


def assert_same(games: Games, others: Games) -> None:
    for name in vars(games):
        np.testing.assert_array_equal(getattr(games, name), getattr(others, name), err_msg=name)


@pytest.mark.parametrize("opponent", [sac(1), "strong"], ids=["agent", "scripted"])
def test_games_do_not_depend_on_how_many_run_at_once(opponent: Any) -> None:
    player, games = PPO(VIEW, MOVE, PPOConfig(hidden=(96, 32)), seed=0), 21
    every = [play(player, opponent, games, seed=3, match=MatchConfig(num_envs=n)) for n in (1024, 16, 7)]
    assert_same(every[0], every[1])
    assert_same(every[0], every[2])
    alone = play(player, opponent, 2, seed=3, match=MatchConfig(num_envs=1))
    for name in vars(alone):
        np.testing.assert_array_equal(getattr(alone, name), getattr(every[0], name)[:2], err_msg=name)


class Rounded:
    """A policy with last bits that depend on batch shape and row, as a matrix product's may."""

    def act_batch(self, observations: Any, deterministic: bool = False) -> Any:
        tilt = 0.3 * np.sin(np.arange(len(observations)) + len(observations))
        return np.clip(Still().act_batch(observations) + tilt[:, None], -1, 1)


class Strict:
    """A policy that takes nothing but observations of their space."""

    def act_batch(self, observations: Any, deterministic: bool = False) -> Any:
        assert all(Numbered.view.contains(observation) for observation in observations)
        return np.zeros(len(observations), np.int64)


@pytest.mark.parametrize("num_envs", [1, 3, 200])
def test_policies_get_valid_observations_without_a_game(num_envs: int) -> None:
    game = find_game("tests.unit.training.duel:Numbered")
    assert game is not None
    match = MatchConfig(num_envs=num_envs, game=game)
    agent = PPO(Numbered.view, spaces.Discrete(3), PPOConfig(hidden=(8,)), seed=0)
    assert (play(Strict(), agent, 5, match=match).lengths == 1).all()


def test_nor_do_they_if_the_policy_does() -> None:
    games = [play(Rounded(), "strong", 140, match=MatchConfig(num_envs=n)) for n in (1024, 130, 11)]
    assert_same(games[0], games[1])
    assert_same(games[0], games[2])


def test_a_game_is_the_one_that_is_played_by_hand() -> None:
    games = play(Still(), Still(), 4, seed=8)
    assert games.is_left.tolist() == [True, False, True, False]
    assert games.is_starting.tolist() == [True, True, False, False]
    for number, starter in enumerate((1, 2, 2, 1)):
        env = KernelEnv(Hockey, starter=starter)
        observation, _ = env.reset(seed=int(games.seeds[number]))
        returns, steps, terminated = np.zeros(2), 0, False
        while not terminated and steps < 251:
            observation, reward, terminated, _, info = env.step(Still().act_batch(observation).astype(np.float32))
            returns += (reward, info["reward_two"])
            steps += 1
        side = 0 if games.is_left[number] else 1
        assert games.lengths[number] == steps
        assert games.outcomes[number] == (info["winner"] if side == 0 else -info["winner"])
        assert games.returns[number] == returns[side]


@pytest.mark.parametrize("mode", ["NORMAL", "TRAIN_DEFENSE"])
def test_both_engines_play_the_same_games(mode: str) -> None:
    compiled, box2d = (play(Still(), "weak", 9, seed=4, match=MatchConfig(engine=e, mode=mode)) for e in ENGINES)
    assert_same(compiled, box2d)


# Wins, draws and losses of the first player in 20,000 games of the public environment's rules.
RATES = {
    ("strong", "weak"): (0.391, 0.463, 0.146),
    ("weak", "strong"): (0.141, 0.464, 0.395),
    ("strong", "strong"): (0.317, 0.367, 0.316),
    ("weak", "weak"): (0.209, 0.589, 0.201),
}


@pytest.mark.parametrize(
    ("players", "side"),
    [*((players, "both") for players in RATES), (("strong", "weak"), "left"), (("strong", "weak"), "right")],
)
def test_scripted_players_win_as_often_as_they_should(players: tuple[str, str], side: Any) -> None:
    games = play(*players, 1000, seed=1, side=side)
    shares = np.array([(games.outcomes == outcome).mean() for outcome in (1, 0, -1)])
    expected = np.array(RATES[players])
    np.testing.assert_array_less(np.abs(shares - expected), 3.5 * np.sqrt(expected * (1 - expected) / 1000))


def test_the_player_that_starts_wins_more() -> None:
    games = play("strong", "strong", 1000)
    wins = [(games.outcomes[games.is_starting == is_starting] == 1).mean() for is_starting in (True, False)]
    assert wins[0] == pytest.approx(0.39, abs=0.07)
    assert wins[1] == pytest.approx(0.24, abs=0.07)


@pytest.mark.parametrize(("mode", "steps"), [("NORMAL", 251), ("TRAIN_SHOOTING", 81), ("TRAIN_DEFENSE", 81)])
def test_every_game_ends(mode: str, steps: int) -> None:
    class Nothing:
        def act_batch(self, observations: Any, deterministic: bool = False) -> Any:
            return np.zeros((len(observations), 4))

    games = play(Nothing(), Nothing(), 30, match=MatchConfig(mode=mode), side="left")
    drawn = games.outcomes == 0
    assert (games.lengths[drawn] == steps).all()
    assert (games.lengths[~drawn] < steps).all()
    assert drawn.all() == (mode != "TRAIN_DEFENSE")


def test_players_are_found(tmp_path: Any) -> None:
    agent = sac()
    agent.save(tmp_path / "mine.pt")
    player = load_player(tmp_path / "mine.pt")
    assert (player.name, player.script) == ("mine", 0)
    assert_same(play(player, "weak", 5), play(agent, "weak", 5))
    agent.save(tmp_path / "checkpoints" / "best.pt")
    assert load_player(tmp_path).name == tmp_path.name  # as in environments for one
    assert load_player(BasicOpponent(weak=False)).script == 2


class Numbers:
    """Acts by numbers."""

    def act_batch(self, observations: Any, deterministic: bool = False) -> Any:
        return np.zeros(len(observations), np.int64)


@pytest.mark.parametrize(
    ("player", "said"),
    [
        ("stronk", "unknown player 'stronk', expected 'weak', 'strong', 'champion', 'random', the file"),
        (3, "a player of type int has no act_batch"),
        (
            PPO(spaces.Box(-1, 1, (3,)), MOVE),
            r"PPO has observations Box\(.*, \(3,\), .*, a player of hockey has .*, \(18,\)",
        ),
        (PPO(VIEW, spaces.Discrete(3)), r"and actions Discrete\(3\), a player of hockey has .* and actions Box\("),
        (Numbers(), r"a player returned actions of shape \(1,\) and int64, expected \(1, 4\)"),
    ],
)
def test_invalid_players_are_refused(player: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        play(player, "weak", 1)


def test_wrong_words_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="side='top': pass one of 'left', 'right', 'both'"):
        play("weak", "strong", 1, side="top")
    with pytest.raises(InvalidArgument, match="mode='DRILL': pass one of 'NORMAL'"):
        MatchConfig(mode="DRILL")
    with pytest.raises(InvalidArgument, match="games=0: pass a whole number of at least 1"):
        play("weak", "strong", 0)
