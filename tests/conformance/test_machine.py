"""Any order of calls: a fleet on every backend against plain Gymnasium environments, driven by hypothesis."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.conformance.model import ModelFleet, make_env
from tests.conftest import ADOPTED, BACKENDS
from tests.unit.kernels.samples import SAMPLES
from tests.unit.physics.samples import Gusts
from tests.waiting import PATIENCE_S

import envfleet
from envfleet.envs.mujoco.pendulums import InvertedDoublePendulum
from envfleet.errors import FleetClosed
from envfleet.fleet.layout import SpaceLayout
from envfleet.kernels import Kernel
from envfleet.kernels.env import KernelEnv
from envfleet.physics.env import make_env as make_task_env
from envfleet.testing import mismatches

pytestmark = pytest.mark.timeout(600)  # hypothesis shrinks a failure before it reports it

SEEDS = st.none() | st.integers(0, 2**40)
CHOICES = st.integers(0, 2**32)  # seeds what is drawn for many rows at once


class Subject(NamedTuple):
    """Environments, a fleet of them, and what one of them shows now."""

    name: str
    env_fn: Callable[[int], gym.Env[Any, Any]]
    make: Callable[..., Any]
    observe: Callable[[Any], Any]
    most: int = 6


def make_kernel_env(kernel: type[Kernel], index: int) -> gym.Env[Any, Any]:
    env = KernelEnv(kernel)
    limit = kernel.max_episode_steps
    return env if limit is None else gym.wrappers.TimeLimit(env, limit)


def make_kernel_fleet(kernel: type[Kernel], env_fns: Sequence[Any], **options: Any) -> Any:
    return envfleet.make(kernel, len(env_fns), backend="kernel", **options)


PYTHON = [Subject(str(one), make_env, one, lambda env: env.observe()) for one in (*BACKENDS, ADOPTED)]
KERNELS = [
    Subject(
        one.__name__,
        functools.partial(make_kernel_env, one),
        functools.partial(make_kernel_fleet, one),
        lambda env: env._batch.observe()[0][0],
        70,
    )
    for one in SAMPLES
]
PHYSICS = [
    Subject(
        task.__name__,
        functools.partial(lambda task, index: make_task_env(task, 15), task),
        functools.partial(
            lambda task, env_fns, **o: envfleet.make(task, len(env_fns), max_episode_steps=15, **o), task
        ),
        lambda env: env.plain.observe(),
    )
    for task in (Gusts, InvertedDoublePendulum)  # Gymnasium's own environments cannot be copied, which the model needs
]


def merge(infos: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge infos by Gymnasium's own rule."""
    merger: Any = VectorEnv()
    merger.num_envs, merger.closed = len(infos), True
    merged: dict[str, Any] = {}
    for index, info in enumerate(infos):
        merged = merger._add_info(merged, info, index)
    return merged


class FleetMachine(RuleBasedStateMachine):
    """The fleet must return, row by row and bit by bit, what plain environments return."""

    states = Bundle("states")
    subjects: Sequence[Subject] = PYTHON

    @initialize(mode=st.sampled_from(tuple(AutoresetMode)), is_copying=st.booleans(), data=st.data())
    def build(self, mode: AutoresetMode, is_copying: bool, data: st.DataObject) -> None:
        self.subject = data.draw(st.sampled_from(self.subjects), label="subject")
        self.num_envs = data.draw(st.integers(1, self.subject.most), label="num_envs")
        self.mode, self.everyone = mode, range(self.num_envs)
        self.env_fns = [functools.partial(self.subject.env_fn, index) for index in self.everyone]
        self.model = ModelFleet(self.env_fns, mode)
        self.options = {"autoreset_mode": mode, "copy": is_copying or self.subject.name == "adopted"}
        self.kept: list[tuple[Any, Any]] = []
        self.in_flight: dict[int, Any] = {}
        # Which rows a recv returns is chance, and hypothesis wants the same choices in the same run: whatever was sent
        # counts as busy until everything has been received.
        self.busy: set[int] = set()
        self.fleet = self.make(data)
        self.traits = self.fleet.engine.traits
        self.reset_all(0, None)

    def make(self, data: st.DataObject) -> Any:
        options: dict[str, Any] = dict(self.options)
        if self.subject in PYTHON and self.subject.name != "adopted":
            options["batch_size"] = data.draw(st.none() | st.integers(1, self.num_envs), label="batch_size")
        if self.subject not in PYTHON:
            options["workers"] = data.draw(st.integers(1, min(self.num_envs, 4)), label="workers")
        return self.subject.make(self.env_fns, **options)

    # -------------------------------------------------------------------------------------------- helpers

    @property
    def is_idle(self) -> bool:
        return not self.in_flight

    def choose(self, choice: int, allowed: Sequence[int]) -> list[int]:
        rng = np.random.default_rng(choice)
        indices = rng.permutation(allowed)[: rng.integers(1, len(allowed) + 1)]
        return [int(index) for index in (sorted(indices) if choice % 2 else indices)]

    def sample(self, choice: int) -> Any:
        self.fleet.action_space.seed(choice)
        return self.fleet.action_space.sample()

    def show(self) -> Any:
        """Return the observations of the plain environments, which do not autoreset."""
        return np.stack([self.subject.observe(row.env.unwrapped) for row in self.model.rows])

    def keep(self, *arrays: Any) -> None:
        """Check that returned arrays stay: forever, or with `copy=False` until the call after the next one."""
        for array, before in self.kept:
            np.testing.assert_array_equal(array, before, err_msg="changed since it was returned")
        if not self.options["copy"]:
            self.kept.clear()
        self.kept += [(array, copy.deepcopy(array)) for array in arrays]

    def compare_infos(self, expected: Sequence[dict[str, Any]], actual: dict[str, Any]) -> None:
        merged, actual = merge(expected), dict(actual)
        if "final_obs" in merged:
            for one, other in zip(merged.pop("final_obs"), actual.pop("final_obs"), strict=True):
                np.testing.assert_array_equal(one, other)
        assert type(actual) is dict
        assert not mismatches(merged, actual, "infos")

    def compare_reset(self, expected: list[tuple[Any, dict[str, Any]]], actual: tuple[Any, dict[str, Any]]) -> None:
        np.testing.assert_array_equal(actual[0], np.stack([observation for observation, _ in expected]))
        self.keep(actual[0])
        self.compare_infos([info for _, info in expected], actual[1])

    def compare_steps(self, expected: list[tuple[Any, ...]], actual: tuple[Any, ...]) -> None:
        *values, infos = zip(*expected, strict=True)
        for one, other in zip(values, actual[:4], strict=True):
            np.testing.assert_array_equal(other, np.stack(one))
        self.keep(*actual[:4])
        self.compare_infos(infos, actual[4])

    def steppable(self) -> list[int]:
        ended = self.model.ended if self.mode == AutoresetMode.DISABLED else []
        return [index for index in self.everyone if index not in ended and index not in self.busy]

    # -------------------------------------------------------------------------------------------- calls

    @precondition(lambda self: self.is_idle)
    @rule(seed=SEEDS, options=st.none() | st.just({"start": 2}))
    def reset_all(self, seed: int | None, options: dict[str, Any] | None) -> None:
        options = None if self.subject not in PYTHON else options
        seeds = [None if seed is None else seed + index for index in self.everyone]
        expected = self.model.reset(self.everyone, seeds, options)
        self.compare_reset(expected, self.fleet.reset(seed=seed, options=options))

    @precondition(lambda self: self.is_idle)
    @rule(choice=CHOICES, is_seeded=st.booleans())
    def reset_masked(self, choice: int, is_seeded: bool) -> None:
        indices = sorted(self.choose(choice, self.everyone))
        rng = np.random.default_rng(choice + 1)
        seeds = [int(rng.integers(99)) if is_seeded and rng.random() < 0.7 else None for _ in self.everyone]
        results = dict(zip(indices, self.model.reset(indices, [seeds[index] for index in indices]), strict=True))
        observations, infos = self.fleet.reset(seed=seeds, options={"reset_mask": np.isin(self.everyone, indices)})
        if (
            self.mode is not AutoresetMode.SAME_STEP or not self.traits.has_partial_steps
        ):  # SAME_STEP may show a final observation here
            np.testing.assert_array_equal(observations, self.show())
        self.keep(observations)
        self.compare_infos([results[index][1] if index in results else {} for index in self.everyone], infos)

    @rule(choice=CHOICES, is_seeded=st.booleans())
    def reset_some(self, choice: int, is_seeded: bool) -> None:
        allowed = [index for index in self.everyone if index not in self.busy]
        if not allowed:
            return
        indices = self.choose(choice, allowed)
        seeds: list[int | None] = [choice + index if is_seeded else None for index in indices]
        expected = self.model.reset(indices, seeds)
        self.compare_reset(expected, self.fleet.reset_envs(indices, seeds=seeds if is_seeded else None))

    @precondition(lambda self: self.is_idle and len(self.steppable()) == self.num_envs)
    @rule(choice=CHOICES)
    def step(self, choice: int) -> None:
        actions = self.sample(choice)
        passed = copy.deepcopy(actions)
        self.compare_steps(self.model.step(self.everyone, actions), self.fleet.step(passed))
        np.testing.assert_array_equal(passed, actions)

    @precondition(lambda self: self.steppable())
    @rule(choice=CHOICES)
    def send(self, choice: int) -> None:
        allowed = self.steppable()
        indices = self.choose(choice, allowed)
        if self.subject not in PYTHON and self.in_flight:  # they step at once, and want to be received
            return
        if not self.traits.has_partial_steps:
            if len(allowed) < self.num_envs:
                return
            indices = list(self.everyone)
        layout = SpaceLayout(self.fleet.single_action_space)
        leaves, objects = layout.unbatch(self.sample(choice), self.num_envs)
        actions = layout.batch([leaf[indices] for leaf in leaves], [[one[i] for i in indices] for one in objects])
        self.in_flight.update(zip(indices, self.model.step(indices, actions), strict=True))
        self.busy.update(indices)
        self.fleet.send(actions, None if indices == list(self.everyone) else indices)
        self.keep()

    @precondition(lambda self: self.in_flight)
    @rule(choice=st.none() | CHOICES)
    def receive(self, choice: int | None) -> None:
        """The first that are ready, or certain ones."""
        wanted = None if choice is None else self.choose(choice, sorted(self.in_flight))
        if wanted is not None and self.subject not in PYTHON:
            wanted = [*wanted, *sorted(self.in_flight.keys() - set(wanted))]
        wanted = wanted if self.traits.has_partial_steps else None
        batch = self.fleet.recv(timeout_s=PATIENCE_S, env_indices=wanted)
        indices = [int(index) for index in batch.env_indices]
        if wanted is None:
            assert len(indices) == min(self.fleet.batch_size, len(self.in_flight))
        else:
            assert indices == wanted
        self.compare_steps([self.in_flight.pop(index) for index in indices], batch[:5])
        if not self.in_flight:
            self.busy.clear()

    @precondition(lambda self: self.is_idle and self.traits.has_states)
    @rule(target=states, choice=CHOICES, is_whole=st.booleans())
    def save(self, choice: int, is_whole: bool) -> Any:
        indices = list(self.everyone) if is_whole else self.choose(choice, self.everyone)
        state = self.fleet.get_state(None if is_whole else indices)
        self.keep()
        return indices, state, [self.model.rows[index].get_state() for index in indices]

    @precondition(lambda self: self.is_idle and self.traits.has_states)
    @rule(saved=states, is_elsewhere=st.booleans(), data=st.data())
    def load(self, saved: Any, is_elsewhere: bool, data: st.DataObject) -> None:
        """Continue from a saved state, in this or another fleet."""
        indices, state, model_states = saved
        if is_elsewhere and len(indices) == self.num_envs:
            self.fleet.close()
            self.fleet = self.make(data)
            state = pickle.loads(pickle.dumps(state))
        observations = self.fleet.set_state(state, indices)
        self.keep(observations)
        for index, model_state in zip(indices, model_states, strict=True):
            self.model.rows[index].set_state(model_state)
        if self.subject in PYTHON:  # `SavableEnv` saves no length
            self.fleet.set_attr("length", [row.env.unwrapped.length for row in self.model.rows])  # type: ignore[attr-defined]

    @precondition(lambda self: self.is_idle and self.subject in PYTHON)
    @rule(length=st.integers(2, 6))
    def change_and_ask(self, length: int) -> None:
        values = [length + index for index in self.everyone]
        self.fleet.set_attr("length", values)
        for row, value in zip(self.model.rows, values, strict=True):
            row.env.unwrapped.length = value  # type: ignore[attr-defined]
        assert self.fleet.get_attr("length") == tuple(values)
        self.keep()
        np.testing.assert_array_equal(np.stack(self.fleet.call("observe")), self.show())

    # -------------------------------------------------------------------------------------------- always

    @invariant()
    def agrees_on_episodes(self) -> None:
        if not self.is_idle:
            return
        assert self.fleet.terminated_indices == self.model.ended
        assert self.fleet.active_count == self.num_envs - len(self.model.ended)
        np.testing.assert_array_equal(self.fleet.episode_lengths, self.model.column("length", np.int64))
        np.testing.assert_array_equal(self.fleet.episode_returns, self.model.column("total", np.float64))
        assert len(set(self.fleet.episode_ids.tolist())) == self.num_envs
        states = [generator.bit_generator.state for generator in self.fleet.np_random]
        assert states == [row.env.unwrapped.np_random.bit_generator.state for row in self.model.rows]

    def teardown(self) -> None:
        if not hasattr(self, "fleet"):
            return
        self.fleet.close()
        self.fleet.close()
        with pytest.raises(FleetClosed):
            self.fleet.reset()


class KernelMachine(FleetMachine):
    """The same over kernels, of which a fleet has many more."""

    subjects = KERNELS


class PhysicsMachine(FleetMachine):
    """The same over MuJoCo tasks."""

    subjects = PHYSICS


TestFleet, TestKernelFleet = FleetMachine.TestCase, KernelMachine.TestCase
TestPhysicsFleet = PhysicsMachine.TestCase
TestFleet.settings = settings(
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,  # the same run everywhere; raise max_examples and drop this to search
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestKernelFleet.settings = settings(TestFleet.settings, max_examples=15, stateful_step_count=15)
TestPhysicsFleet.settings = TestKernelFleet.settings
