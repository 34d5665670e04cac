"""The pipeline for hockey, called as the document of its vectorized environments says."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from rl_hockey.common.training.train_run import train_run
from rl_hockey.common.training.train_single_run import train_single_run
from rl_hockey.common.vectorized_env import VectorizedHockeyEnv, VectorizedHockeyEnvOptimized
from rl_hockey.DDDQN.dddqn import DDDQN
from rl_hockey.sac.sac import SAC

from envfleet import agents
from envfleet.agents import ActionTable, load_agent
from envfleet.envs.hockey import action_table
from envfleet.training import config as configuration
from envfleet.training.config import find_config, read_config

pytestmark = pytest.mark.usefixtures("no_plots")

ROOT = Path(__file__).resolve().parents[2]
SOURCES = os.pathsep.join([str(ROOT / "src"), str(ROOT / "compat" / "src")])
DOCUMENTS = sorted((ROOT.parent / "shared" / "seeds").glob("003*.txt"))
COMMAND_LIMIT_S = 900.0

BLOCKS = [
    """\
train_single_run(
    "configs/curriculum_simple.json",
    device="cuda:1"
)
""",
    """\
train_single_run(
    "configs/curriculum_simple.json",
    device="cuda:1",
    num_envs=4  # Add this line!
)
""",
    """\
train_single_run(
    "configs/curriculum_simple.json",
    device="cuda:1",
    num_envs=8  # Maximum speedup
)
""",
    """\
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
""",
    """\
train_single_run("configs/curriculum_simple.json", device="cuda:1", num_envs=4)
""",
]
COMMANDS = [
    "python test_vectorized_integration.py",
    "python src/rl_hockey/common/training/train_single_run.py",
]


def run(block: str) -> dict[str, Any]:
    """Run a block as it is written, but for a device that this machine lacks."""
    names: dict[str, Any] = {"train_single_run": train_single_run}
    exec(block if torch.cuda.device_count() > 1 else block.replace("cuda:1", "cpu"), names)
    return names


def shorten(source: Path, target: Path) -> None:
    """Write a configuration of a very short run."""
    data = json.loads(source.read_text(encoding="utf-8"))
    for phase in data["curriculum"]["phases"]:
        phase["episodes"] = 8
    data["training"] |= {"warmup_steps": 300, "eval_games": 10}
    data["agent"]["hyperparameters"]["hidden"] = [16]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(data), encoding="utf-8")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory; the shipped configuration is short."""
    shorten(find_config("curriculum_simple"), tmp_path / "shipped" / "curriculum_simple.json")
    monkeypatch.setattr(configuration, "SHIPPED", tmp_path / "shipped")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


@pytest.mark.skipif(not DOCUMENTS, reason="the document is not next to this checkout")
def test_these_are_the_blocks_and_commands_of_the_document() -> None:
    text = DOCUMENTS[0].read_text(encoding="utf-8")
    blocks = [
        (kind, textwrap.dedent(body))
        for kind, body in re.findall(r"```(python|bash)\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    ]
    assert [body for kind, body in blocks if kind == "python"] == BLOCKS
    assert [body.strip() for kind, body in blocks if kind == "bash"] == COMMANDS


@pytest.mark.parametrize("block", BLOCKS, ids=["one game", "four", "eight", "detailed usage", "next steps"])
def test_blocks_run_from_any_folder(here: Path, block: str, capsys: pytest.CaptureFixture[str]) -> None:
    names, said = run(block), capsys.readouterr()
    (folder,) = (here / "results" / "runs").iterdir()
    counts = re.findall(r"num_envs=(\d)", block) or [1]
    assert folder.name.endswith(f"_vec{counts[0]}")
    assert (
        "configs/curriculum_simple.json does not exist here; reading the shipped configuration 'curriculum_simple'"
        in said.err
    )
    if (result := names.get("result")) is None:
        return
    assert (result["run_name"], result["total_episodes"] >= 24) == (folder.name, True)
    assert {name: figures["games"] for name, figures in result["evaluation"].items()} == {
        "basic_strong": 200, "basic_weak": 200,
    }  # fmt: skip
    printed = f"Training completed: {folder.name}\nTotal steps: {result['total_steps']}\nMean reward: "
    assert printed in said.out
    assert json.loads(json.dumps(result)) == result


@pytest.mark.timeout(COMMAND_LIMIT_S + 20.0)
@pytest.mark.parametrize("command", [*COMMANDS, "python -m rl_hockey.common.training.train_single_run"])
def test_commands_run_in_the_folder_of_the_package(tmp_path: Path, command: str) -> None:
    shorten(find_config("curriculum_simple"), tmp_path / "configs" / "curriculum_simple.json")
    (tmp_path / "src").symlink_to(ROOT / "compat" / "src")
    shutil.copy(ROOT / "compat" / "test_vectorized_integration.py", tmp_path)
    ran = subprocess.run(
        [sys.executable, "-W", "error", *shlex.split(command)[1:]],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": SOURCES}, capture_output=True, text=True, check=False,
        timeout=COMMAND_LIMIT_S,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    if "integration" not in command:
        assert [path.name[-5:] for path in (tmp_path / "results" / "runs").iterdir()] == ["_vec4"]
        return
    *verified, last = ran.stdout.splitlines()
    assert len(verified) == 7
    assert all(line.startswith("verified: ") for line in verified)
    assert re.fullmatch(r"speed-up: [\d.]+ x, [\d,]+ transitions per second with 2 games, [\d,]+ with one .*", last)


def test_a_file_of_that_name_goes_before_the_shipped_one(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = here / "configs" / "curriculum_simple.json"
    shorten(find_config("curriculum_simple"), own)
    assert find_config("configs/curriculum_simple.json") == Path("configs", "curriculum_simple.json")
    assert capsys.readouterr().err == ""
    for missing in ("configs/curriculum_sample.json", "other/curriculum_simple.json", here / "curriculum_simple.json"):
        assert find_config(missing) == Path(missing)


@pytest.mark.parametrize("kind", [train_run, train_single_run])
def test_a_file_that_is_missing_is_named(here: Path, kind: Any) -> None:
    with pytest.raises(
        ValueError, match=r"configs/mine.json cannot be read .*: pass the path of a configuration, or one"
    ):
        kind("configs/mine.json")


@pytest.mark.parametrize("num_envs", [1, 4])
def test_an_older_file_makes_one_update_per_step_of_all_games(here: Path, num_envs: int) -> None:
    data = json.loads(find_config("curriculum_simple").read_text(encoding="utf-8"))
    older = {"curriculum": data["curriculum"], "training": {"warmup_steps": 300}, "agent": {"type": "SAC"}}
    with pytest.warns(UserWarning, match=f"updates_per_round=1, counted per step of all {num_envs} sub-environments"):
        result = train_run(older, num_envs=num_envs, verbose=False, eval_num_games=2, max_transitions=400)
    assert result["total_updates"] == pytest.approx((400 - 300) / num_envs, abs=1)
    config = read_config(Path(result["run_dir"], "config.json"))
    assert (config.training.updates_per_round, config.hyperparameters.learning_rate) == (1.0, 1e-4)


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


BOX = spaces.Box(-np.inf, np.inf, (18,), np.float32)
KINDS: list[tuple[Any, Any]] = [(SAC, spaces.Box(-1.0, 1.0, (4,), np.float32)), (DDDQN, ActionTable(action_table()))]


@pytest.mark.parametrize(("kind", "actions"), KINDS)
def test_agents_act_for_a_batch(kind: Any, actions: Any) -> None:
    states = np.zeros((5, 18), np.float32)
    agent = kind(BOX, actions, num_envs=5, seed=0)
    assert agent.act_batch(states=states, deterministic=False).shape == (5, 4)
    best = agent.act_batch(states, True)
    np.testing.assert_allclose(best, np.tile(best[0], (5, 1)), rtol=1e-5, atol=1e-6)  # rounding of sums near 0


@pytest.mark.parametrize(("kind", "actions"), KINDS)
def test_agents_and_their_files_are_those_of_envfleet(tmp_path: Path, kind: Any, actions: Any) -> None:
    agent, same = kind(BOX, actions, seed=0), getattr(agents, kind.__name__)(BOX, actions, seed=0)
    assert agent.is_compiled == same.is_compiled
    states = np.ones((1, 18), np.float32)
    np.testing.assert_array_equal(agent.act_batch(states, True), same.act_batch(states, True))
    agent.save(tmp_path / "there.pt")
    assert type(load_agent(tmp_path / "there.pt")) is type(same)
    same.save(tmp_path / "here.pt")
    agent.load(tmp_path / "here.pt")
