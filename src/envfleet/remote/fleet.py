"""A fleet behind a service: resets and steps go over the network, one request for all sub-environments."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envfleet.core.fleet_base import Lifecycle
from envfleet.core.requests import check_mask, check_rows, check_seeds
from envfleet.core.rows import StepResult
from envfleet.core.sending import Batch
from envfleet.errors import CallTimeout, InvalidArgument, NothingPending, ResetNeeded
from envfleet.remote.exchange import Fields, Shard
from envfleet.remote.fleet_base import RemoteFleetBase
from envfleet.remote.gathering import Part, merge_infos, own_tree, read_array, read_infos, read_leaves
from envfleet.transports.packing import shrink

_LARGEST_SEED = 2**62 - 1
Reply = dict[str, Any]


class RemoteFleet(RemoteFleetBase):
    """Many sub-environments behind one or several services; made by `envfleet.connect`.

    A `gymnasium.vector.VectorEnv` with partial resets, `send` and `recv`, and episode statistics. Same environment,
    seeds and actions give what a local fleet gives, to the bit. A request that is not answered is sent again until it
    is, and never makes a step twice. Not thread-safe: one thread at a time may use it.

    Args:
        shards: The parts, in the order of their sub-environments.
        described: What the services say of it; the same of all parts.

    Attributes:
        env_id: Of the environment, as the service has it.
        mode: `"training"` or `"ranked"`.
        options: Arguments of the environment.
    """

    # ------------------------------------------------------------------ reset

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset every sub-environment, or those in `options["reset_mask"]`.

        Args:
            seed: An int seeds sub-environment `i` with `seed + i`; a sequence gives one seed (or `None`) each. Ranked
                fleets take none: the service draws them.
            options: `"reset_mask"`: a bool array `(num_envs,)` of those to reset; services take no other.

        Returns:
            Observations of all sub-environments (those not reset: their last ones) and the infos of the resets.

        Raises:
            InvalidArgument: Seeds, mask or options that cannot be.
            ServiceUnreachable: No answer came; the same call may be made again.
            ServiceRefused: The service does not want to.
        """
        unknown = set(options or {}) - {"reset_mask"}
        if unknown:
            raise InvalidArgument(
                f"options has {min(unknown)!r}, expected 'reset_mask' alone: a service takes the environment's own "
                "options when the fleet is made, as arguments of connect()"
            )
        rows = None
        if options:
            rows = np.flatnonzero(check_mask(options["reset_mask"], self.num_envs))
            rows = None if len(rows) == self.num_envs else rows
        if not isinstance(seed, (int, np.integer)) or isinstance(seed, bool):
            seeds = check_seeds(seed, self.num_envs)
            seed = None if seed is None else seeds if rows is None else [seeds[row] for row in rows]
        infos = self._reset_rows(rows, seed, [] if rows is None else rows)
        return self._observe(), infos

    def reset_envs(
        self, indices: Sequence[int] | NDArray[np.integer[Any]], seeds: Sequence[int | None] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset some sub-environments.

        Args:
            indices: Which; all of them, if there was no reset yet.
            seeds: One for each, or `None`.

        Returns:
            Their observations and infos, aligned with `indices`.
        """
        rows = check_rows(indices, self.num_envs)
        given = None if seeds is None else check_seeds(list(seeds), len(rows))
        infos = self._reset_rows(rows, given, np.arange(len(rows)), size=len(rows))
        return self._observation_layout.batch([leaf[rows] for leaf in self._leaves]), infos

    def _reset_rows(
        self, rows: NDArray[np.int64] | None, seeds: Any, places: Any, size: int | None = None
    ) -> dict[str, Any]:
        """Reset `rows`, or all; `places` are their rows in the infos that are returned, of `size` rows."""
        _check_largest(seeds)
        self._check("reset", is_started=rows is not None and len(rows) < self.num_envs)
        if rows is None and self._exchange.is_open:
            self._exchange.catch_up()
        asked, chosen = [], []
        for shard in self._exchange.shards:
            positions = _positions(rows, shard.span)
            if len(positions):
                asked.append((shard, _reset_fields(shard, rows, seeds, positions)))
                chosen.append(positions)
        start_s = time.perf_counter()
        replies = self._exchange.run("reset", asked)
        self._wait_s += time.perf_counter() - start_s
        parts: list[Part] = []
        leaves = [leaf.copy() for leaf in self._leaves]
        for (shard, _), positions, reply in zip(asked, chosen, replies, strict=True):
            targets = positions if rows is None else rows[positions]
            found = read_leaves(reply.get("observations"), shard.observations, len(positions))
            for leaf, values in zip(leaves, found, strict=True):
                leaf[targets] = values
            parts.append((read_infos(reply, len(positions)), positions if rows is None else places[positions]))
        self._exchange.settle()
        self._leaves = leaves
        self._episodes.on_reset(rows)
        self._state = Lifecycle.READY
        return merge_infos(parts, self.num_envs if size is None else size)

    # ------------------------------------------------------------------ step

    def step(self, actions: Any) -> StepResult:
        """Step every sub-environment once.

        Args:
            actions: One action per sub-environment, in the form of `action_space`.

        Returns:
            Observations, rewards (float64), terminated, truncated, each with leading dimension `num_envs`, and infos;
            the caller's own.

        Raises:
            InvalidArgument: Actions of a wrong shape or type; nothing was stepped.
            ResetNeeded: Before the first reset, or (`AutoresetMode.DISABLED`) with an episode that has ended.
            ServiceUnreachable: No answer came in time. Call again with the same actions: they are not stepped twice.
            ServiceRefused: The service does not want to, as when a quota is used up; `reason` says why.
            WireError: The answer is not one of an envfleet service.
        """
        asked = self._asked(actions)
        start_s = time.perf_counter()
        replies = self._exchange.run("step", asked)
        self._wait_s += time.perf_counter() - start_s
        return self._finish_step(replies)

    def send(self, actions: Any) -> None:
        """Start a step of every sub-environment without waiting; `recv` waits for what comes of it.

        Args:
            actions: As for `step`.

        Raises:
            CallPending: What was sent before was not received.
        """
        self._exchange.start("step", self._asked(actions))
        self._is_sent = True

    def recv(self, timeout_s: float | None = None) -> Batch:
        """Wait for what was sent, all sub-environments in order.

        Args:
            timeout_s: How long to wait; `None` for as long as the fleet's patience lasts.

        Raises:
            NothingPending: Nothing was sent.
            CallTimeout: It did not come in time. Nothing is lost: call again.
            ServiceUnreachable: As `step`; send the same actions again.
        """
        if not self._is_sent:
            self._check("recv")
            raise NothingPending("recv() with nothing under way: call send(actions) first")
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
        return Batch(*self._finish_step(replies), np.arange(self.num_envs))

    def _asked(self, actions: Any) -> list[tuple[Shard, Fields]]:
        self._check("step")
        start_s = time.perf_counter()
        if self.autoreset_mode is AutoresetMode.DISABLED and self._episodes.has_ended:
            ended = self.terminated_indices
            raise ResetNeeded(
                f"the episodes of sub-environments {ended[:10]}{' …' if len(ended) > 10 else ''} have ended and "
                'autoreset is disabled: reset them with reset(options={"reset_mask": mask}) or '
                "reset_envs(fleet.terminated_indices)"
            )
        layout = self._action_layout
        leaves, _ = layout.unbatch(actions, self.num_envs)
        small = [shrink(leaf) for leaf in leaves]
        asked: list[tuple[Shard, Fields]] = []
        for shard in self._exchange.shards:
            rows = slice(shard.span.start, shard.span.stop)
            asked.append((shard, {"actions": layout.batch([leaf[rows] for leaf in small])}))
        self._copy_s += time.perf_counter() - start_s
        return asked

    def _finish_step(self, replies: Sequence[Reply]) -> StepResult:
        start_s = time.perf_counter()
        shards = self._exchange.shards
        found, rewards, flags = [], [], []
        parts: list[Part] = []
        for shard, reply in zip(shards, replies, strict=True):
            count = len(shard.span)
            found.append(read_leaves(reply.get("observations"), shard.observations, count))
            rewards.append(read_array(reply, "rewards", (count,), np.float64))
            flags.append([read_array(reply, name, (count,), np.bool_) for name in ("terminated", "truncated")])
            parts.append((read_infos(reply, count), np.arange(shard.span.start, shard.span.stop)))
        infos = merge_infos(parts, self.num_envs)
        self._own_finals(infos)
        self._exchange.settle()
        self._leaves = [np.concatenate(leaf) if len(leaf) > 1 else leaf[0] for leaf in zip(*found, strict=True)]
        terminated, truncated = (np.concatenate(each) for each in zip(*flags, strict=True))
        rewards_all = np.concatenate(rewards)
        ended = self._episodes.on_step(rewards_all, terminated, truncated)
        for name in ("episode", "_episode"):
            infos.pop(name, None)
        if ended is not None:
            infos["episode"], infos["_episode"] = ended.entry()
        self._steps += self.num_envs
        observations = self._observe()
        self._copy_s += time.perf_counter() - start_s
        return observations, rewards_all, terminated, truncated, infos

    def _own_finals(self, infos: dict[str, Any]) -> None:
        """Give last observations the form of their space, and keep them for `final_observations`."""
        finals = infos.get("final_obs")
        if finals is None:
            self._finals = self._finals[0], np.zeros(0, np.int64)
            return
        rows = np.flatnonzero(infos["_final_obs"])
        for row in rows.tolist():
            finals[row] = own_tree(self._observation_layout, finals[row])
        self._finals = finals.copy(), rows

    def _observe(self) -> Any:
        """The last observations of all sub-environments; the caller's own."""
        return self._observation_layout.batch([leaf.copy() for leaf in self._leaves])


def _positions(rows: NDArray[np.int64] | None, span: range) -> NDArray[np.int64]:
    """Where in `rows` those of a shard are; of all rows, if they are `None`."""
    if rows is None:
        return np.arange(span.start, span.stop)
    return np.flatnonzero((rows >= span.start) & (rows < span.stop))


def _reset_fields(shard: Shard, rows: NDArray[np.int64] | None, seeds: Any, positions: NDArray[np.int64]) -> Fields:
    if isinstance(seeds, list):
        seeds = [seeds[k] for k in positions.tolist()]
    elif seeds is not None:
        seeds = int(seeds) + shard.span.start
    local = None if rows is None else rows[positions] - shard.span.start
    return {"rows": local, "seeds": seeds}


def _check_largest(seeds: Any) -> None:
    given = [seed for seed in (seeds if isinstance(seeds, list) else [seeds]) if seed is not None]
    if given and not 0 <= min(given) <= max(given) <= _LARGEST_SEED:
        raise InvalidArgument(f"seed={min(given) if min(given) < 0 else max(given)}: pass ints from 0 to 2**62 - 1")
