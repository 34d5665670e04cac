"""Any order of steps, resets and deaths of workers: a row that is lost says so once, and shows nothing unseen."""

from __future__ import annotations

import contextlib
import copy
import os
import signal
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import psutil
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.conformance import mortal
from tests.conformance.mortal import Answer, MortalEnv, MortalRow, vector_of
from tests.unit.workers.far_transport import FarTransport
from tests.waiting import PATIENCE_S, wait_until

import envfleet
from envfleet.errors import WorkerDied
from envfleet.fleet.infos import is_mask

pytestmark = pytest.mark.timeout(600)  # hypothesis shrinks a failure before it reports it

NUM_ENVS = 4
EVERYONE = list(range(NUM_ENVS))
CHOICES = st.integers(0, 2**32)
ODDS = [0.45, 0.2, 0.06, 0.06, 0.06, 0.06, 0.05, 0.06]
PROCESS = "envfleet.workers.transports.process.ProcessTransport"


def rows_of(values: Any, count: int) -> list[Any]:
    """Take batched observations apart."""
    if isinstance(values, Mapping):
        return [{name: part[row] for name, part in values.items()} for row in range(count)]
    return list(values)


def infos_of(infos: Mapping[str, Any], row: int) -> dict[str, Any]:
    """Return the infos of one row."""
    row_infos: dict[str, Any] = {}
    for name, value in infos.items():
        if not is_mask(name, infos) and infos[f"_{name}"][row]:
            row_infos[name] = infos_of(value, row) if isinstance(value, dict) else value[row]
    return row_infos


class LossMachine(RuleBasedStateMachine):
    """Every rule takes one number, and does nothing where it cannot: what is left to chance must draw the same."""

    @initialize(
        mode=st.sampled_from(tuple(AutoresetMode)),
        workers=st.sampled_from([1, 2, 2, 4]),
        has_parts=st.booleans(),
        is_copying=st.booleans(),
        is_far=st.booleans(),
        batch_size=st.none() | st.integers(1, NUM_ENVS),
    )
    def build(
        self,
        mode: AutoresetMode,
        workers: int,
        has_parts: bool,
        is_copying: bool,
        is_far: bool,
        batch_size: int | None,
    ) -> None:
        self.mode, self.lives, self.is_copying = mode, set[int](), is_copying
        self.rows = [MortalRow(mode) for _ in EVERYONE]
        self.kept: list[tuple[Any, Any]] = []
        self.busy: set[int] = set()  # under way, or received by chance before others that are
        with pytest.MonkeyPatch.context() as patch:
            if is_far:
                patch.setattr(PROCESS, FarTransport)
            self.fleet: Any = envfleet.make(
                [partial(MortalEnv, has_parts)] * NUM_ENVS,
                backend="process",
                workers=workers,
                autoreset_mode=mode,
                on_failure="restart",
                max_restarts=10_000,
                copy=is_copying,
                batch_size=batch_size,
            )
        self.workers = [list(worker.env_indices) for worker in self.fleet.stats().workers]
        self.reset(0)

    # -------------------------------------------------------------------------------------------- helpers

    def choose(self, choice: int, allowed: Sequence[int]) -> list[int]:
        """Choose rows, often those of half of the workers."""
        rng = np.random.default_rng(choice)
        if choice % 3 == 0:
            half = EVERYONE[: NUM_ENVS // 2] if choice % 2 else EVERYONE[NUM_ENVS // 2 :]
            return [row for row in half if row in allowed]
        if not allowed:
            return []
        return [int(row) for row in rng.permutation(allowed)[: rng.integers(1, len(allowed) + 1)]]

    def act(self, choice: int, rows: Sequence[int]) -> np.ndarray:
        """Draw actions, with no more than one that kills for each worker."""
        actions = np.random.default_rng(choice + 1).choice(8, NUM_ENVS, p=ODDS)[rows]
        for worker_rows in self.workers:
            deadly = [
                place for place, row in enumerate(rows) if row in worker_rows and self.may_kill(row, actions[place])
            ]
            actions[deadly[1:]] = mortal.GO
        for place, row in enumerate(rows):
            if self.rows[row].loss is None:
                actions[place] = mortal.GO
        return actions

    def may_kill(self, row: int, action: Any) -> bool:
        return self.rows[row].will_kill(int(action))

    def dead(self, pid: int) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        return True

    def worker_of(self, row: int) -> int:
        return next(worker for worker, worker_rows in enumerate(self.workers) if row in worker_rows)

    def mourn(self, worker: int) -> None:
        for row in self.workers[worker]:
            self.rows[row].on_death()

    def depart(self, rows: Sequence[int], actions: Any) -> dict[int, int]:
        """Pass the sent actions to the model; return the processes that they will kill, by worker."""
        doomed = {}
        for row, action in zip(rows, actions, strict=True):
            if self.may_kill(row, action):
                worker = self.worker_of(row)
                doomed[worker] = self.fleet.stats().workers[worker].pid
        for row, action in zip(rows, actions, strict=True):
            self.rows[row].send(int(action))
        return doomed

    def keep(self, *values: Any) -> None:
        """Check that returned arrays stay: forever, or with `copy=False` until the call after the next one."""
        for value, before in self.kept:
            np.testing.assert_equal(value, before, err_msg="changed since it was returned")
        if not self.is_copying:
            self.kept.clear()
        self.kept += [(value, copy.deepcopy(value)) for value in values]

    def check_steps(self, rows: Sequence[int], actual: Sequence[Any]) -> None:
        observations, rewards, terminated, truncated, infos = actual
        self.keep(observations, rewards, terminated, truncated)
        vectors = [vector_of(one) for one in rows_of(observations, len(rows))]
        for place, row in enumerate(rows):
            flags = bool(terminated[place]), bool(truncated[place])
            answer = Answer(vectors[place], float(rewards[place]), *flags, infos_of(infos, place))
            self.rows[row].receive(answer, self.lives)

    # -------------------------------------------------------------------------------------------- calls

    def steppable(self) -> list[int]:
        is_free = lambda row: not (self.mode is AutoresetMode.DISABLED and self.rows[row].is_ended)  # noqa: E731
        return [row for row in EVERYONE if row not in self.busy and is_free(row)]

    @rule(choice=CHOICES)
    def step(self, choice: int) -> None:
        if len(self.steppable()) < NUM_ENVS:
            return
        actions = self.act(choice, EVERYONE)
        for worker in self.depart(EVERYONE, actions):
            self.mourn(worker)
        self.check_steps(EVERYONE, self.fleet.step(actions))

    @rule(choice=CHOICES)
    def send(self, choice: int) -> None:
        rows = self.choose(choice, self.steppable())
        if rows:
            self._send(rows, choice)

    @rule(choice=CHOICES)
    def send_all(self, choice: int) -> None:
        if len(self.steppable()) == NUM_ENVS:
            self._send(EVERYONE, choice)

    def _send(self, rows: list[int], choice: int) -> None:
        actions = self.act(choice, rows)
        doomed = self.depart(rows, actions)
        self.busy.update(rows)
        self.fleet.send(actions, rows)
        self.keep()
        for worker, pid in doomed.items():
            wait_until(partial(self.dead, pid))
            self.mourn(worker)

    @rule(choice=st.none() | CHOICES)
    def receive(self, choice: int | None) -> None:
        under_way = [row for row in EVERYONE if self.rows[row].flight is not None]
        wanted = None if choice is None else self.choose(choice, under_way)
        if under_way and wanted != []:
            batch = self.fleet.recv(timeout_s=PATIENCE_S, env_indices=wanted)
            indices = batch.env_indices.tolist()
            if wanted is not None:
                assert indices == wanted
            self.check_steps(indices, batch[:5])
        if all(row.flight is None for row in self.rows):
            self.busy.clear()

    @rule(choice=CHOICES)
    def reset(self, choice: int) -> None:
        if not self.busy:
            observations, infos = self._reset(EVERYONE, lambda: self.fleet.reset(seed=choice))
            self.check_reset(EVERYONE, rows_of(observations, NUM_ENVS), infos)

    @rule(choice=CHOICES)
    def reset_some(self, choice: int) -> None:
        rows = self.choose(choice, [row for row in EVERYONE if row not in self.busy])
        if rows:
            observations, infos = self._reset(rows, lambda: self.fleet.reset_envs(rows))
            self.check_reset(rows, rows_of(observations, len(rows)), infos)

    @rule(choice=CHOICES)
    def reset_masked(self, choice: int) -> None:
        """Shows the rest, too."""
        rows = sorted(self.choose(choice, EVERYONE))
        if self.busy or not rows:
            return
        mask = np.isin(EVERYONE, rows)
        observations, infos = self._reset(rows, lambda: self.fleet.reset(options={"reset_mask": mask}))
        every = rows_of(observations, NUM_ENVS)
        assert [vector_of(every[row]) for row in EVERYONE if row not in rows] == [
            self.rows[row].shown for row in EVERYONE if row not in rows
        ]
        self.check_reset(rows, [every[row] for row in rows], infos, is_all=True)

    def _reset(self, rows: Sequence[int], call: Any) -> Any:
        for worker in {self.worker_of(row) for row in rows if self.rows[row].will_kill(None)}:
            self.mourn(worker)
        observations, infos = call()
        self.keep(observations)
        return observations, infos

    def check_reset(self, rows: Sequence[int], observations: Any, infos: Any, is_all: bool = False) -> None:
        for place, row in enumerate(rows):
            vector = vector_of(observations[place])
            self.rows[row].check_reset(vector, infos_of(infos, row if is_all else place), self.lives)

    @rule(worker=st.integers(0, NUM_ENVS - 1))
    def kill(self, worker: int) -> None:
        """A worker is killed, or its successor while that builds."""
        worker %= len(self.workers)
        pid = self.fleet.stats().workers[worker].pid
        if not self.dead(pid):
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: self.dead(pid))
            self.mourn(worker)

    @rule(choice=CHOICES)
    def save_and_load(self, choice: int) -> None:
        rows = self.choose(choice, EVERYONE)
        if self.busy or not rows:
            return
        models = [copy.copy(self.rows[row]) for row in rows]
        try:
            states = self.fleet.get_state(rows)
        except WorkerDied:
            assert any(self.rows[row].loss for row in EVERYONE)
            return
        self.keep()
        if any(model.life is None for model in models):
            return  # with objects that no call has returned
        self.step(choice)
        if self.busy:
            return
        observations = self.fleet.set_state(states, rows)
        self.keep(observations)
        assert [vector_of(one) for one in rows_of(observations, len(rows))] == [model.shown for model in models]
        for row, model in zip(rows, models, strict=True):
            self.rows[row] = copy.copy(model)

    # -------------------------------------------------------------------------------------------- always

    @invariant()
    def agrees_on_episodes(self) -> None:
        if self.busy:
            return
        assert self.fleet.terminated_indices == [row for row in EVERYONE if self.rows[row].is_ended]
        assert self.fleet.episode_lengths.tolist() == [row.length for row in self.rows]
        np.testing.assert_allclose(self.fleet.episode_returns, [row.total for row in self.rows])
        assert len(set(self.fleet.episode_ids.tolist())) == NUM_ENVS

    def teardown(self) -> None:
        if hasattr(self, "fleet"):
            self.fleet.close()


TestLosses = LossMachine.TestCase
TestLosses.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,  # the same run everywhere; raise max_examples and drop this to search
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
