"""Shared parts of Gymnasium's MuJoCo tasks: spaces, initial states, and the pose in observations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

ASSETS = "gymnasium.envs.mujoco:assets/"
"""Folder of Gymnasium's models."""

EXCLUDE = "exclude_current_positions_from_observation"
"""Parameter of tasks that leave the position out of observations."""


def unbounded(size: int) -> spaces.Box:
    """Return the space of `size` float64 numbers without bounds."""
    return spaces.Box(-np.inf, np.inf, (size,), np.float64)


def start_uniformly(data: Any, model: Any, rng: np.random.Generator, scale: float) -> None:
    """Begin near the model's pose, with uniform noise on positions and velocities."""
    for i in range(data.qpos.size):
        data.qpos[i] = model.qpos0[i] + rng.uniform(-scale, scale)
    for i in range(data.qvel.size):
        data.qvel[i] = 0.0 + rng.uniform(-scale, scale)


def start_normally(data: Any, model: Any, rng: np.random.Generator, scale: float) -> None:
    """Begin near the model's pose, with uniform noise on positions and normal noise on velocities."""
    for i in range(data.qpos.size):
        data.qpos[i] = model.qpos0[i] + rng.uniform(-scale, scale)
    for i in range(data.qvel.size):
        data.qvel[i] = 0.0 + scale * rng.standard_normal()


def control_cost(action: NDArray[np.float32], weight: float) -> Any:
    """Return the cost of an action, in float32 as Gymnasium computes it."""
    return np.float32(weight) * np.sum(np.square(action))


def write_pose(data: Any, out: NDArray[np.float64], skipped: int) -> Any:
    """Write positions, without the first `skipped`, and velocities; return how many numbers these are."""
    count = data.qpos.size - skipped
    out[:count] = data.qpos[skipped:]
    out[count : count + data.qvel.size] = data.qvel
    return count + data.qvel.size


def write_clipped_pose(data: Any, out: NDArray[np.float64], skipped: int) -> None:
    """Write positions, without the first `skipped`, and velocities between -10 and 10."""
    count = data.qpos.size - skipped
    out[:count] = data.qpos[skipped:]
    for i in range(data.qvel.size):
        out[count + i] = np.clip(data.qvel[i], -10.0, 10.0)


def norm(vector: NDArray[np.float64]) -> float:
    """Return the length of a vector as NumPy does: by BLAS, which rounds a sum of products as the processor can."""
    return math.sqrt(np.dot(vector, vector))


def write_rows(rows: NDArray[np.float64], out: NDArray[np.float64], start: int) -> int:
    """Write all rows but the first, which is the world's; return the end."""
    for i in range(1, rows.shape[0]):
        for j in range(rows.shape[1]):
            out[start] = rows[i, j]
            start += 1
    return start
