"""`envfleet.evaluate`: episode i is the one of seed i, whatever happens around it."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tests.unit.evaluation.random_walk import Walk, follow
from tests.waiting import PATIENCE_S, wait_until

import envfleet
from envfleet.errors import InvalidArgument, RestartBudgetSpent

EPISODES = 20
NAME = "tests.unit.evaluation.random_walk:Walk"
ROOT = Path(__file__).parents[3]


def by_hand(env: gym.Env[Any, Any], seeds: Any, policy: Any = follow, **options: Any) -> list[tuple[float, int]]:
    """Play the episodes one after the other, without a fleet."""
    played = []
    for seed in seeds:
        observation, _ = env.reset(seed=int(seed), options=options or None)
        total, length, has_ended = 0.0, 0, False
        while not has_ended:
            observation, reward, terminated, truncated, _ = env.step(policy(observation[None])[0])
            total, length, has_ended = total + float(reward), length + 1, terminated or truncated
        played.append((total, length))
    return played


def assert_is(result: envfleet.EvaluationResult, played: list[tuple[float, int]]) -> None:
    assert [*zip(result.returns.tolist(), result.lengths.tolist(), strict=True)] == played


@pytest.fixture(scope="module")
def expected() -> list[tuple[float, int]]:
    return by_hand(Walk(), range(EPISODES))


@pytest.mark.parametrize("num_envs", [1, 3, 8])
@pytest.mark.parametrize("backend", ["serial", "thread", "process"])
def test_episodes_are_those_of_their_seeds(backend: str, num_envs: int, expected: Any) -> None:
    result = envfleet.evaluate(follow, Walk, episodes=EPISODES, backend=backend, num_envs=num_envs)
    assert_is(result, expected)
    assert result.seeds == tuple(range(EPISODES))


@pytest.mark.parametrize("env", [NAME, [NAME]], ids=["alone", "as a task"])
def test_an_environment_is_named_by_module_and_callable(env: Any, expected: Any) -> None:
    result = envfleet.evaluate(follow, env, episodes=EPISODES, backend="serial")
    assert_is(result, expected)
    assert result.task_names == ("Walk",)


@pytest.mark.parametrize("num_envs", [1, 3, 8])
@pytest.mark.parametrize("backend", ["kernel", "native"])
def test_episodes_of_compiled_environments_are_too(backend: str, num_envs: int) -> None:
    def lean(observations: Any) -> Any:
        return (observations[:, 2] + observations[:, 3] > 0).astype(np.int64)

    env = "envfleet/CartPole-v1" if backend == "kernel" else "CartPole-v1"
    result = envfleet.evaluate(lean, env, episodes=12, num_envs=num_envs, backend=backend)
    assert_is(result, by_hand(gym.make("CartPole-v1"), range(12), lean))


@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.name)
@pytest.mark.parametrize("backend", ["serial", "process"])
def test_a_fleet_in_any_autoreset_mode_is_evaluated(backend: Any, mode: AutoresetMode, expected: Any) -> None:
    with envfleet.make(Walk, 3, backend=backend, autoreset_mode=mode, copy=False) as fleet:
        fleet.reset(seed=99)
        fleet.step(np.zeros(3, np.int64))
        result = envfleet.evaluate(follow, fleet, episodes=EPISODES)
        assert_is(result, expected)
        assert result.successes is not None
        assert result.successes.tolist() == envfleet.evaluate(follow, Walk, episodes=EPISODES).successes.tolist()  # type: ignore[union-attr]  # as above


def test_an_adopted_vector_environment_is_evaluated(expected: Any) -> None:
    with envfleet.adopt(SyncVectorEnv([Walk] * 3)) as fleet:
        assert_is(envfleet.evaluate(follow, fleet, episodes=EPISODES), expected)


@pytest.mark.parametrize("failure", ["raise", "kill", "reset"])
def test_a_failure_in_the_middle_changes_nothing(failure: str, tmp_path: Path, expected: Any) -> None:
    make_env = functools.partial(Walk, str(tmp_path / "once"), failure)
    result = envfleet.evaluate(follow, make_env, episodes=EPISODES, num_envs=4, backend="process", workers=2)
    assert (tmp_path / "once").exists()
    assert_is(result, expected)


def test_stragglers_change_nothing(expected: Any) -> None:
    make_env = functools.partial(Walk, straggles=True)
    for num_envs in (2, 5):
        assert_is(envfleet.evaluate(follow, make_env, episodes=EPISODES, num_envs=num_envs, backend="thread"), expected)


def test_an_environment_that_always_fails_is_given_up(tmp_path: Path) -> None:
    class Broken(Walk):
        def step(self, action: Any) -> Any:
            if self.np_random_seed == 3:
                raise RuntimeError("at seed 3")
            return super().step(action)

    path = tmp_path / "results.json"
    with pytest.raises(RestartBudgetSpent):
        envfleet.evaluate(follow, Broken, episodes=4, backend="serial", num_envs=4, max_restarts=2, path=path)
    assert "3" not in json.loads(path.read_text(encoding="utf-8"))["episodes"]
    result = envfleet.evaluate(follow, Broken, episodes=4, backend="serial", num_envs=4, repeat_failed=False)
    assert result.truncated[3]
    assert result.lengths[3] == 1


def test_policies_come_in_every_form(expected: Any) -> None:
    class Agent:
        def act_batch(self, observations: Any, deterministic: bool = False) -> Any:
            assert deterministic
            return follow(observations)

    class Model:
        def predict(self, observations: Any, deterministic: bool = False) -> Any:
            assert deterministic
            return follow(observations), None

    policies: list[Any] = [Agent(), Model(), lambda observations: follow(observations).tolist()]
    for policy in policies:
        assert_is(envfleet.evaluate(policy, Walk, episodes=EPISODES, backend="serial"), expected)
    for one in (3, "nowhere.pt", None):
        with pytest.raises(InvalidArgument, match="pass 'random'"):
            envfleet.evaluate(one, Walk, episodes=2, backend="serial")  # type: ignore[arg-type]  # on purpose


def test_random_actions_depend_on_the_episode_only() -> None:
    first = envfleet.evaluate("random", Walk, episodes=9, num_envs=1, backend="serial")
    again = envfleet.evaluate("random", Walk, episodes=9, num_envs=4, backend="thread", workers=2, batch_rows=3)
    assert first.returns.tolist() == again.returns.tolist()


def test_a_saved_agent_is_named_by_its_path(tmp_path: Path) -> None:
    from envfleet.agents import PPO

    agent = PPO(Walk.observation_space, Walk.action_space, seed=0)
    agent.save(tmp_path / "mine.pt")
    result = envfleet.evaluate(tmp_path / "mine.pt", Walk, episodes=5, backend="serial")
    assert result.policy == "mine"
    assert result.returns.tolist() == envfleet.evaluate(agent, Walk, episodes=5, backend="serial").returns.tolist()


def test_seeds_and_options_are_those_of_each_episode() -> None:
    options = [None, {"longer": 5}, None]
    result = envfleet.evaluate(follow, Walk, episodes=3, seeds=[7, 7, 5], options=options, num_envs=2, backend="serial")
    (alone,), (longer,) = by_hand(Walk(), [7]), by_hand(Walk(), [7], longer=5)
    assert_is(result, [alone, longer, *by_hand(Walk(), [5])])
    assert result.lengths[1] == result.lengths[0] + 5


def test_nested_observations_and_actions_are_batched() -> None:
    class Nested(gym.Wrapper[Any, Any, Any, Any]):
        def __init__(self) -> None:
            super().__init__(Walk())
            self.observation_space = gym.spaces.Dict(at=self.env.observation_space)
            self.action_space = gym.spaces.Tuple((gym.spaces.Discrete(3), gym.spaces.Discrete(2)))

        def reset(self, **kwargs: Any) -> Any:
            observation, info = self.env.reset(**kwargs)
            return {"at": observation}, info

        def step(self, action: Any) -> Any:
            observation, *rest = self.env.step(action[0])
            return {"at": observation}, *rest

    def act(observations: Any) -> Any:
        chosen = follow(observations["at"])
        return chosen, np.zeros_like(chosen)

    result = envfleet.evaluate(act, Nested, episodes=6, num_envs=4, backend="thread", workers=2)
    assert_is(result, by_hand(Walk(), range(6)))
    assert len(envfleet.evaluate("random", Nested, episodes=3, backend="serial")) == 3


# ------------------------------------------------------------------------------------------------ files

PROGRAM = """
import functools, time
import envfleet
from tests.unit.evaluation.random_walk import Walk, follow

def slowly(observations):
    time.sleep(0.05)
    return follow(observations)

slowly.__name__ = "follow"
make_env = functools.partial(Walk, marker={marker!r})
envfleet.evaluate(slowly, make_env, episodes=20, num_envs=2, backend="serial", path={path!r})
"""


def test_a_killed_evaluation_continues(tmp_path: Path, expected: Any) -> None:
    path, marker = tmp_path / "results.json", tmp_path / "begun"
    program = PROGRAM.format(marker=str(marker), path=str(path))
    folders = {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, env=os.environ | folders)
    wait_until(lambda: path.exists() and len(json.loads(path.read_text(encoding="utf-8"))["episodes"]) > 3)
    process.send_signal(signal.SIGKILL)
    process.wait(PATIENCE_S)
    before = json.loads(path.read_text(encoding="utf-8"))["episodes"]
    assert len(before) < EPISODES
    marker.unlink()
    make_env = functools.partial(Walk, marker=str(marker))
    result = envfleet.evaluate(follow, make_env, episodes=EPISODES, num_envs=3, backend="serial", path=path)
    assert_is(result, expected)
    begun = {*marker.read_text(encoding="utf-8").split()}
    assert begun == {str(number) for number in range(EPISODES)} - {*before}
    marker.unlink()
    assert_is(envfleet.evaluate(follow, make_env, episodes=EPISODES, path=path), expected)
    assert not marker.exists()


def test_files_of_other_evaluations_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    envfleet.evaluate(follow, Walk, episodes=2, backend="serial", path=path)
    with pytest.raises(InvalidArgument, match="is of an evaluation with seeds="):
        envfleet.evaluate(follow, Walk, episodes=3, backend="serial", path=path)
    path.write_text('{"format": 7}', encoding="utf-8")
    with pytest.raises(InvalidArgument, match="is not a file of an evaluation"):
        envfleet.evaluate(follow, Walk, episodes=2, backend="serial", path=path)


def test_a_file_belongs_to_one_choice_of_arguments(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    envfleet.evaluate("random", "FrozenLake-v1", episodes=2, backend="serial", path=path, is_slippery=False)
    with pytest.raises(InvalidArgument, match="is of an evaluation with arguments="):
        envfleet.evaluate("random", "FrozenLake-v1", episodes=2, backend="serial", path=path)
    envfleet.evaluate("random", "FrozenLake-v1", episodes=2, backend="thread", path=path, is_slippery=False)
    bound, other = tmp_path / "bound.json", functools.partial(Walk, render_mode=None)
    envfleet.evaluate(follow, functools.partial(Walk), episodes=2, backend="serial", path=bound)
    with pytest.raises(InvalidArgument, match="is of an evaluation with arguments="):
        envfleet.evaluate(follow, other, episodes=2, backend="serial", path=bound)


def test_a_file_belongs_to_one_saved_agent(tmp_path: Path) -> None:
    from envfleet.agents import PPO

    path, saved = tmp_path / "results.json", tmp_path / "mine.pt"
    PPO(Walk.observation_space, Walk.action_space, seed=0).save(saved)
    for _ in range(2):
        envfleet.evaluate(saved, Walk, episodes=2, backend="serial", path=path)
    PPO(Walk.observation_space, Walk.action_space, seed=1).save(saved)
    with pytest.raises(InvalidArgument, match="is of an evaluation with agent="):
        envfleet.evaluate(saved, Walk, episodes=2, backend="serial", path=path)


def test_films_show_the_worst_and_the_best_episode(tmp_path: Path) -> None:
    result = envfleet.evaluate(follow, Walk, episodes=6, backend="serial", films=tmp_path)
    assert result.films == (tmp_path / "worst.gif", tmp_path / "best.gif")
    from PIL import Image

    for film, number in zip(result.films, (result.worst, result.best), strict=True):
        with Image.open(film) as image:
            assert image.n_frames == result.lengths[number] + 1  # type: ignore[attr-defined]  # of GIFs


def test_films_are_of_a_callable_that_takes_the_render_mode(tmp_path: Path) -> None:
    result = envfleet.evaluate(
        follow, functools.partial(Walk, render_mode=None), episodes=2, backend="serial", films=tmp_path
    )
    assert [film.stat().st_size > 0 for film in result.films] == [True, True]


def test_an_environment_without_pictures_is_refused_first(tmp_path: Path) -> None:
    def never(observations: Any) -> Any:
        raise AssertionError(observations)

    with pytest.raises(InvalidArgument, match="films require render_mode='rgb_array'"):
        envfleet.evaluate(never, lambda: Walk(render_mode=None), episodes=2, backend="serial", films=tmp_path / "films")
    assert not (tmp_path / "films").exists()


def test_a_film_that_shows_something_else_says_so(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)

    def chance(observations: Any) -> Any:
        return rng.integers(3, size=len(observations))

    with pytest.warns(RuntimeWarning, match="do not derive from the seed"):
        envfleet.evaluate(chance, Walk, episodes=4, backend="serial", films=tmp_path)


# ------------------------------------------------------------------------------------------------ tasks


class Longer(Walk):
    def reset(self, **kwargs: Any) -> Any:
        return super().reset(seed=kwargs.get("seed"), options={"longer": 3})


class Counted(Walk):
    """Counts how many are open at a time, in this process."""

    open_now = 0
    most = 0
    built = 0

    def __init__(self) -> None:
        super().__init__()
        Counted.open_now += 1
        Counted.built += 1
        Counted.most = max(Counted.most, Counted.open_now)

    def close(self) -> None:
        Counted.open_now -= 1


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_one_pool_plays_many_tasks(backend: str) -> None:
    result = envfleet.evaluate(follow, [Walk, Longer], episodes=5, num_envs=3, backend=backend)
    assert_is(result.of_task(0), by_hand(Walk(), range(5)))
    assert_is(result.of_task(1), by_hand(Longer(), range(5)))
    assert result.task_names == ("Walk", "Longer")


def test_tasks_are_built_when_they_are_needed() -> None:
    result = envfleet.evaluate(follow, [Counted] * 6, episodes=2, num_envs=2, backend="serial")
    assert len(result) == 12
    assert (Counted.most, Counted.open_now) == (2, 0)
    assert Counted.built <= 7
    assert result.task_names[3] == "Counted (3)"


def test_tasks_with_other_spaces_are_refused() -> None:
    with pytest.raises(Exception, match="expected those of the first task"):
        envfleet.evaluate("random", ["CartPole-v1", "Pendulum-v1"], episodes=2, num_envs=1, on_failure="raise")


# ------------------------------------------------------------------------------------------------ results


def test_results_are_a_table_of_80_columns() -> None:
    for success in (None, 0.5, "is_success"):
        result = envfleet.evaluate(follow, [Walk, Longer], episodes=5, success=success, backend="serial", num_envs=2)
        lines = str(result).splitlines()
        assert max(map(len, lines)) <= 80
        assert "Longer" in str(result)
        assert "<td>Longer</td>" in result._repr_html_()
        assert "10 episodes" in repr(result)
    assert result.figures()["success_rate"] == result.success_rate
    low, high = result.success_interval
    assert low <= result.success_rate <= high


def test_success_is_what_was_named() -> None:
    result = envfleet.evaluate(follow, Walk, episodes=10, success=1.0, backend="serial")
    assert result.successes is not None
    assert result.successes.tolist() == (result.returns >= 1).tolist()
    with pytest.raises(InvalidArgument, match="have no such entry"):
        envfleet.evaluate(follow, Walk, episodes=2, success="won", backend="serial")


def test_arguments_that_do_not_fit_are_refused() -> None:
    for arguments, text in (
        ({"episodes": 0}, "episodes=0"),
        ({"seeds": [1, 2]}, "expected one for each of episodes"),
        ({"seeds": [1, None, 2]}, "entry None"),
        ({"options": 3}, "expected a dict"),
        ({"success": True}, "lowest successful return"),
        ({"batch_rows": 0}, "batch_rows=0"),
        ({"num_envs": 0}, "num_envs=0"),
    ):
        with pytest.raises(InvalidArgument, match=text):
            envfleet.evaluate(follow, Walk, **{"episodes": 3, **arguments})  # type: ignore[arg-type]  # on purpose
    with envfleet.make(Walk, 1, backend="serial") as fleet, pytest.raises(InvalidArgument, match="leave it out"):
        envfleet.evaluate(follow, fleet, num_envs=2)
    with pytest.raises(InvalidArgument, match="adopt"):
        envfleet.evaluate(follow, SyncVectorEnv([Walk]))  # type: ignore[arg-type]  # on purpose
