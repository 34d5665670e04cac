"""The pipeline for hockey, called as the document of its vectorized environments says."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from rl_hockey.common.training import train_single_run as module
from rl_hockey.common.vectorized_env import VectorizedHockeyEnv, VectorizedHockeyEnvOptimized
from rl_hockey.DDDQN.dddqn import DDDQN
from rl_hockey.sac.sac import SAC

from envfleet.agents import ActionTable
from envfleet.envs.hockey import action_table
from envfleet.training.config import find_config

pytestmark = pytest.mark.usefixtures("no_plots")

CURRICULUM = find_config("curriculum_simple")

QUICK_START = """
from rl_hockey.common.training.train_single_run import train_single_run

train_single_run(
    "configs/curriculum_simple.json",
    device="cuda:1",
    num_envs=4  # Add this line!
)
"""

DETAILED_USAGE = """
from rl_hockey.common.training.train_single_run import train_single_run

# Train with vectorized environments
result = train_single_run(
    config_path="configs/curriculum_simple.json",
    base_output_dir="results/runs",
    run_name=None,  # Auto-generated with "_vec4" suffix
    verbose=True,
    eval_freq_steps=10000,
    eval_num_games=200,
    eval_weak_opponent=True,
    device="cuda:1",
    checkpoint_path=None,
    num_envs=4  # 1 = single env, 2-8 = vectorized
)

print(f"Training completed: {result['run_name']}")
print(f"Total steps: {result['total_steps']}")
print(f"Mean reward: {result['mean_reward']:.2f}")
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory whose `configs/curriculum_simple.json` is the shipped one, made short."""
    data = json.loads(CURRICULUM.read_text(encoding="utf-8"))
    for phase in data["curriculum"]["phases"]:
        phase["episodes"] = 4
    data["training"] |= {"warmup_steps": 100, "updates_per_step": 0.01}
    data["agent"]["hyperparameters"]["hidden"] = [16]
    path = tmp_path / "configs" / "curriculum_simple.json"
    path.parent.mkdir()
    path.write_text(json.dumps(data), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_quick_start(here: Path) -> None:
    exec(QUICK_START.replace("cuda:1", "cpu"), {})
    (run,) = (here / "results" / "runs").iterdir()
    assert run.name.endswith("_vec4")


def test_the_detailed_usage(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    exec(DETAILED_USAGE.replace("cuda:1", "cpu"), names)
    result, printed = names["result"], capsys.readouterr().out
    assert result["run_name"].endswith("_vec4")
    assert (here / "results" / "runs" / result["run_name"] / "config.json").exists()
    assert f"Training completed: {result['run_name']}\nTotal steps: {result['total_steps']}\nMean reward: " in printed
    assert result["total_episodes"] >= 12
    assert {name: figures["games"] for name, figures in result["evaluation"].items()} == {
        "basic_strong": 200, "basic_weak": 200,
    }  # fmt: skip
    assert json.loads(json.dumps(result)) == result


def test_as_a_script_it_trains_four_games_of_the_default_configuration(here: Path) -> None:
    runpy.run_path(str(module.__file__), run_name="__main__")
    (run,) = (here / "results" / "runs").iterdir()
    assert run.name.endswith("_vec4")


@pytest.mark.parametrize("kind", [VectorizedHockeyEnv, VectorizedHockeyEnvOptimized])
def test_games_side_by_side_begin_anew(kind: type[VectorizedHockeyEnv]) -> None:
    env: Any = kind(num_envs=3, mode="TRAIN_SHOOTING", backend="serial")
    observations, _ = env.reset(seed=0)
    other = np.array(env.obs_agent_two())
    np.testing.assert_array_equal(other[:, 12:16], -observations[:, 12:16])  # the puck, seen from the other side
    ended = np.zeros(3, int)
    for _ in range(100):
        observations, rewards, terminated, truncated, infos = env.step(np.zeros((3, 8), np.float32))
        assert (observations.shape, rewards.shape) == ((3, 18), (3,))
        ended += terminated | truncated
    assert (ended == 1).all()
    assert "winner" in infos
    env.close()


def test_agents_act_for_a_batch() -> None:
    space, states = spaces.Box(-np.inf, np.inf, (18,), np.float32), np.zeros((5, 18), np.float32)
    sac = SAC(space, spaces.Box(-1.0, 1.0, (4,), np.float32), num_envs=5, seed=0)
    dddqn = DDDQN(space, ActionTable(action_table()), num_envs=5, seed=0)
    for agent in (sac, dddqn):
        assert agent.act_batch(states, deterministic=False).shape == (5, 4)
        best = agent.act_batch(states, deterministic=True)
        np.testing.assert_allclose(best, np.tile(best[0], (5, 1)), rtol=1e-5, atol=1e-6)  # rounding of sums near 0
