"""Learners: updates of off-policy agents from a replay buffer, and of PPO from rollouts.

In each round a run calls `learn` while sub-environments step, then `take` with the transitions. The agent acts in all
players of the arena, so its sub-environments are those players.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.agents import Agent, OffPolicyAgent, RolloutAgent, TransitionRecorder, Transitions
from envfleet.agents.off_policy import LearningResult
from envfleet.training.plan import RunPlan

_SWITCH_INTERVAL_S = 1e-4  # between updates the thread needs the GIL, which games in Python keep for 5 ms by default
_ROUNDING = 1e-9  # so that ten times 0.1 is one update


class UpdateSchedule:
    """Schedule of updates by transitions or by rounds.

    Updates per transition make learning independent of `num_envs`; fractions accumulate. With updates per round, a
    round counts the same for any number of sub-environments, which is faster and learns less from each transition.

    Args:
        per_transition: Updates per transition.
        per_round: Updates per step of the whole fleet, instead.
        warmup: Transitions that are not counted, from the start.

    Examples:
        >>> schedule = UpdateSchedule(per_transition=0.5, warmup=4)
        >>> due = []
        >>> for _ in range(4):
        ...     schedule.count(3)
        ...     due.append(schedule.take())
        >>> due
        [0, 1, 1, 2]
    """

    def __init__(self, *, per_transition: float = 1.0, per_round: float | None = None, warmup: int = 0) -> None:
        self._rate = per_transition if per_round is None else per_round
        self._most = math.inf if per_round is None else 1  # that count of a round
        self._warmup, self._seen, self._due = warmup, 0, 0.0

    def restart(self) -> None:
        """Restart the warm-up after the replay buffer was cleared; scheduled updates remain scheduled."""
        self._seen = 0

    def count(self, transitions: int) -> None:
        """Count one round."""
        self._seen += transitions
        self._due += self._rate * min(transitions, max(0, self._seen - self._warmup), self._most)

    def take(self) -> int:
        """Return the number of scheduled updates, and reset it."""
        due = math.floor(self._due + _ROUNDING)
        self._due -= due
        return due


class ReplayLearner:
    """Learner with a replay buffer and a schedule of updates.

    With a background thread, updates run while sub-environments step. Batches are sampled when updates are scheduled;
    new weights are published when the next updates are scheduled (one round of lag). So results do not depend on
    timing.

    Args:
        agent: The learning agent.
        schedule: Schedule of updates.
        is_beside: True to use a background thread, if the agent supports it.

    Attributes:
        num_updates: Number of updates in the acting policy.
    """

    def __init__(self, agent: OffPolicyAgent[Any], schedule: UpdateSchedule, *, is_beside: bool = False) -> None:
        self._agent, self._schedule = agent, schedule
        self._executor = ThreadPoolExecutor(1) if is_beside and agent.can_overlap else None
        self._former_interval_s = sys.getswitchinterval()
        if self._executor is not None:
            sys.setswitchinterval(_SWITCH_INTERVAL_S)
        self._job: Future[LearningResult] | None = None
        self.num_updates = agent.num_updates

    def learn(self) -> dict[str, float]:
        """Make the scheduled updates, or submit them to the thread and publish the previous ones.

        Returns:
            Metrics of the newly published updates; empty without any.
        """
        count = self._schedule.take() if self._agent.is_ready else 0
        if not count:
            return {}
        if self._executor is None:
            figures = self._agent.update(count)
            self.num_updates = self._agent.num_updates
            return figures
        job = self._agent.submit_learning(self._agent.prepare(count), self._executor)  # before the thread becomes idle
        figures = self.finish()
        self._job = job
        return figures

    def finish(self) -> dict[str, float]:
        """Wait for the thread and publish its weights; return the metrics."""
        if self._job is None:
            return {}
        result, self._job = self._job.result(), None
        self.num_updates = result.num_updates
        return self._agent.publish(result)

    def take(self, transitions: Transitions) -> dict[str, float]:
        """Store the transitions; updates follow while sub-environments step again."""
        self._schedule.count(len(transitions))
        self._agent.remember(transitions)
        return {}

    def cut(self, env_indices: NDArray[np.int64] | None = None) -> None:
        """End running episodes, of all sub-environments by default, as truncated after their last step."""
        self._agent.start_episodes(np.arange(self._agent.num_envs) if env_indices is None else env_indices)

    def end_phase(self) -> dict[str, float]:
        """End running episodes before all sub-environments are reset, and make the scheduled updates."""
        self.cut()
        return self.learn() or self.finish()

    def forget(self) -> None:
        """Empty the buffer; updates resume after another warm-up."""
        self._agent.replay.clear()
        self._schedule.restart()

    def state_dict(self) -> dict[str, Any]:
        """Wait for the thread and return the state for checkpoints."""
        result = None if self._job is None else self._job.result()  # until then the agent changes
        return {
            "agent": self._agent.state_dict("all"),
            "schedule": copy.copy(self._schedule),
            "num_updates": self.num_updates,
            "result": result,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state."""
        self._agent.load_state_dict(state["agent"])
        self._schedule, self.num_updates = state["schedule"], state["num_updates"]
        self._job = None
        if state["result"] is not None:
            self._job = Future()
            self._job.set_result(state["result"])

    def close(self) -> None:
        """Wait for the thread, and stop it."""
        if self._executor is not None:
            self._executor.shutdown()
            sys.setswitchinterval(self._former_interval_s)


class RolloutLearner:
    """Learns from rollouts of `num_steps` steps, each as soon as it is full: what acts next is the new policy.

    Steps of players that the learner did not control count as resets, which are not learned from.

    Args:
        agent: The learning agent.
        num_steps: Steps per rollout of each sub-environment.
    """

    def __init__(self, agent: RolloutAgent[Any], num_steps: int) -> None:
        space: Any = agent.action_space
        self._agent, self._rollouts = agent, TransitionRecorder(num_steps, agent.num_envs, agent.packing.space, space)

    @property
    def num_updates(self) -> int:
        """Number of updates made."""
        return self._agent.num_updates

    def learn(self) -> dict[str, float]:
        """Do nothing: an update would change the policy within a rollout."""
        return {}

    def take(self, transitions: Transitions) -> dict[str, float]:
        """Add the step to the rollout, and learn from it once it is full."""
        self._rollouts.add(transitions)
        return self._agent.update(self._rollouts.take()) if self._rollouts.is_full else {}

    def finish(self) -> dict[str, float]:
        """Do nothing: updates are synchronous."""
        return {}

    def cut(self, env_indices: NDArray[np.int64] | None = None) -> None:
        """End running episodes, of all sub-environments by default, as truncated after their last step."""
        self._rollouts.cut(np.arange(self._agent.num_envs) if env_indices is None else env_indices)

    def end_phase(self) -> dict[str, float]:
        """End running episodes, and learn from the incomplete rollout."""
        self.cut()
        return self._agent.update(self._rollouts.take()) if len(self._rollouts) else {}

    def forget(self) -> None:
        """Do nothing, without a replay buffer."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state for checkpoints."""
        return {"agent": self._agent.state_dict("all"), "rollouts": copy.deepcopy(self._rollouts)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state."""
        self._agent.load_state_dict(state["agent"])
        self._rollouts = state["rollouts"]

    def close(self) -> None:
        """Do nothing: updates are synchronous."""


Learner = ReplayLearner | RolloutLearner


def make_learner(agent: Agent[Any], plan: RunPlan) -> Learner:
    """Return the learner of an agent."""
    training = plan.training
    if isinstance(agent, RolloutAgent):
        return RolloutLearner(agent, training.rollout_steps)
    learning: Any = agent  # from a replay buffer: `find_agent` takes no third kind
    schedule = UpdateSchedule(
        per_transition=training.updates_per_step,
        per_round=training.updates_per_round,
        warmup=max(training.warmup_steps, learning.config.batch_size),
    )
    return ReplayLearner(learning, schedule, is_beside=training.learn_beside)
