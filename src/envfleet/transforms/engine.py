"""Engine with transforms around another engine.

Problem. A step of eight compiled environments takes tens of microseconds, and so does each of Gymnasium's wrappers.

Solution. `TransformedEngine` stands between the fleet and its engine, whichever that is, and passes each batch through
the stages of its transforms. Their state is saved with that of the sub-environments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from envfleet.errors import InvalidArgument
from envfleet.fleet import engine as seam
from envfleet.fleet.layout import SpaceLayout
from envfleet.fleet.wrapper import EngineWrapper
from envfleet.transforms.stages import Array, NormalizeReward, Stage, Statistics, Transform


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
        is_acting = action_space is not traits.single_action_space
        self._changed_actions = SpaceLayout(action_space) if is_acting else None
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
            statistics: Statistics from `get_statistics` of a fleet with the same transforms.
            is_updating: True if steps and resets update them from now on.
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

    def _act(self, actions: Any, count: int) -> Any:
        if self._changed_actions is not None:
            self._changed_actions.unbatch(actions, count)  # checks them: stages take whatever NumPy can broadcast
            actions = np.asarray(actions)
        for stage in reversed(self._stages):
            actions = stage.act(actions)
        return actions

    def step(self, actions: Any) -> seam.StepResult:
        """Step every sub-environment once."""
        result = self.inner.step(self._act(actions, len(self._all)))
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
        self.inner.send(self._act(actions, len(self._all if rows is None else rows)), rows)

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
