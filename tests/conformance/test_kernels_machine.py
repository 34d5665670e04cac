"""Any order of calls: a fleet of a kernel against as many ordinary environments of it, driven by hypothesis."""

from __future__ import annotations

import functools
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.conformance.model import ModelFleet
from tests.conformance.test_machine import merge
from tests.unit.kernels.samples import SAMPLES

import envfleet
from envfleet.errors import FleetClosed
from envfleet.kernels import Kernel
from envfleet.kernels.env import KernelEnv
from envfleet.testing import mismatches
from envfleet.testing.duel import OUR_INFOS

SEEDS = st.none() | st.integers(0, 2**40)
CHOICES = st.integers(0, 2**32)  # seeds what is drawn for many rows at once


def make_env(kernel: type[Kernel]) -> gym.Env[Any, Any]:
    env = KernelEnv(kernel)
    limit = kernel.max_episode_steps
    return env if limit is None else gym.wrappers.TimeLimit(env, limit)


class KernelMachine(RuleBasedStateMachine):
    """The fleet must return, row by row and bit by bit, what single environments return."""

    states = Bundle("states")

    @initialize(
        kernel=st.sampled_from(SAMPLES),
        mode=st.sampled_from(tuple(AutoresetMode)),
        copy=st.booleans(),
        num_envs=st.integers(1, 70),
        workers=st.integers(1, 4),
        seed=SEEDS,
    )
    def build(
        self, kernel: type[Kernel], mode: AutoresetMode, copy: bool, num_envs: int, workers: int, seed: int | None
    ) -> None:
        self.kernel, self.mode, self.copy, self.num_envs = kernel, mode, copy, num_envs
        self.everyone = range(num_envs)
        self.fleet = self.make_fleet(workers)
        self.model = ModelFleet([functools.partial(make_env, kernel)] * num_envs, mode)
        self.kept: list[tuple[np.ndarray, np.ndarray]] = []
        self.reset_all(0 if seed is None else seed)

    def make_fleet(self, workers: int) -> Any:
        options: Any = {"workers": min(workers, self.num_envs), "autoreset_mode": self.mode, "copy": self.copy}
        return envfleet.make(self.kernel, self.num_envs, backend="kernel", **options)

    # -------------------------------------------------------------------------------------------- helpers

    def choose(self, choice: int) -> list[int]:
        rng = np.random.default_rng(choice)
        return sorted(rng.choice(self.num_envs, rng.integers(1, self.num_envs + 1), replace=False).tolist())

    def show(self) -> list[Any]:
        """What each single environment shows now."""
        return [row.env.unwrapped._batch.observe()[0][0] for row in self.model.rows]  # type: ignore[attr-defined]

    def compare_observations(self, found: Any, expected: list[Any]) -> None:
        assert isinstance(found, np.ndarray)
        np.testing.assert_array_equal(found, np.stack(expected))
        if self.copy:
            self.kept.append((found, found.copy()))

    def compare_infos(self, expected: list[dict[str, Any]], found: Any) -> None:
        found = {key: value for key, value in dict(found).items() if key not in OUR_INFOS}
        merged = merge(expected)
        if "final_obs" in merged:
            finals = zip(merged.pop("final_obs"), found.pop("final_obs"), strict=True)
            assert all(np.array_equal(one, other) for one, other in finals)
        assert not mismatches(merged, found, "infos")

    # -------------------------------------------------------------------------------------------- calls

    @rule(seed=SEEDS)
    def reset_all(self, seed: int | None) -> None:
        seeds = [None if seed is None else seed + index for index in self.everyone]
        expected = self.model.reset(self.everyone, seeds)
        observations, infos = self.fleet.reset(seed=seed)
        self.compare_observations(observations, [one for one, _ in expected])
        self.compare_infos([info for _, info in expected], infos)

    @rule(choice=CHOICES, is_seeded=st.booleans())
    def reset_masked(self, choice: int, is_seeded: bool) -> None:
        indices = self.choose(choice)
        rng = np.random.default_rng(choice + 1)
        seeds = [int(rng.integers(99)) if is_seeded and rng.random() < 0.7 else None for _ in self.everyone]
        results = dict(zip(indices, self.model.reset(indices, [seeds[index] for index in indices]), strict=True))
        mask = np.isin(self.everyone, indices)
        observations, infos = self.fleet.reset(seed=seeds, options={"reset_mask": mask})
        self.compare_observations(observations, self.show())
        self.compare_infos([results[index][1] if index in results else {} for index in self.everyone], infos)

    @rule(choice=CHOICES, is_seeded=st.booleans())
    def reset_some(self, choice: int, is_seeded: bool) -> None:
        indices = self.choose(choice)[::-1]
        seeds: list[int | None] = [choice + index if is_seeded else None for index in indices]
        expected = self.model.reset(indices, seeds)
        observations, infos = self.fleet.reset_envs(indices, seeds=seeds if is_seeded else None)
        self.compare_observations(observations, [one for one, _ in expected])
        self.compare_infos([info for _, info in expected], infos)

    @precondition(lambda self: self.mode is not AutoresetMode.DISABLED or not self.model.ended)
    @rule(choice=CHOICES, count=st.integers(1, 4))
    def step(self, choice: int, count: int) -> None:
        self.fleet.action_space.seed(choice)
        for _ in range(count):
            if self.mode is AutoresetMode.DISABLED and self.model.ended:
                break
            actions = self.fleet.action_space.sample()
            given = actions.copy()
            expected = self.model.step(self.everyone, actions)
            observations, rewards, terminated, truncated, infos = self.fleet.step(given)
            np.testing.assert_array_equal(given, actions)
            self.compare_observations(observations, [one[0] for one in expected])
            for place, values in enumerate((rewards, terminated, truncated), 1):
                np.testing.assert_array_equal(values, np.array([one[place] for one in expected]))
            self.compare_infos([one[4] for one in expected], infos)

    @rule(target=states, choice=CHOICES, is_whole=st.booleans())
    def save(self, choice: int, is_whole: bool) -> Any:
        indices = list(self.everyone) if is_whole else self.choose(choice)
        state = self.fleet.get_state(None if is_whole else indices)
        return indices, state, [self.model.rows[index].get_state() for index in indices]

    @rule(saved=states, choice=CHOICES, elsewhere=st.none() | st.integers(1, 4))
    def load(self, saved: Any, choice: int, elsewhere: int | None) -> None:
        indices, state, model_states = saved
        if elsewhere is not None and len(indices) == self.num_envs:
            self.fleet.close()
            self.fleet = self.make_fleet(elsewhere)
            state = pickle.loads(pickle.dumps(state))
        targets = np.random.default_rng(choice).permutation(self.num_envs)[: len(indices)].tolist()
        observations = self.fleet.set_state(state, targets)
        for index, model_state in zip(targets, model_states, strict=True):
            self.model.rows[index].set_state(model_state)
        shown = self.show()
        self.compare_observations(observations, [shown[index] for index in targets])

    # -------------------------------------------------------------------------------------------- always

    @invariant()
    def agrees_on_episodes(self) -> None:
        assert self.fleet.terminated_indices == self.model.ended
        assert self.fleet.active_count == self.num_envs - len(self.model.ended)
        np.testing.assert_array_equal(self.fleet.episode_lengths, self.model.column("length", np.int64))
        np.testing.assert_array_equal(self.fleet.episode_returns, self.model.column("total", np.float64))
        states = [generator.bit_generator.state for generator in self.fleet.np_random]
        assert states == [row.env.unwrapped.np_random.bit_generator.state for row in self.model.rows]

    @invariant()
    def leaves_what_was_returned(self) -> None:
        assert all(np.array_equal(array, before) for array, before in self.kept)

    def teardown(self) -> None:
        if hasattr(self, "fleet"):
            self.fleet.close()
            with pytest.raises(FleetClosed):
                self.fleet.reset()


TestKernelFleet = KernelMachine.TestCase
TestKernelFleet.settings = settings(
    max_examples=25,
    stateful_step_count=15,
    deadline=None,
    derandomize=True,  # the same run everywhere; raise max_examples and drop this to search
    suppress_health_check=[HealthCheck.too_slow],
)
