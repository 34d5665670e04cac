"""Engine that passes what its fleet does to an `EpisodeCutter`."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envfleet.errors import Failure, InvalidArgument
from envfleet.fleet.engine import Answer, Batch, Engine, Pending, Request, Reset, Rows, SetState, StepResult
from envfleet.fleet.layout import SpaceLayout
from envfleet.fleet.nested import map_arrays
from envfleet.fleet.outcomes import final_observations
from envfleet.fleet.wrapper import EngineWrapper
from envfleet.recording.episodes import EpisodeCutter


class RecordingEngine(EngineWrapper):
    """Engine that records the steps of another engine.

    Args:
        engine: Engine of a fleet.
        cutter: Receives the steps.
        actions: Layout of one action.
        recording: Recording, which `close` closes first.
    """

    def __init__(self, engine: Engine, cutter: EpisodeCutter, actions: SpaceLayout, recording: Any) -> None:
        super().__init__(engine)
        self.recording, self._cutter, self._actions = recording, cutter, actions
        self._all = np.arange(engine.traits.num_envs)

    def step(self, actions: Any) -> StepResult:
        """Step every sub-environment once."""
        result = self.inner.step(actions)
        observations, rewards, terminated, truncated, infos = result
        self._cutter.step(
            self._leaves(actions, len(rewards)),
            observations,
            rewards,
            terminated,
            truncated,
            lambda ended: final_observations(self.inner, observations, ended),
            infos.get("_env_error"),
        )
        return result

    def _leaves(self, actions: Any, count: int) -> list[NDArray[Any]]:
        if self._actions.is_array and isinstance(actions, np.ndarray):
            return [actions]
        return self._actions.unbatch(actions, count)[0]

    def send(self, actions: Any, rows: Rows | None = None) -> None:
        """Start to step `rows`, or all."""
        self.inner.send(actions, rows)
        self._cutter.send(self._leaves(actions, len(self._all if rows is None else rows)), rows)

    def collect(self, count: int | None = None, rows: Rows | None = None, timeout_s: float | None = None) -> Batch:
        """Return the results of steps that were sent."""
        batch = self.inner.collect(count, rows, timeout_s)
        observations, which = batch.observations, batch.env_indices
        self._cutter.step(
            self._cutter.sent(which),
            observations,
            batch.rewards,
            batch.terminated,
            batch.truncated,
            lambda ended: final_observations(self.inner, observations, ended, which),
            batch.infos.get("_env_error"),
            which,
        )
        return batch

    def rollout(self, policy: Any, num_steps: int, seed: int | None, out: Any) -> Any:
        """Step `num_steps` times in one call."""
        rollout = self.inner.rollout(policy, num_steps, seed, out)
        actions, episodes = self._actions.apart(rollout.actions), rollout.episodes
        for t in range(num_steps):
            ends = episodes.steps == t

            def find_finals(ended: NDArray[np.int64], ends: NDArray[np.bool_] = ends) -> Any:
                return map_arrays(episodes.observations, lambda array: array[ends])

            self._cutter.step(
                [leaf[t] for leaf in actions],
                map_arrays(rollout.all_observations, lambda array, t=t: array[t + 1]),
                rollout.rewards[t],
                rollout.terminated[t],
                rollout.truncated[t],
                find_finals,
            )
        return rollout

    def submit(self, request: Request[Answer]) -> Pending[Answer]:
        """Start a request."""
        if isinstance(request, SetState):
            raise InvalidArgument(
                "set_state() during a recording: an episode cannot continue from another state; close the recording "
                "first"
            )
        pending: Any = self.inner.submit(request)
        if not isinstance(request, Reset):
            return pending  # type: ignore[no-any-return]  # of the request's type
        rows, answer = request.rows, pending
        which = (self._all if rows is None else rows).tolist()
        seeds = request.seeds
        each = [seeds + row for row in which] if isinstance(seeds, int) else seeds or [None] * len(which)

        def begin(timeout_s: float | None) -> Any:
            infos = answer.wait(timeout_s)
            self._cutter.begin(self.inner.observe(rows), rows, each)
            return infos

        begun: Any = Pending(begin)
        return begun  # type: ignore[no-any-return]  # as above

    def close(self, timeout_s: float) -> list[Failure]:
        """Finish the dataset, then release all resources."""
        try:
            self.recording.close()
        finally:
            failures = self.inner.close(timeout_s)
        return failures


def awaiting_reset(engine: Engine) -> NDArray[np.bool_]:
    """Return the rows that the next step only resets (`NEXT_STEP`), bool `(N,)`."""
    if engine.traits.autoreset_mode is not AutoresetMode.NEXT_STEP:
        return np.zeros(engine.traits.num_envs, np.bool_)
    return engine.episodes().ended
