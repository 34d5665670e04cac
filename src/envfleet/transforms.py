"""Transforms of a fleet's observations, rewards and actions, equal to Gymnasium's wrappers of the same names.

Problem. A step of eight compiled environments takes tens of microseconds, and so does each of Gymnasium's wrappers.

Solution. `TransformedEngine` stands between the fleet and its engine, whichever that is. Running statistics are one
compiled loop with NumPy's order of additions, so results equal those of the wrappers in every bit. The state of
transforms is saved with that of the sub-environments.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.utils import create_zero_array, rescale_box
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument
from envfleet.fleet import engine as seam
from envfleet.fleet.checks import check_whole
from envfleet.fleet.wrapper import EngineWrapper
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
        is_updating: Whether it updates them.
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
            is_reset: Whether each of them was reset in this step, bool `(B,)`.
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
        padding_type: What fills the stack at the start of an episode: its first observation (`"reset"`), or `"zero"`.
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


@dataclasses.dataclass(frozen=True)
class TransformedState:
    """Saved state of sub-environments and of transforms.

    Attributes:
        inner: State of the sub-environments.
        rows: State of each transform by name, and of the engine, `(rows, …)` each.
        statistics: Running statistics of each transform; restored with all sub-environments only.
    """

    inner: Any
    rows: Sequence[Mapping[str, Array]]
    statistics: Sequence[Statistics | None]

    def __len__(self) -> int:
        return len(self.rows[0]["ended"])

    def __getitem__(self, rows: Any) -> TransformedState:
        """Return the states of the given rows."""
        rows = np.atleast_1d(np.arange(len(self))[rows])
        inner = [self.inner[row] for row in rows.tolist()] if isinstance(self.inner, list) else self.inner[rows]
        return TransformedState(
            inner, [{name: array[rows] for name, array in each.items()} for each in self.rows], self.statistics
        )


class TransformedEngine(EngineWrapper):
    """Engine with transforms around it.

    Args:
        engine: Engine of the sub-environments; closed with this one.
        transforms: The first one is next to the sub-environments, as the innermost wrapper.

    Attributes:
        inner: The engine.

    Raises:
        InvalidArgument: A transform does not fit the environment, or observations are not one array.
    """

    def __init__(self, engine: seam.Engine, transforms: Sequence[Transform]) -> None:
        super().__init__(engine)
        traits = engine.traits
        observation_space, action_space = traits.single_observation_space, traits.single_action_space
        if observation_space.shape is None or observation_space.dtype is None:
            raise InvalidArgument(
                f"transforms require observations that are one array (got {observation_space}): flatten them first, "
                "such as by gymnasium.wrappers.FlattenObservation"
            )
        self._stages: list[Stage] = []
        for transform in transforms:
            if not isinstance(transform, Transform):
                raise InvalidArgument(
                    f"transforms has a {type(transform).__name__}: pass a list of those of envfleet.transforms, such "
                    "as [NormalizeObservation()]"
                )
            if isinstance(transform, NormalizeReward):
                traits.refuse_vector_rewards("NormalizeReward")
            self._stages.append(transform.start(traits.num_envs, observation_space, action_space))
            observation_space, action_space = self._stages[-1].observation_space, self._stages[-1].action_space
        is_same = observation_space is traits.single_observation_space
        self.traits = dataclasses.replace(
            traits,
            single_observation_space=observation_space,
            single_action_space=action_space,
            observation_space=traits.observation_space if is_same else None,
            has_rollouts=False,
        )
        self._mode, self._all = traits.autoreset_mode, np.arange(traits.num_envs)
        self._ended = np.zeros(traits.num_envs, np.bool_)
        shape = (traits.num_envs, *(observation_space.shape or ()))
        self._last, self._finals = np.zeros((2, *shape), observation_space.dtype)

    def get_statistics(self) -> list[Statistics | None]:
        """Return copies of the running statistics of each transform, in order; `None` for one without."""
        return [None if one is None else one.copy() for one in self._own()]

    def _own(self) -> list[Statistics | None]:
        return [stage.statistics for stage in self._stages]

    def set_statistics(self, statistics: Sequence[Statistics | None], *, is_updating: bool = True) -> None:
        """Set the running statistics, such as those of another fleet for an evaluation.

        Args:
            statistics: From `get_statistics` of a fleet with the same transforms.
            is_updating: Whether steps and resets update them from now on.
        """
        forms = [[None if one is None else one.mean.shape for one in each] for each in (statistics, self._own())]
        if forms[0] != forms[1]:
            raise InvalidArgument(
                f"statistics have the shapes {forms[0]}, expected {forms[1]}: pass those of the same transforms"
            )
        for stage, one in zip(self._stages, statistics, strict=True):
            stage.is_updating = is_updating
            stage.statistics = None if one is None else one.copy()

    # ------------------------------------------------------------------------------------------------ stepping

    def _act(self, actions: Any) -> Any:
        for stage in reversed(self._stages):
            actions = stage.act(actions)
        return actions

    def step(self, actions: Any) -> seam.StepResult:
        """Step every sub-environment once."""
        result = self.inner.step(self._act(actions))
        observations, rewards, infos = self._finish(*result, None)
        self._last[:] = observations
        return observations, rewards, result[2], result[3], infos

    def _finish(
        self, observations: Any, rewards: Any, terminated: Any, truncated: Any, infos: Any, rows: seam.Rows | None
    ) -> Any:
        """Return transformed observations and rewards, and infos with transformed last observations."""
        which: Any = slice(None) if rows is None else rows
        is_reset = self._ended[which].copy()
        has_ended = terminated | truncated
        finals, ended = observations[:0], self._all[:0]
        if self._mode is AutoresetMode.NEXT_STEP:
            self._ended[which] = has_ended
        elif self._mode is AutoresetMode.SAME_STEP and has_ended.any():
            is_reset, ended = has_ended, self._all[which][has_ended]
            finals = self.inner.observe(ended, final=True)
        for stage in self._stages:
            observations, finals = stage.step(observations, finals, which, is_reset, ended)
            rewards = stage.reward(rewards, terminated, which)
        if len(ended):
            self._finals[ended] = finals
            if "final_obs" in infos:
                whole = np.full(len(has_ended), None, object)
                for place, final in zip(np.flatnonzero(has_ended).tolist(), finals, strict=True):
                    whole[place] = final
                infos["final_obs"] = whole
        return observations, rewards, infos

    def send(self, actions: Any, rows: seam.Rows | None = None) -> None:
        """Start to step `rows`, or all."""
        self.inner.send(self._act(actions), rows)

    def collect(
        self, count: int | None = None, rows: seam.Rows | None = None, timeout_s: float | None = None
    ) -> seam.Batch:
        """Return the results of steps that were sent."""
        batch = self.inner.collect(count, rows, timeout_s)
        observations, rewards, infos = self._finish(*batch)
        self._replace(batch.env_indices, observations)
        return batch._replace(observations=observations, rewards=rewards, infos=infos)

    def _replace(self, rows: seam.Rows | None, observations: Array) -> None:
        self._last[slice(None) if rows is None else rows] = observations

    def submit(self, request: seam.Request[seam.Answer]) -> seam.Pending[seam.Answer]:
        """Start a request."""
        if isinstance(request, seam.SetState):
            states, rows = self._check_states(request), request.rows
            inner = self.inner.submit(seam.SetState(states.inner, rows))
            loaded: Any = seam.Pending(lambda timeout_s: self._load(inner.wait(timeout_s), states, rows))
            return loaded  # type: ignore[no-any-return]  # of the request's type
        pending: Any = self.inner.submit(request)
        if isinstance(request, (seam.Reset, seam.GetState)):
            finish: Any = self._reset if isinstance(request, seam.Reset) else self._save
            which = request.rows
            answer = pending
            pending = seam.Pending(lambda timeout_s: finish(answer.wait(timeout_s), which))
        return pending  # type: ignore[no-any-return]  # of the request's type

    def _reset(self, infos: Any, rows: seam.Rows | None) -> Any:
        which = self._all if rows is None else rows
        observations = self.inner.observe(rows)
        self._ended[which] = False
        for stage in self._stages:
            observations = stage.reset(observations, which)
        self._replace(rows, observations)
        return infos

    # ------------------------------------------------------------------------------------------------ states

    def _rows(self) -> list[dict[str, Array]]:
        return [{"ended": self._ended, "last": self._last}, *(stage.rows for stage in self._stages)]

    def _save(self, inner: Any, rows: seam.Rows | None) -> TransformedState:
        which = self._all if rows is None else rows
        saved = [{name: array[which] for name, array in each.items()} for each in self._rows()]
        return TransformedState(inner, saved, self.get_statistics())

    def _check_states(self, request: seam.SetState) -> TransformedState:
        states, count = request.states, len(self._all) if request.rows is None else len(request.rows)
        if not isinstance(states, TransformedState):
            raise InvalidArgument(
                f"set_state requires a state of a fleet with transforms (got {type(states).__name__})"
            )
        own = [{name: array.shape[1:] for name, array in each.items()} for each in self._rows()]
        saved = [{name: array.shape[1:] for name, array in each.items()} for each in states.rows]
        if own != saved or len(states) != count:
            raise InvalidArgument(
                f"set_state requires {count} rows of the same transforms (got {len(states)}): index a state, such as "
                "state[[0, 0]]"
            )
        return states

    def _load(self, answer: Any, states: TransformedState, rows: seam.Rows | None) -> Any:
        which = self._all if rows is None else rows
        for own, saved in zip(self._rows(), states.rows, strict=True):
            for name, array in saved.items():
                own[name][which] = array
        if len(which) == len(self._all):
            for stage, one in zip(self._stages, states.statistics, strict=True):
                stage.statistics = None if one is None else one.copy()
        return answer

    # ------------------------------------------------------------------------------------------------ read-outs

    def observe(self, rows: seam.Rows | None = None, *, final: bool = False) -> Any:
        """Return the last observations of `rows`, or all; with `final` the last ones of the ended episodes."""
        values = self._finals if final else self._last
        return values.copy() if rows is None else values[rows]
