"""What can be vectorized here."""

import io

import gymnasium
from gymnasium.envs.registration import EnvSpec
from rich.console import Console

from envfleet.bench import workloads
from envfleet.bench.catalogue import catalogue, show_catalogue


def find(env_id, pattern=""):
    return next(entry for entry in catalogue(pattern) if entry.env_id == env_id)


def test_known_problems_and_notes():
    assert find("CartPole-v1").problem is None
    assert find("envfleet/CartPole-v1").note == "kernel"
    assert find("CartPole-v0").note == "old, v1 is current"
    assert find("Blackjack-v1").note == "no registered time limit"
    assert "gymnasium-robotics" in find("Ant-v2").problem
    assert "shimmy" in find("GymV26Environment-v0").problem


def test_missing_modules(monkeypatch):
    monkeypatch.setattr(workloads, "is_installed", lambda name: False)
    assert find("Ant-v5").problem == "needs mujoco: pip install 'gymnasium[mujoco]'"
    assert find("envfleet/CartPole-v1").problem == "needs numba: pip install 'envfleet[kernels]'"
    assert find("phys2d/CartPole-v1").namespace == "phys2d"
    assert find("CartPole-v1").problem is None


def test_environments_of_others(monkeypatch):
    mine = EnvSpec("mine/Env-v0", entry_point="no_such_package.envs:Env", max_episode_steps=5)
    vector = EnvSpec("mine/Vector-v0", vector_entry_point="gymnasium:make")
    monkeypatch.setitem(gymnasium.registry, mine.id, mine)
    monkeypatch.setitem(gymnasium.registry, vector.id, vector)
    assert "no_such_package" in find("mine/Env-v0").problem
    assert "only a vector environment" in find("mine/Vector-v0").problem


def test_the_filter_ignores_case():
    found = {entry.env_id for entry in catalogue("cartpole-V1")}
    assert found == {"CartPole-v1", "phys2d/CartPole-v1", "envfleet/CartPole-v1"}
    assert not catalogue("no such thing")


def test_the_list():
    file = io.StringIO()
    console = Console(file=file, width=100)
    show_catalogue(catalogue(), console)
    text = file.getvalue()
    assert "✓  CartPole-v1" in text
    assert "can be vectorized here" in text
