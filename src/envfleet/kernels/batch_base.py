"""What batches of kernel environments have in common, on whatever device: saved states, parameters, records."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument
from envfleet.kernels.buffers import BufferPlan
from envfleet.kernels.kernel import KernelSpec
from envfleet.kernels.params import check_params
from envfleet.kernels.rng import RNG_DTYPE


@dataclasses.dataclass(frozen=True)
class BatchState:
    """Saved sub-environments: everything they are, parameters included.

    Attributes:
        arrays: What is kept of each, by name, `(rows, …)`.
        params: Their parameters by name: one value for all, or one row each.
    """

    arrays: Mapping[str, NDArray[Any]]
    params: Mapping[str, NDArray[Any]]

    @property
    def num_rows(self) -> int:
        """How many there are."""
        return len(self.arrays["awaiting"])

    def __getitem__(self, rows: NDArray[np.int64]) -> BatchState:
        """Return the states of some rows."""
        params = {name: each if len(each) == 1 else each[rows] for name, each in self.params.items()}
        return BatchState({name: array[rows] for name, array in self.arrays.items()}, params)


class BatchBase(abc.ABC):
    """The parameters of a batch, and its rows as records.

    Args:
        spec: The kernel.
        num_envs: How many sub-environments.
        params: Values by name, each for all or `(num_envs, …)`.

    Raises:
        InvalidArgument: A parameter that does not exist, or values of a wrong shape or type.
    """

    def __init__(self, spec: KernelSpec, num_envs: int, params: Mapping[str, Any]) -> None:
        self.spec, self.num_envs, self._plan = spec, num_envs, BufferPlan(spec)
        self._params = check_params(spec, num_envs, params)

    @abc.abstractmethod
    def kept(self, name: str) -> NDArray[Any]:
        """Return what is kept of every row besides its state, such as `"awaiting"` and `"elapsed"`."""

    @abc.abstractmethod
    def field(self, name: str) -> NDArray[Any]:
        """Return a field of every row's state."""

    @property
    def params(self) -> dict[str, NDArray[Any]]:
        """Parameters by name, `(1, …)` or `(num_envs, …)`; copies on the host."""
        return {name: values.copy() for name, values in self._params.items()}

    def rng_records(self) -> NDArray[Any]:
        """Return the generators' states, records of `RNG_DTYPE`, `(num_envs,)`."""
        records = np.zeros(self.num_envs, RNG_DTYPE)
        for name in RNG_DTYPE.names or ():
            records[name] = self.kept(f"g_{name}")
        return records

    def records(self, row: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """State and parameters of one row as records, `(1,)` each; copies."""
        state, params = np.zeros(1, self.spec.state.dtype), np.zeros(1, self.spec.params.dtype)
        for name in self.spec.state.names:
            state[name] = self.field(name)[row]
        for name, values in self._params.items():
            params[name] = values[row if len(values) > 1 else 0]
        return state, params

    def _check_saved(self, params: Mapping[str, Any], arrays: Mapping[str, Any] | None = None) -> None:
        """Check that saved parameters, and arrays of what is kept, are those of this kernel.

        Raises:
            InvalidArgument: They are not.
        """
        kept = {one.name: (one.dtype, one.shape) for one in self._plan.kept}
        found = kept if arrays is None else {name: (one.dtype, one.shape[1:]) for name, one in arrays.items()}
        own, saved = ({name: values.shape[1:] for name, values in one.items()} for one in (self._params, params))
        if found != kept or own != saved:
            names, expected = (", ".join(one) or "none" for one in (saved, own))
            raise InvalidArgument(
                f"the saved state has other fields than {self.spec.name}: its parameters are {names}, expected "
                f"{expected}; pass one of the same kernel"
            )

    def _needs_own_params(self) -> bool:
        """Return whether code is due for which every row has parameters of its own."""
        return self.spec.kernel.has_own_params or any(len(values) > 1 for values in self._params.values())

    def _params_of(self, rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        return {name: values[rows] if len(values) > 1 else values.copy() for name, values in self._params.items()}
