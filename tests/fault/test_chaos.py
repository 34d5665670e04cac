"""Failures in any order: sub-environments that did not fail behave like plain environments."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.conformance.model import ModelFleet, ModelRow
from tests.conftest import ONE_OF_EACH, Backend
from tests.waiting import PATIENCE_S

from envfleet.errors import WorkerDied
from envfleet.testing import CountingEnv

NUM_ENVS = 5
EVERYONE = range(NUM_ENVS)
SEEN = [0, 2, 3, 4]  # without the number of episodes begun, which a rebuilt environment counts from the start


class BombEnv(CountingEnv):
    """Fails in its next step or reset if `bomb` is set."""

    def __init__(self) -> None:
        super().__init__(4, vary=True)
        self.bomb: str | None = None

    def _go_off(self) -> None:
        bomb, self.bomb = self.bomb, None
        if bomb == "raise":
            raise RuntimeError("boom")
        if bomb == "hang":
            end = time.monotonic() + 3600
            while time.monotonic() < end:
                pass
        if bomb == "kill":
            os.kill(os.getpid(), signal.SIGKILL)

    def step(self, action: Any) -> Any:
        self._go_off()
        return super().step(action)


class ChaosMachine(RuleBasedStateMachine):
    """Let sub-environments fail at random; a lost one is reset with a seed and must match the model again."""

    @initialize(backend=st.sampled_from(ONE_OF_EACH), mode=st.sampled_from(tuple(AutoresetMode)), copy=st.booleans())
    def build(self, backend: Backend, mode: AutoresetMode, copy: bool) -> None:
        self.backend, self.mode = backend, mode
        self.model = ModelFleet([BombEnv] * NUM_ENVS, mode)
        options: dict[str, Any] = {"autoreset_mode": mode, "copy": copy, "batch_size": 2}
        if backend.has_processes:
            options["step_timeout_s"] = 1.0
        self.fleet = backend([BombEnv] * NUM_ENVS, on_failure="restart", max_restarts=1000, **options)
        self.fleet.reset(seed=0)
        self.model.reset(EVERYONE, EVERYONE)
        self.armed: set[int] = set()
        self.killed: set[int] = set()
        self.in_flight: dict[int, Any] = {}
        self.seed = 100

    def group(self, indices: set[int]) -> set[int]:
        """Return all rows that share a worker with one of `indices`."""
        spans = [set(worker.env_indices) for worker in self.fleet.stats().workers]
        return set().union(*(span for span in spans if span & indices))

    def take_in(self, lost: set[int]) -> None:
        """Strike off what was reported. A bomb stays armed if it was set after a death that was not reported yet."""
        self.killed -= lost
        if lost & self.armed:
            bombs: tuple[str | None, ...] = ()
            while not bombs:
                with contextlib.suppress(WorkerDied):  # killed from outside before, as in `arm`
                    bombs = self.fleet.get_attr("bomb")
            self.armed = {index for index, bomb in enumerate(bombs) if bomb}

    def recover(self, lost: set[int]) -> None:
        """Reset rebuilt sub-environments, which have new seeds, with seeds that the model gets too."""
        for index in lost:
            self.model.rows[index] = ModelRow(BombEnv(), self.mode)
        indices = sorted(lost)
        if not indices:
            return
        seeds = list(range(self.seed, self.seed + len(indices)))
        self.seed += len(indices)
        observations, _ = self.fleet.reset_envs(indices, seeds=seeds)
        for row, (expected, _) in enumerate(self.model.reset(indices, seeds)):
            np.testing.assert_array_equal(observations[row][SEEN], expected[SEEN])

    def compare(self, index: int, expected: tuple[Any, ...], actual: tuple[Any, ...]) -> None:
        np.testing.assert_array_equal(actual[0][SEEN], expected[0][SEEN], err_msg=f"sub-environment {index}")
        assert actual[1:] == expected[1:4], f"sub-environment {index}"

    def lost_in(self, infos: dict[str, Any], indices: list[int]) -> set[int]:
        if "restarted" not in infos:
            return set()
        return {indices[row] for row in np.flatnonzero(infos["_restarted"])}

    # -------------------------------------------------------------------------------------------- calls

    @precondition(lambda self: not self.in_flight)
    @rule(index=st.integers(0, NUM_ENVS - 1), bomb=st.sampled_from(["raise", "kill", "hang"]))
    def arm(self, index: int, bomb: str) -> None:
        if not self.backend.has_processes:
            bomb = "raise"
        try:
            bombs = list(self.fleet.get_attr("bomb"))
            bombs[index] = bomb
            self.fleet.set_attr("bomb", bombs)
        except WorkerDied:
            return  # killed from outside before: this call is lost, and nothing else
        self.armed.add(index)

    @precondition(lambda self: not self.in_flight and self.backend.has_processes)
    @rule(index=st.integers(0, NUM_ENVS - 1))
    def kill_from_outside(self, index: int) -> None:
        for worker in self.fleet.stats().workers:
            if index in worker.env_indices:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGKILL)
                self.killed.add(index)
                time.sleep(0.05)

    def ready_to_step(self) -> list[int]:
        ended = self.model.ended if self.mode == AutoresetMode.DISABLED else []
        if ended:
            self.fleet.reset_envs(ended, seeds=ended)
            self.model.reset(ended, ended)
        return list(EVERYONE)

    @precondition(lambda self: not self.in_flight)
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        self.ready_to_step()
        actions = np.array(data.draw(st.lists(st.integers(0, 3), min_size=NUM_ENVS, max_size=NUM_ENVS)))
        observations, rewards, terminated, truncated, infos = self.fleet.step(actions)
        lost = self.lost_in(infos, list(EVERYONE))
        assert lost <= self.group(self.armed | self.killed)
        for index in EVERYONE:
            if index not in lost:
                actual = (observations[index], rewards[index], terminated[index], truncated[index])
                self.compare(index, self.model.rows[index].step(actions[index]), actual)
            else:
                has_ended = self.mode == AutoresetMode.NEXT_STEP and self.model.rows[index].is_ended
                assert (rewards[index], terminated[index], truncated[index]) == (0.0, False, not has_ended)
        self.recover(lost)
        self.take_in(lost)

    @precondition(lambda self: not self.in_flight)
    @rule(data=st.data())
    def send_and_receive(self, data: st.DataObject) -> None:
        self.ready_to_step()
        indices = data.draw(st.lists(st.sampled_from(EVERYONE), min_size=1, unique=True))
        actions = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(indices), max_size=len(indices))))
        self.fleet.send(actions, indices)
        wanted = dict(zip(indices, actions, strict=True))
        all_lost: set[int] = set()
        while wanted:
            batch = self.fleet.recv(timeout_s=PATIENCE_S)
            order = batch.env_indices.tolist()
            lost = self.lost_in(batch.infos, order)
            assert lost <= self.group(self.armed | self.killed)
            for row, index in enumerate(order):
                action = wanted.pop(index)
                if index not in lost:
                    actual = (batch.observations[row], batch.rewards[row], batch.terminated[row], batch.truncated[row])
                    self.compare(index, self.model.rows[index].step(action), actual)
            all_lost |= lost
        # Rows of a lost worker that were not in this step report the loss in their next one: step them.
        silent = (self.group(all_lost) - set(indices)) if all_lost and self.backend.has_processes else set()
        self.recover(all_lost | silent)
        self.take_in(all_lost)

    def teardown(self) -> None:
        if hasattr(self, "fleet"):
            self.fleet.close()


TestChaos = pytest.mark.timeout(900)(ChaosMachine.TestCase)
TestChaos.settings = settings(
    max_examples=12,
    stateful_step_count=20,
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),  # shrinking runs with hangs takes too long
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
