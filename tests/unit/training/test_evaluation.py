"""Evaluations: counts, intervals, sides, modes, and environments for one against Gymnasium's own loop."""

from __future__ import annotations

import statistics
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from tests.unit.training.still import Still

from envfleet.agents import DDDQN, PPO, SAC, ActionTable, SACConfig
from envfleet.envs.games import check_spaces, find_game
from envfleet.errors import InvalidArgument
from envfleet.training.evaluation import Score, evaluate, evaluate_returns
from envfleet.training.games.matches import Rink, play

pytestmark = [
    pytest.mark.timeout(1200),  # when the game is not compiled yet, on a busy machine
    pytest.mark.usefixtures("one_torch_thread"),
]


def test_a_score_counts_a_draw_as_not_won() -> None:
    score = Score(3, 5, 2)
    assert (score.games, score.win_rate, score.draw_rate, score.loss_rate) == (10, 0.3, 0.5, 0.2)
    # Brown, Cai, DasGupta 2001: R's binom.confint(3, 10, methods="wilson").
    assert score.win_interval == pytest.approx((0.10779, 0.60322), abs=1e-5)
    assert Score(0, 0, 0).figures()["win_rate"] == 0.0


def test_an_evaluation_is_what_was_played() -> None:
    evaluation = evaluate(Still(), "strong", games=61, seed=5)
    games = play(Still(), "strong", 61, seed=5)
    assert (evaluation.player, evaluation.opponent, evaluation.mode, evaluation.seed) == (
        "still",
        "strong",
        "NORMAL",
        5,
    )
    assert evaluation.score == Score(*(int((games.outcomes == k).sum()) for k in (1, 0, -1)))
    assert evaluation.sides["left"].games == 31
    assert evaluation.sides["right"].wins == (games.outcomes[1::2] == 1).sum()
    figures = evaluation.figures()
    assert figures["mean_return"] == games.returns.mean()
    assert figures["win_rate_low"] < figures["win_rate"] < figures["win_rate_high"]
    assert figures["win_rate"] + figures["draw_rate"] + figures["loss_rate"] == pytest.approx(1)


def test_an_agent_that_does_not_explore_is_evaluated() -> None:
    view, move = spaces.Box(-np.inf, np.inf, (18,), np.float32), spaces.Box(-1, 1, (4,), np.float32)
    agent = SAC(view, move, SACConfig(hidden=(16,)), num_envs=1, seed=0)
    before = agent.random.numpy.bit_generator.state
    first = evaluate(agent, "weak", games=20)
    assert evaluate(agent, "weak", games=20, rink=Rink(num_envs=3)) == first
    assert agent.random.numpy.bit_generator.state == before


def test_a_mode_is_played_from_its_side() -> None:
    played = evaluate("strong", "weak", games=20, rink=Rink(mode="TRAIN_DEFENSE"))
    assert ({*played.sides}, played.mode) == ({"left"}, "TRAIN_DEFENSE")


class Leaning:
    """Balances a pole for a while."""

    def act_batch(self, observations: Any, deterministic: bool = False) -> Any:
        return (observations[:, 2] + observations[:, 3] > 0).astype(np.int64)


@pytest.mark.parametrize("num_envs", [1, 4, 64])
def test_episodes_for_one_are_gymnasiums(num_envs: int) -> None:
    env, returns = gymnasium.make("CartPole-v1", max_episode_steps=150), []
    for seed in np.random.SeedSequence(3).generate_state(9):
        observation, _ = env.reset(seed=int(seed))
        total, ended = 0.0, False
        while not ended:
            observation, reward, terminated, truncated, _ = env.step(int(Leaning().act_batch(observation[None])[0]))
            total, ended = total + float(reward), terminated or truncated
        returns.append(total)
    found = evaluate_returns(Leaning(), "CartPole-v1", episodes=9, seed=3, num_envs=num_envs, max_episode_steps=150)
    assert (found.mean, found.low, found.high) == (statistics.mean(returns), min(returns), max(returns))
    assert found.mean_length == found.mean
    reach = 1.96 * statistics.stdev(returns) / 3
    assert found.interval == pytest.approx((found.mean - reach, found.mean + reach), rel=1e-4)


def test_a_kernel_is_played_compiled() -> None:
    found = evaluate_returns(Leaning(), "envfleet/CartPole-v1", episodes=4, seed=3)
    assert found.mean == evaluate_returns(Leaning(), "CartPole-v1", episodes=4, seed=3).mean


def test_one_episode_says_nothing() -> None:
    with pytest.raises(InvalidArgument, match="1 episodes, expected 2 or more"):
        evaluate_returns(Leaning(), "CartPole-v1", episodes=1)


@pytest.mark.parametrize(("env", "found"), [("Pendulum-v1", "(3,)"), ("CartPole-v1", "(4,)")])
def test_an_agent_of_another_environment_is_refused_with_both_spaces(env: str, found: str) -> None:
    agent, place = PPO(spaces.Box(-1, 1, (4,)), spaces.Discrete(3), seed=0), gymnasium.make(env)
    with pytest.raises(InvalidArgument) as caught:
        evaluate_returns(agent, env, episodes=2)
    assert found in str(place.observation_space)
    assert str(caught.value) == (
        "the agent was trained on observations Box(-1.0, 1.0, (4,), float32) and actions Discrete(3), the environment "
        f"has observations {place.observation_space} and actions {place.action_space}: pass one that was trained "
        "there, or say what this one plays (`env=`, `rink=`, on the command line --env)"
    )


def test_an_agent_sees_the_parts_that_it_was_trained_on() -> None:
    views = [spaces.Dict(pole=spaces.Box(-1, 1, (size,)), cart=spaces.Discrete(2)) for size in (3, 4)]
    move: spaces.Space[Any] = spaces.Discrete(2)
    agent = PPO(views[0], move)
    with pytest.raises(InvalidArgument, match="mia was trained on observations Dict"):
        check_spaces(agent, "mia", "it", views[1], move)
    check_spaces(agent, "mia", "it", views[0], move)
    ranged = DDDQN(spaces.Box(-2, 2, (4,), np.float64), ActionTable([[-1.0], [1.0]]))
    check_spaces(ranged, "mia", "it", spaces.Box(-1, 1, (4,)), spaces.Box(-2, 2, (1,)))
    check_spaces(Leaning(), "leaning", "it", spaces.Graph(spaces.Box(-1, 1, (4,)), None), move)


class Endless(gymnasium.Env[Any, Any]):
    """Rewards every step and never ends."""

    observation_space = spaces.Box(-1, 1, (4,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(4, np.float32), 1.0, False, False, {}


def test_an_episode_without_end_is_cut_and_does_not_hold_up_an_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envfleet.training.games.matches.MOST_STEPS", 30)
    with pytest.warns(RuntimeWarning, match="had no end after 30 steps"):
        found = evaluate_returns(Leaning(), Endless, episodes=5, num_envs=2)
    assert (found.env, found.mean, found.low, found.high, found.mean_length) == ("Endless", 30.0, 30.0, 30.0, 30.0)


def test_a_random_player_wins_as_often_as_chance_has_it() -> None:
    """Also where all see the same, and whatever the number of games at once: no game repeats another."""
    found = find_game("tests.unit.training.duel:Duel")
    assert found is not None
    for opponent in ("random", Rock()):
        result = evaluate("random", opponent, games=900, seed=1, rink=Rink(game=found))
        won, lost = (result.outcomes.count(outcome) for outcome in (1, -1))
        assert 240 < won < 360
        assert 240 < lost < 360
        assert result.outcomes[:128] != result.outcomes[128:256]
    assert evaluate("random", Rock(), games=50, seed=2, rink=Rink(game=found)).outcomes != result.outcomes[:50]


class Rock:
    def act_batch(self, observations: Any, deterministic: bool = False) -> Any:
        return np.zeros(len(observations), np.int64)


def test_games_whose_environment_fails_are_drawn_where_it_is_made_anew() -> None:
    found = find_game("tests.unit.training.duel:Broken")
    assert found is not None
    rink = Rink(game=found, num_envs=1, options={"on_failure": "restart"})
    assert evaluate("random", Rock(), games=3, rink=rink).outcomes == (0, 0, 0)
