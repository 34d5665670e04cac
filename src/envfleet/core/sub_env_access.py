"""Access to the sub-environments of a fleet, wherever they live."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Never, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from envfleet.core.engine import Call
from envfleet.core.fleet_base import FleetBase, Lifecycle
from envfleet.core.group import RowState
from envfleet.core.messages import CallPayload, Verb
from envfleet.core.requests import check_indices
from envfleet.errors import InvalidArgument


class SubEnvAccess(FleetBase):
    """A fleet whose sub-environments can be called, changed, rendered, saved and restored; see `Fleet`."""

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every sub-environment (the outermost wrapper that has it), or get an attribute.

        Args:
            name: Of the method or attribute.
            *args: For the method.
            **kwargs: For the method.

        Returns:
            One result per sub-environment.
        """
        return self._finish_call(self._start_call(name, args, kwargs))

    def _start_call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        self._check("call")
        payloads = [(CallPayload(name, args, kwargs), local) for local in self._rows.local_rows]
        return self._engine.start(self._rows.workers, Verb.CALL, self._rows.generation, payloads)

    def _finish_call(self, call: Call, timeout_s: float | None = None) -> tuple[Any, ...]:
        values = {worker: reply.value for worker, reply in self._rows.finish(call, timeout_s)}
        return tuple(value for worker in self._rows.workers for value in values[worker])

    def apply(
        self,
        function: Callable[..., Any],
        *args: Any,
        indices: Sequence[int] | NDArray[np.integer[Any]] | None = None,
        **kwargs: Any,
    ) -> list[Any]:
        """Run `function(sub_env, *args, **kwargs)` for some sub-environments, where they live.

        Args:
            function: Takes the sub-environment with its wrappers first; pickled (by cloudpickle) for other processes.
            *args: For the function.
            indices: Which; `None` for all.
            **kwargs: For the function.

        Returns:
            One result per index.
        """
        self._check("apply")
        chosen = list(range(self.num_envs)) if indices is None else check_indices(indices, self.num_envs)
        payload = CallPayload(function, args, kwargs)
        return self._ask_rows(Verb.CALL, chosen, lambda local, positions: (payload, local))

    def _ask_rows(
        self, verb: Verb, chosen: Sequence[int], payload_of: Callable[[tuple[int, ...], list[int]], Any]
    ) -> list[Any]:
        """Ask for one value for each of `chosen`; `payload_of` takes local rows and their positions in `chosen`."""
        payloads, places = {}, {}
        for worker, positions, local in self._rows.locate(chosen):
            payloads[worker], places[worker] = payload_of(local, positions), positions
        replies = dict(self._rows.exchange(list(payloads), verb, list(payloads.values())))
        values: list[Any] = [None] * len(chosen)
        for worker, positions in places.items():
            for k, value in zip(positions, replies[worker].value, strict=True):
                values[k] = value
        return values

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Get an attribute of every sub-environment."""
        self._check("get_attr")
        return self.call(name)

    @property  # type: ignore[misc]  # there is no one generator to set
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]  # as SyncVectorEnv, unlike its base
        """The generator of every sub-environment (copies, if those live in other processes)."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> tuple[int | None, ...]:  # type: ignore[override]  # as above
        """The seed that every sub-environment's generator was last given."""
        return self.get_attr("np_random_seed")

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every sub-environment, on the outermost wrapper that has it.

        Args:
            name: Of the attribute.
            values: A list or tuple of one value per sub-environment, or one value for all.
        """
        self._check("set_attr")
        if not isinstance(values, (list, tuple)):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise InvalidArgument(  # Gymnasium's sentence, which programs look for, and what to do
                "Values must be a list or tuple with length equal to the number of environments. Got "
                f"`{len(values)}` values for {self.num_envs} environments. Pass one for each, or one value for all."
            )
        payloads = [
            (name, values[span.start : span.stop], local)
            for span, local in zip(self._rows.worker_spans, self._rows.local_rows, strict=True)
        ]
        self._rows.exchange(self._rows.workers, Verb.SET_ATTR, payloads)

    def render(self) -> tuple[Any, ...] | None:
        """Render every sub-environment; one frame each, as its `render_mode` says."""
        self._check("render", is_started=True)
        return self.call("render")

    def get_state(self, indices: Sequence[int] | NDArray[np.integer[Any]] | None = None) -> list[Any]:
        """Save sub-environments in the middle of their episodes, with their wrappers and generators.

        By the environment's own `get_state`/`set_state`, else by pickling it, else (not across processes) by copying.

        Args:
            indices: Which; `None` for all.

        Returns:
            One opaque state each; they pickle, except copies.

        Raises:
            SubEnvError: From `StateUnsupported`: one can be neither saved nor copied.
        """
        self._check("get_state", is_started=True)
        chosen = list(range(self.num_envs)) if indices is None else check_indices(indices, self.num_envs)
        states = self._ask_rows(Verb.GET_STATE, chosen, lambda local, positions: local)
        return [(state, self._rows.episodes.get(index)) for state, index in zip(states, chosen, strict=True)]

    def set_state(self, states: Sequence[Any], indices: Sequence[int] | NDArray[np.integer[Any]] | None = None) -> Any:
        """Bring saved sub-environments back; they go on exactly as they would have.

        Args:
            states: From `get_state` of this or an equal fleet, one per index.
            indices: Where to put them; `None` for all in order.

        Returns:
            The last observations of those sub-environments, aligned with `indices`.
        """
        self._check("set_state")
        chosen = list(range(self.num_envs)) if indices is None else check_indices(indices, self.num_envs)
        _check_states(states, len(chosen))
        if len(chosen) < self.num_envs:
            self._check("set_state of some", is_started=True)
        payloads = {}
        for worker, positions, local in self._rows.locate(chosen):
            payloads[worker] = tuple((row, states[k][0]) for row, k in zip(local, positions, strict=True))
        self._rows.store(self._rows.exchange(list(payloads), Verb.SET_STATE, list(payloads.values())))
        for index, state in zip(chosen, states, strict=True):
            self._rows.episodes.set(index, state[1])
        self._state = Lifecycle.READY
        return self._rows.take(np.asarray(chosen))

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> Never:
        """Refuse to be copied or pickled, in words; else some memoryview or socket of its own would."""
        raise InvalidArgument(
            f"{self!r} can be neither copied nor pickled, for its workers answer this one only: make another where it "
            "is to be used, and bring it to the same state with set_state(fleet.get_state())"
        )


def _check_states(states: Any, count: int) -> None:
    wanted = f"expected a list of {count} made by get_state, one per sub-environment to restore"
    if not isinstance(states, Sequence) or isinstance(states, str):
        raise InvalidArgument(f"states is of type {type(states).__name__}, {wanted}")
    if len(states) != count:
        raise InvalidArgument(f"states has {len(states)} entries, {wanted}")
    for k, state in enumerate(states):
        if not (isinstance(state, tuple) and len(state) == 2 and isinstance(state[0], RowState)):
            raise InvalidArgument(f"states[{k}] is of type {type(state).__name__} and no saved state, {wanted}")
