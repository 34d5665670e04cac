"""Observations of any space as one array, and as rows of numbers for networks."""

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
_EXCLUDED = -1e9  # output for an excluded action; finite, so that its product with 0 is 0


def encode(observations: Tensor) -> Tensor:
    """Return arrays, `(N, …)`, as float32 rows, `(N, size)`, with uint8 scaled to [0, 1]."""
    rows = observations.flatten(start_dim=1) if observations.dim() > 1 else observations[:, None]
    return rows.float() / 255.0 if rows.dtype == torch.uint8 else rows.float()


def fits_float32(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return a mask of values that are finite in float32, the dtype of networks and replay buffers."""
    with np.errstate(over="ignore"):
        return np.asarray(np.isfinite(values.astype(np.float32, copy=False)))


class PackedArray:
    """One array of an observation.

    Args:
        path: Keys and indices of the array in the observation.
        space: Space of the array: Box, Discrete, MultiBinary or MultiDiscrete.

    Attributes:
        name: Path, such as `"camera.image"`; `"observation"` if the observation is one array.
        space: Space of the array.
        shape: Shape of one value.
        size: Number of elements of one value.
        dtype: Dtype of packed values: one byte per element if possible, otherwise float32.
        counts: Number of values of each choice; empty for Box and MultiBinary.
        is_image: True for three dimensions of uint8 or bool.
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
        """Return a mask of values, `(N, …)`, that are finite in float32 or valid choices."""
        if not self.counts:
            return fits_float32(values)
        numbers = values.reshape(-1, self.size) - np.ravel(self.space.start)
        return ((numbers >= 0) & (numbers < self.counts)).reshape(values.shape)

    def shaped(self, rows: Tensor) -> Tensor:
        """Undo `numbers` except for scaling: return rows, `(N, size)`, as `(N, …)`; choices as int64."""
        values = rows.reshape(-1, *self.shape)
        return values.long() if self.counts else values


class Packing:
    """Conversion of observations of a space to one array and to inputs of networks.

    Arrays are left unchanged. Observations of `Dict` and `Tuple` spaces become rows of bytes (uint8 and bool unchanged,
    everything else as float32), so that other code need not handle their parts.

    Args:
        space: Observation space: Box, Discrete, MultiBinary or MultiDiscrete, or a Dict or Tuple of them.

    Attributes:
        original: Observation space.
        parts: Arrays of an observation, in the order of the space.
        is_nested: True for a Dict or Tuple.
        space: Space of a packed observation.
        num_inputs: Number of inputs of networks per observation.
        mask: Index of the part that is an action mask, the key `"action_mask"` of a Dict; `None` without one.

    Raises:
        InvalidArgument: The space has other parts.

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
                "Tuple of them: remove other parts (gymnasium.wrappers.FilterObservation), or convert them to numbers "
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
        """Return observations as one array; arrays are returned unchanged.

        Args:
            observations: Observations in the form of the space, with any leading dimensions.

        Returns:
            Array with the leading dimensions, then the shape of `space`.
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
        """Return the parts of packed observations, `(N, …)` each."""
        if not self.is_nested:
            return [packed]
        sizes = [part.size * part.dtype.itemsize for part in self.parts]
        values = []
        for part, column in zip(self.parts, torch.split(packed, sizes, dim=1), strict=True):
            if part.dtype != np.uint8:
                aligned = column.clone(memory_format=torch.contiguous_format)  # required for a view of floats
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
        """Split rows, `(N, num_inputs)`, into the columns of each part, `(N, size)`."""
        return torch.split(rows, [part.size for part in self.parts], dim=1)

    def check_mask(self, num_actions: int) -> None:
        """Check that the action mask has `num_actions` elements.

        Raises:
            InvalidArgument: It has another number of elements.
        """
        if self.mask is not None and (size := self.parts[self.mask].size) != num_actions:
            raise InvalidArgument(
                f"{MASK!r} of the observations has {size} elements, expected one for each of {num_actions} actions: "
                "pass 1 for each valid action and 0 for others, or rename the key if it is not a mask"
            )

    def masked(self, rows: Tensor, outputs: Tensor) -> Tensor:
        """Return outputs for actions, `(N, actions)`, with a large negative number for excluded actions."""
        return outputs if self.mask is None else outputs.masked_fill(self.columns(rows)[self.mask] == 0, _EXCLUDED)

    def nest(self, rows: Tensor) -> Any:
        """Return rows, `(N, num_inputs)`, in the form of the space; choices as int64 from 0."""
        # The layout accepts tensors, too.
        values: Any = [part.shaped(column) for part, column in zip(self.parts, self.columns(rows), strict=True)]
        return self._layout.batch(values)

    def rows(self, packed: Tensor) -> Tensor:
        """Return packed observations, `(N, …)`, as inputs of networks, float32 `(N, num_inputs)`."""
        return self.join(self.unpack(packed))

    def join(self, values: list[Tensor]) -> Tensor:
        """Return the parts of observations, `(N, …)` each, as inputs of networks."""
        rows = [part.numbers(value) for part, value in zip(self.parts, values, strict=True)]
        return rows[0] if len(rows) == 1 else torch.cat(rows, dim=1)
