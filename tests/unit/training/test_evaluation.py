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
from envfleet.envs.games import check_spaces, find_game, spaces_of
from envfleet.errors import InvalidArgument
from envfleet.training.evaluation import Score, evaluate, evaluate_returns
from envfleet.training.games.matches import MatchConfig, play

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
    assert evaluate(agent, "weak", games=20, match=MatchConfig(num_envs=3)) == first
    assert agent.random.numpy.bit_generator.state == before


def test_a_mode_is_played_from_its_side() -> None:
    played = evaluate("strong", "weak", games=20, match=MatchConfig(mode="TRAIN_DEFENSE"))
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
    result = evaluate_returns(Leaning(), "CartPole-v1", episodes=9, seed=3, num_envs=num_envs, max_episode_steps=150)
    assert (result.mean, result.low, result.high) == (statistics.mean(returns), min(returns), max(returns))
    assert result.mean_length == result.mean
    reach = 2.306 * statistics.stdev(returns) / 3  # Student's t with 8 degrees of freedom
    assert result.interval == pytest.approx((result.mean - reach, result.mean + reach), rel=1e-4)


class Strict(gymnasium.Env[Any, Any]):
    """Shows what to do, and takes nothing else."""

    observation_space = action_space = spaces.Discrete(100)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._left, self._shown = int(self.np_random.integers(1, 20)), int(self.np_random.integers(100))
        return self._shown, {}

    def step(self, action: Any) -> Any:
        if action != self._shown:
            raise ValueError(f"{action} where {self._shown} was shown")
        self._left, self._shown = self._left - 1, (self._shown + 7) % 100
        return self._shown, 1.0, self._left == 0, False, {}


class Obedient:
    """Does what is shown."""

    def act_batch(self, observations: Any, deterministic: bool = False) -> Any:
        return observations


def test_a_policy_acts_also_where_no_game_is_left() -> None:
    lengths = [
        np.random.default_rng(int(seed)).integers(1, 20) for seed in np.random.SeedSequence(3).generate_state(11)
    ]
    assert evaluate_returns(Obedient(), Strict, episodes=11, seed=3, num_envs=4).mean == np.mean(lengths)


def test_a_kernel_is_played_compiled() -> None:
    returns = evaluate_returns(Leaning(), "envfleet/CartPole-v1", episodes=4, seed=3)
    assert returns.mean == evaluate_returns(Leaning(), "CartPole-v1", episodes=4, seed=3).mean


def test_one_episode_says_nothing() -> None:
    with pytest.raises(InvalidArgument, match="1 episodes, expected 2 or more"):
        evaluate_returns(Leaning(), "CartPole-v1", episodes=1)


@pytest.mark.parametrize(("env", "shape"), [("Pendulum-v1", "(3,)"), ("CartPole-v1", "(4,)")])
def test_an_agent_with_other_spaces_is_refused_with_both(env: str, shape: str) -> None:
    agent, place = PPO(spaces.Box(-1, 1, (4,)), spaces.Discrete(3), seed=0), gymnasium.make(env)
    with pytest.raises(InvalidArgument) as caught:
        evaluate_returns(agent, env, episodes=2)
    assert shape in str(place.observation_space)
    assert str(caught.value) == (
        "the agent has observations Box(-1.0, 1.0, (4,), float32) and actions Discrete(3), the environment has "
        f"observations {place.observation_space} and actions {place.action_space}, expected the same: pass one that "
        "was trained there, or pass the environment of this one (`env=`, `match=`, on the command line --env)"
    )


def bits(**sizes: int) -> spaces.Dict:
    return spaces.Dict([(name, spaces.Box(-1, 1, (size,))) for name, size in sizes.items()])


def byte(*shape: int) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)


@pytest.mark.parametrize(
    ("trained", "actual"),
    [
        (bits(pole=3, cart=2), bits(pole=4, cart=2)),
        (bits(pole=1, cart=3), bits(pole=3, cart=1)),
        (bits(pole=1, cart=3), bits(pole=1, action_mask=3)),
        (spaces.MultiDiscrete([3, 5]), spaces.MultiDiscrete([5, 3])),
        (spaces.Discrete(5), spaces.Discrete(5, start=10)),
        (spaces.Box(0, 1, (8,)), byte(8)),
        (spaces.Box(0, 1, (8,)), spaces.MultiBinary(8)),
    ],
    ids=str,
)
def test_an_agent_sees_what_it_was_trained_on(trained: spaces.Space[Any], actual: spaces.Space[Any]) -> None:
    move: spaces.Space[Any] = spaces.Discrete(2)
    with pytest.raises(InvalidArgument, match=r"mia has observations .*, it has observations .*, expected the same"):
        check_spaces((trained, move), "mia", (actual, move), "it")
    check_spaces((trained, move), "mia", (trained, move), "it")


def test_an_agent_may_see_other_bounds_but_not_act_in_them() -> None:
    near, far = spaces.Box(-1, 1, (4,)), spaces.Box(-2, 2, (4,), np.float64)
    check_spaces((near, near), "mia", (far, near), "it")
    with pytest.raises(InvalidArgument, match="expected the same"):
        check_spaces((near, near), "mia", (near, far), "it")
    check_spaces((near, spaces.Discrete(2)), "mia", (near, spaces.Discrete(2, dtype=np.int32)), "it")
    table = spaces_of(DDDQN(far, ActionTable([[-1.0], [1.0]])))
    check_spaces(table, "mia", (near, spaces.Box(-2, 2, (1,))), "it")
    check_spaces(spaces_of(Leaning()), "leaning", (spaces.Graph(near, None), near), "it")


class Endless(gymnasium.Env[Any, Any]):
    """Rewards every step and never ends."""

    observation_space = spaces.Box(-1, 1, (4,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(4, np.float32), 1.0, False, False, {}


def test_an_endless_episode_is_cut_in_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envfleet.evaluation.episodes.MOST_STEPS", 30)
    with pytest.warns(RuntimeWarning, match="had not ended after 30 steps"):
        returns = evaluate_returns(Leaning(), Endless, episodes=5, num_envs=2)
    assert (returns.env, returns.mean, returns.low, returns.high, returns.mean_length) == (
        "Endless",
        30.0,
        30.0,
        30.0,
        30.0,
    )


def test_a_random_player_wins_as_often_as_chance_has_it() -> None:
    """Also where all see the same, and whatever the number of games at once: no game repeats another."""
    game = find_game("tests.unit.training.duel:Duel")
    assert game is not None
    for opponent in ("random", Rock()):
        result = evaluate("random", opponent, games=900, seed=1, match=MatchConfig(game=game))
        won, lost = (result.outcomes.count(outcome) for outcome in (1, -1))
        assert 240 < won < 360
        assert 240 < lost < 360
        assert result.outcomes[:128] != result.outcomes[128:256]
    assert evaluate("random", Rock(), games=50, seed=2, match=MatchConfig(game=game)).outcomes != result.outcomes[:50]


class Rock:
    def act_batch(self, observations: Any, deterministic: bool = False) -> Any:
        return np.zeros(len(observations), np.int64)


class Halves:
    def act_batch(self, observations: Any, deterministic: bool = False) -> Any:
        return np.full(len(observations), 1.5)


def test_numbers_that_are_no_actions_are_refused() -> None:
    game = find_game("tests.unit.training.duel:Duel")
    assert game is not None
    with pytest.raises(InvalidArgument, match=r"of shape \(2,\) and float64, expected \(2,\): .* in Discrete\(3\)"):
        evaluate(Halves(), "random", games=2, match=MatchConfig(game=game))


def test_games_of_rebuilt_environments_are_drawn() -> None:
    game = find_game("tests.unit.training.duel:Broken")
    assert game is not None
    match = MatchConfig(game=game, num_envs=1, options={"on_failure": "restart"})
    assert evaluate("random", Rock(), games=3, match=match).outcomes == (0, 0, 0)
