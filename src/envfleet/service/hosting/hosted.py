"""One fleet behind the service: it makes events, such as resets and steps, and can make them again."""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from envfleet.errors import InvalidArgument, ResetNeeded, SubEnvError, WireError
from envfleet.fleet.checks import check_rows
from envfleet.fleet.layout import SpaceLayout
from envfleet.kernels.batch_base import BatchState
from envfleet.remote.codec import pack, unpack
from envfleet.service.hosting.meter import Meter
from envfleet.service.hosting.plain import infos_to_plain, select_infos, space_to_plain
from envfleet.service.offers import Offer
from envfleet.service.refusals import EnvFailed, failed

_log = logging.getLogger("envfleet.service")

CLOSE = "close"
"""What the last event of a fleet does."""

_SEED_BITS = 62  # of seeds that the service draws
_FIELD_BYTES = 4096  # of a body, except for actions, rows and seeds
_NUMBER_BYTES = 16  # 9 of an element of a list, and those of the lists around it
_QUICK_S = 0.004
_CHECKED = ("rewards", "terminated", "truncated")
_MOST_LISTED = 256  # episodes of training fleets with more sub-environments are not stored one by one


class FleetConfig(BaseModel):
    """Configuration of a fleet; stored.

    Attributes:
        env: Gymnasium's id.
        version: Version of the environment's code.
        num_envs: Number of sub-environments.
        autoreset_mode: Gymnasium's name of it.
        mode: `"training"` or `"ranked"`.
        options: Arguments of the environment.
        kind: `"fleet"`, or `"episodes"` for the episode protocol's.
        ranked_episodes: Number of episodes of the attempt; 0 in training.
        penalty: Penalty of an unfinished episode of the attempt.
    """

    model_config = ConfigDict(frozen=True)

    env: str
    version: str
    num_envs: int
    autoreset_mode: str
    mode: str
    options: dict[str, Any]
    kind: str = "fleet"
    ranked_episodes: int = 0
    penalty: float = 0.0


class Outcome(NamedTuple):
    """Result of an event.

    Attributes:
        reply: Reply to the client, as values that `pack` takes.
        episodes: Episodes that ended.
        steps: Number of steps of sub-environments.
        checksum: Checksum of observations, rewards and flags.
        packed: The reply as bytes, once it was committed.
    """

    reply: dict[str, Any]
    episodes: list[dict[str, Any]]
    steps: int
    checksum: int = 0
    packed: bytes = b""


class HostedFleet:
    """A fleet with the results of its episodes and its place in the log of events. Hold `lock` while using it.

    Args:
        fleet_id: Its id.
        user_id: Id of the owner.
        offer: Offer of its environment.
        config: Configuration of the fleet.

    Attributes:
        seq: Number of events that it made.
        last: Key and packed reply of the last event, or `None`.
        touched_at: When it was used last.
        is_open: True if it may be used; one that left the memory is built again.
        is_behind: True if events in the database are still to be repeated here.
        snapshot_seq: Count at the last snapshot.
        most_body_bytes: Size limit of a call's body, by what its actions, rows and seeds can take.
        is_quick: True if its last call took so little time that the event loop may make the next one.
        readable: Attributes of its sub-environments that participants may read.
        num_processes: Worker processes that it has.
        when_closed: Called once when it is closed.
    """

    def __init__(self, fleet_id: str, user_id: int, offer: Offer, config: FleetConfig) -> None:
        self.fleet_id, self.user_id, self.config = fleet_id, user_id, config
        self.lock = threading.Lock()
        self.seq, self.snapshot_seq = 0, 0
        self.last: tuple[bytes, bytes] | None = None
        self.touched_at = 0.0
        self.is_open, self.is_behind = True, False
        self.when_closed: Callable[[], object] = bool
        self.can_save, self.readable, self._limit = offer.is_kernel, offer.readable, offer.spec.max_episode_steps
        self.num_processes = offer.count_processes(config.num_envs)
        self._infos = None if offer.is_kernel else frozenset(offer.infos)  # kernels declare theirs
        self.fleet = offer.make(config.num_envs, config.autoreset_mode, config.options)
        lists_all = config.num_envs <= _MOST_LISTED
        self.fleet.engine.traits.refuse_vector_rewards("a service")
        self.meter = Meter(
            config.num_envs,
            hosting=offer.hosting,
            lists_all=lists_all,
            num_ranked=config.ranked_episodes,
            penalty=config.penalty,
        )
        self._every = np.arange(config.num_envs)
        self._layout = SpaceLayout(self.fleet.single_observation_space)
        self._actions = SpaceLayout(self.fleet.single_action_space)
        numbers = sum(math.prod(leaf.shape) for leaf in self._actions.leaves)
        self.most_body_bytes = _FIELD_BYTES + config.num_envs * (numbers + 2) * _NUMBER_BYTES
        self.is_quick = False

    @classmethod
    def check(cls, offer: Offer) -> None:
        """Build and reset one sub-environment, and pack what a client would get of it.

        Raises:
            EnvfleetError: That fails.
        """
        config = FleetConfig(
            env=offer.env, version="", num_envs=1, autoreset_mode="NEXT_STEP", mode="training", options={}
        )
        hosted = cls("", 0, offer, config)
        try:
            pack(hosted.describe())
            pack(hosted._reset({"rows": None, "seeds": 0, "at": 0.0}).reply)
        finally:
            hosted.close()

    def complete(self, event: Mapping[str, Any], at: float) -> dict[str, Any]:
        """Return an event as it is stored: with its time, and with the seeds that the service draws.

        Args:
            event: `{"do": "reset", "rows", "seeds"}`, or `{"do": "step", "actions"}` of all or with the `"rows"` of
                some; in the episode protocol also with the number of the environment's own steps.
            at: The time.

        Raises:
            InvalidArgument: It gives seeds, and must not.
        """
        event = {**event, "at": at}
        is_ranked = self.config.mode == "ranked"
        if event["do"] != "reset":
            return event
        if is_ranked:
            seeds = event["seeds"]
            if isinstance(seeds, int) or any(seed is not None for seed in seeds or ()):
                raise InvalidArgument("seeds were given, but this is ranked: leave them out, the service draws them")
            seeds = self.meter.unstepped_seeds(self._chosen(event["rows"])).tolist()
            event["seeds"] = [secrets.randbits(_SEED_BITS) if seed < 0 else seed for seed in seeds]
        elif self.config.kind == "episodes":
            event["seeds"] = [secrets.randbits(_SEED_BITS) if seed is None else seed for seed in event["seeds"]]
        elif event["seeds"] is None and self.seq == 0:
            event["seeds"] = secrets.randbits(_SEED_BITS)
        elif isinstance(event["seeds"], list) and self.seq == 0:  # the first reset is of all
            event["seeds"] = [secrets.randbits(_SEED_BITS) if seed is None else seed for seed in event["seeds"]]
        return event

    def make(self, event: Mapping[str, Any]) -> Outcome:
        """Make an event: now, or again.

        Raises:
            InvalidArgument: This fleet cannot perform the event; nothing was done.
            ResetNeeded: A sub-environment must be reset first; nothing was done.
            EnvFailed: An environment raised; the fleet must not be used any more.
        """
        makers = {"reset": self._reset, "step": self._step}
        begun_s = time.thread_time()
        try:
            outcome = makers[event["do"]](event)
        except (InvalidArgument, ResetNeeded, EnvFailed):
            raise
        except Exception as error:
            raise failed(error) from error
        self.seq += 1
        outcome = outcome._replace(checksum=self.checksum(outcome.reply))
        outcome.reply["seq"] = self.seq
        self.is_quick = self.can_save and time.thread_time() - begun_s < _QUICK_S
        return outcome

    def _reset(self, event: Mapping[str, Any]) -> Outcome:
        rows, seeds = self._chosen(event["rows"]), event["seeds"]
        if isinstance(seeds, int):
            seeds = (seeds + rows).tolist()
        observations, infos = self.fleet.reset_envs(rows, seeds)
        episodes: list[dict[str, Any]] = []
        begun, episode_seeds = rows, -1
        if self.config.mode == "ranked":
            new_seeds = np.array(seeds, np.int64)
            is_new = self.meter.unstepped_seeds(rows) != new_seeds
            begun, episode_seeds = rows[is_new], new_seeds[is_new]
        episodes = self.meter.abandon(begun, seq=self.seq, at=event["at"], includes_unstepped=True)
        self.meter.begin(begun, seq=self.seq, at=event["at"], seeds=episode_seeds)
        return Outcome({"observations": observations, "infos": self._to_plain(infos)}, episodes, 0)

    def _chosen(self, rows: Any) -> NDArray[np.int64]:
        """Indices that a client sent; all, if it sent none."""
        return self._every if rows is None else check_rows(rows, self.config.num_envs)

    def _step(self, event: Mapping[str, Any]) -> Outcome:
        rows, actions, at = self._chosen(event.get("rows")), event["actions"], event["at"]
        if self._actions.is_array and isinstance(actions, np.ndarray):
            dtype = self._actions.leaves[0].dtype
            if np.can_cast(actions.dtype, dtype):  # sent in fewer bytes; a fleet would compare all numbers
                actions = actions.astype(dtype)
        ended_before = ~self.meter.columns["is_running"][rows]
        protocol = self.meter.hosting.episodes
        if protocol is not None and protocol.span in event:
            self.fleet.set_attr(protocol.span, event[protocol.span])
        if rows is self._every:
            step = self.fleet.step(actions)
        else:
            self.fleet.send(actions, rows)
            step = self.fleet.recv(env_indices=rows)[:5]
        observations, rewards, terminated, truncated, infos = step
        episodes = self.meter.step(rows, actions, step, seq=self.seq, at=at)
        # In NEXT_STEP they begin a step later; in DISABLED, by a reset.
        begun = terminated | truncated if self.config.autoreset_mode == "SAME_STEP" else ended_before
        if begun.any():
            self.meter.begin(rows[begun], seq=self.seq, at=at)
        reply = {
            "observations": observations,
            "rewards": rewards,
            "terminated": terminated,
            "truncated": truncated,
            "infos": self._to_plain(infos),
        }
        return Outcome(reply, episodes, len(rows) - int(ended_before.sum()))

    def _to_plain(self, infos: Mapping[str, Any]) -> dict[str, Any]:
        return infos_to_plain(infos if self._infos is None else select_infos(infos, self._infos))

    def checksum(self, reply: Mapping[str, Any]) -> int:
        """Return a checksum of what a reply says of the sub-environments, apart from infos."""
        total = 0
        for array in (*self._layout.apart(reply["observations"]), *(reply[name] for name in _CHECKED if name in reply)):
            total = zlib.crc32(np.ascontiguousarray(array).data, total)
        return total

    @property
    def owner(self) -> dict[str, Any]:
        """Columns shared by all its episodes."""
        return {"fleet_id": self.fleet_id, "user_id": self.user_id, "env": self.config.env}

    def count_running(self, rows: Any) -> int:
        """Count those of some sub-environments, or of all, that are in an episode; a step only resets the others."""
        return int(np.count_nonzero(self.meter.columns["is_running"][self._chosen(rows)]))

    def abandon(self, at: float) -> list[dict[str, Any]]:
        """End all episodes that run, as the fleet is closed; returns them."""
        return self.meter.abandon(self._every, seq=self.seq, at=at)

    def describe(self) -> dict[str, Any]:
        """Return what the protocol calls `FLEET`."""
        fleet, config = self.fleet, self.config
        return {
            "fleet": self.fleet_id,
            **config.model_dump(exclude={"kind", "ranked_episodes", "penalty"}),
            "attempt": {"episodes": config.ranked_episodes, "left": self.meter.num_left},
            "max_episode_steps": config.options.get("max_episode_steps", self._limit),
            "seq": self.seq,
            "ended": np.array(fleet.terminated_indices, np.int64),
            "episode_ids": fleet.episode_ids,
            "returns": self.meter.columns["returns"],
            "lengths": self.meter.columns["lengths"],
            "observation_space": space_to_plain(fleet.single_observation_space),
            "action_space": space_to_plain(fleet.single_action_space),
        }

    # ------------------------------------------------------------------ snapshots, of kernels

    def save(self) -> bytes:
        """Return the state as bytes."""
        state = self.fleet.get_state()
        arrays = {name: _without_records(array) for name, array in state.arrays.items()}
        return pack({"arrays": arrays, "params": dict(state.params), "meter": self.meter.columns})

    def load(self, seq: int, body: bytes) -> None:
        """Continue from the state at `save`."""
        saved = unpack(body)
        self.fleet.reset(seed=0)
        forms = self.fleet.get_state().arrays
        arrays = {
            name: each.view(forms[name].dtype).reshape(forms[name].shape) for name, each in saved["arrays"].items()
        }
        self.fleet.set_state(BatchState(arrays, saved["params"]))
        self.meter.columns = {name: array.copy() for name, array in saved["meter"].items()}
        self.seq = self.snapshot_seq = seq

    def close(self) -> None:
        """End its sub-environments and their processes; nothing happens if that was done before."""
        if not self.is_open:
            return
        self.is_open = False
        try:
            self.fleet.close()
        except SubEnvError as error:  # everything is released, and the error cannot be handled here
            _log.warning("fleet %s is closed, though its environment failed to: %s", self.fleet_id, error)
        finally:
            self.when_closed()


def pack_reply(reply: dict[str, Any]) -> bytes:
    """Return a reply as bytes.

    Raises:
        EnvFailed: It holds something that cannot be sent.
    """
    try:
        return pack(reply)
    except WireError as error:
        raise EnvFailed(
            "what the environment gave cannot be sent, so nothing was done; the service's log says more"
        ) from error


def _without_records(array: NDArray[Any]) -> NDArray[Any]:
    """Return records as bytes, which can be packed; other arrays as they are."""
    return np.ascontiguousarray(array).view(np.uint8) if array.dtype.kind == "V" else array
