"""How agents of either kind learn from the rounds of a run: from a replay buffer, or from slabs.

In each round a run calls `learn` while sub-environments step, then `take` with what came of it. The agent acts in all
seats of an arena, so those are its sub-environments.
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

from envfleet.agents import Agent, OffPolicyAgent, SlabAgent, SlabWriter, Transitions
from envfleet.agents.off_policy import Learnt
from envfleet.training.config import RunConfig

_SWITCH_INTERVAL_S = 1e-4  # between updates the thread needs the GIL, which games in Python keep for 5 ms by default
_ROUNDING = 1e-9  # so that ten times 0.1 is one update


class UpdateSchedule:
    """Counts transitions and tells how many updates they are worth.

    Per transition, what is learned from a transition does not depend on `num_envs`; fractions add up. Per round, a
    round of many sub-environments is worth no more than a round of one, which is faster and learns less from each
    transition.

    Args:
        per_transition: Updates for one transition.
        per_round: Updates for one step of the whole fleet, instead.
        warmup: Transitions before the first that counts.

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
        """Begin the warm-up anew, because what was remembered is forgotten; updates that are due stay due."""
        self._seen = 0

    def count(self, transitions: int) -> None:
        """Count one round."""
        self._seen += transitions
        self._due += self._rate * min(transitions, max(0, self._seen - self._warmup), self._most)

    def take(self) -> int:
        """Return how many updates are due; they are taken to be made."""
        due = math.floor(self._due + _ROUNDING)
        self._due -= due
        return due


class ReplayLearner:
    """Learns from a replay buffer, as many updates as the schedule says.

    Beside the games, a thread makes the updates that are due while rounds go on. Their batches are drawn when they fall
    due, and the agent acts by what they lead to once the next ones do. So what is learned does not depend on how long
    anything takes.

    Args:
        agent: Who learns.
        schedule: When.
        is_beside: Whether to learn beside the games, if the agent can.

    Attributes:
        num_updates: Updates that the agent acts by.
    """

    def __init__(self, agent: OffPolicyAgent[Any], schedule: UpdateSchedule, *, is_beside: bool = False) -> None:
        self._agent, self._schedule = agent, schedule
        self._executor = ThreadPoolExecutor(1) if is_beside and agent.can_learn_beside else None
        self._former_interval_s = sys.getswitchinterval()
        if self._executor is not None:
            sys.setswitchinterval(_SWITCH_INTERVAL_S)
        self._job: Future[Learnt] | None = None
        self.num_updates = agent.num_updates

    def learn(self) -> dict[str, float]:
        """Make the updates that are due, or have the thread make them after the last ones, which are acted by then.

        Returns:
            Figures of the updates that the agent acts by from now on; none if there were none.
        """
        count = self._schedule.take() if self._agent.is_ready else 0
        if not count:
            return {}
        if self._executor is None:
            figures = self._agent.update(count)
            self.num_updates = self._agent.num_updates
            return figures
        job = self._agent.learn_beside(self._agent.prepare(count), self._executor)  # before it runs out of work
        figures = self.finish()
        self._job = job
        return figures

    def finish(self) -> dict[str, float]:
        """Wait for the thread, and act by what it learned; return its figures."""
        if self._job is None:
            return {}
        learnt, self._job = self._job.result(), None
        self.num_updates = learnt.num_updates
        return self._agent.publish(learnt)

    def take(self, transitions: Transitions) -> dict[str, float]:
        """Remember the transitions; learning can wait until sub-environments are under way again."""
        self._schedule.count(len(transitions))
        self._agent.remember(transitions)
        return {}

    def cut(self, env_indices: NDArray[np.int64] | None = None) -> None:
        """End running episodes, of all sub-environments by default, as truncated after their last step."""
        self._agent.start_episodes(np.arange(self._agent.num_envs) if env_indices is None else env_indices)

    def end_phase(self) -> dict[str, float]:
        """Close running episodes, as all sub-environments are about to be reset, and make the updates that are due."""
        self.cut()
        return self.learn() or self.finish()

    def forget(self) -> None:
        """Empty the buffer; learning goes on once there is enough again."""
        self._agent.replay.clear()
        self._schedule.restart()

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` takes, once the thread is done."""
        learnt = None if self._job is None else self._job.result()  # until then the agent changes
        return {
            "agent": self._agent.state_dict("all"),
            "schedule": copy.copy(self._schedule),
            "num_updates": self.num_updates,
            "learnt": learnt,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the state of another."""
        self._agent.load_state_dict(state["agent"])
        self._schedule, self.num_updates = state["schedule"], state["num_updates"]
        self._job = None
        if state["learnt"] is not None:
            self._job = Future()
            self._job.set_result(state["learnt"])

    def close(self) -> None:
        """Wait for the thread, and end it."""
        if self._executor is not None:
            self._executor.shutdown()
            sys.setswitchinterval(self._former_interval_s)


class SlabLearner:
    """Learns from slabs of `num_steps` steps, each as soon as it is full: what acts next is the new policy.

    Steps of seats that the learner did not have are in a slab as if they were resets, which are nothing to learn from.

    Args:
        agent: Who learns.
        num_steps: Of all sub-environments.
    """

    def __init__(self, agent: SlabAgent[Any], num_steps: int) -> None:
        space: Any = agent.action_space
        self._agent, self._slabs = agent, SlabWriter(num_steps, agent.num_envs, agent.packing.space, space)

    @property
    def num_updates(self) -> int:
        """Updates that the agent made."""
        return self._agent.num_updates

    def learn(self) -> dict[str, float]:
        """Nothing: an update would change the policy in the middle of a slab."""
        return {}

    def take(self, transitions: Transitions) -> dict[str, float]:
        """Add the step to the slab, and learn from it once it is full."""
        self._slabs.add(transitions)
        return self._agent.update(self._slabs.take()) if self._slabs.is_full else {}

    def finish(self) -> dict[str, float]:
        """Nothing is under way."""
        return {}

    def cut(self, env_indices: NDArray[np.int64] | None = None) -> None:
        """End running episodes, of all sub-environments by default, as truncated after their last step."""
        self._slabs.cut(np.arange(self._agent.num_envs) if env_indices is None else env_indices)

    def end_phase(self) -> dict[str, float]:
        """Close running episodes, and learn from the part of a slab that there is."""
        self.cut()
        return self._agent.update(self._slabs.take()) if len(self._slabs) else {}

    def forget(self) -> None:
        """Nothing is remembered."""

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` takes."""
        return {"agent": self._agent.state_dict("all"), "slabs": copy.deepcopy(self._slabs)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the state of another."""
        self._agent.load_state_dict(state["agent"])
        self._slabs = state["slabs"]

    def close(self) -> None:
        """Nothing is under way."""


Learner = ReplayLearner | SlabLearner


def make_learner(agent: Agent[Any], config: RunConfig) -> Learner:
    """Return the way an agent learns."""
    training = config.training
    if isinstance(agent, SlabAgent):
        return SlabLearner(agent, training.rollout_steps)
    learning: Any = agent  # from a replay buffer: `find_agent` takes no third kind
    schedule = UpdateSchedule(
        per_transition=training.updates_per_step,
        per_round=training.updates_per_round,
        warmup=max(training.warmup_steps, learning.config.batch_size),
    )
    return ReplayLearner(learning, schedule, is_beside=training.learn_beside)
