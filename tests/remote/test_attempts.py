"""One ranked attempt by each of the clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from student_client import StudentGymEnv, StudentGymEnvVectorized, get_leaderboard_score
from tests.remote.conftest import TURBOFAN, Place
from tests.terminal import TERMINAL, drawn_lines
from typer.testing import CliRunner

import envfleet
from envfleet.cli.app import app
from envfleet.errors import InvalidArgument, ResetNeeded


def sell(observations: Any) -> Any:
    return np.full(len(observations), 2)


def attempts(place: Place, token: str) -> list[dict[str, Any]]:
    return place.service.scores.attempts(place.service.tokens.check(token).user_id)


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
@pytest.mark.parametrize("num_envs", [1, 2])
def test_an_evaluation_is_exactly_one_attempt(place: Place, mode: Any, num_envs: int) -> None:
    token = place.service.tokens.create(f"mo {mode} {num_envs}")
    with envfleet.connect(
        place.url, TURBOFAN, num_envs, token=token, mode="ranked", autoreset_mode=mode, step_size=10
    ) as fleet:
        with pytest.raises(InvalidArgument, match="pass 2, those of the attempt"):
            fleet.evaluate(sell, 3)
        fleet.reset()  # repeats the start of its episodes
        returns = fleet.evaluate(sell)
        with pytest.raises(InvalidArgument, match="the attempt has begun"):
            fleet.evaluate(sell)
    (attempt,) = attempts(place, token)
    assert (attempt["ended"], attempt["score"]) == (2, pytest.approx(returns.mean()))


def test_an_evaluation_does_not_abandon_what_was_begun(place: Place) -> None:
    token = place.service.tokens.create("may")
    arguments: Any = {"token": token, "mode": "ranked", "autoreset_mode": "SAME_STEP", "step_size": 10}
    with envfleet.connect(place.url, TURBOFAN, 1, **arguments) as fleet:
        fleet.reset()
        first = fleet.step([2])[1][0]
        with envfleet.connect(place.url, TURBOFAN, 1, **arguments, resume=True) as resumed:
            for begun in (fleet, resumed):
                with pytest.raises(InvalidArgument, match="the attempt has begun"):
                    begun.evaluate(sell)
            resumed.recv()
            second = resumed.step([2])[1][0]
            (attempt,) = attempts(place, token)
            assert attempt["score"] == pytest.approx((first + second) / 2)


def test_an_attempt_is_played_at_one_service(place: Place) -> None:
    with pytest.raises(InvalidArgument, match="pass one"):
        envfleet.connect([place.url, place.url], TURBOFAN, 2, token=place.token, mode="ranked")


def test_submit_plays_one_attempt(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_seller.py").write_text("import numpy as np\n\n\ndef sell(x):\n    return np.full(len(x), 2)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    token = place.service.tokens.create("sue")
    command = ["submit", place.url, "my_seller:sell", "--env", "Turbofan-v0", "--token", token, "-a", "step_size=10"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    (attempt,) = attempts(place, token)
    assert f"Attempt {attempt['id']}: score {attempt['score']:,.2f}, the mean of 2 episodes." in done.output
    assert "2 of 2 episodes" not in done.stderr
    for change, clue in ((["--env", "Chess"], "is not offered"), (["-a", "max_episode_steps=3"], "changes the task")):
        refused = CliRunner().invoke(app, [*command, *change])
        assert (refused.exit_code, clue in " ".join(refused.output.split())) == (2, True), refused.output
    missing = CliRunner().invoke(app, [*command[:2], "my_seller:nobody", *command[3:]])
    assert missing.exit_code == 2
    assert len(attempts(place, token)) == 1
    shown = CliRunner(env=TERMINAL).invoke(app, command)
    assert drawn_lines(shown.stderr)[-1].endswith("2 of 2 episodes"), shown.output
    assert shown.stdout.startswith("Attempt ")


def test_submit_reports_its_own_attempt(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another client of the user's begins a later attempt meanwhile."""
    token = place.service.tokens.create("ute")
    text = f"""
import envfleet
import numpy as np

calls = []


def sell(x):
    calls.append(x)
    if len(calls) == 2:  # the first is of the trial
        envfleet.connect({place.url!r}, {TURBOFAN!r}, 1, token={token!r}, mode="ranked").close()
    return np.full(len(x), 2)
"""
    (tmp_path / "my_rival.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    command = ["submit", place.url, "my_rival:sell", "--env", "Turbofan-v0", "--token", token, "-a", "step_size=10"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    later, own = attempts(place, token)
    assert later["score"] is None
    assert f"Attempt {own['id']}: score {own['score']:,.2f}, the mean of 2 episodes." in done.output


def test_submit_reports_that_a_broken_attempt_counts(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import numpy as np\n\nleft = [0, 0, 2]\n\n\ndef wait(x):\n    return np.full(len(x), left.pop())\n"
    (tmp_path / "waits_once.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    token = place.service.tokens.create("tim")
    command = ["submit", place.url, "waits_once:wait", "--env", "Turbofan-v0", "--token", token, "-a", "step_size=10"]
    done = CliRunner().invoke(app, command)
    assert isinstance(done.exception, IndexError)
    assert done.stderr == "The attempt had begun, so it counts as one of today's, although it is incomplete.\n"
    assert len(attempts(place, token)) == 1


def test_a_notebook_is_no_attempt_unless_it_asks(place: Place) -> None:
    token = place.service.tokens.create("nina")
    with StudentGymEnvVectorized(place.url, token, num_envs=2) as env:
        env.reset()
        for _ in range(3):
            env.step([2, 2])
            env.reset_specific_envs(env.get_terminated_env_indices())
    assert attempts(place, token) == []
    assert get_leaderboard_score(token, place.url, return_dataframe=False) == {}
    with StudentGymEnvVectorized(place.url, token, num_envs=1, ranked=True) as env:
        with pytest.raises(InvalidArgument, match="seeds"):
            env.reset(seed=1)
        env.reset()
        total = 0.0
        while env.get_active_count():
            total += float(env.step([2])[1][0])
            env.reset_specific_envs(env.get_terminated_env_indices())
    (attempt,) = attempts(place, token)
    assert (attempt["ended"], attempt["score"]) == (2, pytest.approx(total / 2))
    score = get_leaderboard_score(token, place.url, return_dataframe=False)
    assert (score["total_episodes"], score["avg_reward"]) == (2, pytest.approx(total / 2))


def test_a_single_engine_plays_one_attempt(place: Place) -> None:
    token = place.service.tokens.create("sid")
    env = StudentGymEnv(place.url, token, ranked=True)
    for _ in range(2):
        env.reset()
        assert env.step(2)[2]
    with pytest.raises(ResetNeeded, match="attempt is over"):
        env.reset()
    env.close()
    assert attempts(place, token)[0]["ended"] == 2
