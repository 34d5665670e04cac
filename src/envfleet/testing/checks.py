"""Checks of `check_backend`: each takes a `Trial` and yields its findings."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from envfleet.testing.cases import Case, Detach, EnvFn
from envfleet.testing.compare import mismatches
from envfleet.testing.duel import Duel, Finding, differences_of
from envfleet.testing.envs import AttributeEnv, CountingEnv
from envfleet.testing.infos import InfoEnv, make_info

MakeFleet = Callable[..., VectorEnv[Any, Any, Any]]
"""Builds the vector environment to check from a list of constructors and the options `autoreset_mode` and `copy`."""

Findings = Generator[Finding, None, None]


@dataclasses.dataclass(frozen=True)
class Trial:
    """Vector environment to build and check.

    Attributes:
        make_fleet: Function that builds it.
        autoreset_mode: Option of `make_fleet`.
        copy: Option of `make_fleet`.
        num_envs: Number of sub-environments.
        num_steps: Number of steps after each reset.
        seed: Seed of environments and actions.
    """

    make_fleet: MakeFleet
    autoreset_mode: AutoresetMode
    copy: bool
    num_envs: int
    num_steps: int
    seed: int = 0

    @contextlib.contextmanager
    def build(self, env_fns: Sequence[EnvFn]) -> Iterator[Any]:
        """Build the vector environment to check; close it at the end."""
        with contextlib.closing(self.make_fleet(env_fns, autoreset_mode=self.autoreset_mode, copy=self.copy)) as fleet:
            yield fleet

    @contextlib.contextmanager
    def duel(self, case: Case) -> Iterator[Duel]:
        """Build reference and subject; close both at the end."""
        env_fns = case.env_fns(self.num_envs)
        detached: Any = [functools.partial(_detach, env_fn) for env_fn in env_fns]
        with contextlib.closing(SyncVectorEnv(detached, autoreset_mode=self.autoreset_mode)) as reference:
            reference.action_space.seed(self.seed)
            with self.build(env_fns) as subject:
                yield Duel(reference, subject)


def _detach(env_fn: EnvFn) -> gymnasium.Env[Any, Any]:
    return Detach(env_fn())


def check_rollout(trial: Trial, case: Case) -> Findings:
    """Compare spaces, metadata, and every value of a rollout with all kinds of resets."""
    with trial.duel(case) as duel:
        names = ("observation_space", "single_observation_space", "action_space", "single_action_space")
        for name in (*names, "num_envs", "render_mode", "metadata"):
            yield from differences_of(getattr(duel.reference, name), getattr(duel.subject, name), name)
        seeds: list[int | None] = [trial.seed + 100 * index for index in range(trial.num_envs)]
        yield from duel.reset(seed=trial.seed)
        yield from duel.roll(trial.num_steps)
        yield from duel.reset(seed=seeds, options={"start": 3})
        yield from duel.roll(trial.num_steps)
        yield from duel.reset()  # the generators continue
        yield from duel.roll(2)
        mask = np.arange(trial.num_envs) % 2 == 0
        yield from duel.reset(seed=[None, *seeds[1:]], options={"reset_mask": mask, "start": 1})
        yield from duel.roll(trial.num_steps)
        if duel.reference.render_mode is not None:
            yield from duel.call("render")
        if trial.copy:
            yield from duel.check_kept()


_ATTRIBUTES = Case("attributes", lambda index: AttributeEnv(difficulty=1.0 + index))


def check_attributes(trial: Trial) -> Findings:
    """Compare `call`, `get_attr` and `set_attr`, including errors."""
    with trial.duel(_ATTRIBUTES) as duel:
        yield from duel.reset(seed=trial.seed)
        yield from duel.roll(2)
        yield from duel.call("call", "scaled", 2.0, plus=1.0)
        yield from duel.call("call", "describe")
        each = [10.0 * index for index in range(trial.num_envs)]
        for values in (each, tuple(each), 7.5):
            yield from duel.call("set_attr", "difficulty", values)
            yield from duel.call("get_attr", "difficulty")
        yield from duel.roll(2)
        other: Any = duel.subject
        too_many = functools.partial(other.set_attr, "difficulty", [*each, 1.0])
        yield from _expect_error("set_attr with too many values", too_many)
        unknown = functools.partial(other.get_attr, "no_such_name")
        yield from _expect_error("get_attr of an unknown name", unknown, "no_such_name")
        raising = functools.partial(other.call, "refuse", "because")
        yield from _expect_error("call of a method that raises", raising, "because")


def check_generators(trial: Trial) -> Findings:
    """Compare `np_random` and `np_random_seed`: one entry per sub-environment."""
    with trial.duel(_ATTRIBUTES) as duel:
        yield from duel.reset(seed=trial.seed)
        for name in ("np_random_seed", "np_random"):
            yield from differences_of(getattr(duel.reference, name), getattr(duel.subject, name), name)


def _expect_error(where: str, call: Callable[[], Any], clue: str = "") -> Findings:
    try:
        call()
    except Exception as error:  # noqa: BLE001  # any class is accepted if its text helps
        if clue not in str(error):
            yield where, f"expected an error that mentions {clue!r}, found {type(error).__name__}: {error}"
    else:
        yield where, "expected an error, found none"


def check_options(trial: Trial) -> Findings:
    """Check that the caller's options stay unchanged, and that an invalid mask is refused without side effects."""
    with trial.duel(Case("counting", lambda _: CountingEnv())) as duel:
        yield from duel.reset(seed=trial.seed)
        options = {"reset_mask": np.ones(trial.num_envs, dtype=np.bool_), "start": 2, "extra": {"list": [1]}}
        keys = set(options)
        yield from duel.reset(options=options)
        if set(options) != keys:
            yield "reset(options)", f"the caller's dict lost {sorted(keys - set(options))}"
        for mask in (np.ones(trial.num_envs + 1, dtype=np.bool_), np.ones(trial.num_envs, dtype=np.float64)):
            reset = functools.partial(duel.subject.reset, options={"reset_mask": mask})
            yield from _expect_error(f"reset_mask of {mask.dtype} {mask.shape}", reset)
        yield from duel.reset(seed=trial.seed)
        yield from duel.roll(3)


class _ClassMetadataEnv(CountingEnv):
    metadata: dict[str, Any] = {"render_modes": [], "render_fps": 4}  # noqa: RUF012  # as Gymnasium declares it

    def __init__(self) -> None:
        super().__init__()
        del self.metadata  # the attribute of the class remains


def check_metadata(trial: Trial) -> Findings:
    """Check that `metadata` has the autoreset mode and is not the dict of the environment's class."""
    try:
        with trial.build([_ClassMetadataEnv] * trial.num_envs) as fleet:
            if fleet.metadata.get("autoreset_mode") != trial.autoreset_mode:
                yield "metadata", f"expected autoreset_mode {trial.autoreset_mode}, found {fleet.metadata}"
            if "autoreset_mode" in _ClassMetadataEnv.metadata:
                yield "metadata", "autoreset_mode was written into the environment class"
    finally:
        _ClassMetadataEnv.metadata.pop("autoreset_mode", None)


def check_infos(trial: Trial, kind: str) -> Findings:
    """Check infos that Gymnasium merges with errors: ints next to floats, ragged arrays, large ints."""
    with trial.build([functools.partial(InfoEnv, kind, index, length=3) for index in range(trial.num_envs)]) as fleet:
        _, infos = fleet.reset(seed=trial.seed)
        for count in range(4):
            if count:
                infos = fleet.step(np.zeros(trial.num_envs, dtype=np.int64))[-1]
            for index in range(trial.num_envs):
                expected = make_info(kind, index, count)
                yield from _compare_info(expected, infos.get("final_info", infos), index, f"step {count}")


def _compare_info(expected: dict[str, Any], infos: dict[str, Any], index: int, where: str) -> Findings:
    for key, value in expected.items():
        if key not in infos or not infos[f"_{key}"][index]:
            yield where, f"infos[{key!r}] lacks a value for sub-environment {index}, expected {value!r}"
            continue
        actual = infos[key][index]
        is_number = isinstance(value, (int, float, np.number))
        if actual != value if is_number else mismatches(value, actual):
            yield where, f"infos[{key!r}][{index}] is {actual!r}, expected {value!r}"


def check_changing_infos(trial: Trial) -> Findings:
    """Check an info key that changes its type with each step in all sub-environments."""
    with trial.duel(Case("info", lambda index: InfoEnv("changing", index, length=9))) as duel:
        yield from duel.reset(seed=trial.seed)
        yield from duel.roll(24)


def check_closing(trial: Trial) -> Findings:
    """Check that `close` may be called twice, before or after a reset, and that later calls raise."""
    for is_used in (False, True):
        with trial.build([CountingEnv] * trial.num_envs) as fleet:
            if is_used:
                fleet.reset(seed=trial.seed)
            fleet.close()
            fleet.close()
            if not fleet.closed:
                yield "closed", "is False after close()"
            actions = np.zeros(trial.num_envs, dtype=np.int64)
            yield from _expect_error("reset after close", fleet.reset)
            yield from _expect_error("step after close", functools.partial(fleet.step, actions))
            yield from _expect_error("call after close", functools.partial(fleet.call, "count"))
