"""The notebook of the turbofan challenge, as it is written, and what its client does when things go wrong."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Any

import httpx
import matplotlib.pyplot as plt
import numpy as np
import pytest
from student_client import create_student_gym_env, get_leaderboard_score, leaderboard
from student_client.plotting import plot_observations, plot_rewards
from student_client.student_gym_env_vectorized import create_student_gym_env_vectorized
from tests.remote.conftest import Network, Place, lose_reply, lose_request

from envfleet.errors import InvalidArgument, ResetNeeded, ServiceRefused, ServiceUnreachable

NOTEBOOK = [
    """\
import numpy as np
from student_client.student_gym_env_vectorized import create_student_gym_env_vectorized

env = create_student_gym_env_vectorized(
            num_envs=4,
            step_size=10,
            user_token='your_token'
        )
""",
    """\
print(f"Environment created with {env.num_envs} parallel environments")
print(f"   Episode IDs: {env.episode_ids}")

# Reset all environments
print(f"\\n🔄 Resetting all environments...")
observations, infos = env.reset()

print(f"   Observations shape: {observations.shape}")
print(f"   First observation: {observations[0]}")
""",
    """\
for step in range(40):

    # A) Check if any environments terminated
    terminated_envs = env.get_terminated_env_indices()
    if terminated_envs:
        print(f"   ⚠️  Environments {terminated_envs} terminated")
        reset_obs, reset_infos = env.reset_specific_envs(terminated_envs)
        for i, env_id in enumerate(terminated_envs):
            infos[env_id] = reset_infos[i] # reset previous info dict

    # Generate random actions for all environments
    actions = np.random.randint(0, 3, size=env.num_envs)

    print(f"\\n   Step {step + 1}:")
    print(f"      Actions: {actions}")

    # Take step
    observations, rewards, terminateds, truncateds, infos = env.step(actions)

    print(f"      Rewards: {rewards}")
    print(f"      Terminated: {terminateds}")
    print(f"      Active environments: {env.get_active_count()}/{env.num_envs}")

    # Show filtered info (production mode)
    for i, info in enumerate(infos):
        print(f"      Env {i} info: {info}")

env.close()
""",
    "observations",
]


@pytest.fixture(autouse=True)
def _settings(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_URL", place.url)
    monkeypatch.setenv("USER_TOKEN", place.token)


def test_the_notebook_runs_cell_by_cell_as_it_is_written(place: Place) -> None:
    names: dict[str, Any] = {}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for cell in NOTEBOOK[:-1]:
            exec(cell.replace("your_token", place.token), names)
    text = printed.getvalue()
    assert "Environment created with 4 parallel environments" in text
    assert "Observations shape: (4, 9)" in text
    assert text.count("Rewards:") == 40
    assert "] terminated" in text
    assert [rows.shape[1] for rows in eval(NOTEBOOK[-1], names)] == [9] * 4


def test_the_score_is_a_table_of_one_row() -> None:
    env = create_student_gym_env(step_size=1, ranked=True)  # with longer steps an engine may fail before it is sold
    returns, lengths = [], []
    for repairs in (2, 0):  # the two episodes of an attempt
        env.reset()
        total = 0.0
        for action in [0, *[1] * repairs, 2]:
            _, reward, *_, info = env.step(action)
            total += reward
        returns.append(total)
        lengths.append(info["step"])
    env.close()
    table = get_leaderboard_score()
    assert list(table.columns) == [
        "user_token", "total_episodes", "total_reward", "avg_reward", "best_reward", "maintenance_actions",
        "avg_episode_length", "failure_rate", "last_episode_date",
    ]  # fmt: skip
    (row,) = table.to_dict("records")
    assert (row["user_token"], row["total_episodes"]) == (os.environ["USER_TOKEN"], 2)
    assert (row["maintenance_actions"], row["failure_rate"]) == (2, 0.0)
    assert row["total_reward"] == pytest.approx(sum(returns))
    assert row["avg_reward"] == pytest.approx(sum(returns) / 2)
    assert row["best_reward"] == pytest.approx(max(returns))
    assert row["avg_episode_length"] == pytest.approx(sum(lengths) / 2)
    assert get_leaderboard_score(limit=2, return_dataframe=False) == row


def test_no_episodes_are_an_empty_table(place: Place) -> None:
    token = place.service.tokens.create("newcomer")
    assert leaderboard.get_leaderboard_score(user_token=token, server_url=place.url).empty
    assert leaderboard.get_leaderboard_score(token, return_dataframe=False) == {}


def test_a_score_that_cannot_be_had_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"does not accept the token.*check user_token"):
        get_leaderboard_score("ef_wrong")
    with pytest.raises(ConnectionError, match="no answer"):
        get_leaderboard_score(server_url="http://127.0.0.1:9")


def test_without_pandas_the_score_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="return_dataframe=False"):
        get_leaderboard_score()


def test_no_engines_are_refused_and_reset_without_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (0, -1):
        with pytest.raises(InvalidArgument, match=rf"num_envs={number}: pass a whole number of at least 1"):
            create_student_gym_env_vectorized(num_envs=number)
    with create_student_gym_env_vectorized(num_envs=2) as env:
        monkeypatch.setattr(env._link, "call", lambda *_: pytest.fail("a call"))
        observations, infos = env.reset_specific_envs([])
    assert (observations.shape, infos) == ((0, 9), [])


def test_ended_engines_wait_and_blocks_keep_their_lengths() -> None:
    with create_student_gym_env_vectorized(num_envs=3, step_size=10) as env:
        first = env.episode_ids
        observations, infos = env.reset(seed=1)
        assert (observations.shape, str(observations.dtype), len(infos)) == ((3, 9), "float32", 3)
        blocks, rewards, terminated, truncated, infos = env.step(np.array([0, 2, 1]))
        assert [block.shape for block in blocks] == [(10, 9), (1, 9), (10, 9)]
        assert (terminated.tolist(), truncated.tolist()) == ([False, True, False], [False] * 3)
        assert rewards[0] > 300 > rewards[1] > 0 > rewards[2]
        assert (env.get_terminated_env_indices(), env.get_active_count()) == ([1], 2)
        blocks, rewards, *_, infos = env.step([0, 0, 0], step_size=4)
        assert [block.shape for block in blocks] == [(4, 9), (0, 9), (4, 9)]
        assert (rewards[1], infos[1]["terminated"]) == (0.0, True)
        reset, infos = env.reset_specific_envs([1])
        assert (reset.shape, len(infos), env.get_active_count()) == ((1, 9), 1, 3)
        assert env.episode_ids[1] != first[1]
        last, *_ = env.step([0, 0, 0], return_all_states=False)
        assert last.shape == (3, 9)
        for actions in ([0, 0], [0.0, 0.0, 0.0], 1):
            with pytest.raises(InvalidArgument, match="whole numbers"):
                env.step(actions)
        with pytest.raises(InvalidArgument, match="env_indices"):
            env.reset_specific_envs([3])


def test_one_engine_and_its_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    env = create_student_gym_env(step_size=5)
    first, info = env.reset(seed=3)
    assert (first.shape, info["episode_id"]) == ((9,), env.episode_id)
    observations, actions, rewards = [], [0, 0, 1, 0, 2], []
    for action in actions:
        observation, reward, terminated, truncated, info = env.step(action)
        observations.append(observation)
        rewards.append(reward)
    assert (terminated, truncated, observation.shape) == (True, False, (1, 9))
    assert info["total_reward"] == pytest.approx(sum(rewards))
    assert info["step"] == 21
    with pytest.raises(ResetNeeded):
        env.step(0)
    env.close()

    shown: list[Any] = []
    monkeypatch.setattr(plt, "show", lambda: shown.append(plt.gcf()))
    plot_observations([first, *observations], actions, sensor_names=["T3"], title="Sensors")
    plot_observations(observations)
    plot_rewards(np.array(rewards), np.array(actions), figsize=(5, 3))
    plt.close("all")
    sensors, without_actions, earned = shown
    assert (len(sensors.axes), sensors.axes[0].get_title("left"), sensors.get_suptitle()) == (9, "T3", "Sensors")
    assert sensors.axes[0].lines[0].get_ydata().tolist() == [row[0] for row in np.vstack([first, *observations])]
    assert [text.get_text() for text in sensors.legends[0].get_texts()] == ["repair", "sale"]
    assert not without_actions.legends
    assert f"{sum(rewards):.1f}" in earned.get_suptitle()
    assert earned.get_size_inches().tolist() == [5, 3]
    with pytest.raises(InvalidArgument, match="1 actions for 5 steps"):
        plot_rewards(rewards, [0])


def test_a_failure_is_an_exception_and_no_end_of_an_episode() -> None:
    with create_student_gym_env_vectorized(num_envs=2) as env:
        env.reset(seed=0)
        http: Any = env._link._link._http
        network = http._transport = Network(http._transport)
        network.tricks = [lose_request, busy]
        assert env.step([0, 0])[1].min() > 0  # nothing had been done, so it was asked again
        assert len(network.bodies) == 3
        network.tricks = [lose_reply]
        with pytest.raises(ServiceUnreachable, match="no answer"):
            env.step([0, 0])
        assert env.get_active_count() == 2


def busy(request: httpx.Request, ask: Any) -> httpx.Response:
    return httpx.Response(429, json={"detail": "busy"})


def test_tokens(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    with pytest.raises(ServiceRefused, match="does not accept the token"):
        create_student_gym_env_vectorized(user_token="ef_wrong")
    monkeypatch.delenv("USER_TOKEN")
    monkeypatch.delenv("ENVFLEET_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgument, match="USER_TOKEN"):
        create_student_gym_env_vectorized()
