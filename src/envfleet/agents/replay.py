"""Replay buffers, sampled uniformly or by priority."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.agents.compiled import compiled
from envfleet.agents.packing import encode
from envfleet.agents.saving import as_array
from envfleet.errors import InvalidArgument

COLUMNS = ("observations", "actions", "rewards", "discounts", "next_observations")
_BATCHES_PER_GATHER = 8
_SMALLEST_ERROR = 1e-3


class Batch(NamedTuple):
    """B transitions sampled from a buffer: tensors on its device, or arrays.

    Attributes:
        observations: Observations as stored, `(B, …)`; for compiled code float32 `(B, inputs)`.
        actions: Actions, `(B, …)`.
        rewards: Rewards, float32 `(B,)`.
        discounts: Factors of the values of `next_observations`, float32 `(B,)`.
        next_observations: Next observations, like `observations`.
        weights: Importance weights, float32 `(B,)`; 1 with uniform sampling.
        indices: Positions in the buffer, int64 `(B,)`, always an array.
    """

    observations: Any
    actions: Any
    rewards: Any
    discounts: Any
    next_observations: Any
    weights: Any
    indices: NDArray[np.int64]

    def to(self, device: torch.device) -> Batch:
        """Return the batch as tensors on a device, without copies if it is there."""
        return Batch._make((*(torch.as_tensor(column, device=device) for column in self[:-1]), self.indices))

    def arrays(self) -> Batch:
        """Return the batch as arrays for compiled code, without copies if possible."""
        columns = (_rows(self.observations), *self[1:4], _rows(self.next_observations), self.weights)
        return Batch._make((*map(np.ascontiguousarray, columns), self.indices))


def _rows(observations: Any) -> NDArray[np.float32]:
    array = np.asarray(observations)
    is_plain = array.dtype == np.float32 and array.ndim == 2  # faster than asking torch
    return array if is_plain else encode(torch.from_numpy(array)).numpy()


class ReplayBuffer:
    """Ring buffer of the last `capacity` transitions, sampled uniformly with replacement or by priority.

    The value of a transition is `rewards + discounts * V(next_observations)`.

    Memory is allocated as it is filled: per transition two observations (floats as float32, images as uint8), an action
    and two float32. `size_bytes` is the size of a full buffer.

    Args:
        capacity: Maximum number of transitions; the oldest are overwritten.
        observation_space: Observation space of one sub-environment.
        action_shape: Shape of one stored action.
        action_dtype: Dtype of stored actions.
        rng: Random number generator for sampling, which the agent saves.
        device: Device of the transitions and of sampled batches.
        priorities: Priorities of the transitions; `None` for uniform sampling.

    Examples:
        >>> space = spaces.Box(0, 255, (64, 64, 3), np.uint8)
        >>> ReplayBuffer(1000, space, (2,), rng=np.random.default_rng(0)).size_bytes
        24592000
    """

    def __init__(
        self,
        capacity: int,
        observation_space: spaces.Space[Any],
        action_shape: tuple[int, ...] = (),
        action_dtype: torch.dtype = torch.float32,
        *,
        rng: np.random.Generator,
        device: torch.device | str = "cpu",
        priorities: Priorities | None = None,
    ) -> None:
        if capacity < 1:
            raise InvalidArgument(f"capacity={capacity}, expected at least 1: pass the maximum number of transitions")
        shape, dtype = observation_space.shape, observation_space.dtype
        if shape is None or dtype is None:
            raise InvalidArgument(
                f"a replay buffer cannot store {observation_space}, expected a space of arrays: flatten it"
            )
        obs_dtype = torch.float32 if dtype.kind == "f" else torch.from_numpy(np.empty(0, dtype)).dtype
        number = ((), torch.float32)
        self._forms = ((shape, obs_dtype), (action_shape, action_dtype), number, number, (shape, obs_dtype))
        self.capacity, self.device, self.priorities = capacity, torch.device(device), priorities
        self._rng, self._next, self._size = rng, 0, 0
        self._is_host = self.device.type == "cpu"  # NumPy and compiled code write to its memory

    @functools.cached_property
    def _columns(self) -> list[torch.Tensor]:  # allocated on first use: agents that only play need none
        return [torch.empty((self.capacity, *shape), dtype=dtype, device=self.device) for shape, dtype in self._forms]

    @functools.cached_property
    def _arrays(self) -> tuple[NDArray[Any], ...]:  # the same memory
        return tuple(column.view(self.capacity, -1).numpy() for column in self._columns)

    def __len__(self) -> int:
        return self._size

    @property
    def row_forms(self) -> list[tuple[int, Any]]:
        """Elements per row and NumPy dtype of each column of `room`, in the order of `COLUMNS`."""
        return [(math.prod(shape), torch.empty(0, dtype=dtype).numpy().dtype) for shape, dtype in self._forms]

    @property
    def size_bytes(self) -> int:
        """Size of a full buffer in bytes."""
        return self.capacity * sum(math.prod(shape) * dtype.itemsize for shape, dtype in self._forms)

    def room(self, count: int) -> tuple[tuple[NDArray[Any], ...], int]:
        """Return memory to write up to `count` transitions to, before `add`.

        Returns:
            An array per column, `(rows, elements)`, and the row of the first transition; the others follow, wrapping
            around at the end.
        """
        if self._is_host:
            return self._arrays, self._next
        return tuple(np.empty((count, size), dtype) for size, dtype in self.row_forms), 0

    def add(self, arrays: tuple[NDArray[Any], ...], count: int) -> None:
        """Add `count` transitions that were written to `room`; of more than `capacity`, the last ones are kept."""
        next_place, last = self._next, min(count, self.capacity)
        self._next, self._size = (next_place + count) % self.capacity, min(self._size + count, self.capacity)
        if self._is_host and self.priorities is None:
            return
        places = (next_place + np.arange(count - last, count)) % self.capacity
        if not self._is_host:
            rows = torch.from_numpy(places).to(self.device)
            for column, array in zip(self._columns, arrays, strict=True):
                new = torch.from_numpy(array[count - last : count]).to(self.device)
                column[rows] = new.view(last, *column.shape[1:])
        if self.priorities is not None:
            self.priorities.add(places)

    def sample(self, batch_size: int) -> Batch:
        """Sample `batch_size` transitions.

        Raises:
            InvalidArgument: The buffer is empty.
        """
        return self._draw(batch_size).to(self.device)

    def _draw(self, batch_size: int) -> Batch:
        if not self._size:
            raise InvalidArgument("sample() of an empty replay buffer: add transitions first")
        if self.priorities is None:
            indices, weights = self._rng.integers(self._size, size=batch_size), np.ones(batch_size, np.float32)
        else:
            indices, weights = self.priorities.draw(batch_size, self._size, self._rng)
        if not self._is_host:
            places = torch.from_numpy(indices).to(self.device)
            return Batch._make((*(column[places] for column in self._columns), weights, indices))
        columns = zip(self._arrays, self._forms, strict=True)
        drawn = (array.take(indices, 0).reshape(-1, *shape) for array, (shape, _) in columns)
        return Batch._make((*drawn, weights, indices))

    def batches(self, count: int, batch_size: int) -> Iterator[Batch]:
        """Sample `count` batches; without priorities, several are gathered at once.

        Batches of a buffer on the CPU are arrays.

        Raises:
            InvalidArgument: The buffer is empty.
        """
        most = _BATCHES_PER_GATHER if self.priorities is None else 1  # priorities may change in between
        for first in range(0, count, most):
            rows = min(most, count - first) * batch_size
            joint = self._draw(rows)
            for start in range(0, rows, batch_size):
                part = slice(start, start + batch_size)
                yield joint if rows == batch_size else Batch._make(column[part] for column in joint)

    def clear(self) -> None:
        """Remove all transitions."""
        self._next = self._size = 0
        if self.priorities is not None:
            self.priorities.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the state for `load_state_dict`: copies of the transitions, and the position of the next one."""
        columns = (column[: self._size].cpu().clone() for column in self._columns)
        priorities = None if self.priorities is None else self.priorities.state_dict()
        place = {"next": self._next, "size": self._size, "capacity": self.capacity}
        return {"columns": dict(zip(COLUMNS, columns, strict=True)), "priorities": priorities, **place}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `state_dict` of a buffer with the same capacity.

        Raises:
            InvalidArgument: The capacity differs.
        """
        if state["capacity"] != self.capacity:
            raise InvalidArgument(
                f"a saved replay buffer has capacity {state['capacity']}, this one {self.capacity}: make them equal"
            )
        self._next, self._size = int(state["next"]), int(state["size"])
        for name, column in zip(COLUMNS, self._columns, strict=True):
            column[: self._size] = state["columns"][name].to(self.device)
        if self.priorities is not None:
            self.priorities.load_state_dict(state["priorities"])


def sum_tree(capacity: int) -> NDArray[np.float64]:
    """Return a sum tree of zeros, which finds prefix sums in logarithmic time.

    It is a binary tree in one array: node 1 is the root, the children of node i are 2 i and 2 i + 1, and the second
    half are the leaves. A parent is always recomputed as the sum of its children, so rounding errors do not accumulate.

    Examples:
        >>> tree = sum_tree(4)
        >>> set_leaves(tree, np.array([0, 2]), np.array([1.0, 3.0]))
        >>> float(tree[1]), find_leaves(tree, np.array([0.5, 1.0, 3.9]))
        (4.0, array([0, 2, 2]))
    """
    return np.zeros(2 << max(capacity - 1, 1).bit_length())


@compiled
def set_leaves(tree: NDArray[np.float64], places: NDArray[np.int64], values: NDArray[np.float64]) -> None:
    """Set nonnegative leaves; if a place is repeated, the last value counts."""
    for number, leaf in enumerate(places):
        node = leaf + len(tree) // 2
        tree[node] = values[number]
        while node > 1:
            node //= 2
            tree[node] = tree[2 * node] + tree[2 * node + 1]


@compiled
def find_leaves(tree: NDArray[np.float64], sums: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return, for every sum, the first leaf whose prefix sum is larger.

    Args:
        tree: Sum tree.
        sums: Numbers from 0 to the total, `tree[1]`, exclusive.

    Returns:
        Places of leaves above 0, even if a sum was rounded up to the total.
    """
    places = np.empty(len(sums), np.int64)
    for number in range(len(sums)):
        rest, node = sums[number], 1
        while 2 * node < len(tree):
            left = tree[2 * node]
            node *= 2
            if rest >= left and tree[node + 1] > 0:
                rest, node = rest - left, node + 1
        places[number] = node - len(tree) // 2
    return places


class Priorities:
    """Priorities of the transitions of a replay buffer (Schaul et al. 2016, arXiv:1511.05952, section 3).

    New transitions get the highest priority so far, so that each is likely to be sampled soon.

    Args:
        capacity: Capacity of the buffer.
        alpha: Exponent of priorities; 0 for uniform sampling.
        beta: Function that returns the exponent of the next batch's importance weights: 1 corrects the bias of sampling
            completely, 0 not at all. The largest weight of a batch is 1.
    """

    def __init__(self, capacity: int, alpha: float = 0.6, beta: Callable[[], float] = lambda: 1.0) -> None:
        self._alpha, self._beta = alpha, beta
        self._tree, self._highest = sum_tree(capacity), 1.0

    def add(self, places: NDArray[np.int64]) -> None:
        """Set the priority of new transitions to the highest one."""
        set_leaves(self._tree, places, np.full(len(places), self._highest))

    def draw(self, count: int, size: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Sample places of a buffer of `size` transitions, one from each of `count` equal slices of all priority.

        Returns:
            Places and importance weights, `(count,)` each.
        """
        slices = (np.arange(count) + rng.random(count)) / count
        places, total = find_leaves(self._tree, slices * self._tree[1]), self._tree[1]
        weights = (size * (self._tree[len(self._tree) // 2 + places] / total)) ** -self._beta()
        return places, (weights / weights.max()).astype(np.float32)

    def set_errors(self, places: NDArray[np.int64], errors: NDArray[Any]) -> None:
        """Set priorities to `(|error| + 0.001) ** alpha`, so that every transition can be sampled again.

        Args:
            places: `indices` of a batch, `(B,)`.
            errors: Temporal-difference errors, `(B,)`.
        """
        priorities = (np.abs(np.asarray(errors, np.float64)) + _SMALLEST_ERROR) ** self._alpha
        self._highest = max(self._highest, float(priorities.max()))
        set_leaves(self._tree, places, priorities)

    def clear(self) -> None:
        """Remove all priorities except the highest."""
        self._tree[:] = 0.0

    def state_dict(self) -> dict[str, Any]:
        """Return the state for `load_state_dict`."""
        return {"tree": self._tree.copy(), "highest": self._highest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        self._tree, self._highest = as_array(state["tree"]), float(state["highest"])
