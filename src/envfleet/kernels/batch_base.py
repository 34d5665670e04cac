"""Base class of batches of kernel environments, for any device: saved states, parameters, records."""

from __future__ import annotations

import abc
import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument, KernelError
from envfleet.fleet.episodes import EndedEpisodes
from envfleet.kernels.buffers import ENDED_DTYPE, BufferPlan
from envfleet.kernels.kernel import KernelSpec
from envfleet.kernels.plain import PlainRecord
from envfleet.kernels.requests import check_params
from envfleet.kernels.source import MODES, SAME_STEP
from envfleet.options import Options

_NO_LIMIT = np.iinfo(np.int64).max


@dataclasses.dataclass(frozen=True)
class BatchState:
    """Saved state of sub-environments, including parameters.

    Attributes:
        arrays: Kept arrays by name, `(rows, …)`.
        params: Parameters by name: one value for all, or one row each.
    """

    arrays: Mapping[str, NDArray[Any]]
    params: Mapping[str, NDArray[Any]]

    @property
    def num_rows(self) -> int:
        """Number of sub-environments."""
        return len(self.arrays["awaiting"])

    def __getitem__(self, rows: NDArray[np.int64]) -> BatchState:
        """Return the states of the given rows."""
        params = {name: each if len(each) == 1 else each[rows] for name, each in self.params.items()}
        return BatchState({name: array[rows] for name, array in self.arrays.items()}, params)


class EndedRows(NamedTuple):
    """Episodes that ended in one step; arrays have one entry per episode, by ascending row.

    Attributes:
        episodes: Records of `ENDED_DTYPE`.
        now: Time of the step, in nanoseconds.
        observations: Last observations, which a reset replaced (`SAME_STEP`); otherwise `None`.
        infos: Last infos by name, if observations are there.
    """

    episodes: NDArray[Any]
    now: int
    observations: NDArray[Any] | None
    infos: dict[str, NDArray[Any]]


def to_episodes(records: NDArray[Any], now: int, num_envs: int) -> EndedEpisodes:
    """Return records of `ENDED_DTYPE` as episodes that ended at the time `now`, in nanoseconds."""
    rows, lengths, numbers, begun, returns = (records[name].copy() for name in ENDED_DTYPE.names or ())
    return EndedEpisodes(rows, returns, lengths, (now - begun) // 1000 / 1e6, numbers * num_envs + rows)


class BatchBase(abc.ABC):
    """Parameters of a batch, and access to its rows as records.

    Args:
        spec: The kernel.
        num_envs: Number of sub-environments.
        options: Options of the fleet; they decide whether a step returns the episodes that ended in it.
        params: Parameters by name, each for all or `(num_envs, …)`.
        limit: Number of steps after which an episode is truncated; `None` for no limit.

    Attributes:
        plan: The kernel's buffers.

    Raises:
        InvalidArgument: A parameter does not exist, or has values of a wrong shape or type.
    """

    device: str
    """`"cpu"` or `"cuda"`."""

    num_threads: int
    """Maximum number of CPU threads that step the batch."""

    threads: str
    """Description of the threads that step the batch."""

    _has_own_params: bool
    """True if the current code is for parameters that differ between sub-environments."""

    def __init__(
        self, spec: KernelSpec, num_envs: int, options: Options, params: Mapping[str, Any], limit: int | None = None
    ) -> None:
        self.spec, self.num_envs, self.plan = spec, num_envs, BufferPlan(spec)
        self._limit, self._mode = limit or _NO_LIMIT, MODES[options.autoreset_mode]
        self.is_same_step = self._mode == SAME_STEP
        self._has_final_infos = options.final_infos and self.is_same_step
        self._gathers_ended = options.record_episodes or self._has_final_infos
        self._params = check_params(spec, num_envs, {**spec.params.defaults, **params}, {})

    @abc.abstractmethod
    def kept(self, name: str) -> NDArray[Any]:
        """Return a kept array by its name, such as `"awaiting"` or `"elapsed"`; it may be a view."""

    @abc.abstractmethod
    def _keep(self, name: str, values: Any, rows: NDArray[np.int64] | None = None) -> None:
        """Set a kept array, in the given rows or in all."""

    @abc.abstractmethod
    def _build(self) -> None:
        """Select the code for the current parameters, and allocate their arrays."""

    @abc.abstractmethod
    def _write_params(self, names: Iterable[str]) -> None:
        """Write the current values of parameters to the arrays that compiled code reads."""

    # ------------------------------------------------------------------ the state

    def field(self, name: str) -> NDArray[Any]:
        """Return a field of every row's state, as `kept` does."""
        return self.kept(f"s_{name}") if self.plan.state.is_split else self.kept("s")[name]

    def write(self, name: str, values: Any) -> None:
        """Set a field of the state.

        Args:
            name: Name of the field.
            values: Value for all rows, or one each.
        """
        if self.plan.state.is_split:
            self._keep(f"s_{name}", values)
            return
        whole = self.kept("s")
        whole[name] = values
        self._keep("s", whole)

    def count_awaiting(self) -> int:
        """Return the number of rows that await a reset; waits for the device."""
        return int(np.count_nonzero(self.kept("awaiting")))

    @abc.abstractmethod
    def ended_records(self) -> NDArray[Any]:
        """Return records of `ENDED_DTYPE`, on the host: episodes that ended in the last step, by ascending row."""

    def _end(self, episodes: NDArray[Any], now: int, last: Callable[[str], NDArray[Any]]) -> EndedRows:
        """Describe the episodes that ended in a step; `last` returns their entries of a buffer of `finals`."""
        if not self._has_final_infos:
            return EndedRows(episodes, now, None, {})
        observations, *infos = (last(each.name) for each in self.plan.finals)
        return EndedRows(episodes, now, observations, dict(zip(self.spec.info_fields, infos, strict=True)))

    def records(self, row: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return copies of one row's state and parameters as records, `(1,)` each."""
        state, params = np.zeros(1, self.spec.state.dtype), np.zeros(1, self.spec.params.dtype)
        for name in self.spec.state.names:
            state[name] = self.field(name)[row]
        for name, values in self._params.items():
            params[name] = values[row if len(values) > 1 else 0]
        return state, params

    def render(self, row: int) -> Any:
        """Return a frame of one row.

        Raises:
            KernelError: The kernel does not define `render`.
        """
        if self.spec.render is None:
            raise KernelError(f"{self.spec.name} does not define `render(state, params)`: add it to the kernel")
        state, params = self.records(row)
        return self.spec.render(PlainRecord(self.spec.state, state), PlainRecord(self.spec.params, params))

    # ------------------------------------------------------------------ parameters

    @property
    def params(self) -> dict[str, NDArray[Any]]:
        """Parameters by name, `(1, …)` or `(num_envs, …)`; copies on the host."""
        return {name: values.copy() for name, values in self._params.items()}

    def set_params(self, values: Mapping[str, Any], rows: NDArray[np.int64] | None = None) -> None:
        """Change parameters, in the given rows or for all.

        Args:
            values: Values by name, each for all of `rows` or one per row.
            rows: Rows to change; `None` for all.
        """
        before = current = self._params
        if rows is not None:
            current = {name: array[rows] if len(array) > 1 else array for name, array in before.items()}
        changed = check_params(self.spec, self.num_envs if rows is None else len(rows), values, current)
        for name, array in changed.items() if rows is not None else ():
            whole = np.broadcast_to(before[name], (self.num_envs, *before[name].shape[1:])).copy()
            whole[rows] = array
            changed[name] = whole
        self._params = {**before, **changed}
        if self._has_own_params == self._needs_own_params():
            self._write_params(values)
            return
        try:
            self._build()
        except BaseException:
            self._params = before
            raise

    def _needs_own_params(self) -> bool:
        """Return whether the parameters require code for parameters that differ between rows."""
        return self.spec.kernel.has_own_params or any(len(values) > 1 for values in self._params.values())

    # ------------------------------------------------------------------ saved states

    def save(self, rows: NDArray[np.int64] | None = None) -> BatchState:
        """Copy the state of the given rows, or of all."""
        state = BatchState({each.name: self.kept(each.name) for each in self.plan.kept}, self._params)
        return copy.deepcopy(state) if rows is None else state[rows]

    def load(self, state: BatchState, rows: NDArray[np.int64] | None = None) -> None:
        """Restore saved rows, into the same rows or others; they may come from another device.

        Raises:
            InvalidArgument: The state is of another kernel.
        """
        expected, saved = (
            {name: array.shape[1:] for name, array in params.items()} for params in (self._params, state.params)
        )
        forms = {name: (array.dtype, array.shape[1:]) for name, array in state.arrays.items()}
        if expected != saved or forms != {each.name: (each.dtype, each.shape) for each in self.plan.kept}:
            raise InvalidArgument(f"a saved state has other fields than {self.spec.name}: pass one of the same kernel")
        for name, values in state.arrays.items():
            self._keep(name, values, rows)
        if any(not np.array_equal(self._params[name], values) for name, values in state.params.items()):
            self.set_params(dict(state.params), rows)
