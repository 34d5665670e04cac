"""Each check of the conformance suite passes a right vector environment and reports the flaw that it looks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorWrapper

import envfleet
from envfleet.testing import CASES, checks
from envfleet.testing.checks import Trial


def findings(
    check: Callable[[Trial], Any], make_fleet: Callable[..., Any], *, copy: bool = True
) -> list[tuple[str, str]]:
    """Return what a check reports about a vector environment."""
    return list(check(Trial(make_fleet, AutoresetMode.NEXT_STEP, copy, num_envs=3, num_steps=4)))


def make_serial(env_fns: Any, **options: Any) -> Any:
    return envfleet.make(env_fns, backend="serial", **options)


def check_first_rollout(trial: Trial) -> Any:
    return checks.check_rollout(trial, CASES[0])


def check_mixed_infos(trial: Trial) -> Any:
    return checks.check_infos(trial, "mixed")


class WrongReward(SyncVectorEnv):
    def step(self, actions: Any) -> Any:
        result: Any = super().step(actions)
        return result[0], result[1] + 1, *result[2:]


class OneValueForAll(SyncVectorEnv):
    def set_attr(self, name: str, values: Any) -> None:
        first = values[0] if isinstance(values, (list, tuple)) else values
        super().set_attr(name, [first] * self.num_envs)


class OneGenerator(SyncVectorEnv):
    @property
    def np_random_seed(self) -> Any:
        return super().np_random_seed[:1]


class DropsOptions(SyncVectorEnv):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        (options or {}).pop("extra", None)
        return super().reset(seed=seed, options=options)


class WritesMetadata(SyncVectorEnv):
    def __init__(self, env_fns: Any, **options: Any) -> None:
        super().__init__(env_fns, **options)
        type(self.envs[0].unwrapped).metadata["autoreset_mode"] = self.metadata["autoreset_mode"]


class ForgetsKeys(SyncVectorEnv):
    def step(self, actions: Any) -> Any:
        result: Any = super().step(actions)
        result[4].pop("other", None)
        return result


class TruncatesNumbers(VectorWrapper):
    """Makes ints of numbers in infos, as Gymnasium does if the first one is an int."""

    def __init__(self, env_fns: Any, **options: Any) -> None:
        super().__init__(make_serial(env_fns, **options))

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        observations, infos = self.env.reset(seed=seed, options=options)
        return observations, infos | {"number": np.array([int(number) for number in infos["number"]])}


class StepsAfterClose(SyncVectorEnv):
    """Gymnasium's own class, which accepts calls after `close`."""


FLAWS: list[tuple[Callable[[Trial], Any], Callable[..., Any], str]] = [
    (check_first_rollout, WrongReward, "rewards"),
    (checks.check_attributes, OneValueForAll, "difficulty"),
    (checks.check_generators, OneGenerator, "np_random_seed"),
    (checks.check_options, DropsOptions, "the caller's dict lost ['extra'"),
    (checks.check_metadata, WritesMetadata, "was written into the environment class"),
    (check_mixed_infos, TruncatesNumbers, "expected 1.25"),
    (checks.check_changing_infos, ForgetsKeys, "other"),
    (checks.check_closing, StepsAfterClose, "step after close"),
]


@pytest.mark.parametrize("check", [flaw[0] for flaw in FLAWS], ids=lambda check: check.__name__)
@pytest.mark.parametrize("copy", [True, False])
def test_a_fleet_passes(check: Callable[[Trial], Any], copy: bool) -> None:
    assert findings(check, make_serial, copy=copy) == []


@pytest.mark.parametrize(("check", "flawed", "clue"), FLAWS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_flaw_is_reported(check: Callable[[Trial], Any], flawed: Callable[..., Any], clue: str) -> None:
    def make(env_fns: Any, *, autoreset_mode: AutoresetMode, copy: bool) -> Any:
        return flawed(env_fns, autoreset_mode=autoreset_mode, copy=copy)

    assert clue in str(findings(check, make))
