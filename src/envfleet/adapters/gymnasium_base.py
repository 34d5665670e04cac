"""What `AsyncFleet` and `SyncFleet` have in common."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium.error import ClosedEnvironmentError
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector import VectorEnv

from envfleet.adapters.originals import raising_originals
from envfleet.core.fleet import Fleet
from envfleet.core.rows import StepResult
from envfleet.errors import InvalidArgument, SubEnvError

MakeEnv: TypeAlias = Callable[[], gym.Env[Any, Any]]
ObservationMode: TypeAlias = str | tuple[gym.Space[Any], gym.Space[Any]]

__all__ = ["FleetAsVectorEnv", "MakeEnv", "NotOffered", "ObservationMode", "StepResult"]


class NotOffered(InvalidArgument, NotImplementedError):
    """An argument of Gymnasium's that means nothing here."""


class RefusedArgument(InvalidArgument, AssertionError):
    """An argument that Gymnasium's classes refuse by an assertion."""


class SpacesDiffer(InvalidArgument, RuntimeError):
    """Sub-environments whose spaces differ, as `AsyncVectorEnv` refuses them."""
