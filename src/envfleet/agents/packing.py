"""Observations of any space as one array each, and as rows of numbers for networks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from envfleet.errors import InvalidArgument
from envfleet.fleet.layout import SpaceLayout

MASK = "action_mask"
_EXCLUDED = -1e9  # the output for an action that must not be taken; finite, as sums of its products with 0 are to be 0


def encode(observations: Tensor) -> Tensor:
    """Return arrays, `(N, …)`, as float32 rows, `(N, size)`, images in uint8 scaled to [0, 1]."""
    rows = observations.flatten(start_dim=1) if observations.dim() > 1 else observations[:, None]
    return rows.float() / 255.0 if rows.dtype == torch.uint8 else rows.float()


def fits_float32(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which values are finite in float32, which is what networks see and replay buffers hold."""
    with np.errstate(over="ignore"):
        return np.asarray(np.isfinite(values.astype(np.float32, copy=False)))


class PackedArray:
    """One array of an observation.

    Args:
        path: The keys and indices that lead to it.
        space: Box, Discrete, MultiBinary or MultiDiscrete.

    Attributes:
        name: Its path, such as `"camera.image"`; `"observation"` if it is all there is.
        space: As above.
        shape: Of one value.
        size: Elements of one value.
        dtype: That it is packed in: one byte per element where that is enough, else float32.
        counts: How many values each of its choices has; empty if it has none.
        is_image: Whether it has three dimensions of uint8 or bool.
    """

    def __init__(self, path: tuple[str | int, ...], space: Any) -> None:
        self.name = ".".join(map(str, path)) or "observation"
        self.space, self.shape, self.size = space, space.shape, math.prod(space.shape)
        is_small = isinstance(space, spaces.MultiBinary) or space.dtype in {np.dtype("u1"), np.dtype("?")}
        self.dtype = np.dtype(np.uint8 if is_small else np.float32)
        self.counts: list[int] = []
        if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
            self.counts = np.ravel(space.n if isinstance(space, spaces.Discrete) else space.nvec).tolist()
        self.is_image = is_small and isinstance(space, spaces.Box) and len(self.shape) == 3

    def numbers(self, values: Tensor) -> Tensor:
        """Return values, `(N, …)`, as float32 `(N, size)`: uint8 scaled to [0, 1], choices counted from 0."""
        if self.counts:
            start = torch.as_tensor(np.ravel(self.space.start), dtype=torch.float32, device=values.device)
            return values.reshape(-1, self.size).float() - start
        return encode(values)

    def fits(self, values: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which values, `(N, …)`, are finite in float32 or valid choices, as bools of the same shape."""
        if not self.counts:
            return fits_float32(values)
        numbers = values.reshape(-1, self.size) - np.ravel(self.space.start)
        return ((numbers >= 0) & (numbers < self.counts)).reshape(values.shape)

    def shaped(self, rows: Tensor) -> Tensor:
        """Return what `numbers` made, `(N, size)`, as `(N, …)`; choices as int64."""
        values = rows.reshape(-1, *self.shape)
        return values.long() if self.counts else values


class Packing:
    """One array per observation, whatever the space.

    Observations that are arrays stay as they are. Those of `Dict` and `Tuple` spaces become rows of bytes, which hold
    uint8 and bool as they are and all else as float32, so that replay buffers and rollouts know nothing of their parts.

    Args:
        space: Of one observation: Box, Discrete, MultiBinary or MultiDiscrete, or a Dict or Tuple of them.

    Attributes:
        original: The space.
        parts: Its arrays, in its order.
        is_nested: Whether it is a Dict or Tuple.
        space: Of a packed observation.
        num_inputs: Numbers per observation, as networks get them.
        mask: Which of the parts is a mask of actions: that with the key `"action_mask"` of a Dict; `None` without one.

    Raises:
        InvalidArgument: The space holds something else.

    Examples:
        >>> packing = Packing(spaces.Dict(image=spaces.Box(0, 255, (2, 2, 1), np.uint8), speed=spaces.Discrete(3)))
        >>> packed = packing.pack({"image": np.full((5, 2, 2, 1), 255, np.uint8), "speed": np.arange(5) % 3})
        >>> packed.shape, packing.rows(torch.from_numpy(packed))[2].tolist()
        ((5, 8), [1.0, 1.0, 1.0, 1.0, 2.0])
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.original, self._layout = space, SpaceLayout(space)
        if self._layout.num_objects:
            raise InvalidArgument(
                f"the observation space is {space}, expected Box, Discrete, MultiBinary or MultiDiscrete, or a Dict or "
                "Tuple of them: leave other parts out (gymnasium.wrappers.FilterObservation), or make numbers of them "
                "(TransformObservation)"
            )
        leaves = zip(self._layout.leaves, self._layout.apart(space), strict=True)
        self.parts = tuple(PackedArray(leaf.path, part) for leaf, part in leaves)
        self.is_nested = isinstance(space, (spaces.Dict, spaces.Tuple))
        self.num_inputs = sum(part.size for part in self.parts)
        self.mask = next((k for k, part in enumerate(self.parts) if part.name == MASK), None)
        size_bytes = sum(part.size * part.dtype.itemsize for part in self.parts)
        self.space: spaces.Space[Any] = spaces.Box(0, 255, (size_bytes,), np.uint8) if self.is_nested else space

    def pack(self, observations: Any) -> NDArray[Any]:
        """Return observations as one array; packed ones are returned as they are.

        Args:
            observations: In the form of the space, any number of leading dimensions before it.

        Returns:
            The leading dimensions, then the shape of `space`.
        """
        if not self.is_nested or isinstance(observations, np.ndarray):
            return np.asarray(observations)
        try:
            arrays = self._layout.apart(observations)
        except (KeyError, IndexError, TypeError) as error:
            raise InvalidArgument(
                f"an observation of type {type(observations).__name__} lacks a part of {self.original} "
                f"({type(error).__name__}: {error}): pass observations in the form of the space"
            ) from error
        columns = []
        for part, array in zip(self.parts, map(np.asarray, arrays), strict=True):
            leading = array.shape[: max(array.ndim - len(part.shape), 0)]
            if array.shape[len(leading) :] != part.shape:
                raise InvalidArgument(
                    f"an observation has shape {array.shape} at {part.name!r}, expected {part.shape} after the leading "
                    "dimensions: pass observations in the form of the space"
                )
            flat = np.ascontiguousarray(array, part.dtype).reshape(*leading, part.size)
            columns.append(flat.view(np.uint8))
        return np.concatenate(columns, axis=-1)

    def unpack(self, packed: Tensor) -> list[Tensor]:
        """Return the arrays of packed observations, one `(N, …)` per part."""
        if not self.is_nested:
            return [packed]
        sizes = [part.size * part.dtype.itemsize for part in self.parts]
        values = []
        for part, column in zip(self.parts, torch.split(packed, sizes, dim=1), strict=True):
            if part.dtype != np.uint8:
                aligned = column.clone(memory_format=torch.contiguous_format)  # a view of floats must be
                typed = aligned.view(torch.float32)
            else:
                typed = column if part.space.dtype == np.uint8 else column.bool()
            values.append(typed.reshape(-1, *part.shape))
        return values

    def unpacked(self, packed: NDArray[Any]) -> Any:
        """Return packed observations, `(N, …)`, in the form of the space."""
        if not self.is_nested:
            return packed
        values = zip(self.parts, self.unpack(torch.from_numpy(packed)), strict=True)
        return self._layout.batch([value.numpy().astype(part.space.dtype) for part, value in values])

    def columns(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the part of rows, `(N, num_inputs)`, that each part of an observation has, `(N, size)`."""
        return torch.split(rows, [part.size for part in self.parts], dim=1)

    def check_mask(self, num_actions: int) -> None:
        """Check that a mask of actions is one of so many.

        Raises:
            InvalidArgument: It has another number of elements.
        """
        if self.mask is not None and (size := self.parts[self.mask].size) != num_actions:
            raise InvalidArgument(
                f"{MASK!r} of the observations has {size} elements, expected one for each of {num_actions} actions: "
                "let it have a 1 for each that may be taken, or rename it if it is no mask"
            )

    def masked(self, rows: Tensor, outputs: Tensor) -> Tensor:
        """Return outputs for actions, `(N, actions)`, those that the mask in `rows` excludes far below all others."""
        return outputs if self.mask is None else outputs.masked_fill(self.columns(rows)[self.mask] == 0, _EXCLUDED)

    def nest(self, rows: Tensor) -> Any:
        """Return rows, `(N, num_inputs)`, in the form of the space; choices as int64 from 0."""
        # Tensors in place of arrays.
        values: Any = [part.shaped(column) for part, column in zip(self.parts, self.columns(rows), strict=True)]
        return self._layout.batch(values)

    def rows(self, packed: Tensor) -> Tensor:
        """Return packed observations, `(N, …)`, as networks get them, float32 `(N, num_inputs)`."""
        return self.join(self.unpack(packed))

    def join(self, values: list[Tensor]) -> Tensor:
        """Return the arrays of observations, one `(N, …)` per part, as networks get them."""
        rows = [part.numbers(value) for part, value in zip(self.parts, values, strict=True)]
        return rows[0] if len(rows) == 1 else torch.cat(rows, dim=1)
