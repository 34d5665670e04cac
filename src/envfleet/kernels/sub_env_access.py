"""Access to the sub-environments of a kernel: parameters, fields of the state, generators, saved states."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from envfleet.core.fleet_base import Lifecycle
from envfleet.core.requests import check_rows
from envfleet.errors import InvalidArgument
from envfleet.kernels.batch_base import BatchState
from envfleet.kernels.fleet_base import KernelFleetBase
from envfleet.kernels.plain import PlainRecord
from envfleet.kernels.rng import to_generator
from envfleet.kernels.values import spread, to_values


class KernelSubEnvAccess(KernelFleetBase):
    """A fleet of a kernel whose sub-environments can be read, changed, rendered, saved and restored.

    See `KernelFleet`.
    """

    @property
    def params(self) -> dict[str, NDArray[Any]]:
        """Parameters by name, `(1, …)` where all sub-environments share one value, else `(num_envs, …)`; copies."""
        return self._batch.params

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """A parameter or a field of the state of every sub-environment.

        Raises:
            AttributeError: There is neither by that name.
        """
        self._check("get_attr", is_started=False)
        if name in self._kernel.params.names:
            return to_values(spread(self._batch.params[name], self.num_envs))
        if name in self._kernel.state.names:
            return to_values(self._batch.field(name))
        value = getattr(self._kernel.kernel, name, None)
        if value is None or callable(value):
            known = ", ".join((*self._kernel.params.names, *self._kernel.state.names))
            raise AttributeError(f"{self._kernel.name} has no attribute {name!r}: it has {known}")
        return (value,) * self.num_envs

    def set_attr(self, name: str, values: Any) -> None:
        """Set a parameter or a field of the state of every sub-environment.

        Args:
            name: Of the parameter or field.
            values: One value for all, or a list, tuple or array of one per sub-environment.

        Raises:
            InvalidArgument: Another number of values, or values of a wrong type.
        """
        self._check("set_attr", is_started=False)
        if name in self._kernel.params.names:
            self._batch.set_params({name: values})
            return
        if name not in self._kernel.state.names:
            self._kernel.params.check_name(name)
        self._check("set_attr of the state")
        field = self._kernel.state.dtype[name]
        try:
            each = np.broadcast_to(np.asarray(values, field.base), (self.num_envs, *field.shape))
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidArgument(
                f"set_attr({name!r}, {reprlib.repr(values)}): {name} is {field.base} of shape {field.shape}; pass "
                f"one value for all sub-environments, or a list or array of one for each of the {self.num_envs}"
            ) from error
        self._batch.write(name, each)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every sub-environment, of which kernels have one, `render`; or get an attribute."""
        if args or kwargs:
            raise InvalidArgument(f"call({name!r}) with arguments: kernels have no methods that take any")
        return (self.render() or ()) if name == "render" else self.get_attr(name)

    @property  # type: ignore[misc]  # there is no one generator to set
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]  # as SyncVectorEnv
        """The generator of every sub-environment; copies."""
        return tuple(to_generator(record) for record in self._batch.rng_records())

    @property
    def np_random_seed(self) -> tuple[int | None, ...]:  # type: ignore[override]  # as above
        """The seed that every sub-environment's generator was last given."""
        return (None,) * self.num_envs if self._seeds is None else tuple(self._seeds.tolist())

    def apply(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> NoReturn:
        """Is refused: there is no environment object to give to a function."""
        raise InvalidArgument(
            f"apply() on a fleet of the kernel {self._kernel.name}: its sub-environments are rows of arrays, no "
            "objects; use get_attr() and set_attr() for their parameters and state"
        )

    def stacks(self) -> NoReturn:
        """Is refused: compiled code has no Python stack."""
        raise InvalidArgument(
            f"stacks() on a fleet of the kernel {self._kernel.name}: compiled code has no Python stack; stats() tells "
            "how long it took"
        )

    def render(self) -> tuple[Any, ...] | None:
        """Render every sub-environment: one frame each, uint8 `(height, width, 3)`."""
        self._check("render")
        if self.render_mode is None:
            return None
        if self._kernel.render is None:
            raise InvalidArgument(f"{self._kernel.name} has no function `render(state, params)`: write one")
        return tuple(self._render_row(row) for row in range(self.num_envs))

    def _render_row(self, row: int) -> Any:
        state, params = self._batch.records(row)
        render: Any = self._kernel.render
        return render(PlainRecord(self._kernel.state, state), PlainRecord(self._kernel.params, params))

    def get_state(self, indices: Sequence[int] | NDArray[np.integer[Any]] | None = None) -> BatchState:
        """Save sub-environments in the middle of their episodes, generators and parameters included.

        Args:
            indices: Which; `None` for all, which is one copy of memory.

        Returns:
            What `set_state` takes; it pickles.
        """
        self._check("get_state")
        return self._batch.save(None if indices is None else check_rows(indices, self.num_envs))

    def set_state(self, state: Any, indices: Sequence[int] | NDArray[np.integer[Any]] | None = None) -> NDArray[Any]:
        """Bring saved sub-environments back; they go on exactly as they would have.

        Args:
            state: From `get_state` of a fleet of the same kernel.
            indices: Where to put them; `None` for all in order.

        Returns:
            The observations of those sub-environments, aligned with `indices`.
        """
        self._check("set_state", is_started=False)
        rows = None if indices is None else check_rows(indices, self.num_envs)
        count = self.num_envs if rows is None else len(rows)
        if count < self.num_envs:
            self._check("set_state of some")
        if not isinstance(state, BatchState) or state.num_rows != count:
            found = f"{state.num_rows} sub-environments" if isinstance(state, BatchState) else type(state).__name__
            raise InvalidArgument(f"set_state needs a state of {count} sub-environments from get_state, got {found}")
        self._batch.load(state, rows)
        if self._seeds is None:
            self._seeds = np.zeros(self.num_envs, np.uint64)
        self._state = Lifecycle.READY
        observations: NDArray[Any] = self._batch.observe()[0]
        return observations if rows is None else observations.take(rows, axis=0)
