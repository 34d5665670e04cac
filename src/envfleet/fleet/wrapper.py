"""Engine that passes everything on to another engine; base class of those that change or observe some calls."""

from __future__ import annotations

from typing import Any

from envfleet.errors import Failure
from envfleet.fleet.engine import Answer, Batch, Engine, Pending, Request, Rows, StepResult
from envfleet.fleet.episodes import EndedEpisodes, EpisodeStatus
from envfleet.fleet.lifecycle import Lifecycle
from envfleet.fleet.stats import FleetStats


class EngineWrapper(Engine):
    """Engine around another one.

    Args:
        engine: Engine of the sub-environments; closed with this one.

    Attributes:
        inner: That engine.
    """

    def __init__(self, engine: Engine) -> None:
        self.inner, self.traits, self.copy = engine, engine.traits, engine.copy

    def step(self, actions: Any) -> StepResult:
        """Step every sub-environment once."""
        return self.inner.step(actions)

    def send(self, actions: Any, rows: Rows | None = None) -> None:
        """Start to step `rows`, or all."""
        self.inner.send(actions, rows)

    def collect(self, count: int | None = None, rows: Rows | None = None, timeout_s: float | None = None) -> Batch:
        """Return the results of steps that were sent."""
        return self.inner.collect(count, rows, timeout_s)

    def submit(self, request: Request[Answer]) -> Pending[Answer]:
        """Start a request."""
        return self.inner.submit(request)

    def rollout(self, policy: Any, num_steps: int, seed: int | None, out: Any) -> Any:
        """Step `num_steps` times in one call."""
        return self.inner.rollout(policy, num_steps, seed, out)

    def observe(self, rows: Rows | None = None, *, final: bool = False) -> Any:
        """Return the last observations of `rows`, or all; with `final` the last ones of the ended episodes."""
        return self.inner.observe(rows, final=final)

    def episodes(self) -> EpisodeStatus:
        """Return the current state of every episode; returns are those of the environment."""
        return self.inner.episodes()

    def ended_episodes(self) -> EndedEpisodes:
        """Return the episodes that ended in the last step; returns are those of the environment."""
        return self.inner.ended_episodes()

    def count_ended(self) -> int:
        """Return how many episodes have ended and await a reset."""
        return self.inner.count_ended()

    @property
    def is_stuck(self) -> bool:
        """Return whether pending steps may never finish."""
        return self.inner.is_stuck

    def state_after(self, error: BaseException) -> Lifecycle | None:
        """Return the state of the fleet after a request that raised `error`."""
        return self.inner.state_after(error)

    def describe(self) -> str:
        """Return a description of the inner engine."""
        return self.inner.describe()

    def look(self, *, stacks: bool = False) -> FleetStats:
        """Return statistics."""
        return self.inner.look(stacks=stacks)

    def abort(self) -> None:
        """Abort pending work by force, if that is possible."""
        self.inner.abort()

    def close(self, timeout_s: float) -> list[Failure]:
        """Release all resources; return the exceptions of sub-environments."""
        return self.inner.close(timeout_s)
