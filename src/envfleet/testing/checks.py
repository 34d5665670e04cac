"""The single checks `check_backend` is made of."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from envfleet.testing.cases import Case, EnvFn
from envfleet.testing.compare import mismatches
from envfleet.testing.duel import Difference, Duel
from envfleet.testing.envs import AttributeEnv, CountingEnv
from envfleet.testing.infos import InfoEnv, make_info

_SERVED_S = 2.0
"""How long a sub-environment may go unserved: on a busy machine its worker gets no core for a while."""

MakeFleet = Callable[..., VectorEnv[Any, Any, Any]]
"""Builds the vector environment under examination: takes a list of environment builders, and as options
`autoreset_mode`, `copy` and, for the check of `send` and `recv`, `batch_size`."""


@dataclasses.dataclass
class Trial:
    """One vector environment to be built and examined.

    Attributes:
        make_fleet: Builds it.
        autoreset_mode: Option passed on.
        copy: Option passed on.
        num_envs: How many sub-environments.
        num_steps: Steps in each stretch of a rollout.
        seed: Seeds environments and actions.
        differences: Where findings go.
    """

    make_fleet: MakeFleet
    autoreset_mode: AutoresetMode
    copy: bool
    num_envs: int
    num_steps: int
    seed: int
    differences: list[Difference]

    def reporter(self, check: str, case: str) -> Callable[[str, str], None]:
        """Return a function (where, message) that notes a difference found by `check`."""
        name = f"{case}, {self.autoreset_mode.name}, copy={self.copy}"
        return lambda where, message: self.differences.append(Difference(check, name, where, message))

    def build(self, env_fns: Sequence[EnvFn], **more: Any) -> VectorEnv[Any, Any, Any]:
        """Build the vector environment under examination."""
        return self.make_fleet(env_fns, autoreset_mode=self.autoreset_mode, copy=self.copy, **more)

    @contextlib.contextmanager
    def duel(self, check: str, case: Case) -> Iterator[Duel]:
        """Build reference and subject, and close both in the end."""
        reference = SyncVectorEnv(case.reference_env_fns(self.num_envs), autoreset_mode=self.autoreset_mode)
        reference.action_space.seed(self.seed)
        subject = self.build(case.env_fns(self.num_envs))
        try:
            yield Duel(reference, subject, self.reporter(check, case.name))
        finally:
            subject.close()
            reference.close()


def check_rollout(trial: Trial, case: Case) -> None:
    """Compare spaces, metadata, and every value of a rollout with all ways to reset."""
    with trial.duel("rollout", case) as duel:
        names = ("observation_space", "single_observation_space", "action_space", "single_action_space")
        for name in (*names, "num_envs", "render_mode", "metadata"):
            duel.compare(getattr(duel.reference, name), getattr(duel.subject, name), name)
        seeds: list[int | None] = [trial.seed + 100 * index for index in range(trial.num_envs)]
        duel.reset(seed=trial.seed)
        duel.roll(trial.num_steps)
        duel.reset(seed=seeds, options={"start": 3})
        duel.roll(trial.num_steps)
        duel.reset()  # the generators run on
        duel.roll(2)
        mask = np.arange(trial.num_envs) % 2 == 0
        duel.reset(seed=[None, *seeds[1:]], options={"reset_mask": mask, "start": 1})
        duel.roll(trial.num_steps)
        if duel.reference.render_mode is not None and not duel.is_over:
            duel.compare(duel.reference.render(), duel.subject.render(), "render()")
        if trial.copy:
            duel.check_kept()


def _attributes(index: int) -> gymnasium.Env[Any, Any]:
    return AttributeEnv(difficulty=1.0 + index)


def check_attributes(trial: Trial) -> None:
    """Compare `call`, `get_attr` and `set_attr`, and how each refuses nonsense."""
    with trial.duel("attributes", Case("attributes", _attributes)) as duel:
        one: Any = duel.reference
        other: Any = duel.subject
        duel.reset(seed=trial.seed)
        duel.roll(2)
        duel.compare(one.call("scaled", 2.0, plus=1.0), other.call("scaled", 2.0, plus=1.0), "call('scaled')")
        duel.compare(one.call("describe"), other.call("describe"), "call('describe')")
        each = [10.0 * index for index in range(trial.num_envs)]
        for values in (each, tuple(each), 7.5):
            one.set_attr("difficulty", values)
            other.set_attr("difficulty", values)
            duel.compare(one.get_attr("difficulty"), other.get_attr("difficulty"), f"get_attr after set_attr({values})")
        duel.roll(2)
        nonsense: tuple[tuple[str, Callable[[], Any], str], ...] = (
            ("set_attr with too many values", lambda: other.set_attr("difficulty", [*each, 1.0]), ""),
            ("get_attr of an unknown name", lambda: other.get_attr("no_such_name"), "no_such_name"),
            ("call of a method that raises", lambda: other.call("refuse", "because"), "because"),
        )
        for where, call, clue in nonsense:
            _expect_error(duel.note, where, call, clue)


def check_generators(trial: Trial) -> None:
    """Compare `np_random` and `np_random_seed`: one entry per sub-environment."""
    with trial.duel("np_random", Case("attributes", _attributes)) as duel:
        duel.reset(seed=trial.seed)
        duel.compare(duel.reference.np_random_seed, duel.subject.np_random_seed, "np_random_seed")
        duel.compare(duel.reference.np_random, duel.subject.np_random, "np_random")


def _expect_error(note: Callable[[str, str], None], where: str, call: Callable[[], Any], clue: str = "") -> None:
    try:
        call()
    except Exception as error:  # noqa: BLE001  # any class will do, as long as the text helps
        if clue not in str(error):
            note(where, f"expected an error that mentions {clue!r}, found {type(error).__name__}: {error}")
    else:
        note(where, "expected an error, found none")


def check_options(trial: Trial) -> None:
    """Check that the caller's options are left alone, and a mask of the wrong shape or type is refused without harm."""
    with trial.duel("options", Case("counting", lambda _: CountingEnv())) as duel:
        duel.reset(seed=trial.seed)
        options = {"reset_mask": np.ones(trial.num_envs, dtype=np.bool_), "start": 2, "extra": {"list": [1]}}
        keys = set(options)
        duel.reference.reset(options=dict(options))
        duel.subject.reset(options=options)
        if set(options) != keys:
            duel.note("reset(options)", f"the caller's dict lost {sorted(keys - set(options))}")
        for mask in (np.ones(trial.num_envs + 1, dtype=np.bool_), np.ones(trial.num_envs, dtype=np.float64)):
            where = f"reset_mask of {mask.dtype} {mask.shape}"
            _expect_error(duel.note, where, functools.partial(duel.subject.reset, options={"reset_mask": mask}))
        duel.reset(seed=trial.seed)
        duel.roll(3)


class _ClassMetadataEnv(CountingEnv):
    metadata: dict[str, Any] = {"render_modes": [], "render_fps": 4}  # noqa: RUF012  # as Gymnasium declares it

    def __init__(self) -> None:
        super().__init__()
        del self.metadata  # leaves the class's own


def check_metadata(trial: Trial) -> None:
    """`metadata` names the autoreset mode and is not the environment class's own dict."""
    note = trial.reporter("metadata", "class metadata")
    fleet = trial.build([_ClassMetadataEnv] * trial.num_envs)
    try:
        if fleet.metadata.get("autoreset_mode") != trial.autoreset_mode:
            note("metadata", f"expected autoreset_mode {trial.autoreset_mode}, found {fleet.metadata}")
        if "autoreset_mode" in _ClassMetadataEnv.metadata:
            note("metadata", "autoreset_mode was written into the environment class")
    finally:
        _ClassMetadataEnv.metadata.pop("autoreset_mode", None)
        fleet.close()


def check_infos(trial: Trial, kind: str) -> None:
    """Infos Gymnasium's own merging spoils (int beside float, ragged arrays, large ints) keep every value."""
    note = trial.reporter(f"infos-{kind}", "info")
    fleet = trial.build([functools.partial(InfoEnv, kind, index, length=3) for index in range(trial.num_envs)])
    try:
        _, infos = fleet.reset(seed=trial.seed)
        counts = [0, 1, 2, 3]
        for count in counts:
            found = infos.get("final_info", infos)
            for index in range(trial.num_envs):
                _compare_info(make_info(kind, index, count), found, index, f"step {count}", note)
            if count < 3:
                infos = fleet.step(np.zeros(trial.num_envs, dtype=np.int64))[-1]
    finally:
        fleet.close()


def check_changing_infos(trial: Trial) -> None:
    """Check that an info key whose type changes from step to step in all sub-environments is never taken wrongly."""
    with trial.duel("infos-changing", Case("info", lambda index: InfoEnv("changing", index, length=9))) as duel:
        duel.reset(seed=trial.seed)
        duel.roll(24)


def _compare_info(
    expected: dict[str, Any], infos: dict[str, Any], index: int, where: str, note: Callable[[str, str], None]
) -> None:
    for key, value in expected.items():
        if key not in infos or not infos[f"_{key}"][index]:
            note(where, f"infos[{key!r}] has no value for sub-environment {index}, expected {value!r}")
            continue
        found = infos[key][index]
        is_number = isinstance(value, (int, float, np.number))
        if found != value if is_number else mismatches(value, found):
            note(where, f"infos[{key!r}][{index}] is {found!r}, expected {value!r}")


def check_closing(trial: Trial) -> None:
    """`close` may be called twice, with work done or none; afterwards every call is refused."""
    note = trial.reporter("closing", "counting")
    for is_used in (False, True):
        fleet: Any = trial.build([CountingEnv] * trial.num_envs)
        if is_used:
            fleet.reset(seed=trial.seed)
        fleet.close()
        fleet.close()
        if not fleet.closed:
            note("closed", "is False after close()")
        actions = np.zeros(trial.num_envs, dtype=np.int64)
        _expect_error(note, "reset after close", fleet.reset)
        _expect_error(note, "step after close", functools.partial(fleet.step, actions))
        _expect_error(note, "call after close", functools.partial(fleet.call, "count"))


class _Lone:
    """One plain environment with the autoreset rule of `NEXT_STEP` or `SAME_STEP`: the model for `send` and `recv`."""

    def __init__(self, env: gymnasium.Env[Any, Any], autoreset_mode: AutoresetMode) -> None:
        self.env, self.autoreset_mode, self.is_pending = env, autoreset_mode, False

    def step(self, action: Any) -> tuple[Any, ...]:
        """Step once and return observation, reward, terminated, truncated."""
        if self.is_pending:
            self.is_pending = False
            return self.env.reset()[0], 0.0, False, False
        observation, reward, terminated, truncated, _ = self.env.step(action)
        if terminated or truncated:
            if self.autoreset_mode == AutoresetMode.SAME_STEP:
                observation = self.env.reset()[0]
            else:
                self.is_pending = True
        return observation, reward, terminated, truncated


def check_send_recv(trial: Trial) -> None:
    """Check that every sub-environment's own steps come back in order and right, whatever the order between them."""
    if trial.autoreset_mode == AutoresetMode.DISABLED:
        return
    note = trial.reporter("send_recv", "counting-varied")
    env_fns: list[EnvFn] = [functools.partial(CountingEnv, length=4, vary=True)] * trial.num_envs
    batch_size = max(1, trial.num_envs - 1)
    fleet: Any = trial.build(env_fns, batch_size=batch_size)
    try:
        if not (hasattr(fleet, "send") and hasattr(fleet, "recv")):
            note("send", "not offered; pass skip={'send_recv'} if that is meant")
            return
        _exchange(trial, fleet, [_Lone(env_fn(), trial.autoreset_mode) for env_fn in env_fns], note)
    finally:
        fleet.close()


def _exchange(trial: Trial, fleet: Any, models: list[_Lone], note: Callable[[str, str], None]) -> None:
    fleet.reset(seed=trial.seed)
    for index, model in enumerate(models):
        model.env.reset(seed=trial.seed + index)
    rng = np.random.default_rng(trial.seed)
    waiting: dict[int, collections.deque[Any]] = {index: collections.deque() for index in range(trial.num_envs)}

    def send(indices: list[int], *, is_all: bool) -> None:
        actions = rng.integers(4, size=len(indices))
        for index, action in zip(indices, actions, strict=True):
            waiting[index].append(models[index].step(action))
        fleet.send(actions, None if is_all else np.array(indices))

    send(list(range(trial.num_envs)), is_all=True)
    served = np.zeros(trial.num_envs, dtype=np.int64)
    deadline_s, turn = time.monotonic() + _SERVED_S, -1
    while turn + 1 < 6 * trial.num_envs or (served.min() == 0 and time.monotonic() < deadline_s):
        turn += 1
        batch = fleet.recv()
        indices = [int(index) for index in batch.env_indices]
        if len(indices) != fleet.batch_size:
            note(f"recv {turn}", f"expected {fleet.batch_size} rows, found {len(indices)}")
        for row, index in enumerate(indices):
            if not waiting[index]:
                note(f"recv {turn}", f"row {row} is of sub-environment {index}, to which nothing was sent")
                return
            found = (batch.observations[row], batch.rewards[row], batch.terminated[row], batch.truncated[row])
            expected = waiting[index].popleft()
            if not all(np.array_equal(one, other) for one, other in zip(expected, found, strict=True)):
                note(f"recv {turn}", f"row {row}, sub-environment {index}: expected {expected}, found {found}")
                return
        served[indices] += 1
        send(indices, is_all=False)
    if served.min() == 0:
        note("recv", f"sub-environments {np.flatnonzero(served == 0).tolist()} were never served")
