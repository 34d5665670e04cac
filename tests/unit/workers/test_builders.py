"""Builders of sub-environments, and the registry that travels with them."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import gymnasium as gym
import pytest

from envfleet.errors import InvalidArgument
from envfleet.testing import CountingEnv
from envfleet.workers.builders import EnvBuilder, Registrations


class SeededEnv(CountingEnv):
    def __init__(self, seed: int = 0, table: Any = None) -> None:
        super().__init__()
        self.arguments = seed, table


class EnvWithoutSpaces(gym.Env[Any, Any]):
    pass


def test_seeds_and_shared_data_are_passed() -> None:
    builder = EnvBuilder(SeededEnv, seed=3, shared_names=("table",))
    shared = {"table": "a table", "other": "not passed"}
    assert builder.build(shared).arguments == (3, "a table")  # type: ignore[attr-defined]
    assert builder.build(shared, seed=9).arguments == (9, "a table")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda: None, "return env"),
        (lambda: CountingEnv, r"CountingEnv\(\.\.\.\)"),
        (lambda: 3, "returned int"),
        (lambda: gym.make_vec("CartPole-v1", 2), "return a single one"),
        (EnvWithoutSpaces, "EnvWithoutSpaces has no observation_space"),
    ],
)
def test_wrong_results_are_explained(function: Any, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        EnvBuilder(function).build({})


def test_registered_environments_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = dataclasses.replace(gym.spec("CartPole-v1"), id="Traveling-v0")
    with monkeypatch.context() as patch:
        patch.setitem(gym.registry, "Traveling-v0", spec)
        pickled = pickle.dumps(Registrations())
    assert "Traveling-v0" not in gym.registry
    registrations = pickle.loads(pickled)
    monkeypatch.setattr(gym.envs.registration, "registry", dict(gym.registry))
    monkeypatch.setattr(gym, "registry", gym.envs.registration.registry)
    registrations.apply()
    assert gym.registry["Traveling-v0"].entry_point == spec.entry_point
