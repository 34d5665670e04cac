"""The transforms and their work on arrays: one `Stage` for each `Transform` of a fleet.

Running statistics are one compiled loop with NumPy's order of additions, so results equal those of Gymnasium's
wrappers in every bit.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.wrappers.utils import create_zero_array, rescale_box
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument
from envfleet.fleet import engine as seam
from envfleet.fleet.checks import check_whole
from envfleet.native.moments import discount, normalize, update_moments

Array = NDArray[Any]


@dataclasses.dataclass
class Statistics:
    """Running statistics of a transform.

    Attributes:
        mean: Mean, of the shape and dtype of an observation; of a discounted return, float64.
        var: Variance, as `mean`.
        count: Number of values, plus 1e-4.
    """

    mean: Array
    var: Array
    count: float = 1e-4

    def copy(self) -> Statistics:
        """Return a copy."""
        return Statistics(self.mean.copy(), self.var.copy(), self.count)

    def add(self, rows: Array) -> None:
        """Add the moments of rows, contiguous `(N, …)`."""
        size = self.mean.size
        update_moments(rows.reshape(-1, size), self.mean.reshape(size), self.var.reshape(size), self.count)
        self.count += len(rows)


class Transform(abc.ABC):
    """Base class of transforms; one is used for the fleet that it is passed to, and stays unchanged."""

    @abc.abstractmethod
    def start(self, num_envs: int, observation_space: Any, action_space: Any) -> Stage:
        """Return the transform at work, for spaces of one sub-environment.

        Raises:
            InvalidArgument: It does not fit the spaces.
        """

    def _check_space(self, what: str, space: Any, kinds: str = "fiu") -> None:
        if not isinstance(space, spaces.Box) or np.dtype(space.dtype).kind not in kinds:
            numbers = "floats" if kinds == "f" else "numbers"
            raise InvalidArgument(f"{type(self).__name__} requires {what} in a Box of {numbers} (got {space})")


class Stage:
    """A transform at work. By default it changes nothing.

    Attributes:
        observation_space: Space of one observation that it returns.
        action_space: Space of one action that it takes.
        rows: Its state by name, `(num_envs, …)` each.
        statistics: Its running statistics, if it has any.
        is_updating: True if steps and resets update the statistics.
    """

    statistics: Statistics | None = None
    is_updating = True

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self.rows: dict[str, Array] = {}

    def act(self, actions: Any) -> Any:
        """Return the actions for the sub-environments."""
        return actions

    def reset(self, observations: Array, rows: seam.Rows) -> Array:
        """Return the first observations of `rows`."""
        return observations

    def step(self, observations: Array, finals: Array, rows: Any, is_reset: Array, ended: seam.Rows) -> Any:
        """Return the observations of a step, and those that a reset replaced.

        Args:
            observations: `(B, …)`.
            finals: Last observations of the episodes that ended (`SAME_STEP`), `(E, …)`.
            rows: Sub-environments that stepped: indices, or a slice of all.
            is_reset: True for rows that were reset in this step, bool `(B,)`.
            ended: Sub-environments of `finals`.
        """
        return observations, finals

    def reward(self, rewards: Array, terminated: Array, rows: Any) -> Array:
        """Return the rewards of a step."""
        return rewards


@dataclasses.dataclass(frozen=True)
class ClipAction(Transform):
    """Clip actions to the bounds of the environment's action space; the fleet's is unbounded."""

    def start(self, num_envs: int, observation_space: Any, action_space: Any) -> Stage:
        """Return the transform at work."""
        self._check_space("actions", action_space)
        return _Clipping(observation_space, action_space)


class _Clipping(Stage):
    def __init__(self, observation_space: Any, action_space: Any) -> None:
        super().__init__(
            observation_space, spaces.Box(-np.inf, np.inf, shape=action_space.shape, dtype=action_space.dtype)
        )
        self._low, self._high, self._dtype = action_space.low, action_space.high, action_space.dtype

    def act(self, actions: Any) -> Any:
        return np.clip(actions, self._low, self._high).astype(self._dtype, copy=False)


@dataclasses.dataclass(frozen=True)
class RescaleAction(Transform):
    """Map actions linearly from a range to the bounds of the environment's action space.

    Attributes:
        min_action: Lower bound of the fleet's actions, a number or one for each component.
        max_action: Upper bound.
    """

    min_action: Any = -1.0
    max_action: Any = 1.0

    def start(self, num_envs: int, observation_space: Any, action_space: Any) -> Stage:
        """Return the transform at work."""
        self._check_space("actions", action_space, "f")
        low, high = (np.asarray(bound, action_space.dtype) for bound in (self.min_action, self.max_action))
        try:
            low, high = (np.broadcast_to(bound, action_space.shape).copy() for bound in (low, high))
            space, _, function = rescale_box(action_space, low, high)
        except (AssertionError, ValueError) as error:
            raise InvalidArgument(
                f"RescaleAction({self.min_action}, {self.max_action}) does not fit {action_space}: pass bounds in "
                "ascending order, infinite where those of the environment are"
            ) from error
        return _Rescaling(observation_space, space, function)


class _Rescaling(Stage):
    def __init__(self, observation_space: Any, action_space: Any, function: Any) -> None:
        super().__init__(observation_space, action_space)
        self._function = function

    def act(self, actions: Any) -> Any:
        return self._function(np.asarray(actions)).astype(self.action_space.dtype, copy=False)


@dataclasses.dataclass(frozen=True)
class NormalizeObservation(Transform):
    """Normalize observations by the running mean and variance of all sub-environments; the space is unbounded.

    Attributes:
        epsilon: Added to the variance.
    """

    epsilon: float = 1e-8

    def start(self, num_envs: int, observation_space: Any, action_space: Any) -> Stage:
        """Return the transform at work."""
        self._check_space("observations", observation_space, "f")
        return _Normalizing(observation_space, action_space, self.epsilon)


class _Normalizing(Stage):
    def __init__(self, space: Any, action_space: Any, epsilon: float) -> None:
        super().__init__(spaces.Box(-np.inf, np.inf, shape=space.shape, dtype=space.dtype), action_space)
        self._epsilon = epsilon
        self.statistics: Statistics = Statistics(np.zeros(space.shape, space.dtype), np.ones(space.shape, space.dtype))

    def _normalize(self, observations: Array) -> Array:
        mean, var = self.statistics.mean, self.statistics.var
        x = np.ascontiguousarray(observations)
        out, size = np.empty_like(x), mean.size
        rows = x.reshape(-1, size), mean.reshape(size), var.reshape(size)
        normalize(*rows, self._epsilon, out.reshape(-1, size))
        return out

    def _update(self, observations: Array) -> Array:
        if self.is_updating:
            self.statistics.add(np.ascontiguousarray(observations))
        return self._normalize(observations)

    def reset(self, observations: Array, rows: seam.Rows) -> Array:
        return self._update(observations)

    def step(self, observations: Array, finals: Array, rows: Any, is_reset: Array, ended: seam.Rows) -> Any:
        observations = self._update(observations)
        return observations, self._normalize(finals) if len(finals) else finals


@dataclasses.dataclass(frozen=True)
class NormalizeReward(Transform):
    """Divide rewards by the running standard deviation of discounted returns.

    Attributes:
        gamma: Discount per step.
        epsilon: Added to the variance.
    """

    gamma: float = 0.99
    epsilon: float = 1e-8

    def start(self, num_envs: int, observation_space: Any, action_space: Any) -> Stage:
        """Return the transform at work."""
        return _Scaling(num_envs, observation_space, action_space, self)


class _Scaling(Stage):
    def __init__(self, num_envs: int, observation_space: Any, action_space: Any, config: NormalizeReward) -> None:
        super().__init__(observation_space, action_space)
        self._config = config
        self.rows = {"return": np.zeros(num_envs)}
        self.statistics: Statistics = Statistics(np.zeros(1), np.ones(1))

    def reward(self, rewards: Array, terminated: Array, rows: Any) -> Array:
        returns = self.rows["return"][rows]
        discount(returns, rewards, terminated, self._config.gamma)
        self.rows["return"][rows] = returns
        if self.is_updating:
            self.statistics.add(returns)
        scaled: Array = rewards / np.sqrt(self.statistics.var + self._config.epsilon)
        return scaled


@dataclasses.dataclass(frozen=True)
class FrameStackObservation(Transform):
    """Stack the last observations of each sub-environment, the newest one last.

    Attributes:
        stack_size: Number of observations.
        padding_type: Filling of the stack at the start of an episode: its first observation (`"reset"`), or `"zero"`.
    """

    stack_size: int
    padding_type: str = "reset"

    def start(self, num_envs: int, observation_space: Any, action_space: Any) -> Stage:
        """Return the transform at work."""
        self._check_space("observations", observation_space)
        size = check_whole("stack_size", self.stack_size, 1)
        if self.padding_type not in ("reset", "zero"):
            raise InvalidArgument(f"padding_type={self.padding_type!r}: pass 'reset' or 'zero'")
        padding = create_zero_array(observation_space) if self.padding_type == "zero" else None
        return _Stacking(num_envs, observation_space, action_space, size, padding)


class _Stacking(Stage):
    def __init__(self, num_envs: int, space: Any, action_space: Any, size: int, padding: Any) -> None:
        low, high = (np.repeat(bound[np.newaxis], size, axis=0) for bound in (space.low, space.high))
        super().__init__(spaces.Box(low, high, dtype=space.dtype), action_space)
        self._padding = padding
        self.rows = {"stack": np.zeros((num_envs, size, *space.shape), space.dtype)}

    def _fill(self, observations: Array) -> Array:
        stack = np.empty((len(observations), *self.observation_space.shape), self.observation_space.dtype)
        stack[:] = observations[:, np.newaxis] if self._padding is None else self._padding
        stack[:, -1] = observations
        return stack

    def reset(self, observations: Array, rows: seam.Rows) -> Array:
        self.rows["stack"][rows] = stack = self._fill(observations)
        return stack

    def step(self, observations: Array, finals: Array, rows: Any, is_reset: Array, ended: seam.Rows) -> Any:
        stacks = self.rows["stack"]
        finals = np.concatenate([stacks[ended, 1:], finals[:, np.newaxis]], axis=1) if len(finals) else finals
        new = np.empty((len(observations), *stacks.shape[1:]), stacks.dtype)
        new[:, :-1], new[:, -1] = stacks[rows, 1:], observations
        if is_reset.any():
            new[is_reset] = self._fill(observations[is_reset])
        stacks[rows] = new
        return new, finals
