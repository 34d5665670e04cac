"""`check_task`: a MuJoCo task as plain Python against the same task compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

import envfleet
from envfleet.fleet.fleet import Fleet
from envfleet.physics.env import make_env
from envfleet.physics.task import Task, find_task
from envfleet.testing.check_kernel import KernelCheckError, agree

_NAMES = ("observation", "reward", "terminated", "truncated")
_TOLERANCE = 1e-5
"""How far numbers may be apart, of 1 and of themselves: plain Python calculates with float32 in float64."""


def check_task(
    task: type[Task] | str,
    *,
    params: Mapping[str, Any] | None = None,
    num_steps: int = 100,
    seeds: Sequence[int] = (0, 1, 2, 3),
) -> int:
    """Run a task as plain Python on MuJoCo's Python objects, and compiled in MuJoCo's thread pool, and compare.

    Observations, rewards and infos must agree to float rounding, flags exactly, after every step. After each, the plain
    simulation continues from the compiled one, so rounding does not accumulate. Then a saved state must continue
    exactly. The plain code stops at breakpoints and prints; exceptions are raised unchanged.

    Args:
        task: The task, or `"module:Name"` of it.
        params: Parameters by name, one value each; also `model` and `frame_skip`.
        num_steps: Steps of each sub-environment, with random actions.
        seeds: One sub-environment for each.

    Returns:
        Number of steps compared.

    Raises:
        KernelCheckError: Something differs; names seed, step, field, and both values.
        KernelError: The task cannot be run or compiled.

    Examples:
        >>> from envfleet.testing import check_task
        >>> check_task("envfleet.envs.mujoco.pendulums:InvertedPendulum", num_steps=20, seeds=[5])
        20
    """
    task_class, arguments = find_task(task), dict(params or {})
    with envfleet.make(task_class, len(seeds), backend="native", **arguments) as fleet:
        trial = _Trial(task_class, fleet, [make_env(task_class, **arguments) for _ in seeds], list(seeds))
        trial.compare_plain(num_steps)
        trial.compare_saved(num_steps)
    return num_steps * len(seeds)


class _Trial:
    """A task under examination."""

    def __init__(self, task: type[Task], fleet: Fleet, envs: Sequence[Any], seeds: list[int]) -> None:
        self._task, self._fleet, self._envs, self._seeds = task, fleet, envs, seeds
        fleet.action_space.seed(0)

    def compare_plain(self, num_steps: int) -> None:
        """Compare every row with its plain environment."""
        observations, infos = self._fleet.reset(seed=self._seeds)
        for row, env in enumerate(self._envs):
            observation, info = env.reset(seed=self._seeds[row])
            self._compare(row, 0, {"observation": observation, **info}, _row((observations,), infos, row))
        ended = np.zeros(len(self._seeds), np.bool_)
        for step in range(1, num_steps + 1):
            actions = self._fleet.action_space.sample()
            *parts, infos = self._fleet.step(actions)
            for row, env in enumerate(self._envs):
                if ended[row]:
                    observation, info = env.reset()
                    results: tuple[Any, ...] = observation, 0.0, False, False
                else:
                    *results, info = env.step(actions[row])
                expected = {**dict(zip(_NAMES, results, strict=True)), **info}
                self._compare(row, step, expected, _row(parts, infos, row))
                _continue_from(self._fleet, env, row)
            ended = parts[2] | parts[3]

    def compare_saved(self, num_steps: int) -> None:
        """Compare steps with the same steps from a saved state."""
        saved = self._fleet.get_state()
        actions = [self._fleet.action_space.sample() for _ in range(num_steps)]
        before = [self._fleet.step(action) for action in actions]
        self._fleet.set_state(saved)
        for step, (action, parts) in enumerate(zip(actions, before, strict=True), 1):
            for name, one, other in zip(_NAMES, parts, self._fleet.step(action), strict=False):
                if not np.array_equal(one, other):
                    self._fail(None, step, name, one, other, "it differs after get_state and set_state")

    def _compare(self, row: int, step: int, expected: Mapping[str, Any], actual: Mapping[str, Any]) -> None:
        for name in sorted(expected.keys() | actual.keys()):
            one, other = expected.get(name), actual.get(name)
            if one is None or other is None or not agree(one, other, _TOLERANCE):
                self._fail(self._seeds[row], step, name, one, other, "plain Python and compiled code differ")

    def _fail(self, seed: int | None, step: int, field: str, expected: Any, actual: Any, what: str) -> NoReturn:
        where = f"seed {seed}, " if seed is not None else ""
        message = f"{self._task.__name__}: {where}step {step}: {field} is {actual!r}, expected {expected!r}: {what}"
        raise KernelCheckError(message, seed, step, field, expected, actual)


def _row(parts: Sequence[Any], infos: Mapping[str, Any], row: int) -> dict[str, Any]:
    shown = {name: values[row] for name, values in infos.items() if f"_{name}" in infos and infos[f"_{name}"][row]}
    return {**{name: part[row] for name, part in zip(_NAMES, parts, strict=False)}, **shown}


def _continue_from(fleet: Any, env: Any, row: int) -> None:
    """Give the plain simulation the state of the compiled one."""
    import mujoco

    batch, plain = fleet.engine._batch, env.unwrapped.plain  # noqa: SLF001  # no caller needs these
    state = np.ascontiguousarray(batch.simulations.state[row])
    mujoco.mj_setState(plain.spec.model, plain.data, state, mujoco.mjtState.mjSTATE_INTEGRATION)
