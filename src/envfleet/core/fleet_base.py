"""What every fleet has: a lifecycle, and what can be read off it."""

from __future__ import annotations

import enum
import warnings
from typing import Any, Self

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from envfleet.core.engine import CLOSE_TIMEOUT_S, Call, Engine
from envfleet.core.recycling import make_recycler
from envfleet.core.rows import Rows
from envfleet.core.sending import SendQueue
from envfleet.core.stats import FleetStats, Plan
from envfleet.errors import CallPending, FleetClosed, InvalidArgument, ResetNeeded


class Lifecycle(enum.Enum):
    """Where a fleet stands."""

    NEW = "not reset yet"
    READY = "ready"
    SPLIT = "split into parts"
    CLOSED = "closed"


def name_call(verb: str) -> str:
    """A call as messages name it: `reset()`, or `reset() with a mask` for the verb "reset with a mask"."""
    name, *more = verb.split(" ", 1)
    return " ".join([f"{name}()", *more])


class FleetBase(VectorEnv[Any, Any, Any]):
    """The lifecycle of a fleet and what can be read off it; see `Fleet`.

    Args:
        engine: The workers.
        indices: Which of the engine's sub-environments are this fleet's; `None` for all.
        owner: The fleet this is a part of, if it is one.
    """

    def __init__(self, engine: Engine, indices: range | None = None, owner: FleetBase | None = None) -> None:
        self._engine, self._owner = engine, owner
        self._rows = rows = Rows(engine, range(engine.spec.num_envs) if indices is None else indices)
        self._state = Lifecycle.NEW
        self._recycler = make_recycler(engine)
        self._queue = SendQueue(rows, self._recycler)
        self._step_call: Call | None = None
        options, spec, info = engine.options, engine.spec, engine.infos[0]
        self.num_envs = rows.num_envs
        self.batch_size = min(options.batch_size, self.num_envs)
        self.single_observation_space, self.single_action_space = spec.observation_space, spec.action_space
        self.observation_space = engine.batched_space(rows.indices)
        self.action_space = gym.vector.utils.batch_space(spec.action_space, self.num_envs)
        self.metadata = {**info.metadata, "autoreset_mode": options.autoreset_mode}
        self.spec, self.render_mode = info.spec, info.render_mode

    @property
    def _is_busy(self) -> bool:
        """Whether something sent is under way."""
        return self._step_call is not None or bool(self._queue.under_way)

    def _check(self, verb: str, is_idle: bool = True, is_started: bool = False) -> None:
        """Check that `verb` may be called now.

        Raises:
            FleetClosed: After `close` or `split`.
            FleetBroken: After a failure that was not repaired.
            CallPending: While something sent is under way, unless that is what `is_idle=False` allows.
            ResetNeeded: Before the first reset, for what needs one.
        """
        if self._state is Lifecycle.READY and self._engine.is_sound and not self._is_busy:
            return
        call = name_call(verb)
        if self._state is Lifecycle.CLOSED or self._engine.is_closed:
            raise FleetClosed(f"{call} on a fleet that was closed: make a new one")
        self._engine.check_usable()
        if self._state is Lifecycle.SPLIT:
            raise FleetClosed(f"{call} on a fleet that was split: use its parts, and this one only to close them all")
        if is_idle and self._is_busy:
            raise CallPending(f"{call} while sub-environments are under way: call recv() until it returned them all")
        if is_started and self._state is Lifecycle.NEW:
            raise ResetNeeded(f"{call} before the first reset: call reset() first")
        if is_started and self._engine.is_torn:
            raise ResetNeeded(f"{call} after a call that was interrupted: call reset() first")

    @property
    def plan(self) -> Plan:
        """How the sub-environments are spread, and why."""
        return self._engine.plan

    @property
    def episode_ids(self) -> NDArray[np.int64]:
        """Number of each running episode, `(num_envs,)`, unique in the fleet; -1 before the first reset.

        The `k`-th episode of sub-environment `i`, counted from 0, is `i + k * num_envs`, whatever the others do.
        """
        return self._rows.episodes.ids

    @property
    def episode_returns(self) -> NDArray[np.float64]:
        """Sum of rewards of each running episode so far, `(num_envs,)`."""
        return self._rows.episodes.returns

    @property
    def episode_lengths(self) -> NDArray[np.int64]:
        """Steps of each running episode so far, `(num_envs,)`."""
        return self._rows.episodes.lengths

    @property
    def terminated_indices(self) -> list[int]:
        """Sub-environments whose episode has ended (terminated or truncated) and that await a reset."""
        ended: list[int] = np.flatnonzero(self._rows.episodes.ended).tolist()
        return ended

    @property
    def active_count(self) -> int:
        """How many sub-environments are in the middle of an episode."""
        return 0 if self._state is Lifecycle.NEW else self.num_envs - len(self.terminated_indices)

    @property
    def final_observations(self) -> Any:
        """Last observations of the episodes that ended in the last step, batched as observations are.

        Valid where that step returned `terminated | truncated`.

        Raises:
            InvalidArgument: The autoreset mode is not `SAME_STEP`, the only one that hides them.
        """
        mode = self._engine.options.autoreset_mode
        if mode is not AutoresetMode.SAME_STEP:
            raise InvalidArgument(
                f"final_observations with autoreset_mode={mode.name}: only SAME_STEP hides the last observation of an "
                "episode; in the other modes step() returns it"
            )
        return self._rows.final_observations()

    def stats(self) -> FleetStats:
        """What the fleet did so far, and where the time went."""
        workers = tuple(self._engine.worker_stats(worker) for worker in self._rows.workers)
        busy_s = sum(worker.busy_s for worker in workers)
        steps, wait_s = self._rows.clock.steps, self._rows.clock.wait_s
        is_inline = self.plan.backend == "serial"
        # Of the one worker that the parts of a serial fleet share, each has its share of the steps.
        step_s = busy_s * min(steps / max(sum(worker.steps for worker in workers), 1), 1.0) if is_inline else 0.0
        copy_s = max(self._rows.clock.own_s - step_s, 0.0)
        total_s = copy_s + (step_s if is_inline else wait_s)
        return FleetStats(
            steps=steps,
            steps_per_s=steps / total_s if total_s else 0.0,
            step_s=step_s,
            wait_s=0.0 if is_inline else wait_s,
            copy_s=copy_s,
            busy_s=busy_s,
            restarts=sum(self._engine.budget.spent[worker] for worker in self._rows.workers),
            workers=workers,
        )

    def stacks(self) -> dict[int, str]:
        """The Python stack of every worker, now: worker -> text. Works while workers are stuck."""
        if self._engine.is_closed:
            raise FleetClosed("stacks() on a fleet that was closed: make a new one")
        return {worker: self._engine.stack(worker) for worker in self._rows.workers}

    def __repr__(self) -> str:
        name = self.spec.id if self.spec is not None else "custom environment"
        mode = self._engine.options.autoreset_mode.name
        where, note = self.plan.describe(), self._engine.transport.note
        if note:
            where = f"{where} ({note})"
        if self._owner is not None:
            where = f"part {self._rows.indices.start}–{self._rows.indices.stop - 1} of {where}"
        count = "1 sub-environment" if self.num_envs == 1 else f"{self.num_envs} sub-environments"
        return f"<{type(self).__name__} {name}: {count}, {where}, {mode}, {self._state.value}>"

    def close(self, timeout: float | None = None, terminate: bool = False, **kwargs: Any) -> None:
        """Close every sub-environment and end the workers; idempotent. A part only stops being usable.

        Args:
            timeout: Seconds for the workers to close their sub-environments (default 10), before they are ended by
                force.
            terminate: End them by force at once.
            **kwargs: Ignored; Gymnasium's wrappers pass theirs on.

        Raises:
            SubEnvError: A sub-environment raised in `close`; everything is released by then.
        """
        if self._state is Lifecycle.CLOSED:
            return
        self._state = Lifecycle.CLOSED
        self.closed = True
        if self._owner is None:
            self._engine.close(0.0 if terminate else CLOSE_TIMEOUT_S if timeout is None else timeout)

    def __enter__(self) -> Self:
        """Return the fleet itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close the fleet."""
        self.close()

    def __del__(self) -> None:
        """Warn of a fleet that nobody closed; its workers are ended by the engine's finalizer."""
        if getattr(self, "_owner", self) is None and self._state is not Lifecycle.CLOSED:
            warnings.warn(
                f"{self!r} was not closed: call close() or use `with`", ResourceWarning, stacklevel=2, source=self
            )
