"""The engine of a service's client: sub-environments that live behind one service or several."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envfleet.errors import CallPending, CallTimeout, Failure, InvalidArgument, WireError
from envfleet.fleet import engine as seam
from envfleet.fleet.episodes import EndedEpisodes, EpisodeState, EpisodeStats, EpisodeStatus
from envfleet.fleet.infos import scatter_infos, take_infos
from envfleet.fleet.layout import SpaceLayout
from envfleet.fleet.lifecycle import Lifecycle, refuse_ended
from envfleet.fleet.stats import FleetStats, Plan
from envfleet.remote.codec import read_array, read_infos, read_leaves, shrink, unpack
from envfleet.remote.queue import ServiceCall, ServiceQueue

_LARGEST_SEED = 2**62 - 1
_ALL = slice(None)
Answered = tuple[ServiceCall, Any]
"""A call that was answered, and which rows of the answer."""


@dataclasses.dataclass(frozen=True)
class RemoteStats(FleetStats):
    """Statistics of a remote fleet, with its requests to services.

    Attributes:
        requests: Requests sent, repetitions included.
        retries: Repetitions, because no answer came or the service asked for them.
    """

    requests: int
    retries: int


class _Answer(NamedTuple):
    """The rows of a reply; only steps have rewards and flags, `(2, K)`."""

    leaves: list[NDArray[Any]]
    infos: dict[str, Any]
    rewards: NDArray[np.float64] | None = None
    flags: NDArray[np.bool_] | None = None


class RemoteEngine(seam.Engine):
    """Sub-environments behind services, each of which holds a part of them; made by `envfleet.connect`.

    A request without an answer stays open: repeating the request continues it, a reset of all asks the
    services how far they are, and any other is refused.

    Args:
        queues: One per service, in the order of their sub-environments.
        described: The fleet as the services describe it; alike for all of them.
        spaces: Spaces of observations and actions of one sub-environment.
        record_episodes: True to add `"episode"` to infos.

    Attributes:
        env_id: The environment's id at the service.
        mode: `"training"` or `"ranked"`.
        options: Arguments of the environment.
        services: Addresses of the services.
        fleet_ids: Each service's id of its part.
    """

    def __init__(
        self,
        queues: Sequence[ServiceQueue],
        described: Mapping[str, Any],
        spaces: Sequence[gym.Space[Any]],
        *,
        record_episodes: bool = False,
    ) -> None:
        self.copy = True
        self._queues, (self._layout, self._actions) = tuple(queues), map(SpaceLayout, spaces)
        self.env_id, self.mode = str(described["env"]), str(described["mode"])
        self.options: dict[str, Any] = dict(described["options"])
        self.services = tuple(queue.link.url for queue in queues)
        self.fleet_ids = tuple(queue.fleet_id for queue in queues)
        num_envs, spans = queues[-1].span.stop, tuple(len(queue.span) for queue in queues)
        render_mode, last = self.options.get("render_mode"), described.get("last")
        self._every = np.arange(num_envs)
        self.traits = seam.Traits(
            plan=Plan("remote", len(spans), spans, f"held by {', '.join(self.services)}"),
            num_envs=num_envs,
            single_observation_space=self._layout.space,
            single_action_space=self._actions.space,
            autoreset_mode=AutoresetMode[described["autoreset_mode"]],
            env_spec=gym.registry.get(self.env_id),  # the service's environment may not be installed here
            env_name=self.env_id,
            render_mode=render_mode,
            metadata={"render_modes": [] if render_mode is None else [render_mode]},
            has_objects=False,
            has_states=False,
            has_stacks=False,
            attempt_episodes=int(described.get("attempt", {}).get("episodes", 0)) or None,
            pending_rows=None if last is None else self._every if last["rows"] is None else np.array(last["rows"]),
        )
        self._episodes = EpisodeStats(num_envs, self.traits.autoreset_mode)
        self._records_episodes = record_episodes
        self._leaves, self._finals = (
            [np.zeros((num_envs, *leaf.shape), leaf.dtype) for leaf in self._layout.leaves] for _ in range(2)
        )
        self._write_final = self._layout.writer(self._finals)
        self._rewards, self._flags = np.zeros(num_envs), np.zeros((2, num_envs), np.bool_)
        self._seeds: list[int | None] = [None] * num_envs
        self._open: list[ServiceCall] | None = None  # the request that was not answered yet
        self._sent: dict[ServiceCall, seam.Rows] = {}  # steps that were sent, and rows of each to be collected
        self._tears = False  # whether an error now would lose something
        self._steps, self._wait_s, self._copy_s = 0, 0.0, 0.0
        self._owed = None if last is None else self._resume(described, last)

    def _resume(self, described: Mapping[str, Any], last: Mapping[str, Any]) -> seam.Batch:
        """Continue a fleet of another client; return the result of its last call, which that client may have missed.

        Raises:
            WireError: The service described something else.
        """
        rows = self.traits.pending_rows if self.traits.pending_rows is not None else self._every
        call = ServiceCall(self._queues[0], str(last["verb"]), {}, rows, self._read)
        answer = self._read(call, unpack(last["reply"]))
        for leaf, values in zip(self._leaves, read_leaves(last, self._layout, len(self._every)), strict=True):
            leaf[:] = values
        for place in np.flatnonzero(answer.infos.get("_final_obs", ())).tolist():
            self._write_final(int(rows[place]), answer.infos["final_obs"][place])
        ended = set(described["ended"].tolist())
        figures = zip(described["returns"].tolist(), described["lengths"].tolist(), strict=True)
        for row, (total, length) in enumerate(figures):
            self._episodes.restore(row, EpisodeState(total, length, row in ended))
        rewards = np.zeros(len(rows)) if answer.rewards is None else answer.rewards.copy()
        flags = np.zeros((2, len(rows)), np.bool_) if answer.flags is None else answer.flags
        observations = self._layout.batch([leaf.copy() for leaf in answer.leaves])
        return seam.Batch(observations, rewards, flags[0], flags[1], answer.infos, rows)

    # ------------------------------------------------------------------------------------------------ requests

    def step(self, actions: Any) -> seam.StepResult:
        """Step every sub-environment once."""
        self._tears = False
        return self._finish_steps(self._carry_out(self._step_calls(actions, None)), None)

    def submit(self, request: seam.Request[seam.Answer]) -> seam.Pending[seam.Answer]:
        """Carry out a request."""
        self._tears = False
        carry_out: Mapping[type, Callable[[Any], Any]] = {
            seam.Reset: self._reset,
            seam.Call: self._call,
            seam.SetAttr: self._set_attr,
        }
        return seam.Pending.of(carry_out[type(request)](request))

    def _reset(self, request: seam.Reset) -> dict[str, Any]:
        rows, seeds = request.rows, request.seeds
        if request.options:
            raise InvalidArgument(
                f"options={request.options!r} of a remote fleet: expected none but 'reset_mask' of reset(); a service "
                "takes the environment's own options as arguments of connect()"
            )
        largest = max((seed for seed in (seeds if isinstance(seeds, list) else [seeds]) if seed is not None), default=0)
        if largest > _LARGEST_SEED:
            raise InvalidArgument(f"seed={largest}: a service takes ints from 0 to 2**62 - 1")

        def fields(queue: ServiceQueue, places: seam.Rows) -> dict[str, Any]:
            if isinstance(seeds, list):
                return {"seeds": [seeds[place] for place in places.tolist()]}
            return {"seeds": None if seeds is None else seeds + queue.span.start}

        calls = self._calls("reset", rows, fields)
        infos = self._take_in(self._carry_out(calls, is_whole=rows is None), rows)
        self._owed = None if rows is None else self._owed
        self._episodes.begin(None if rows is None else rows.tolist())
        for place, row in enumerate((self._every if rows is None else rows).tolist()):
            seed = seeds[place] if isinstance(seeds, list) else None if seeds is None else seeds + row
            self._seeds[row] = self._seeds[row] if seed is None else seed
        return infos

    def _set_attr(self, request: seam.SetAttr) -> None:
        raise InvalidArgument(
            f"set_attr({request.name!r}) of a remote fleet: a service takes the environment's options as arguments of "
            "connect(), as far as it allows"
        )

    def _call(self, request: seam.Call) -> Sequence[Any]:
        name = str(request.name)
        if request.args or request.kwargs:
            raise InvalidArgument(
                f"call({name!r}) with arguments of a remote fleet: only resets and steps change what lives behind a "
                "service; read attributes with get_attr()"
            )
        if name == "np_random_seed":
            return self._seeds
        if name == "render":
            has_frames = self.traits.render_mode is not None
            return self._look_up("frames", "frames") if has_frames else [None] * self.traits.num_envs
        if not name.isidentifier():
            raise InvalidArgument(f"attribute {name!r} is not an attribute name: pass an identifier")
        return self._look_up(f"attributes/{name}", "values")

    def _look_up(self, what: str, name: str) -> list[Any]:
        results: list[Any] = []
        for queue in self._queues:
            reply = queue.link.get(f"/fleets/{queue.fleet_id}/{what}")
            values = reply.get(name) if isinstance(reply, dict) else None
            if not isinstance(values, list) or len(values) != len(queue.span):
                raise WireError(f"{queue.link.url} answered {reply!r:.100}, expected {len(queue.span)} {name}")
            results += values
        return results

    # ------------------------------------------------------------------------------------------- steps of some

    def send(self, actions: Any, rows: seam.Rows | None = None) -> None:
        """Start to step `rows`, or all, in the background."""
        self._tears = False
        calls = self._step_calls(actions, rows)
        self._check_open()
        self._tears = True
        for call in calls:
            self._sent[call] = np.arange(len(call.rows))
            call.queue.start(call)
        self._tears = False

    def collect(
        self, count: int | None = None, rows: seam.Rows | None = None, timeout_s: float | None = None
    ) -> seam.Batch:
        """Wait for steps that were sent; those without an answer are sent again."""
        self._tears = False
        if self._owed is not None:
            return self._take_owed(self._owed, rows)
        rows = self._every if rows is None and count is None else rows
        answered = self._await(count, rows, timeout_s)
        which = np.concatenate([call.rows[places] for call, places in answered]) if rows is None else rows
        if rows is None and len(which) == self.traits.num_envs:
            which.sort()
        step = self._finish_steps(answered, which)
        for call, places in answered:
            self._sent[call] = np.setdiff1d(self._sent[call], places)
            if not len(self._sent[call]):
                del self._sent[call]
        return seam.Batch(*step, which)

    def _take_owed(self, owed: seam.Batch, rows: seam.Rows | None) -> seam.Batch:
        """Return the result of the last call of a fleet that was resumed."""
        if rows is not None and not np.array_equal(rows, owed.env_indices):
            raise InvalidArgument(
                f"recv(env_indices=…) of {len(rows)} sub-environments of a resumed fleet, whose last call was of "
                f"{len(owed.env_indices)}: leave env_indices out of the first recv()"
            )
        self._owed = None
        return owed

    def _await(self, count: int | None, rows: seam.Rows | None, timeout_s: float | None) -> list[Answered]:
        """Wait until `count` rows, or `rows`, have stepped."""
        begun_s = time.perf_counter()
        self._go_on()
        try:
            while (answered := self._arrived(count, rows)) is None:
                late = [call for call in self._sent if call.answer is None]
                late = [call for call in late if rows is None or np.isin(call.rows, rows).any()]
                for call in late:
                    if call.error is not None:
                        call.task = None
                        raise call.error
                left_s = None if timeout_s is None else begun_s + timeout_s - time.perf_counter()
                if left_s is not None and left_s <= 0:
                    raise CallTimeout("recv", timeout_s or 0.0)
                tasks = [call.task for call in late if call.task is not None]
                concurrent.futures.wait(tasks, left_s, concurrent.futures.FIRST_COMPLETED)
            return answered
        finally:
            self._wait_s += time.perf_counter() - begun_s

    def _go_on(self) -> None:
        """Resend steps without an answer; a refusal is raised before the next request."""
        for call in self._sent:
            if call.answer is None and (call.task is None or not call.is_refused):
                call.queue.start(call)

    def _arrived(self, count: int | None, rows: seam.Rows | None) -> list[Answered] | None:
        """Return what was answered first of what is wanted, unless some of that is missing."""
        num_missing = len(rows) if rows is not None else count or 0
        answered: list[Answered] = []
        for call in sorted((call for call in self._sent if call.answer is not None), key=lambda one: one.answered_at):
            places = self._sent[call]
            places = places[:num_missing] if rows is None else places[np.isin(call.rows[places], rows)]
            if len(places):
                answered.append((call, places))
                num_missing -= len(places)
        return None if num_missing else answered

    # --------------------------------------------------------------------------------------------------- calls

    def _step_calls(self, actions: Any, rows: seam.Rows | None) -> list[ServiceCall]:
        if self.traits.autoreset_mode is AutoresetMode.DISABLED:
            refuse_ended(self._episodes.ended, rows)
        leaves, _ = self._actions.unbatch(actions, self.traits.num_envs if rows is None else len(rows))
        small = [shrink(leaf) for leaf in leaves]

        def fields(queue: ServiceQueue, places: seam.Rows) -> dict[str, Any]:
            return {"actions": self._actions.batch([leaf[places] for leaf in small])}

        return self._calls("step", rows, fields)

    def _calls(
        self, verb: str, rows: seam.Rows | None, fields: Callable[[ServiceQueue, seam.Rows], dict[str, Any]]
    ) -> list[ServiceCall]:
        """Return a call for each service that holds some of `rows`, or all.

        Args:
            verb: Verb of the protocol.
            rows: Sub-environments of the calls.
            fields: Returns what to ask a service about some places in `rows`.
        """
        calls, every = [], self._every if rows is None else rows
        for queue in self._queues:
            span = queue.span
            places = (
                every[span.start : span.stop]
                if rows is None
                else np.flatnonzero((rows >= span.start) & (rows < span.stop))
            )
            if len(places):
                part = {} if rows is None else {"rows": rows[places] - queue.span.start}
                calls.append(ServiceCall(queue, verb, {**part, **fields(queue, places)}, every[places], self._read))
        return calls

    def _carry_out(self, calls: list[ServiceCall], *, is_whole: bool = False) -> list[Answered]:
        """Make calls, and wait until all are answered.

        Args:
            calls: One per service. Equal open calls are continued instead.
            is_whole: True if the calls replace all open ones.

        Raises:
            CallPending: Others are open.
            EnvfleetError: See `ServiceLink.post`. The calls stay open, unless all services refused them.
        """
        begun_s = time.perf_counter()
        still = self._open or []
        if len(still) == len(calls) and all(map(ServiceCall.is_like, still, calls)):
            calls = still
        elif is_whole and (still or self._sent or any(queue.is_astray for queue in self._queues)):
            for queue in self._queues:
                queue.catch_up()
            self._tears, self._sent = True, {}
        else:
            self._check_open()
        self._open = calls
        try:
            self._exchange(calls)
        finally:
            self._wait_s += time.perf_counter() - begun_s
        return [(call, _ALL) for call in calls]

    def _exchange(self, calls: list[ServiceCall]) -> None:
        """Send the first call in this thread and the others in the background."""
        self._go_on()
        for call in calls[1:]:
            call.queue.start(call)
        calls[0].queue.put(calls[0])
        for call in calls:
            call.queue.send(call)
        errors = [call.error for call in calls if call.error is not None]
        if errors:
            if all(call.is_refused for call in calls):
                self._open = None
            raise errors[0]

    def _check_open(self) -> None:
        if self._open is not None:
            raise CallPending(
                f"an earlier {self._open[0].verb} was not answered, so it is unknown whether it was carried out: make "
                "the same call again, which never carries it out twice, or reset() all sub-environments"
            )

    # ------------------------------------------------------------------------------------------------- answers

    def _read(self, call: ServiceCall, reply: Mapping[str, Any]) -> Any:
        """Read and check the reply to a call; in the thread that sends it."""
        count = len(call.rows)
        leaves = read_leaves(reply, self._layout, count)
        infos = read_infos(reply, self._layout, count)
        if call.verb == "reset":
            return _Answer(leaves, infos)
        rewards = read_array(reply.get("rewards"), "rewards", (count,), np.dtype(np.float64))
        flags = [
            read_array(reply.get(name), name, (count,), np.dtype(np.bool_)) for name in ("terminated", "truncated")
        ]
        return _Answer(leaves, infos, rewards, np.stack(flags))

    def _take_in(self, answered: list[Answered], which: seam.Rows | None) -> dict[str, Any]:
        """Keep what was answered.

        Args:
            answered: The calls, and which of their rows.
            which: The sub-environment of each row of the result; `None` for all in order.

        Returns:
            Infos of the result.
        """
        for call, places in answered:
            answer, rows = call.answer, call.rows[places]
            for leaf, values in zip(self._leaves, answer.leaves, strict=True):
                leaf[rows] = values[places]
            if answer.rewards is not None:
                self._rewards[rows], self._flags[:, rows] = answer.rewards[places], answer.flags[:, places]
        self._tears, self._open = True, None
        if which is None and len(answered) == 1:
            infos: dict[str, Any] = answered[0][0].answer.infos
            return infos
        row_infos = [(take_infos(call.answer.infos, places), call.rows[places]) for call, places in answered]
        infos = scatter_infos(row_infos, self.traits.num_envs)
        return infos if which is None else take_infos(infos, which)

    def _finish_steps(self, answered: list[Answered], which: seam.Rows | None) -> seam.StepResult:
        begun_s = time.perf_counter()
        infos, index = self._take_in(answered, which), self._every if which is None else which
        rewards, flags = self._rewards[index], self._flags[:, index]
        ended = self._episodes.on_step(rewards, flags, which)
        for place in np.flatnonzero(infos.get("_final_obs", ())).tolist():
            self._write_final(int(index[place]), infos["final_obs"][place])
        if ended and self._records_episodes:
            infos.update(self._episodes.ended_episodes().entries(len(index)))
        observations = self.observe(which)
        self._steps += len(index)
        self._copy_s += time.perf_counter() - begun_s
        return observations, rewards, flags[0], flags[1], infos

    # ----------------------------------------------------------------------------------------------- read-outs

    def observe(self, rows: seam.Rows | None = None, *, final: bool = False) -> Any:
        """Return the last observations."""
        leaves = self._finals if final else self._leaves
        return self._layout.batch([leaf.copy() if rows is None else leaf[rows] for leaf in leaves])

    def episodes(self) -> EpisodeStatus:
        """Return the present state of every episode."""
        return self._episodes.status()

    def ended_episodes(self) -> EndedEpisodes:
        """Return the episodes that ended in the last step."""
        return self._episodes.ended_episodes()

    def look(self, *, stacks: bool = False) -> RemoteStats:
        """Return statistics, with those of the network."""
        total_s = self._wait_s + self._copy_s
        rate = self._steps / total_s if total_s else 0.0
        links = [queue.link for queue in self._queues]
        sent = sum(link.requests for link in links), sum(link.retries for link in links)
        return RemoteStats(self._steps, rate, 0.0, self._wait_s, self._copy_s, 0.0, 0, (), *sent)

    @property
    def is_stuck(self) -> bool:
        """Return whether a call was not answered, or the last result of a resumed fleet was not received."""
        return self._owed is not None or self._open is not None or any(call.error is not None for call in self._sent)

    def state_after(self, error: BaseException) -> Lifecycle | None:
        """Return `TORN` if an answer was lost while it was read; otherwise the call can be repeated."""
        return super().state_after(error) if self._tears else None

    def describe(self) -> str:
        """Return the services, the mode and the options."""
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"at {', '.join(self.services)}, {self.mode}{options}"

    def abort(self) -> None:
        """Have calls that wait to be repeated fail."""
        for queue in self._queues:
            queue.link.stop()

    def close(self, timeout_s: float) -> list[Failure]:
        """Close the fleet at the services, and the connections.

        A service that cannot be reached is reported by a `RuntimeWarning`; it closes its part when that has been idle.
        """
        for queue in self._queues:
            queue.close(timeout_s)
        return []
