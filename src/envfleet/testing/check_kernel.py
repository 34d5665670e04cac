"""`check_kernel`: a kernel as plain Python against the same kernel compiled, and all that fleets promise about it."""

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
from envfleet.fleet.rollout import map_arrays
from envfleet.kernels.kernel import Kernel, KernelSpec, find_kernel, read_kernel
from envfleet.kernels.plain import PlainEnv, describe

_RESULTS = ("observation", "reward", "terminated", "truncated")
_OTHER_SEEDS = 10_000
_MORE_ROWS = 1030
"""Sub-environments before and after those compared, so that a row lies elsewhere, in another tile and thread."""


class KernelCheckError(AssertionError):
    """A kernel does not behave as a kernel must; the message says where it shows first.

    Attributes:
        seed: Of the sub-environment; `None` where none is at fault.
        step: Steps since the seeded reset, which is 0.
        field: What differs: `"reward"`, `"observation"`, `"state.x"`, …
        expected: Its value by the plain Python code, or before.
        found: Its value compiled, or after.
    """

    def __init__(self, message: str, seed: int | None, step: int, field: str, expected: Any, found: Any) -> None:
        super().__init__(message)
        self.seed, self.step, self.field, self.expected, self.found = seed, step, field, expected, found

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.seed, self.step, self.field, self.expected, self.found)


def check_kernel(
    kernel: type[Kernel] | str,
    *,
    params: Mapping[str, Any] | None = None,
    num_steps: int = 100,
    seeds: Sequence[int] = (0, 1, 2, 3),
) -> int:
    """Run a kernel as plain Python and compiled, and compare.

    First all that follows is run in code that checks every index, as one outside its array may end the process. Then
    observations, rewards, flags and every field of the state must agree to float rounding (ints, bools and the numbers
    drawn exactly), after every step. After each, the plain code goes on from the compiled state, so that rounding does
    not add up. Besides: every element of an observation is written; observations are in their space and rewards are
    finite; a reset with the same seed repeats; trajectories depend neither on the number of sub-environments nor on
    threads; saved states continue exactly; and the kernel's ordinary environment passes Gymnasium's `check_env`.

    The plain code stops at breakpoints and prints. What it raises is raised as it is.

    Args:
        kernel: The kernel, or `"module:Name"` of it.
        params: Parameters by name, one value each.
        num_steps: Steps of each sub-environment, with random actions; episodes follow each other.
        seeds: One sub-environment for each.

    Returns:
        How many steps were compared.

    Raises:
        KernelCheckError: Something differs; says what, where first (seed, step, field), and both values.
        KernelIndexError: An index is out of bounds; says where, which, and the size.
        KernelError: The kernel cannot be run or compiled.

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
    """One kernel under examination."""

    def __init__(self, spec: KernelSpec, params: dict[str, Any], num_steps: int, seeds: list[int]) -> None:
        self.spec, self.params, self.num_steps, self.seeds = spec, params, num_steps, seeds
        space = copy.deepcopy(spec.action_space)
        space.seed(0)
        samples = [space.sample() for _ in range(num_steps * len(seeds))]
        if spec.action.parts:
            samples = [tuple(sample[key] for key, _ in spec.action.parts) for sample in samples]
        self.actions = np.array(samples, spec.action.dtype).reshape(num_steps, len(seeds), *spec.action.shape)

    def _make(self, num_envs: int, workers: int, *, debug: bool = False) -> Fleet:
        return envfleet.make(self.spec.kernel, num_envs, backend="kernel", workers=workers, debug=debug, **self.params)

    def _fail(self, what: str, seed: int | None, step: int, field: str, expected: Any, found: Any) -> None:
        where = f"seed {seed}, " if seed is not None else ""
        raise KernelCheckError(
            f"{self.spec.name}: {where}step {step}: {field} is {found!r}, expected {expected!r}: {what}",
            seed,
            step,
            field,
            expected,
            found,
        )

    # ------------------------------------------------------------------ indices

    def check_indices(self) -> None:
        """Make every reset and step of the comparisons in code that checks its indices."""
        with self._make(len(self.seeds) + 2 * _MORE_ROWS, 3, debug=True) as fleet:
            fleet.reset(seed=self._seeds_of_all())
            for actions in self.actions:
                fleet.step(self._actions_of_all(actions))
            fleet.reset(seed=self._seeds_of_all())

    def _seeds_of_all(self) -> list[int]:
        """Return the seeds, in the middle of many others."""
        others = range(_OTHER_SEEDS, _OTHER_SEEDS + 2 * _MORE_ROWS)
        return [*others[:_MORE_ROWS], *self.seeds, *others[_MORE_ROWS:]]

    def _actions_of_all(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Actions of the seeds, in the middle of as many others."""
        count = len(self.seeds)
        everyone = np.resize(actions, (count + 2 * _MORE_ROWS, *self.spec.action.shape))
        everyone[_MORE_ROWS : _MORE_ROWS + count] = actions
        return everyone

    # ------------------------------------------------------------------ plain Python against compiled

    def compare_plain(self) -> None:
        """Compare every row of a fleet with the plain code, and with its own first reset."""
        with self._make(len(self.seeds), 1) as fleet:
            rows = [_PlainRow(self.spec, _batch_of(fleet).records(k)[1]) for k in range(len(self.seeds))]
            observations, infos = fleet.reset(seed=list(self.seeds))
            observations = _rows_of(observations, len(rows))
            first = [self._record(fleet, k) for k in range(len(rows))], observations
            for k, row in enumerate(rows):
                row.begin(self.seeds[k])
                self._compare_row(fleet, k, 0, row, (observations[k], 0.0, False, False))
            self._check_infos(fleet, infos, 0)
            for step in range(self.num_steps):
                result = fleet.step(self.actions[step])
                observations = _rows_of(result[0], len(rows))
                for k, row in enumerate(rows):
                    row.step(self.actions[step, k])
                    self._compare_row(fleet, k, step + 1, row, (observations[k], *(part[k] for part in result[1:4])))
                self._check_infos(fleet, result[4], step + 1)
            again, _ = fleet.reset(seed=list(self.seeds))
            again = _rows_of(again, len(rows))
            self._compare_resets(first, ([self._record(fleet, k) for k in range(len(rows))], again))

    def _record(self, fleet: Fleet, row: int) -> NDArray[Any]:
        state: NDArray[Any] = _batch_of(fleet).records(row)[0]
        return state

    def _compare_row(self, fleet: Fleet, k: int, step: int, row: _PlainRow, found: tuple[Any, ...]) -> None:
        seed, env = self.seeds[k], row.env
        what = "plain Python and compiled code differ"
        drawn = _batch_of(fleet).rng_records()[k]
        if row.has_drawn_otherwise(drawn):
            self._fail(f"{what}: they drew different numbers", seed, step, "rng", "the same draws", "others")
        record = self._record(fleet, k)
        for name in self.spec.state.names:
            expected = env.state._values[name][0]  # noqa: SLF001  # whole, with its dtype
            if not _is_close(expected, record[name][0]):
                self._fail(what, seed, step, f"state.{name}", expected, record[name][0])
        for name, expected, value in zip(_RESULTS, row.result, found, strict=True):
            if not _is_close(expected, value):
                self._fail(what, seed, step, name, expected, value)
        if not self.spec.observation_space.contains(_as_element(found[0])):
            self._fail("it is not in the space", seed, step, "observation", self.spec.observation_space, found[0])
        if not np.isfinite(found[1]):
            self._fail("rewards are finite numbers", seed, step, "reward", "a finite number", found[1])
        row.go_on_from(record)

    def _check_infos(self, fleet: Fleet, infos: dict[str, Any], step: int) -> None:
        for name in self.spec.kernel.info_fields:
            expected = _batch_of(fleet).field(name)
            if not np.array_equal(infos[name], expected, equal_nan=expected.dtype.kind == "f"):
                self._fail("infos tell the state", None, step, f"infos[{name!r}]", expected, infos[name])

    def _compare_resets(self, first: tuple[Any, Any], again: tuple[Any, Any]) -> None:
        what = "a reset with the same seed gave something else after other episodes: set this field in reset"
        for k, seed in enumerate(self.seeds):
            for name in self.spec.state.names:
                pair = first[0][k][name][0], again[0][k][name][0]
                if not _is_same(*pair):
                    self._fail(what, seed, 0, f"state.{name}", *pair)
            if not _is_same(first[1][k], again[1][k]):
                self._fail(what, seed, 0, "observation", first[1][k], again[1][k])

    # ------------------------------------------------------------------ fleets against fleets

    def compare_places(self) -> None:
        """Compare a small fleet with the same sub-environments in the middle of a large one with threads."""
        count, many = len(self.seeds), len(self.seeds) + 2 * _MORE_ROWS
        rows = slice(_MORE_ROWS, _MORE_ROWS + count)
        with self._make(count, 1) as small, self._make(many, 3) as large:
            one, _ = small.reset(seed=list(self.seeds))
            other, _ = large.reset(seed=self._seeds_of_all())
            what = "it depends on the number of sub-environments or threads"
            self._compare_rows(what, 0, (one,), (map_arrays(other, lambda array: array[rows]),))
            for step, actions in enumerate(self.actions, 1):
                parts = large.step(self._actions_of_all(actions))[:4]
                found = tuple(map_arrays(part, lambda array: array[rows]) for part in parts)
                self._compare_rows(what, step, small.step(actions)[:4], found)

    def compare_saved(self) -> None:
        """Compare a fleet that goes on with its saved state in another fleet."""
        middle = self.num_steps // 2
        with self._make(len(self.seeds), 1) as fleet, self._make(len(self.seeds), 1) as other:
            fleet.reset(seed=list(self.seeds))
            for actions in self.actions[:middle]:
                last = fleet.step(actions)[0]
            state = pickle.loads(pickle.dumps(fleet.get_state()))
            other.reset(seed=_OTHER_SEEDS)
            what = "it differs after get_state and set_state"
            if middle:
                self._compare_rows(what, middle, (last,), (other.set_state(state),))
            for step, actions in enumerate(self.actions[middle:], middle + 1):
                self._compare_rows(what, step, fleet.step(actions)[:4], other.step(actions)[:4])

    def _compare_rows(self, what: str, step: int, expected: Sequence[Any], found: Sequence[Any]) -> None:
        for name, one, other in zip(
            ("observation", "reward", "terminated", "truncated"), expected, found, strict=False
        ):
            count = len(self.seeds)
            for seed, ours, theirs in zip(self.seeds, _rows_of(one, count), _rows_of(other, count), strict=True):
                if not _is_same(ours, theirs):
                    self._fail(what, seed, step, name, ours, theirs)

    # ------------------------------------------------------------------ Gymnasium

    def check_gymnasium(self) -> None:
        """Gymnasium's own check of the kernel as an ordinary environment."""
        from envfleet.kernels.env import KernelEnv

        env = KernelEnv(self.spec.kernel, debug=True, **self.params)  # as it takes actions of its own
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its advice, as on infinite bounds, is no rule
            check_env(env, skip_render_check=True)


def _batch_of(fleet: Fleet) -> Any:
    engine: Any = fleet.engine
    return engine._batch  # noqa: SLF001  # states, draws and parameters as they are, which no caller needs


class _PlainRow:
    """One plain environment with time limit and `NEXT_STEP` autoreset.

    Attributes:
        env: It.
        result: Observation, reward, terminated, truncated of the last call.
    """

    def __init__(self, spec: KernelSpec, params: NDArray[Any]) -> None:
        self.env = PlainEnv(spec, params)
        self._limit = spec.kernel.max_episode_steps
        self._elapsed = 0
        self._has_ended = False
        self.result: tuple[Any, float, bool, bool] = (None, 0.0, False, False)

    def begin(self, seed: int | None = None) -> None:
        """Reset."""
        self._elapsed, self._has_ended = 0, False
        self.result = self._call(self.env.reset, seed), 0.0, False, False
        self._call(self.env.check_observe)

    def step(self, action: Any) -> None:
        """Step, or begin the next episode."""
        if self._has_ended:
            self.begin()
            return
        observation, reward, terminated, truncated = self._call(self.env.step, action)
        self._call(self.env.check_observe)
        self._elapsed += 1
        truncated = truncated or (self._limit is not None and self._elapsed >= self._limit)
        self._has_ended = terminated or truncated
        self.result = observation, reward, terminated, truncated

    def _call(self, function: Any, *args: Any) -> Any:
        try:
            return function(*args)
        except KernelError as error:
            raise describe(self.env.spec, error) from error

    def has_drawn_otherwise(self, record: Any) -> bool:
        """Return whether the generator stands elsewhere than the compiled one."""
        state: Any = self.env.rng.bit_generator.state
        number = int(record["state_hi"]) << 64 | int(record["state_lo"])
        return bool(state["state"]["state"] != number or state["has_uint32"] != record["has_uint32"])

    def go_on_from(self, record: NDArray[Any]) -> None:
        """Take the compiled state for the plain one."""
        self.env.state._values[...] = record  # noqa: SLF001  # whole


def _rows_of(batched: Any, count: int) -> list[Any]:
    """Return each row of an array, or of a dict or tuple of arrays."""
    return [map_arrays(batched, operator.itemgetter(k)) for k in range(count)]


def _parts(value: Any) -> list[Any]:
    """Return the arrays of a dict or tuple, or the array."""
    return list(value.values()) if isinstance(value, dict) else list(value) if isinstance(value, tuple) else [value]


def _as_element(value: Any) -> Any:
    """Return a scalar of an array as its space knows it."""
    if isinstance(value, (dict, tuple)):
        return map_arrays(value, _as_element)
    return np.asarray(value) if isinstance(value, np.floating) else value


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, (dict, tuple)):
        return all(map(_is_same, _parts(one), _parts(other)))
    first = np.asarray(one)
    return bool(np.array_equal(first, other, equal_nan=first.dtype.kind == "f"))


def _is_close(one: Any, other: Any) -> bool:
    """Equal to rounding in floats, exactly in anything else."""
    if isinstance(one, (dict, tuple)):
        return all(map(_is_close, _parts(one), _parts(other)))
    first, second = np.asarray(one), np.asarray(other)
    if first.dtype.kind != "f":
        return bool(np.array_equal(first, second))
    tolerance = 1e-5 if np.float32 in (first.dtype, second.dtype) else 1e-9
    return bool(np.allclose(first, second, rtol=tolerance, atol=tolerance, equal_nan=True))
