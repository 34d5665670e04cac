"""Comparison of a kernel as plain Python with the same kernel compiled: `check_kernel`."""

from __future__ import annotations

import copy
import operator
import pickle
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.utils.env_checker import check_env
from numpy.typing import NDArray

import envfleet
from envfleet.errors import KernelError
from envfleet.fleet.fleet import Fleet
from envfleet.fleet.nested import map_arrays
from envfleet.kernels.kernel import Kernel, KernelSpec, find_kernel, read_kernel
from envfleet.kernels.plain import PlainEnv, describe

_RESULTS = ("observation", "reward", "terminated", "truncated")
_OTHER_SEEDS = 10_000
_SINGLE, _DOUBLE = 1e-5, 1e-9
"""Absolute and relative tolerances of numbers computed in float32 and in float64."""
_MORE_ROWS = 1030
"""Minimum number of sub-environments before and after the compared ones, which then lie in another tile and thread."""


class KernelCheckError(AssertionError):
    """A kernel violates the rules of kernels; the message reports the first violation.

    Attributes:
        seed: Seed of the sub-environment; `None` if the violation does not belong to one.
        step: Number of steps since the seeded reset.
        field: Name of the value that differs, such as `"reward"`, `"observation"` or `"state.x"`.
        expected: Value in plain Python, or before.
        actual: Value in compiled code, or after.
    """

    def __init__(self, message: str, seed: int | None, step: int, field: str, expected: Any, actual: Any) -> None:
        super().__init__(message)
        self.seed, self.step, self.field, self.expected, self.actual = seed, step, field, expected, actual

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.seed, self.step, self.field, self.expected, self.actual)


def check_kernel(
    kernel: type[Kernel] | str,
    *,
    params: Mapping[str, Any] | None = None,
    num_steps: int = 100,
    seeds: Sequence[int] = (0, 1, 2, 3),
) -> int:
    """Run a kernel as plain Python and compiled, and compare.

    First, all steps are executed in code that checks every index, because an invalid index may end the process. Then
    observations, rewards, flags and every field of the state must agree after every step: floats up to rounding, ints,
    bools and drawn numbers exactly. After each step, the plain code continues from the compiled state, so that rounding
    errors do not accumulate. These rules are also checked:

    - Every element of an observation is written, observations are in their space, and rewards are finite.
    - A reset with the same seed has the same result.
    - Trajectories depend neither on the number of sub-environments nor on threads.
    - Saved states continue exactly.
    - The kernel as an ordinary environment passes Gymnasium's `check_env`, and does not change when it is stepped past
      the end of an episode.

    Plain code stops at breakpoints and prints; its exceptions are passed on.

    Args:
        kernel: Kernel, or its name as `"module:Name"`.
        params: Parameters by name, one value each.
        num_steps: Number of steps of each sub-environment, with random actions.
        seeds: Seeds, one per sub-environment.

    Returns:
        Number of compared steps.

    Raises:
        KernelCheckError: A value differs; the error has seed, step, field and both values of the first difference.
        KernelIndexError: An index is out of bounds; the message has its position, value and bound.
        KernelError: The kernel cannot be executed or compiled.

    Examples:
        >>> from envfleet.testing import check_kernel
        >>> check_kernel("envfleet.envs.classic.cartpole:CartPole", num_steps=20, seeds=[5])
        20
    """
    spec = read_kernel(find_kernel(kernel))
    trial = _Trial(spec, dict(params or {}), num_steps, list(seeds))
    trial.check_indices()
    trial.compare_plain()
    trial.compare_places()
    trial.compare_saved()
    trial.check_gymnasium()
    return num_steps * len(trial.seeds)


class _Trial:
    """Kernel to check, with seeds and actions."""

    def __init__(self, spec: KernelSpec, params: dict[str, Any], num_steps: int, seeds: list[int]) -> None:
        self.spec, self.params, self.num_steps, self.seeds = spec, params, num_steps, seeds
        # Compiled code computes float32 expressions in float32, plain Python in float64.
        fields = [form.dtype[name].base for form in (spec.state, spec.params) for name in form.names]
        self.tolerance = _SINGLE if np.float32 in [*fields, spec.action.dtype.base] else _DOUBLE
        space = copy.deepcopy(spec.action.space)
        space.seed(0)
        samples = [space.sample() for _ in range(num_steps * len(seeds))]
        if spec.action.parts:
            samples = [tuple(sample[key] for key, _ in spec.action.parts) for sample in samples]
        self.actions = np.array(samples, spec.action.dtype).reshape(num_steps, len(seeds), *spec.action.shape)
        copies = (
            2 * (_MORE_ROWS // max(len(seeds), 1) + 1) + 1
        )  # of the same actions; the compared seeds are in the middle
        self.first = copies // 2 * len(seeds)
        self.many_actions = np.concatenate([self.actions] * copies, axis=1)
        self.many_seeds = [*range(_OTHER_SEEDS, _OTHER_SEEDS + copies * len(seeds))]
        self.many_seeds[self.first : self.first + len(seeds)] = seeds

    def _make(self, num_envs: int, workers: int, *, debug: bool = False) -> Fleet:
        return envfleet.make(self.spec.kernel, num_envs, backend="kernel", workers=workers, debug=debug, **self.params)

    def _rows(self, parts: Sequence[Any], first: int = 0) -> list[dict[str, Any]]:
        """Return results of a reset or step by name, for each seed; `first` is the row of the first seed."""
        rows = range(first, first + len(self.seeds))
        results = (map_arrays(tuple(parts[:4]), operator.itemgetter(row)) for row in rows)
        return [dict(zip(_RESULTS, result, strict=False)) for result in results]

    def _compare(
        self,
        what: str,
        step: int,
        expected: Sequence[Mapping[str, Any]],
        actual: Sequence[Mapping[str, Any]],
        *,
        is_exact: bool = True,
    ) -> None:
        for seed, one, other in zip(self.seeds, expected, actual, strict=True):
            for name, value in other.items():
                if not agree(one[name], value, 0.0 if is_exact else self.tolerance):
                    self._fail(what, step, name, one[name], value, seed)

    def _fail(self, what: str, step: int, field: str, expected: Any, actual: Any, seed: int | None = None) -> None:
        where = f"seed {seed}, " if seed is not None else ""
        message = f"{self.spec.name}: {where}step {step}: {field} is {actual!r}, expected {expected!r}: {what}"
        raise KernelCheckError(message, seed, step, field, expected, actual)

    def check_indices(self) -> None:
        """Execute all resets and steps of the comparisons in code that checks indices."""
        with self._make(len(self.many_seeds), 3, debug=True) as fleet:
            fleet.reset(seed=self.many_seeds)
            for actions in self.many_actions:
                fleet.step(actions)
            fleet.reset(seed=self.many_seeds)

    def compare_plain(self) -> None:
        """Compare all rows of a fleet with plain code, and the last reset with the first."""
        with self._make(len(self.seeds), 1) as fleet:
            batch = _batch_of(fleet)
            plain = [_PlainRow(self.spec, batch.records(k)[1], seed) for k, seed in enumerate(self.seeds)]
            returned: Sequence[Any] = fleet.reset(seed=self.seeds)
            first = actual = self._rows_with_state(batch, returned[:1])
            for step in range(self.num_steps + 1):
                if step:
                    returned = fleet.step(self.actions[step - 1])
                    actual = self._rows_with_state(batch, returned)
                    for row, action in zip(plain, self.actions[step - 1], strict=True):
                        row.step(action)
                what = "plain Python and compiled code differ"
                for row, seed, drawn in zip(plain, self.seeds, batch.kept("lives")["rng"], strict=True):
                    if row.has_other_draws(drawn):
                        self._fail(
                            f"{what}: they drew different numbers", step, "rng", "the same draws", "others", seed
                        )
                self._compare(what, step, [row.results() for row in plain], actual, is_exact=False)
                self._check_values(batch, step, actual, returned[-1])
                for k, row in enumerate(plain):
                    row.set_state(batch.records(k)[0])
            again = self._rows_with_state(batch, fleet.reset(seed=self.seeds)[:1])
            what = "a reset with the same seed gave something else after other episodes: set this field in reset"
            self._compare(what, 0, first, again)

    def _rows_with_state(self, batch: Any, parts: Sequence[Any]) -> list[dict[str, Any]]:
        """Return fields of the state and results by name, for each seed."""
        records = [batch.records(k)[0] for k in range(len(self.seeds))]
        states = ({f"state.{name}": record[name][0] for name in self.spec.state.names} for record in records)
        return [state | row for state, row in zip(states, self._rows(parts), strict=True)]

    def _check_values(self, batch: Any, step: int, actual: list[dict[str, Any]], infos: Mapping[str, Any]) -> None:
        """Check spaces, rewards and infos."""
        space = self.spec.observation.space
        for seed, row in zip(self.seeds, actual, strict=True):
            if not space.contains(map_arrays(row["observation"], _as_element)):
                self._fail("it is not in the space", step, "observation", space, row["observation"], seed)
            if not np.isfinite(row.get("reward", 0.0)):
                self._fail("rewards are finite numbers", step, "reward", "a finite number", row["reward"], seed)
        for name in self.spec.info_fields:
            if not agree(batch.field(name), infos[name]):
                self._fail("infos report the state", step, f"infos[{name!r}]", batch.field(name), infos[name])

    def compare_places(self) -> None:
        """Compare a small fleet with the same sub-environments in the middle of a large one with threads."""
        what = "it depends on the number of sub-environments or threads"
        with self._make(len(self.seeds), 1) as small, self._make(len(self.many_seeds), 3) as large:
            one, other = small.reset(seed=self.seeds)[:1], large.reset(seed=self.many_seeds)[:1]
            self._compare(what, 0, self._rows(one), self._rows(other, self.first))
            for step, (few, many) in enumerate(zip(self.actions, self.many_actions, strict=True), 1):
                self._compare(what, step, self._rows(small.step(few)), self._rows(large.step(many), self.first))

    def compare_saved(self) -> None:
        """Compare a fleet with another one that continues from its saved state."""
        what, middle = "it differs after get_state and set_state", self.num_steps // 2
        with self._make(len(self.seeds), 1) as fleet, self._make(len(self.seeds), 1) as other:
            last = fleet.reset(seed=self.seeds)[0]
            for actions in self.actions[:middle]:
                last = fleet.step(actions)[0]
            state = pickle.loads(pickle.dumps(fleet.get_state()))
            other.reset(seed=_OTHER_SEEDS)
            self._compare(what, middle, self._rows((last,)), self._rows((other.set_state(state),)))
            for step, actions in enumerate(self.actions[middle:], middle + 1):
                self._compare(what, step, self._rows(fleet.step(actions)), self._rows(other.step(actions)))

    def check_gymnasium(self) -> None:
        """Run Gymnasium's `check_env` on the kernel as an ordinary environment."""
        from envfleet.kernels.env import KernelEnv

        env = KernelEnv(
            self.spec.kernel, debug=True, **self.params
        )  # index checks, since `check_env` chooses its actions
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings, for example about infinite bounds, are not errors
            check_env(env, skip_render_check=True)
        self._check_ends(env)

    def _check_ends(self, env: Any) -> None:
        """Step an ordinary environment past the ends of its episodes."""
        env.action_space.seed(0)
        for seed in self.seeds:
            env.reset(seed=seed)
            end: tuple[Any, ...] = ()
            for step in range(1, self.num_steps + 1):
                observation, reward, *flags, _ = env.step(env.action_space.sample())
                outputs = observation, reward, *flags
                if end and not agree(end, outputs):
                    self._fail("an ended episode changed in another step", step, "observation", end, outputs, seed)
                end = (observation, 0.0, *flags) if any(flags) else ()


def _batch_of(fleet: Fleet) -> Any:
    engine: Any = fleet.engine
    return engine._batch  # noqa: SLF001  # states, generators and parameters, which are not public


class _PlainRow:
    """Plain environment with time limit and `NEXT_STEP` autoreset, reset with a seed."""

    def __init__(self, spec: KernelSpec, params: NDArray[Any], seed: int) -> None:
        self._env = PlainEnv(spec, params)
        self._limit = spec.kernel.max_episode_steps
        self._begin(seed)

    def _begin(self, seed: int | None = None) -> None:
        self._elapsed, self._has_ended = 0, False
        self._returned: tuple[Any, ...] = self._call(self._env.reset, seed), 0.0, False, False
        self._call(self._env.check_observe)

    def step(self, action: Any) -> None:
        """Step, or start the next episode."""
        if self._has_ended:
            self._begin()
            return
        observation, reward, terminated, truncated = self._call(self._env.step, action)
        self._call(self._env.check_observe)
        self._elapsed += 1
        truncated = truncated or (self._limit is not None and self._elapsed >= self._limit)
        self._has_ended = terminated or truncated
        self._returned = observation, reward, terminated, truncated

    def _call(self, function: Any, *args: Any) -> Any:
        try:
            return function(*args)
        except KernelError as error:
            raise describe(self._env.spec, error) from error

    def results(self) -> dict[str, Any]:
        """Return fields of the state and results of the last call by name."""
        values = self._env.state._values  # noqa: SLF001  # whole, with its dtype
        state = {f"state.{name}": values[name][0] for name in self._env.spec.state.names}
        return state | dict(zip(_RESULTS, self._returned, strict=True))

    def has_other_draws(self, record: Any) -> bool:
        """Return whether the state of the generator differs from that in compiled code."""
        state: Any = self._env.rng.bit_generator.state
        number = int(record["state_hi"]) << 64 | int(record["state_lo"])
        return bool(state["state"]["state"] != number or state["has_uint32"] != record["has_uint32"])

    def set_state(self, record: NDArray[Any]) -> None:
        """Replace the state by the compiled one."""
        self._env.state._values[...] = record  # noqa: SLF001  # whole


def _as_element(value: Any) -> Any:
    """Return a scalar as the array that its space contains."""
    return np.asarray(value) if isinstance(value, np.floating) else value


def agree(one: Any, other: Any, tolerance: float = 0.0) -> bool:
    """Return whether two values, or all parts of two dicts or tuples, are equal; floats up to a tolerance."""
    if isinstance(one, (dict, tuple)):
        places = one if isinstance(one, dict) else range(len(one))
        return all(agree(one[place], other[place], tolerance) for place in places)
    first, second = np.asarray(one), np.asarray(other)
    if tolerance == 0.0 or first.dtype.kind != "f":
        return bool(np.array_equal(first, second, equal_nan=first.dtype.kind == "f"))
    tolerance = _SINGLE if np.float32 in (first.dtype, second.dtype) else tolerance
    return bool(np.allclose(first, second, rtol=tolerance, atol=tolerance, equal_nan=True))
