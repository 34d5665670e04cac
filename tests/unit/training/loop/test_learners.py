"""Learning in a thread: the same bits at any timing, and from a checkpoint in the middle."""

from __future__ import annotations

import contextlib
import math
import random
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.training.watching import Watcher

from envfleet.agents.compiled import compiled_without_gil
from envfleet.errors import TrainingDiverged
from envfleet.training import RunOptions, Trainer
from envfleet.training.config import parse_config
from envfleet.training.events import Episodes, Learned
from envfleet.training.plan import resolve

AGENTS = {
    "SAC": {"hidden": [16], "num_steps": 2},
    "DDDQN": {"hidden": [16], "num_steps": 3, "epsilon_transitions": 400},
}
PRIORITIES = {**AGENTS["DDDQN"], "prioritized": True}
ENVS = {"SAC": "Pendulum-v1", "DDDQN": "envfleet/CartPole-v1"}


def config_of(agent: str, hyperparameters: dict[str, Any] | None = None, **training: Any) -> Any:
    phase = {"name": "all", "transitions": 1_300, "environment": {"id": ENVS[agent]}}
    frequencies = {"eval_frequency": None, "checkpoint_frequency": None}
    return parse_config(
        {
            "curriculum": {"phases": [phase]},
            "training": {"warmup_steps": 40, "updates_per_step": 0.1, "eval_games": 1, **frequencies, **training},
            "hyperparameters": {"batch_size": 16},
            "agent": {"type": agent, "hyperparameters": hyperparameters or AGENTS[agent]},
        }
    )


@contextlib.contextmanager
def trainer_of(agent: str, *observers: Any, **training: Any) -> Iterator[Trainer]:
    with contextlib.closing(
        Trainer(resolve(config_of(agent, **training), RunOptions(num_envs=3)), observers=observers)
    ) as trainer:
        yield trainer


@compiled_without_gil
def dawdle(count: int) -> tuple[float]:
    total = 0.0
    for number in range(count):
        total += math.sin(number)
    return (total,)


@compiled_without_gil
def fail(value: float) -> tuple[float]:
    if value > 0:
        raise MemoryError
    return (value,)


def delay(function: Callable[..., Any], longest_s: float) -> Callable[..., Any]:
    def delayed(*args: Any, **kwargs: Any) -> Any:
        time.sleep(random.random() * longest_s)
        return function(*args, **kwargs)

    return delayed


def play(agent: str, learning_s: float, acting_s: float, **training: Any) -> tuple[Any, list[Any]]:
    """Train with delays in learning and acting; return weights and events."""
    watcher = Watcher()
    with trainer_of(agent, watcher, **training) as trainer:
        own: Any = trainer.agent
        learn = own._learn_compiled
        own._learn_compiled = lambda *lesson: [
            ((), dawdle, (int(random.random() * learning_s * 5e7),)),
            *learn(*lesson),
        ]
        own.act_batch = delay(own.act_batch, acting_s)
        trainer.run()
        ended = [(event.transitions, event.updates) for event in watcher.of(Episodes)]
        return trainer.agent.weights(), [*map(vars, watcher.of(Learned)), *ended]


def assert_equal(first: Any, second: Any) -> None:
    for network, tensors in first.items():
        for name, tensor in tensors.items():
            assert torch.equal(tensor, second[network][name]), f"{network}.{name}"


@pytest.mark.parametrize("agent", AGENTS)
def test_the_same_bits_whatever_takes_how_long(agent: str) -> None:
    weights, events = play(agent, 0.0, 0.0)
    for learning_s, acting_s in ((0.02, 0.0), (0.002, 0.002)):
        others, told_again = play(agent, learning_s, acting_s)
        assert_equal(weights, others)
        assert told_again == events
    with pytest.raises(AssertionError):  # as it acts by older weights
        assert_equal(weights, play(agent, 0.0, 0.0, learn_beside=False)[0])


def test_by_priorities_is_learned_between_rounds() -> None:
    weights, events = play("DDDQN", 0.0, 0.0, hyperparameters=PRIORITIES)
    others, told_again = play("DDDQN", 0.0, 0.0, hyperparameters=PRIORITIES, learn_beside=False)
    assert_equal(weights, others)
    assert events == told_again


@pytest.mark.parametrize("agent", AGENTS)
def test_a_checkpoint_during_updates_resumes_to_the_last_bit(agent: str) -> None:
    with trainer_of(agent) as trainer:
        trainer.begin()
        learner: Any = trainer._learner
        while trainer.transitions < 400 or learner._job is None:
            trainer.round()
        state = trainer.state_dict()
        trainer.run()
    with trainer_of(agent) as another:
        another.load_state_dict(state)
        another.run()
    assert another.agent.num_updates == trainer.agent.num_updates
    assert_equal(trainer.agent.weights(), another.agent.weights())


def test_acting_follows_one_set_of_updates_later() -> None:
    rows = np.ones((3, 3), np.float32)
    with trainer_of("SAC") as trainer:
        trainer.begin()
        learner: Any = trainer._learner
        agent, acted = trainer.agent, list[Any]()
        while len(acted) < 3:
            before = agent.num_updates
            trainer.round()
            if agent.num_updates > before:
                wait([learner._job])
                acted.append(agent.act_batch(rows, deterministic=True))
        assert not np.array_equal(acted[0], acted[1])
        learned = agent.state_dict("weights")
        learner.finish()
        assert not np.array_equal(agent.act_batch(rows, deterministic=True), acted[2])
        assert_equal(learned["networks"], agent.weights())


def test_what_goes_wrong_in_the_thread_reaches_the_run() -> None:
    with trainer_of("SAC") as trainer:
        own: Any = trainer.agent
        own._learn_compiled = lambda *lesson: [(("critic_loss",), fail, (float("nan"),))]
        with pytest.raises(TrainingDiverged, match="critic_loss is nan"):
            trainer.run()
    with trainer_of("SAC") as trainer:
        own = trainer.agent
        own._learn_compiled = lambda *lesson: [((), fail, (1.0,))]
        with pytest.raises(MemoryError):
            trainer.run()


def test_the_switch_interval_is_restored() -> None:
    before = sys.getswitchinterval()
    with trainer_of("SAC"):
        assert sys.getswitchinterval() < before
    assert sys.getswitchinterval() == before
