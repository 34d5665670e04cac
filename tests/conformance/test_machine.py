"""Any order of calls: a fleet against plain Gymnasium environments, driven by hypothesis."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.conformance.model import ModelFleet
from tests.conftest import BACKENDS, Backend

from envfleet.errors import FleetClosed
from envfleet.testing import CountingEnv, mismatches
from envfleet.testing.duel import OUR_INFOS
from envfleet.testing.envs import SavableEnv

SEEDS = st.none() | st.integers(0, 50)
MODES = st.sampled_from(tuple(AutoresetMode))


def make_env(index: int) -> CountingEnv:
    """Two kinds in one fleet: one that saves its own state and one that is pickled for it."""
    return (CountingEnv, SavableEnv)[index % 2](4, vary=True, ends="alternate")


def merge(infos: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge infos by Gymnasium's own rule."""
    merger: Any = VectorEnv()
    merger.num_envs, merger.closed = len(infos), True
    merged: dict[str, Any] = {}
    for index, info in enumerate(infos):
        merged = merger._add_info(merged, info, index)
    return merged


class FleetMachine(RuleBasedStateMachine):
    """The fleet must return, row by row, what plain environments return."""

    states = Bundle("states")

    @initialize(
        backend=st.sampled_from(BACKENDS),
        mode=MODES,
        copy=st.booleans(),
        num_envs=st.integers(1, 5),
        data=st.data(),
    )
    def build(self, backend: Backend, mode: AutoresetMode, copy: bool, num_envs: int, data: st.DataObject) -> None:
        env_fns = [functools.partial(make_env, index) for index in range(num_envs)]
        self.num_envs, self.mode, self.everyone = num_envs, mode, range(num_envs)
        self.model = ModelFleet(env_fns, mode)
        batch_size = data.draw(st.none() | st.integers(1, num_envs), label="batch_size")
        self.fleet = backend(env_fns, autoreset_mode=mode, copy=copy, batch_size=batch_size)
        self.in_flight: dict[int, Any] = {}
        # Which rows a recv returns is chance, and hypothesis wants the same choices in the same run: whatever was sent
        # counts as busy until everything has been received.
        self.busy: set[int] = set()
        self.reset_all(seed=0, options=None)

    # -------------------------------------------------------------------------------------------- helpers

    @property
    def is_idle(self) -> bool:
        return not self.in_flight

    def draw_indices(self, data: st.DataObject, allowed: Sequence[int]) -> list[int]:
        return data.draw(st.lists(st.sampled_from(sorted(allowed)), min_size=1, unique=True), label="indices")

    def draw_actions(self, data: st.DataObject, count: int) -> np.ndarray:
        return np.array(data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count), label="actions"))

    def steppable(self) -> list[int]:
        ended = self.model.ended if self.mode == AutoresetMode.DISABLED else []
        return [index for index in self.everyone if index not in ended and index not in self.busy]

    def compare_infos(self, expected: Sequence[dict[str, Any]], found: dict[str, Any]) -> None:
        found = {key: value for key, value in found.items() if key not in OUR_INFOS}
        assert not mismatches(merge(expected), found, "infos")

    def compare_reset(self, expected: list[tuple[Any, dict[str, Any]]], found: tuple[Any, dict[str, Any]]) -> None:
        np.testing.assert_array_equal(found[0], np.stack([observation for observation, _ in expected]))
        self.compare_infos([info for _, info in expected], found[1])

    def compare_steps(self, expected: list[tuple[Any, ...]], found: tuple[Any, ...]) -> None:
        observations, rewards, terminated, truncated, infos = zip(*expected, strict=True)
        np.testing.assert_array_equal(found[0], np.stack(observations))
        np.testing.assert_array_equal(found[1], np.array(rewards))
        np.testing.assert_array_equal(found[2], np.array(terminated))
        np.testing.assert_array_equal(found[3], np.array(truncated))
        self.compare_infos(infos, found[4])

    # -------------------------------------------------------------------------------------------- calls

    @precondition(lambda self: self.is_idle)
    @rule(seed=SEEDS, options=st.none() | st.just({"start": 2}))
    def reset_all(self, seed: int | None, options: dict[str, Any] | None) -> None:
        seeds = [None if seed is None else seed + index for index in self.everyone]
        expected = self.model.reset(self.everyone, seeds, options)
        self.compare_reset(expected, self.fleet.reset(seed=seed, options=options))

    @precondition(lambda self: self.is_idle)
    @rule(data=st.data())
    def reset_listed_seeds(self, data: st.DataObject) -> None:
        seeds = data.draw(st.lists(SEEDS, min_size=self.num_envs, max_size=self.num_envs))
        self.compare_reset(self.model.reset(self.everyone, seeds), self.fleet.reset(seed=seeds))

    @precondition(lambda self: self.is_idle)
    @rule(data=st.data(), seed=SEEDS)
    def reset_masked(self, data: st.DataObject, seed: int | None) -> None:
        indices = sorted(self.draw_indices(data, self.everyone))
        mask = np.isin(self.everyone, indices)
        before, _ = self.last_observations()
        seeds = [None if seed is None else seed + index for index in indices]
        results = dict(zip(indices, self.model.reset(indices, seeds), strict=True))
        observations, infos = self.fleet.reset(seed=seed, options={"reset_mask": mask})
        for index in self.everyone:
            expected = results[index][0] if index in results else before[index]
            np.testing.assert_array_equal(observations[index], expected)
        self.compare_infos([results[index][1] if index in results else {} for index in self.everyone], infos)

    def last_observations(self) -> tuple[list[Any], None]:
        """What each plain environment shows now; after an end the model's environment has not moved on."""
        return [row.env.unwrapped.observe() for row in self.model.rows], None  # type: ignore[attr-defined]

    @rule(data=st.data(), is_seeded=st.booleans())
    def reset_some(self, data: st.DataObject, is_seeded: bool) -> None:
        allowed = [index for index in self.everyone if index not in self.busy]
        if not allowed:
            return
        indices = self.draw_indices(data, allowed)
        seeds = [100 + index for index in indices] if is_seeded else [None] * len(indices)
        expected = self.model.reset(indices, seeds)
        found = self.fleet.reset_envs(indices, seeds=seeds if is_seeded else None)
        self.compare_reset(expected, found)

    @precondition(lambda self: self.is_idle and len(self.steppable()) == self.num_envs)
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        actions = self.draw_actions(data, self.num_envs)
        self.compare_steps(self.model.step(self.everyone, actions), self.fleet.step(actions))

    @precondition(lambda self: self.steppable())
    @rule(data=st.data())
    def send(self, data: st.DataObject) -> None:
        indices = self.draw_indices(data, self.steppable())
        actions = self.draw_actions(data, len(indices))
        self.in_flight.update(zip(indices, self.model.step(indices, actions), strict=True))
        self.busy.update(indices)
        self.fleet.send(actions, indices)

    @precondition(lambda self: self.in_flight)
    @rule()
    def receive(self) -> None:
        batch = self.fleet.recv(timeout_s=10)
        indices = [int(index) for index in batch.env_indices]
        assert len(indices) == min(self.fleet.batch_size, len(self.in_flight))
        self.compare_steps([self.in_flight.pop(index) for index in indices], batch[:5])
        if not self.in_flight:
            self.busy.clear()

    @precondition(lambda self: self.is_idle)
    @rule(target=states, data=st.data())
    def save(self, data: st.DataObject) -> Any:
        indices = self.draw_indices(data, self.everyone)
        states = self.fleet.get_state(indices)
        return list(zip(indices, states, [self.model.rows[index].get_state() for index in indices], strict=True))

    @precondition(lambda self: self.is_idle)
    @rule(saved=states)
    def load(self, saved: list[tuple[int, Any, Any]]) -> None:
        indices, states, model_states = zip(*saved, strict=True)
        self.fleet.set_state(states, list(indices))
        for index, state in zip(indices, model_states, strict=True):
            self.model.rows[index].set_state(state)

    @precondition(lambda self: self.is_idle)
    @rule(length=st.integers(2, 6))
    def change_and_ask(self, length: int) -> None:
        values = [length + index for index in self.everyone]
        self.fleet.set_attr("length", values)
        for row, value in zip(self.model.rows, values, strict=True):
            row.env.unwrapped.length = value  # type: ignore[attr-defined]
        assert self.fleet.get_attr("length") == tuple(values)
        observations = self.fleet.call("observe")
        np.testing.assert_array_equal(np.stack(observations), np.stack(self.last_observations()[0]))

    # -------------------------------------------------------------------------------------------- always

    @invariant()
    def agrees_on_episodes(self) -> None:
        if not self.is_idle:
            return
        assert self.fleet.terminated_indices == self.model.ended
        assert self.fleet.active_count == self.num_envs - len(self.model.ended)
        np.testing.assert_array_equal(self.fleet.episode_lengths, self.model.column("length", np.int64))
        np.testing.assert_allclose(self.fleet.episode_returns, self.model.column("total", np.float64), rtol=1e-12)
        assert len(set(self.fleet.episode_ids.tolist())) == self.num_envs

    def teardown(self) -> None:
        if not hasattr(self, "fleet"):
            return
        self.fleet.close()
        self.fleet.close()
        with pytest.raises(FleetClosed):
            self.fleet.reset()


TestFleet = FleetMachine.TestCase
TestFleet.settings = settings(
    max_examples=50,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,  # the same run everywhere; raise max_examples and drop this to search
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
