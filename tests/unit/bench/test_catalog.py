"""The registered environments, and which of them are kernels."""

import io

import gymnasium
from gymnasium.envs.registration import EnvSpec
from rich.console import Console

from envfleet.bench.catalog import catalog, show_catalog


def ids(pattern=""):
    return [spec.id for spec in catalog(pattern)]


def test_the_filter_ignores_case():
    assert ids("cartpole-V1") == ["CartPole-v1", "envfleet/CartPole-v1", "phys2d/CartPole-v1"]
    assert not catalog("no such thing")


def test_environments_of_others(monkeypatch):
    spec = EnvSpec("mine/Env-v0", entry_point="no_such_package.envs:Env", max_episode_steps=5)
    vector = EnvSpec("mine/Vector-v0", vector_entry_point="gymnasium:make")
    monkeypatch.setitem(gymnasium.registry, spec.id, spec)
    monkeypatch.setitem(gymnasium.registry, vector.id, vector)
    assert ids("mine/") == ["mine/Env-v0"], "environments with only a vector entry point are left out"


def test_the_list():
    file = io.StringIO()
    show_catalog(catalog("CartPole-v1"), Console(file=file, width=100))
    lines = file.getvalue().splitlines()
    assert "  CartPole-v1" in lines
    assert "  envfleet/CartPole-v1 kernel" in lines
    assert "3 environments: envfleet.make(ID, num_envs=8)." in lines
