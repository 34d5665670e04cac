"""Resets and steps of a remote fleet: one request for all sub-environments that a service holds."""

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
from envfleet.errors import InvalidArgument, ResetNeeded
from envfleet.packing.values import shrink
from envfleet.remote.exchange import Fields, Shard
from envfleet.remote.gathering import Part, ReplyRows, gather, merge_infos, own_tree, read_letter, read_rows
from envfleet.remote.outbox import Letter
from envfleet.remote.sub_env_access import RemoteSubEnvAccess

_LARGEST_SEED = 2**62 - 1
Reply = dict[str, Any]


class SteppedRemoteFleet(RemoteSubEnvAccess):
    """A remote fleet that is reset and stepped as a whole, or reset in parts; see `RemoteFleet`."""

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
        options = options or {}
        if set(options) - {"reset_mask"}:
            _refuse_options(options)
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
        self,
        indices: Sequence[int] | NDArray[np.integer[Any]],
        seeds: Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Reset some sub-environments; others may be under way meanwhile.

        Args:
            indices: Which; all of them, if there was no reset yet.
            seeds: One for each, or `None`.
            options: There are none; see `reset`.

        Returns:
            Their observations and infos, aligned with `indices`.
        """
        if options is not None:
            _refuse_options(options)
        rows = check_rows(indices, self.num_envs)
        given = None if seeds is None else check_seeds(list(seeds), len(rows))
        infos = self._reset_rows(rows, given, np.arange(len(rows)), size=len(rows))
        return self._observation_layout.batch([leaf[rows] for leaf in self._leaves]), infos

    def _reset_rows(
        self, rows: NDArray[np.int64] | None, seeds: Any, places: Any, size: int | None = None
    ) -> dict[str, Any]:
        """Reset `rows`, or all; `places` are their rows in the infos that are returned, of `size` rows."""
        _check_largest(seeds)
        self._check_reset(rows)
        letters, chosen = [], []
        for shard in self._exchange.shards:
            positions = _positions(rows, shard.span)
            if len(positions):
                targets = positions if rows is None else rows[positions]
                letters.append(Letter(shard, "reset", _reset_fields(shard, rows, seeds, positions), targets))
                chosen.append(positions)
        start_s = time.perf_counter()
        found = self._make_resets(letters)
        self._wait_s += time.perf_counter() - start_s
        leaves = [leaf.copy() for leaf in self._leaves]
        parts: list[Part] = []
        for letter, positions, told in zip(letters, chosen, found, strict=True):
            for leaf, values in zip(leaves, told.leaves, strict=True):
                leaf[letter.rows] = values
            parts.append((told.infos, positions if rows is None else places[positions]))
        self._exchange.settle()
        self._leaves = leaves
        self._episodes.on_reset(rows)
        self._note_seeds(rows, seeds)
        self._state = Lifecycle.READY
        return merge_infos(parts, self.num_envs if size is None else size)

    def _check_reset(self, rows: NDArray[np.int64] | None) -> None:
        """Check that `rows`, or all, may be reset now; a reset of all also ends what was not answered."""
        is_whole = rows is None or len(rows) == self.num_envs
        self._check("reset", is_started=not is_whole, is_idle=rows is None and not self._outbox.is_stuck)
        if rows is None and (self._exchange.is_open or self._outbox.is_stuck):
            self._outbox.drop()
            self._exchange.catch_up()
        if rows is not None:
            self._outbox.check_received(rows.tolist())

    def _make_resets(self, letters: list[Letter]) -> list[ReplyRows]:
        if not self._outbox.is_empty:
            return self._outbox.ask(letters)
        replies = self._exchange.run("reset", [(letter.shard, letter.fields) for letter in letters])
        return [read_letter(letter, reply) for letter, reply in zip(letters, replies, strict=True)]

    def _note_seeds(self, rows: NDArray[np.int64] | None, seeds: Any) -> None:
        every = range(self.num_envs) if rows is None else rows.tolist()
        for place, row in enumerate(every):
            seed = seeds[place] if isinstance(seeds, list) else None if seeds is None else int(seeds) + row
            self._seeds[row] = self._seeds[row] if seed is None else seed

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
        asked = self._asked("step", actions)
        start_s = time.perf_counter()
        replies = self._exchange.run("step", asked)
        self._wait_s += time.perf_counter() - start_s
        return self._finish_step(replies)

    def _asked(self, verb: str, actions: Any) -> list[tuple[Shard, Fields]]:
        """What services are asked by a step of all, for the call `verb`."""
        self._check(verb)
        start_s = time.perf_counter()
        self._refuse_ended(self._every)
        letters = self._letters(actions, self._every)
        self._copy_s += time.perf_counter() - start_s
        return [(letter.shard, letter.fields) for letter in letters]

    def _letters(self, actions: Any, rows: NDArray[np.int64]) -> list[Letter]:
        """Steps of some sub-environments, by service."""
        layout = self._action_layout
        leaves, _ = layout.unbatch(actions, len(rows))
        small = [shrink(leaf) for leaf in leaves]
        letters = []
        for shard in self._exchange.shards:
            positions = _positions(rows, shard.span)
            if len(positions):
                fields = {"actions": layout.batch([leaf[positions] for leaf in small])}
                local = rows[positions] - shard.span.start
                if not np.array_equal(local, np.arange(len(shard.span))):
                    fields["rows"] = local
                letters.append(Letter(shard, "step", fields, rows[positions]))
        return letters

    def _refuse_ended(self, rows: NDArray[np.int64]) -> None:
        """Check that no episode of `rows` has ended, where autoreset is disabled."""
        if self.autoreset_mode is not AutoresetMode.DISABLED or not self._episodes.has_ended:
            return
        ended = rows[self._episodes.ended[rows]].tolist()
        if ended:
            raise ResetNeeded(
                f"the episodes of sub-environments {ended[:10]}{' …' if len(ended) > 10 else ''} have ended and "
                'autoreset is disabled: reset them with reset(options={"reset_mask": mask}) or '
                "reset_envs(fleet.terminated_indices)"
            )

    def _finish_step(self, replies: Sequence[Reply]) -> StepResult:
        start_s = time.perf_counter()
        shards = self._exchange.shards
        parts = [
            (read_rows(reply, shard.observations, len(shard.span)), np.arange(shard.span.start, shard.span.stop))
            for shard, reply in zip(shards, replies, strict=True)
        ]
        step = self._tell(parts, None)
        self._exchange.settle()
        self._copy_s += time.perf_counter() - start_s
        return step

    def _tell(self, parts: list[tuple[ReplyRows, NDArray[np.int64]]], which: NDArray[np.int64] | None) -> StepResult:
        """Take in what came of a step, and put it into the caller's form.

        Args:
            parts: What services told, and the place of each row in the whole.
            which: The sub-environment of each place; `None` for all of them in turn.
        """
        count = self.num_envs if which is None else len(which)
        told = gather(parts, count)
        infos: Any = told.infos
        finals = self._own_finals(infos)
        self._finals = finals if which is None else _spread(finals, which, self.num_envs)
        if which is None:
            self._leaves = list(told.leaves)
        else:
            self._leaves = [leaf if leaf.flags.writeable else leaf.copy() for leaf in self._leaves]
            for leaf, values in zip(self._leaves, told.leaves, strict=True):
                leaf[which] = values
        rewards, terminated, truncated = told.rewards.copy(), told.terminated.copy(), told.truncated.copy()
        ended = self._episodes.on_step(rewards, terminated, truncated, which)
        for name in ("episode", "_episode"):
            infos.pop(name, None)
        if ended is not None:
            infos["episode"], infos["_episode"] = ended.entry()
        self._steps += count
        observations = self._observation_layout.batch([leaf.copy() for leaf in told.leaves])
        return observations, rewards, terminated, truncated, infos

    def _own_finals(self, infos: dict[str, Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Give last observations the form of their space; returns them, and the places where there are some."""
        finals = infos.get("final_obs")
        if finals is None:
            return self._finals[0], np.zeros(0, np.int64)
        places = np.flatnonzero(infos["_final_obs"])
        for place in places.tolist():
            finals[place] = own_tree(self._observation_layout, finals[place])
        return finals.copy(), places

    def _observe(self) -> Any:
        """The last observations of all sub-environments; the caller's own."""
        return self._observation_layout.batch([leaf.copy() for leaf in self._leaves])


def _spread(
    finals: tuple[NDArray[Any], NDArray[np.int64]], rows: NDArray[np.int64], size: int
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Last observations by place in a batch as those of the whole fleet, in which the batch is `rows`."""
    every = np.full(size, None, object)
    values, places = finals
    for place in places.tolist():
        every[rows[place]] = values[place]
    return every, rows[places]


def _refuse_options(options: Any) -> None:
    raise InvalidArgument(
        f"options={options!r}: expected 'reset_mask' alone, of reset(): a service takes the environment's own options "
        "when the fleet is made, as arguments of connect()"
    )


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
