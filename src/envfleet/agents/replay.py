"""Replay buffers: what was experienced, drawn from uniformly or by priority."""

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
_GATHERED = 8  # batches at once
_SMALLEST_ERROR = 1e-3


class Batch(NamedTuple):
    """B transitions drawn from a buffer: tensors on its device, or arrays.

    Attributes:
        observations: `(B, …)`, as they are held; for compiled code float32 `(B, inputs)`.
        actions: `(B, …)`.
        rewards: float32 `(B,)`.
        discounts: What the value of `next_observations` is multiplied by, float32 `(B,)`.
        next_observations: `(B, …)`, as above.
        weights: Importance weights, float32 `(B,)`; 1 where sampling is uniform.
        indices: Their places in the buffer, int64 `(B,)`, always an array.
    """

    observations: Any
    actions: Any
    rewards: Any
    discounts: Any
    next_observations: Any
    weights: Any
    indices: NDArray[np.int64]

    def to(self, device: torch.device) -> Batch:
        """Return the batch as tensors on a device; what is there is not copied."""
        return Batch._make((*(torch.as_tensor(column, device=device) for column in self[:-1]), self.indices))

    def arrays(self) -> Batch:
        """Return the batch as compiled code reads it; where it can, without copies."""
        columns = (_rows(self.observations), *self[1:4], _rows(self.next_observations), self.weights)
        return Batch._make((*map(np.ascontiguousarray, columns), self.indices))


def _rows(observations: Any) -> NDArray[np.float32]:
    array = np.asarray(observations)
    is_plain = array.dtype == np.float32 and array.ndim == 2  # torch takes longer to find out
    return array if is_plain else encode(torch.from_numpy(array)).numpy()


class ReplayBuffer:
    """The last `capacity` transitions, drawn from uniformly with replacement, or by priority.

    The value of a transition is `rewards + discounts * V(next_observations)`.

    Memory is taken as it is filled: per transition twice an observation in its own dtype (floats as float32, images as
    uint8), an action and two float32. `size_bytes` is what a full buffer takes.

    Args:
        capacity: Transitions held; the oldest give way.
        observation_space: Of one sub-environment.
        action_shape: Of one action as the agent learns it.
        action_dtype: Likewise.
        rng: What sampling draws from; the agent keeps (and saves) it.
        device: Where the transitions are held; sampled batches are there as well.
        priorities: What transitions are drawn by, instead of uniformly.

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
            raise InvalidArgument(f"capacity={capacity}: pass the number of transitions to hold, at least 1")
        shape, dtype = observation_space.shape, observation_space.dtype
        if shape is None or dtype is None:
            raise InvalidArgument(f"a replay buffer cannot hold {observation_space}, expected arrays: flatten it")
        held = torch.float32 if dtype.kind == "f" else torch.from_numpy(np.empty(0, dtype)).dtype
        number = ((), torch.float32)
        self._forms = ((shape, held), (action_shape, action_dtype), number, number, (shape, held))
        self.capacity, self.device, self.priorities = capacity, torch.device(device), priorities
        self._rng, self._next, self._size = rng, 0, 0
        self._is_host = self.device.type == "cpu"  # whose memory NumPy and compiled code write to

    @functools.cached_property
    def _columns(self) -> list[torch.Tensor]:  # made when they are first needed: agents that only play have none
        return [torch.empty((self.capacity, *shape), dtype=dtype, device=self.device) for shape, dtype in self._forms]

    @functools.cached_property
    def _arrays(self) -> tuple[NDArray[Any], ...]:  # the same memory
        return tuple(column.view(self.capacity, -1).numpy() for column in self._columns)

    def __len__(self) -> int:
        return self._size

    @property
    def row_forms(self) -> list[tuple[int, Any]]:
        """Elements and NumPy's dtype of what `room` has of each column, in the order of `COLUMNS`."""
        return [(math.prod(shape), torch.empty(0, dtype=dtype).numpy().dtype) for shape, dtype in self._forms]

    @property
    def size_bytes(self) -> int:
        """Memory of a full buffer."""
        return self.capacity * sum(math.prod(shape) * dtype.itemsize for shape, dtype in self._forms)

    def room(self, count: int) -> tuple[tuple[NDArray[Any], ...], int]:
        """Return where to write up to `count` transitions that `add` is told of.

        Returns:
            An array for each column, `(rows, elements)`, and the row of the first transition; the others follow it,
            around the end.
        """
        if self._is_host:
            return self._arrays, self._next
        return tuple(np.empty((count, size), dtype) for size, dtype in self.row_forms), 0

    def add(self, arrays: tuple[NDArray[Any], ...], count: int) -> None:
        """Take in `count` transitions that were written to `room`; of more than `capacity` the last ones stay."""
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
        """Draw `batch_size` transitions.

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
        """Draw as `sample` does `count` times; without priorities several batches are gathered at once.

        Those of a buffer on the CPU are arrays.

        Raises:
            InvalidArgument: The buffer is empty.
        """
        most = _GATHERED if self.priorities is None else 1  # priorities may change in between
        for first in range(0, count, most):
            rows = min(most, count - first) * batch_size
            joint = self._draw(rows)
            for start in range(0, rows, batch_size):
                part = slice(start, start + batch_size)
                yield joint if rows == batch_size else Batch._make(column[part] for column in joint)

    def clear(self) -> None:
        """Forget all transitions."""
        self._next = self._size = 0
        if self.priorities is not None:
            self.priorities.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` takes: copies of the transitions there are, and the place of the next."""
        columns = (column[: self._size].cpu().clone() for column in self._columns)
        priorities = None if self.priorities is None else self.priorities.state_dict()
        place = {"next": self._next, "size": self._size, "capacity": self.capacity}
        return {"columns": dict(zip(COLUMNS, columns, strict=True)), "priorities": priorities, **place}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hold what another buffer of the same capacity held, at the same places.

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
    """Return zeros whose prefix sums are searched in logarithmic time.

    A binary tree in one array: node 1 is the root, the children of node i are 2 i and 2 i + 1, and the leaves, which
    are the numbers, are the second half. A parent is always the sum of its children as they are, so rounding errors do
    not add up over time.

    Examples:
        >>> tree = sum_tree(4)
        >>> set_leaves(tree, np.array([0, 2]), np.array([1.0, 3.0]))
        >>> float(tree[1]), find_leaves(tree, np.array([0.5, 1.0, 3.9]))
        (4.0, array([0, 2, 2]))
    """
    return np.zeros(2 << max(capacity - 1, 1).bit_length())


@compiled
def set_leaves(tree: NDArray[np.float64], places: NDArray[np.int64], values: NDArray[np.float64]) -> None:
    """Set the numbers at these places, none below 0; of a place that is named twice the last one counts."""
    for number, leaf in enumerate(places):
        place = leaf + len(tree) // 2
        tree[place] = values[number]
        while place > 1:
            place //= 2
            tree[place] = tree[2 * place] + tree[2 * place + 1]


@compiled
def find_leaves(tree: NDArray[np.float64], sums: NDArray[np.float64]) -> NDArray[np.int64]:
    """Find, for every sum, the first place at which the numbers up to it add up to more.

    Args:
        tree: The numbers.
        sums: From 0 to below the sum of all, which is `tree[1]`.

    Returns:
        Places whose number is above 0, even where `sums` is rounded up to that of all.
    """
    found = np.empty(len(sums), np.int64)
    for number in range(len(sums)):
        rest, place = sums[number], 1
        while 2 * place < len(tree):
            left = tree[2 * place]
            place *= 2
            if rest >= left and tree[place + 1] > 0:
                rest, place = rest - left, place + 1
        found[number] = place - len(tree) // 2
    return found


class Priorities:
    """Priorities of the transitions of a replay buffer (Schaul et al. 2016, arXiv:1511.05952, section 3).

    New transitions get the highest priority seen so far, so that each is likely to be drawn soon.

    Args:
        capacity: Of the buffer.
        alpha: Exponent of priorities: 0 is uniform.
        beta: Returns the exponent of the importance weights of the next batch: 1 makes up for the bias of sampling in
            full, 0 not at all. The largest weight of a batch is 1.
    """

    def __init__(self, capacity: int, alpha: float = 0.6, beta: Callable[[], float] = lambda: 1.0) -> None:
        self._alpha, self._beta = alpha, beta
        self._tree, self._highest = sum_tree(capacity), 1.0

    def add(self, places: NDArray[np.int64]) -> None:
        """Give these places the highest priority there is."""
        set_leaves(self._tree, places, np.full(len(places), self._highest))

    def draw(self, count: int, size: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Draw places, one from each of as many equal slices of all priority, of a buffer of `size` transitions.

        Returns:
            The places, and their importance weights, `(count,)` each.
        """
        slices = (np.arange(count) + rng.random(count)) / count
        places, total = find_leaves(self._tree, slices * self._tree[1]), self._tree[1]
        weights = (size * (self._tree[len(self._tree) // 2 + places] / total)) ** -self._beta()
        return places, (weights / weights.max()).astype(np.float32)

    def set_errors(self, places: NDArray[np.int64], errors: NDArray[Any]) -> None:
        """Give transitions the priority `(|error| + 0.001) ** alpha`, so that none is never drawn again.

        Args:
            places: `indices` of a batch, `(B,)`.
            errors: Temporal-difference errors, `(B,)`.
        """
        priorities = (np.abs(np.asarray(errors, np.float64)) + _SMALLEST_ERROR) ** self._alpha
        self._highest = max(self._highest, float(priorities.max()))
        set_leaves(self._tree, places, priorities)

    def clear(self) -> None:
        """Forget all of them but the highest."""
        self._tree[:] = 0.0

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` takes."""
        return {"tree": self._tree.copy(), "highest": self._highest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the state of another."""
        self._tree, self._highest = as_array(state["tree"]), float(state["highest"])
