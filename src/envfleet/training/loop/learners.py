"""How agents of either kind learn from the rounds of a run: from a replay buffer, or from slabs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envfleet.agents import Agent, OffPolicyAgent, Slab, SlabAgent, SlabWriter, Transitions, TransitionWriter
from envfleet.agents.off_policy import Learnt
from envfleet.agents.saving import as_array
from envfleet.errors import InvalidArgument, TrainingDiverged
from envfleet.training.arena.outcomes import ArenaStep
from envfleet.training.config import RunConfig
from envfleet.training.loop.schedule import UpdateSchedule


class Learner(Protocol):
    """What a run asks of either kind, in this order: `reset`, then in each round `learn` and `take`.

    Its agent acts in all seats of an arena, so those are its sub-environments.
    """

    @property
    def num_updates(self) -> int:
        """Updates that the agent acts by."""
        ...

    def reset(self, observations: NDArray[Any]) -> None:
        """Episodes begin everywhere."""
        ...

    def learn(self) -> dict[str, float]:
        """Make the updates that are due, while sub-environments step; figures, none if there were no updates."""
        ...

    def take(self, actions: NDArray[Any], step: ArenaStep) -> dict[str, float]:
        """Take in a step; figures of the updates that could not wait, likewise."""
        ...

    def finish(self) -> dict[str, float]:
        """Wait for updates that are under way, and have the agent be as they leave it; their figures."""
        ...

    def cut(self) -> None:
        """Close running episodes as if time had ended them; `reset` follows where others begin."""
        ...

    def end_phase(self) -> dict[str, float]:
        """Close running episodes, as all sub-environments are about to be reset; learn what is due."""
        ...

    def forget(self) -> None:
        """Forget what was remembered; learning goes on once there is enough again."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` takes, with the agent."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another was."""
        ...

    def close(self) -> None:
        """End what is under way."""
        ...


class ReplayLearner:
    """Learns from a replay buffer, as many updates as the schedule says.

    Beside the games, a thread makes the updates that are due while rounds go on. Their batches are drawn when they fall
    due, and the agent acts by what they lead to once the next ones do. So what is learned does not depend on how long
    anything takes.

    Args:
        agent: Who learns.
        schedule: When.
        is_beside: Whether to learn beside the games, if the agent can.
    """

    def __init__(self, agent: OffPolicyAgent[Any], schedule: UpdateSchedule, *, is_beside: bool = False) -> None:
        self._agent, self._schedule = agent, schedule
        self._writer = TransitionWriter(agent.num_envs, AutoresetMode.SAME_STEP)
        self._thread = ThreadPoolExecutor(1, "learner") if is_beside and agent.can_learn_beside else None
        self._job: Future[Learnt] | None = None
        self._num_updates = agent.num_updates

    @property
    def num_updates(self) -> int:
        """Updates that the agent acts by."""
        return self._num_updates

    def reset(self, observations: NDArray[Any]) -> None:
        """Episodes begin everywhere."""
        self._writer.reset(observations)

    def learn(self) -> dict[str, float]:
        """Make the updates that are due, or have the thread make them after the last ones, which are acted by then."""
        count = self._schedule.take() if self._agent.is_ready else 0
        if not count:
            return {}
        if self._thread is None:
            figures = check_finite(self._agent.update(count), self._agent)
            self._num_updates = self._agent.num_updates
            return figures
        job = self._thread.submit(self._agent.learn, self._agent.prepare(count))  # before the thread runs out of work
        figures = self.finish()
        self._job = job
        return figures

    def finish(self) -> dict[str, float]:
        """Wait for the thread, and act by what it learned."""
        if self._job is None:
            return {}
        learnt, self._job = self._job.result(), None
        self._num_updates = learnt.num_updates
        return check_finite(self._agent.publish(learnt), self._agent)

    def take(self, actions: NDArray[Any], step: ArenaStep) -> dict[str, float]:
        """Remember the transitions; learning can wait until sub-environments are under way again."""
        transitions = _transitions(self._writer, actions, step)
        self._schedule.count(len(transitions))
        self._agent.remember(transitions)
        return {}

    def cut(self) -> None:
        """Close running episodes."""
        self._agent.start_episodes(np.arange(self._agent.num_envs))

    def end_phase(self) -> dict[str, float]:
        """Close running episodes, and make the updates that are due."""
        self.cut()
        return self.learn() or self.finish()

    def forget(self) -> None:
        """Empty the buffer."""
        self._agent.replay.clear()
        self._schedule.restart()

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` takes, once the thread is done."""
        learnt = None if self._job is None else self._job.result()
        return {
            "agent": self._agent.state_dict("all"),
            "writer": self._writer.state_dict(),
            "schedule": self._schedule.state_dict(),
            "num_updates": self._num_updates,
            "learnt": None if learnt is None else list(learnt),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another was."""
        self._agent.load_state_dict(state["agent"])
        self._writer.load_state_dict(state["writer"])
        self._schedule.load_state_dict(state["schedule"])
        self._num_updates = state["num_updates"]
        if state["learnt"] is not None:
            figures, num_updates, acting = state["learnt"]
            self._job = Future()
            self._job.set_result(Learnt(figures, num_updates, as_array(acting)))

    def close(self) -> None:
        """Wait for the thread, and end it."""
        if self._thread is not None:
            self._thread.shutdown()


class SlabLearner:
    """Learns from slabs of `num_steps` steps, each as soon as it is full: what acts next is the new policy.

    Steps of seats that the learner did not have are in a slab as if they were resets, which are nothing to learn from.

    Args:
        agent: Who learns.
        num_steps: Of all sub-environments.
    """

    def __init__(self, agent: SlabAgent[Any], num_steps: int) -> None:
        self._agent, self._num_steps = agent, num_steps
        self._writer = TransitionWriter(agent.num_envs, AutoresetMode.SAME_STEP)
        self._slabs: SlabWriter | None = None
        self._current: NDArray[Any] = np.zeros(0)

    @property
    def num_updates(self) -> int:
        """Updates that the agent made."""
        return self._agent.num_updates

    def reset(self, observations: NDArray[Any]) -> None:
        """Episodes begin everywhere."""
        self._writer.reset(observations)
        self._current = np.array(observations)
        if self._slabs is None:
            space: Any = self._agent.action_space
            self._slabs = SlabWriter(self._num_steps, self._agent.num_envs, self._current[0], space)

    def learn(self) -> dict[str, float]:
        """Nothing: an update would change the policy in the middle of a slab."""
        return {}

    def take(self, actions: NDArray[Any], step: ArenaStep) -> dict[str, float]:
        """Add the step to the slab, and learn from it once it is full."""
        if self._slabs is None:
            raise InvalidArgument("take() before the first reset(): call reset(observations) first")
        happened = _transitions(self._writer, actions, step)
        self._slabs.add(self._current, actions, (step.rewards, step.terminated, step.truncated), happened)
        self._current = np.array(step.observations)
        return self._update(self._slabs) if self._slabs.is_full else {}

    def _update(self, slabs: SlabWriter) -> dict[str, float]:
        return check_finite(self._agent.update(_without_idle(slabs.take(self._current))), self._agent)

    def finish(self) -> dict[str, float]:
        """Nothing is under way."""
        return {}

    def cut(self) -> None:
        """Close running episodes."""
        if self._slabs is not None:
            self._slabs.cut(self._current)

    def end_phase(self) -> dict[str, float]:
        """Close running episodes, and learn from the part of a slab that there is."""
        if self._slabs is None or not len(self._slabs):
            return {}
        self.cut()
        return self._update(self._slabs)

    def forget(self) -> None:
        """Nothing is remembered."""

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` takes."""
        return {
            "agent": self._agent.state_dict("all"),
            "writer": self._writer.state_dict(),
            "slabs": None if self._slabs is None else self._slabs.state_dict(),
            "current": self._current.copy(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another was, after `reset`."""
        self._agent.load_state_dict(state["agent"])
        self._writer.load_state_dict(state["writer"])
        if self._slabs is not None and state["slabs"] is not None:
            self._slabs.load_state_dict(state["slabs"])
        self._current = as_array(state["current"])

    def close(self) -> None:
        """Nothing is under way."""


def make_learner(agent: Agent[Any], config: RunConfig) -> Learner:
    """Return the way an agent learns."""
    training = config.training
    if isinstance(agent, SlabAgent):
        return SlabLearner(agent, training.rollout_steps)
    if not isinstance(agent, OffPolicyAgent):
        raise InvalidArgument(
            f"{agent!r} has neither a replay buffer nor slabs: derive its class from OffPolicyAgent or SlabAgent"
        )
    schedule = UpdateSchedule(
        per_transition=training.updates_per_step,
        per_round=training.updates_per_round,
        warmup=max(training.warmup_steps, agent.config.batch_size),
    )
    return ReplayLearner(agent, schedule, is_beside=training.learn_beside)


def check_finite(figures: dict[str, float], agent: Agent[Any]) -> dict[str, float]:
    """Pass figures on if all of them are numbers.

    Raises:
        TrainingDiverged: One is not.
    """
    broken = [name for name, value in figures.items() if not math.isfinite(value)]
    if broken:
        raise TrainingDiverged(
            f"{broken[0]} is {figures[broken[0]]} after {agent.num_updates:,} updates of {agent.name}, expected a "
            "finite number: lower the learning rate or reward_scale, set max_grad_norm, or look for NaN in the "
            "environment's rewards"
        )
    return figures


def _transitions(writer: TransitionWriter, actions: NDArray[Any], step: ArenaStep) -> Transitions:
    """Return those of the learner's seats; the writer goes on in all of them, as any may be the learner's next."""
    happened = writer.step(
        actions,
        step.observations,
        step.rewards,
        step.terminated,
        step.truncated,
        step.infos,
        final_observations=step.final_observations,
    )
    if len(step.seats) == len(happened):
        return happened
    return Transitions(**{name: column[step.seats] for name, column in vars(happened).items()})


def _without_idle(slab: Slab) -> Slab:
    """Return a slab without the seats that the learner never had while it was played."""
    is_used = ~slab.is_reset.all(axis=0)
    if is_used.all():
        return slab
    names = ("observations", "actions", "rewards", "terminated", "truncated", "is_reset")
    columns = {name: getattr(slab, name)[:, is_used] for name in names}
    places = np.cumsum(is_used) - 1
    return dataclasses.replace(
        slab, **columns, last_observations=slab.last_observations[is_used], ended_rows=places[slab.ended_rows]
    )
