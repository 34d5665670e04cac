"""Agents, networks and observers of a user's own are named in a configuration and go through a whole run."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from tests.unit.training import own

from envfleet.agents import load_agent
from envfleet.errors import InvalidArgument
from envfleet.training import evaluation, resume, train
from envfleet.training.config import parse_config
from envfleet.training.events import Began, Ended, Learned
from envfleet.training.plan import resolve

pytestmark = pytest.mark.usefixtures("no_plots")

OWN = own.__name__
TUTORIALS = Path(__file__).parents[3] / "docs" / "tutorials"
HYPERPARAMETERS: dict[str, dict[str, Any]] = {
    "DDDQN": {"hidden": [16], "epsilon_transitions": 100, "num_steps": 2},
    "PPO": {"hidden": [16]},
    "own_agents:Reinforce": {"hidden": [16]},
}


@pytest.fixture(autouse=True)
def _tutorials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TUTORIALS))


def written(agent: dict[str, Any], env: str, transitions: int = 256, **more: Any) -> dict[str, Any]:
    phase = {"name": "all", "transitions": transitions, "environment": {"id": env}, "opponent": {"type": "none"}}
    training = {"warmup_steps": 32, "rollout_steps": 16, "eval_games": 4, "eval_frequency": None,
                "checkpoint_frequency": 64}  # fmt: skip
    hyperparameters = {} if ":" in agent["type"] or agent["type"] == "PPO" else {"batch_size": 16}
    return {"curriculum": {"phases": [phase]}, "training": training, "hyperparameters": hyperparameters,
            "agent": agent, **more}  # fmt: skip


def run(config: dict[str, Any], folder: Path, **options: Any) -> Any:
    return train(config, num_envs=4, backend="serial", base_output_dir=folder, verbose=False, **options)


@pytest.mark.parametrize("env", ["FrozenLake-v1", "Blackjack-v1", f"{OWN}:Corridor"])
@pytest.mark.parametrize("kind", HYPERPARAMETERS)
def test_a_run_in_any_space_is_resumed_and_loaded(kind: str, env: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    config = written({"type": kind, "hyperparameters": HYPERPARAMETERS[kind]}, env, observers=[f"{OWN}:Notes"])
    whole = run(config, tmp_path)
    events = own.instances[-1].seen
    assert events["Began"] == events["Ended"] == 1
    assert own.closed[-1] is own.instances[-1]
    half = run(config, tmp_path, max_transitions=128)
    rest = resume(half.run_dir, verbose=False)
    assert rest.reason == whole.reason == "completed"
    expected, resumed = (load_agent(str(result.checkpoint), trust=True) for result in (whole, rest))
    assert expected.num_transitions == 256
    for name, weights in expected.weights().items():
        for key, value in weights.items():
            assert torch.equal(resumed.weights()[name][key], value), key
    assert own.instances[-1].seen["Episodes"] == events["Episodes"]


def test_an_agent_is_loaded_from_its_run_and_acts(tmp_path: Path) -> None:
    result = run(written({"type": "PPO", "hyperparameters": {"hidden": [8]}}, f"{OWN}:Corridor"), tmp_path)
    agent = load_agent(result.run_dir)
    best = load_agent(result.best_checkpoint)
    observation, _ = own.Corridor().reset(seed=0)
    assert agent.act(observation, deterministic=True) in (0, 1)
    assert all(torch.equal(value, best.weights()["network"][key]) for key, value in agent.weights()["network"].items())
    (result.run_dir / "checkpoints" / "best.pt").unlink()
    assert load_agent(result.run_dir).num_transitions == 256
    with pytest.raises(InvalidArgument, match=r".* has no checkpoint: pass the folder of a run"):
        load_agent(tmp_path)


def test_a_loaded_agent_does_not_act_as_in_its_warm_up(tmp_path: Path) -> None:
    values = {"hidden": [8], "epsilon_transitions": 1, "epsilon_end": 0.0}
    config = written({"type": "DDDQN", "hyperparameters": values}, "FrozenLake-v1")
    agent = load_agent(run(config, tmp_path).run_dir)
    assert agent.num_transitions == 256
    observations = np.arange(16)
    assert np.array_equal(agent.act_batch(observations), agent.act_batch(observations, deterministic=True))


@pytest.mark.slow
def test_frozen_lake_is_solved(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    values = {"hidden": [64], "epsilon_transitions": 4_000, "learning_rate": 1e-3, "num_steps": 3}
    config = written({"type": "DDDQN", "hyperparameters": values}, "FrozenLake-v1", 12_000)
    config["curriculum"]["phases"][0]["environment"]["kwargs"] = {"is_slippery": False}
    config["training"] |= {"warmup_steps": 500, "updates_per_step": 0.25, "checkpoint_frequency": None}
    agent = load_agent(run(config, tmp_path, seed=0).run_dir)
    returns = evaluation.evaluate_returns(agent, "FrozenLake-v1", episodes=4, is_slippery=False)
    assert returns.mean == 1.0


MISTAKES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no module": ({"type": "nowhere:Agent"}, {}, r"agent.type is 'nowhere:Agent', but the module cannot be imported"),
    "no name": ({"type": f"{OWN}:Nothing"}, {}, r"agent.type is '.*:Nothing', but .* has no attribute 'Nothing'"),
    "no agent": ({"type": f"{OWN}:Notes"}, {}, r"agent.type is '.*:Notes', which is not an agent class: derive"),
    "no learner": ({"type": f"{OWN}:Idle"}, {}, r"agent.type is '.*:Idle', which is not an agent class"),
    "no method": ({"type": f"{OWN}:Unfinished"}, {}, r"agent.type is '.*:Unfinished', which lacks the method _act: "),
    "unknown": ({"type": "SACK"}, {}, r"agent.type is 'SACK', expected one of 'SAC', .*, or 'module:Name'"),
    "hyperparameter": (
        {"type": "own_agents:Reinforce", "hyperparameters": {"gama": 0.9}}, {},
        r"agent.hyperparameters.gama is an unknown key, accepted .*: did you mean gamma\?",
    ),
    "batches": (
        {"type": "own_agents:Reinforce"}, {"hyperparameters": {"batch_size": 8}},
        r"hyperparameters.batch_size is 8, but own_agents:Reinforce has none: leave it out",
    ),
    "two hyperparameters": (
        {"type": "PPO", "hyperparameters": {"learning_rate": "fast", "num_epochs": "all"}}, {},
        r"agent.hyperparameters.learning_rate is 'fast': .*; agent.hyperparameters.num_epochs is 'all': ",
    ),
    "network": (
        {"type": "PPO", "hyperparameters": {"network": f"{OWN}:nothing"}}, {},
        r"agent.hyperparameters.network is '.*:nothing', but .* has no attribute 'nothing'",
    ),
    "network that cannot be called": (
        {"type": "PPO", "hyperparameters": {"network": f"{OWN}:instances"}}, {},
        r"agent.hyperparameters.network is '.*:instances', a list, which cannot be called: name a class or a function",
    ),
    "observer": (
        {"type": "PPO"}, {"observers": [f"{OWN}:Notes", f"{OWN}:Corridor"]},
        r"observers\[1\] is '.*:Corridor', which is not a class of observers: derive it from envfleet.training.events",
    ),
    "observer that is no class": (
        {"type": "PPO"}, {"observers": [f"{OWN}"]}, r"observers\[0\] is '.*own', expected 'module:name': write the",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("agent", "more", "match"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_named_with_the_path_of_their_key(agent: Any, more: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"mine.json: {match}"):
        resolve(parse_config({**written(agent, "CartPole-v1"), **more}, "mine.json"), source="mine.json")


def test_the_documented_observer_logs_to_wandb(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[tuple[Any, ...]] = []
    record = types.SimpleNamespace(
        log=lambda *what, **how: logged.append((*what, how)), finish=lambda: logged.append(())
    )
    stand_in: Any = types.ModuleType("wandb")

    def init(**what: Any) -> Any:
        logged.append((what,))
        return record

    stand_in.init = init
    monkeypatch.setitem(sys.modules, "wandb", stand_in)
    spec = importlib.util.spec_from_file_location("wandb_observer", TUTORIALS / "wandb_observer.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    observer = module.WandbObserver()
    where: dict[str, Any] = {"transitions": 100, "episodes": 2, "updates": 3, "phase": 0, "phase_name": "one"}
    observer.on_event(Began(run_name="cart", agent="PPO", num_envs=8, plan="here", phases=("one",), **where))
    observer.on_event(Learned(figures={"loss": 0.5}, **where))
    observer.on_event(object())
    observer.on_event(Ended.__new__(Ended))
    assert logged == [
        ({"project": "envfleet", "name": "cart", "id": "cart", "resume": "allow"},),
        ({"loss": 0.5}, {"step": 100}),
        (),
    ]


def test_shaping_that_writes_into_rewards_keeps_returns(tmp_path: Path) -> None:
    config = written({"type": "PPO", "hyperparameters": {"hidden": [16]}}, "CartPole-v1")
    config["curriculum"]["phases"][0]["shaping"] = f"{OWN}:writes_into_rewards"
    result = run(config, tmp_path)
    episodes = pl.read_csv(result.run_dir / "episodes.csv")
    assert (episodes["return"] == episodes["length"]).all()
    assert (episodes["shaped_return"] == 101 * episodes["length"]).all()


def test_custom_shaping_and_policies_get_observation_parts(tmp_path: Path) -> None:
    config = written({"type": "PPO", "hyperparameters": {"hidden": [16]}}, f"{OWN}:Corridor")
    config["curriculum"]["phases"][0]["shaping"] = f"{OWN}:pays_for_pictures"
    episodes = pl.read_csv(run(config, tmp_path).run_dir / "episodes.csv")
    assert (episodes["shaped_return"] == 3 * episodes["length"]).all()  # a picture has three white pixels
    assert evaluation.evaluate_returns(own.Looking(), own.Corridor, episodes=5).low == 1.0
