"""What every remote fleet has: where it lives, a lifecycle, and what can be read off it."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Self

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from envfleet.core.episodes import Episodes
from envfleet.core.fleet_base import Lifecycle
from envfleet.core.stats import FleetStats, Plan
from envfleet.errors import CallPending, FleetClosed, InvalidArgument, ResetNeeded
from envfleet.remote.exchange import Exchange, Shard
from envfleet.remote.gathering import final_leaves, read_letter
from envfleet.remote.outbox import Outbox


@dataclasses.dataclass(frozen=True)
class RemoteStats(FleetStats):
    """What a remote fleet did, and what went over the network.

    Attributes:
        requests: Requests sent, repetitions included.
        retries: Repetitions, since no answer came or the service asked for them.
        sent_bytes: Of bodies.
        received_bytes: Likewise.
    """

    requests: int = 0
    retries: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0


class RemoteFleetBase(VectorEnv[Any, Any, Any]):
    """The lifecycle of a remote fleet and what can be read off it; see `RemoteFleet`.

    Args:
        shards: The parts, in the order of their sub-environments.
        described: What the services say of it; the same of all parts.
        batch_size: Rows that `recv` waits for; `None` for all.
    """

    def __init__(self, shards: Sequence[Shard], described: Mapping[str, Any], batch_size: int | None = None) -> None:
        self._state, self.closed = Lifecycle.CLOSED, True  # until everything is there
        self._exchange = Exchange(shards)
        self._outbox = Outbox(shards, self._exchange.crew, read_letter)
        self._observation_layout, self._action_layout = shards[0].observations, shards[0].actions
        self.num_envs = shards[-1].span.stop
        self._every = np.arange(self.num_envs)
        self.batch_size = self.num_envs if batch_size is None else batch_size
        self.autoreset_mode = AutoresetMode[described["autoreset_mode"]]
        self.env_id, self.mode = str(described["env"]), str(described["mode"])
        self.options: dict[str, Any] = dict(described["options"])
        self.single_observation_space = self._observation_layout.space
        self.single_action_space = self._action_layout.space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.render_mode: str | None = self.options.get("render_mode")
        render_modes = [] if self.render_mode is None else [self.render_mode]
        self.metadata = {"autoreset_mode": self.autoreset_mode, "render_modes": render_modes}
        self.spec = gym.registry.get(self.env_id)  # what the service calls by this id may not be installed here
        self._episodes = Episodes(self.num_envs, self.autoreset_mode)
        self._leaves = [np.zeros((self.num_envs, *leaf.shape), leaf.dtype) for leaf in self._observation_layout.leaves]
        self._finals: tuple[NDArray[Any], NDArray[np.int64]] = (np.zeros(self.num_envs, object), np.zeros(0, np.int64))
        self._seeds: list[int | None] = [None] * self.num_envs
        self._steps, self._wait_s, self._copy_s = 0, 0.0, 0.0
        self._is_sent = False
        self._state, self.closed = Lifecycle.NEW, False

    def _check(self, verb: str, *, is_started: bool = True, is_idle: bool = True) -> None:
        """Check that `verb` may be called now.

        Raises:
            FleetClosed: After `close`.
            CallPending: What was sent was not received, unless that is what `is_idle=False` allows.
            FleetBroken: A reset was not answered; likewise.
            ResetNeeded: Before the first reset.
        """
        if self._state is Lifecycle.CLOSED:
            raise FleetClosed(f"{verb}() on a fleet that was closed: make a new one")
        if self._is_sent:
            raise CallPending(f"{verb}() while a step is under way: call recv() first")
        if is_idle and not self._outbox.is_empty:
            self._outbox.check_idle(range(self.num_envs))
        if is_started and self._state is Lifecycle.NEW:
            raise ResetNeeded(f"{verb}() before the first reset: call reset() first")

    @property
    def episode_ids(self) -> NDArray[np.int64]:
        """Number of each running episode, `(num_envs,)`: `i + num_envs * (episodes before it)`; -1 before any."""
        return self._episodes.ids

    @property
    def episode_returns(self) -> NDArray[np.float64]:
        """Sum of rewards of each running episode so far, `(num_envs,)`."""
        return self._episodes.returns

    @property
    def episode_lengths(self) -> NDArray[np.int64]:
        """Steps of each running episode so far, `(num_envs,)`."""
        return self._episodes.lengths

    @property
    def terminated_indices(self) -> list[int]:
        """Sub-environments whose episode has ended (terminated or truncated) and that await a reset."""
        ended: list[int] = np.flatnonzero(self._episodes.ended).tolist()
        return ended

    @property
    def active_count(self) -> int:
        """How many sub-environments are in the middle of an episode."""
        return 0 if self._state is Lifecycle.NEW else self.num_envs - len(self.terminated_indices)

    @property
    def env_indices(self) -> range:
        """Which sub-environments these are: all."""
        return range(self.num_envs)

    @property
    def final_observations(self) -> Any:
        """Last observations of the episodes that ended in the last step, batched as observations are.

        Valid where that step returned `terminated | truncated`, zeros elsewhere.

        Raises:
            InvalidArgument: The autoreset mode is not `SAME_STEP`, the only one that hides them.
        """
        if self.autoreset_mode is not AutoresetMode.SAME_STEP:
            raise InvalidArgument(
                f"final_observations with autoreset_mode={self.autoreset_mode.name}: only SAME_STEP hides the last "
                "observation of an episode; in the other modes step() returns it"
            )
        return self._observation_layout.batch(final_leaves(self._observation_layout, *self._finals))

    @property
    def services(self) -> tuple[str, ...]:
        """The addresses of the services that hold it, in the order of their sub-environments."""
        return tuple(shard.link.url for shard in self._exchange.shards)

    @property
    def fleet_ids(self) -> tuple[str, ...]:
        """What each service calls its part."""
        return tuple(shard.fleet_id for shard in self._exchange.shards)

    @property
    def plan(self) -> Plan:
        """How the sub-environments are spread, and why."""
        spans = tuple(len(shard.span) for shard in self._exchange.shards)
        return Plan("remote", len(spans), spans, f"held by {', '.join(self.services)}")

    def stats(self) -> RemoteStats:
        """What the fleet did so far, where the time went, and what went over the network."""
        links = [shard.link for shard in self._exchange.shards]
        total_s = self._wait_s + self._copy_s
        return RemoteStats(
            steps=self._steps,
            steps_per_s=self._steps / total_s if total_s else 0.0,
            step_s=0.0,
            wait_s=self._wait_s,
            copy_s=self._copy_s,
            busy_s=0.0,
            restarts=0,
            workers=(),
            requests=sum(link.requests for link in links),
            retries=sum(link.retries for link in links),
            sent_bytes=sum(link.sent_bytes for link in links),
            received_bytes=sum(link.received_bytes for link in links),
        )

    def __repr__(self) -> str:
        count = "1 sub-environment" if self.num_envs == 1 else f"{self.num_envs:,} sub-environments"
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return (
            f"<{type(self).__name__} {self.env_id}{options}: {count} at {', '.join(self.services)}, "
            f"{self.autoreset_mode.name}, {self.mode}, {self._state.value}>"
        )

    def close(self, **kwargs: Any) -> None:
        """Close the fleet at the services, and the connections; idempotent.

        A service that cannot be reached is told by a `RuntimeWarning`; it closes its part when that has been idle.
        """
        if self._state is not Lifecycle.CLOSED:
            self._state = Lifecycle.CLOSED
            self.closed = True
            self._exchange.close(self._outbox.await_end)

    def __enter__(self) -> Self:
        """Return the fleet itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close the fleet."""
        self.close()

    def __del__(self) -> None:
        """Warn of a fleet that nobody closed."""
        if not getattr(self, "closed", True):
            warnings.warn(
                f"{self!r} was not closed: call close() or use `with`", ResourceWarning, stacklevel=2, source=self
            )
