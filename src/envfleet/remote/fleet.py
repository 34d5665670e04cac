"""A fleet behind a service: resets and steps go over the network, one request for all it is about."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.core.requests import check_rows
from envfleet.core.sending import Batch
from envfleet.errors import CallTimeout, NothingPending
from envfleet.remote.stepping import SteppedRemoteFleet


class RemoteFleet(SteppedRemoteFleet):
    """Many sub-environments behind one or several services; made by `envfleet.connect`.

    A `gymnasium.vector.VectorEnv` with partial resets, `send` and `recv`, saved states and episode statistics. Same
    environment, seeds and actions give what a local fleet gives, to the bit. A request that is not answered is sent
    again until it is, and never makes a step twice. Not thread-safe: one thread at a time may use it.

    Args:
        shards: The parts, in the order of their sub-environments.
        described: What the services say of it; the same of all parts.
        batch_size: Rows that `recv` waits for; `None` for all.

    Attributes:
        env_id: Of the environment, as the service has it.
        mode: `"training"` or `"ranked"`.
        options: Arguments of the environment.
    """

    def send(self, actions: Any, env_indices: Sequence[int] | NDArray[np.integer[Any]] | None = None) -> None:
        """Start stepping without waiting; `recv` waits for what comes of it.

        A service makes the calls of a fleet one after the other, and tells of all rows of a call at once.

        Args:
            actions: One action per entry of `env_indices`, in the form of `action_space`.
            env_indices: Whom to step; `None` for all. None of them may be under way already.

        Raises:
            InvalidArgument: Actions of a wrong shape or type; nothing was stepped.
            CallPending: One of them is under way: `recv` it first.
            ResetNeeded: Before the first reset, or an episode has ended and autoreset is disabled.
        """
        if env_indices is None and self.batch_size == self.num_envs:
            self._exchange.start("step", self._asked("send", actions))
            self._is_sent = True
            return
        rows = self._every if env_indices is None else check_rows(env_indices, self.num_envs)
        self._check("send", is_idle=False)
        self._outbox.check_idle(rows.tolist())
        self._refuse_ended(rows)
        self._exchange.check_settled()
        start_s = time.perf_counter()
        self._outbox.send(self._letters(actions, rows))
        self._copy_s += time.perf_counter() - start_s

    def recv(self, timeout_s: float | None = None) -> Batch:
        """Wait until `batch_size` sub-environments have stepped, or all that are under way if those are fewer.

        Those that became ready first come first, so none waits for ever. If `batch_size` is `num_envs`, the rows of a
        full batch are in the order of the sub-environments.

        Args:
            timeout_s: How long to wait; `None` for as long as the fleet's patience lasts.

        Raises:
            NothingPending: Nothing was sent.
            CallTimeout: They did not come in time. Nothing is lost: call again.
            ServiceUnreachable: No answer came. What was sent to all with `batch_size=num_envs` is to be sent again;
                else call `recv` again. Either way it is not stepped twice.
            ServiceRefused: The service does not want to; those that were refused are not under way any more.
        """
        return self._recv_all(timeout_s) if self._is_sent else self._recv_some(timeout_s)

    def _recv_all(self, timeout_s: float | None) -> Batch:
        start_s = time.perf_counter()
        try:
            replies = self._exchange.finish(timeout_s)
        except CallTimeout:
            raise
        except BaseException:
            self._is_sent = False
            raise
        finally:
            self._wait_s += time.perf_counter() - start_s
        self._is_sent = False
        return Batch(*self._finish_step(replies), self._every.copy())

    def _recv_some(self, timeout_s: float | None) -> Batch:
        self._check("recv", is_idle=False)
        if not self._outbox.under_way:
            raise NothingPending("recv() with nothing under way: call send(actions) first")
        start_s = time.perf_counter()
        try:
            taken = self._outbox.take(min(self.batch_size, len(self._outbox.under_way)), timeout_s)
        finally:
            taken_s = time.perf_counter()
            self._wait_s += taken_s - start_s
        which = np.concatenate([letter.rows[places] for letter, places in taken])
        order = np.argsort(which) if len(which) == self.num_envs else np.arange(len(which))
        targets, parts, first = np.argsort(order), [], 0
        for letter, places in taken:
            parts.append((letter.answer.take(places), targets[first : first + len(places)]))
            first += len(places)
        step = self._tell(parts, which[order])
        self._copy_s += time.perf_counter() - taken_s
        return Batch(*step, which[order])
