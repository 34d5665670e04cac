"""Implementation of the episode protocol's calls; runs in threads."""

from __future__ import annotations

import re
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from envfleet.envs.hosting import EpisodeProtocol
from envfleet.errors import EnvfleetError, InvalidArgument
from envfleet.remote.codec import shrink
from envfleet.service.hosting.hosted import FleetConfig, HostedFleet
from envfleet.service.offers import Offer
from envfleet.service.protocols.requests import read
from envfleet.service.protocols.schemas import (
    CreateEpisodes,
    EpisodeConfig,
    ResetEpisode,
    ResetEpisodes,
    StepEpisode,
    StepEpisodes,
)
from envfleet.service.refusals import Closed, EpisodeOver, NotFound, QuotaSpent
from envfleet.service.service import Service
from envfleet.service.users.auth import Identity

_EPISODE_ID = re.compile(r"([0-9a-f]{24})-(\d{1,6})-(\d{1,12})")
_LEFT_ALONE_S = 60.0
_PER_EPISODE = (NotFound, Closed, InvalidArgument, EpisodeOver)  # what one episode of several may be answered
Reply = dict[str, Any]
Result = Reply | EnvfleetError
"""Result of a call for one episode, or the reason for its failure."""


def find_episode_offer(offers: Iterable[Offer], name: str | None = None) -> tuple[Offer, EpisodeProtocol]:
    """Find an environment that supports the episode protocol.

    Args:
        offers: Offers of the service.
        name: Name that the client passed; the first offer by default.

    Raises:
        InvalidArgument: It is not offered.
    """
    known: list[str] = []
    for offer in offers:
        protocol = offer.hosting.episodes
        if protocol is not None:
            known += (*protocol.names, offer.env, offer.env.removeprefix("envfleet/"))
            if name is None or name in known:
                return offer, protocol
    advice = f"pass one of {', '.join(known)}" if known else "this service offers none, use the fleet protocol"
    raise InvalidArgument(f"env_type={name!r}, expected an environment of the episode protocol: {advice}")


class EpisodeCalls:
    """The calls, on behalf of a user.

    Args:
        service: The service.
        identity: The user.
    """

    def __init__(self, service: Service, identity: Identity) -> None:
        self._service, self._identity, self._fleets = service, identity, service.fleets

    # ------------------------------------------------------------------ creating

    def create_one(self, config: EpisodeConfig) -> Reply:
        """Return one episode."""
        fleet_id, observations = self._create(config, 1)
        return {"episode_id": f"{fleet_id}-0-0", "initial_observation": observations[0]}

    def create_many(self, request: CreateEpisodes) -> Reply:
        """Return a group of them."""
        fleet_id, observations = self._create(request.env_config, request.num_envs)
        ids = [f"{fleet_id}-{row}-0" for row in range(request.num_envs)]
        return {"episode_ids": ids, "vectorized_group_id": fleet_id, "initial_observations": observations}

    def _create(self, request: EpisodeConfig, num_envs: int) -> tuple[str, list[list[float]]]:
        offer, protocol = find_episode_offer(self._service.settings.offers, request.env_type)
        limit = min(request.max_steps_per_episode, offer.max_episode_steps or request.max_steps_per_episode)
        mode = "ranked" if request.ranked else "training"
        if request.ranked and limit != offer.max_episode_steps:
            raise InvalidArgument(
                f"max_steps_per_episode={request.max_steps_per_episode} decisions change the task: pass "
                f"{offer.max_episode_steps} or more with ranked=true, where everybody plays the same; 'step' counts "
                f"{protocol.span}, of which a decision has up to {protocol.longest}"
            )
        offer.check(num_envs, {} if request.ranked else {"max_episode_steps": limit}, is_ranked=request.ranked)
        # Ended rows are never stepped, so that no autoreset happens; in DISABLED a step of the others would be refused.
        config = FleetConfig(
            env=offer.env,
            version=offer.version(),
            num_envs=num_envs,
            autoreset_mode="NEXT_STEP",
            mode=mode,
            **offer.ranked_terms(mode),
            options={"max_episode_steps": limit, protocol.option: protocol.longest},
            kind="episodes",
        )
        user_id, key = self._identity.user_id, secrets.token_hex(16)
        most = self._service.quotas.limits(self._identity)[0]
        try:
            fleet_id = self._fleets.create(user_id, config, key, most_live_envs=most)
        except QuotaSpent:  # these clients never close anything, so close for them what they left alone
            self._close_left_alone()
            fleet_id = self._fleets.create(user_id, config, key, most_live_envs=most)
        with self._fleets.use(user_id, fleet_id) as fleet:
            outcome = self._fleets.make(
                fleet, {"do": "reset", "rows": list(range(num_envs)), "seeds": [None] * num_envs}
            )
        return fleet_id, outcome.reply["observations"][:, 0].tolist()

    def _close_left_alone(self) -> None:
        user_id, now = self._identity.user_id, time.time()
        for row in self._service.store.open_fleets(user_id, idle_since=now - _LEFT_ALONE_S):
            held, config = self._fleets.held(row["id"]), row["config"]
            if config["kind"] != "episodes" or config["mode"] == "ranked":  # an attempt would end, and lose its score
                continue
            if held is None or held.touched_at < now - _LEFT_ALONE_S:
                self._fleets.close_fleet(user_id, row["id"])

    # ------------------------------------------------------------------ looking

    def info(self, episode_id: str) -> Reply:
        """Return the state of an episode."""

        def look(fleet: HostedFleet, row: int) -> Reply:
            total = float(fleet.meter.columns["returns"][row])
            return {"episode_id": _episode_id(fleet, row), "total_reward": total, **_flags(fleet, row)}

        return self._look(episode_id, look)

    def latest(self, episode_id: str) -> Reply:
        """Return the last observation."""

        def look(fleet: HostedFleet, row: int) -> Reply:
            observation = fleet.fleet.engine.observe(np.array([row]))[0, -1]
            return {"observation": observation.tolist(), **_flags(fleet, row)}

        return self._look(episode_id, look)

    def _look(self, episode_id: str, look: Callable[[HostedFleet, int], Reply]) -> Reply:
        def work(fleet: HostedFleet, places: Mapping[int, int]) -> dict[int, Result]:
            return {row: look(fleet, row) for row in places}

        return _require(self._by_fleet([episode_id], work)[0])

    # ------------------------------------------------------------------ resetting

    def reset_one(self, request: ResetEpisode) -> Reply:
        """Reset one episode."""
        result = _require(self._reset([request.episode_id], [request.seed])[0])
        return {"observation": result["observation"], "new_episode_id": result["id"], "info": {}}

    def reset_many(self, body: bytes) -> Reply:
        """Reset several episodes; a failed one has an error instead of a result."""
        request = read(ResetEpisodes, body, is_json=True)
        seeds = request.seeds or [None] * len(request.episode_ids)
        if len(seeds) != len(request.episode_ids):
            raise InvalidArgument(
                f"seeds has {len(seeds)} entries, expected {len(request.episode_ids)}, as episode_ids"
            )
        results = [
            {"observation": [], "id": None, "info": {"error": str(result)}} if isinstance(result, Exception) else result
            for result in self._reset(request.episode_ids, seeds)
        ]
        names = {"observations": "observation", "infos": "info", "new_episode_ids": "id"}
        return {column: [result[name] for result in results] for column, name in names.items()}

    def _reset(self, episode_ids: Sequence[str], seeds: Sequence[int | None]) -> list[Result]:
        def work(fleet: HostedFleet, places: Mapping[int, int]) -> dict[int, Result]:
            over = EpisodeOver("the ranked attempt is over here: make new environments to start another")
            results: dict[int, Result] = {row: over for row in places if not fleet.meter.has_more(row)}
            left = [row for row in places if row not in results]
            if left:
                chosen = [seeds[places[row]] for row in left]
                outcome = self._fleets.make(fleet, {"do": "reset", "rows": left, "seeds": chosen})
                for row, rows in zip(left, outcome.reply["observations"], strict=True):
                    results[row] = {"observation": rows[0].tolist(), "id": _episode_id(fleet, row), "info": {}}
            return results

        return self._by_fleet(episode_ids, work)

    # ------------------------------------------------------------------ stepping

    def step_one(self, request: StepEpisode) -> Reply:
        """Decide for one episode."""
        result = _require(self._step([request])[0])
        details = result.pop("info")
        info = {name: details[name] for name in ("step", "episode_id")}
        inner = {**info, "total_reward": details["total_reward"]}
        return {**result, "step": details["step"], "info": {**info, "reason": details["reason"], "info": inner}}

    def step_many(self, body: bytes) -> Reply:
        """Step several episodes; a failed one has an error instead of a result."""
        actions = read(StepEpisodes, body, is_json=True).episode_actions
        results = [
            _refused(request, result) if isinstance(result, Exception) else result
            for request, result in zip(actions, self._step(actions), strict=True)
        ]
        names = ("observation", "reward", "terminated", "truncated", "info")
        return {f"{name}s": [result[name] for result in results] for name in names}

    def _step(self, actions: Sequence[StepEpisode]) -> list[Result]:
        def work(fleet: HostedFleet, places: Mapping[int, int]) -> dict[int, Result]:
            protocol = _protocol(fleet)
            results: dict[int, Result] = {}
            groups: dict[int, dict[int, StepEpisode]] = defaultdict(dict)
            for row, place in places.items():
                try:
                    if _is_over(fleet, row):
                        raise EpisodeOver("the episode has ended: reset it")
                    protocol.check_action(actions[place].action)
                except (EpisodeOver, InvalidArgument) as error:
                    results[row] = error
                else:
                    groups[min(actions[place].step_size, protocol.longest)][row] = actions[place]
            failure: EnvfleetError | None = None  # after which the fleet must not be used
            for span, group in groups.items():
                if failure is None:
                    try:
                        results.update(self._step_group(fleet, span, group))
                        continue
                    except EnvfleetError as error:
                        failure = error
                results.update(dict.fromkeys(group, failure))
            return results

        return self._by_fleet([each.episode_id for each in actions], work)

    def _step_group(self, fleet: HostedFleet, span: int, group: Mapping[int, StepEpisode]) -> dict[int, Result]:
        """Make decisions, by row, for the same number of steps."""
        protocol, most_steps = _protocol(fleet), self._service.quotas.limits(self._identity)[1]
        chosen = shrink(np.array([request.action for request in group.values()]))
        event = {"do": "step", "rows": list(group), "actions": chosen, protocol.span: span}
        reply = self._fleets.make(fleet, event, most_steps=most_steps).reply
        results: dict[int, Result] = {}
        for k, (row, request) in enumerate(group.items()):
            num_rows, reason = (int(reply["infos"][name][k]) for name in ("num_rows", "reason"))
            rows = reply["observations"][k, :num_rows]
            flags = {name: bool(reply[name][k]) for name in ("terminated", "truncated")}
            info = {
                "step": _length(fleet, row),
                **flags,
                "reason": "max_steps" if flags["truncated"] else protocol.reasons.get(reason),
                "total_reward": float(fleet.meter.columns["returns"][row]),
                "episode_id": _episode_id(fleet, row),
            }
            observation = (rows if request.return_all_states else rows[-1]).tolist()
            results[row] = {"observation": observation, "reward": float(reply["rewards"][k]), **flags, "info": info}
        return results

    def _by_fleet(
        self, episode_ids: Sequence[str], work: Callable[[HostedFleet, Mapping[int, int]], dict[int, Result]]
    ) -> list[Result]:
        """Return a result for each episode; raise an error that concerns no single episode, unless something was done.

        Args:
            episode_ids: The episodes.
            work: Function that takes a fleet and the position of each row in `episode_ids`, and returns results by row.
        """
        results: dict[int, Result] = {}
        groups: dict[str, dict[int, int]] = defaultdict(dict)
        for place, episode_id in enumerate(episode_ids):
            # The number behind fleet and row is not asked for: an old id means the episode that took its place.
            parts = _EPISODE_ID.fullmatch(episode_id)
            if parts is None:
                results[place] = NotFound(f"episode {episode_id[:80]!r} does not exist")
            elif int(parts[2]) in groups[parts[1]]:
                results[place] = InvalidArgument("the episode is named twice in one call")
            else:
                groups[parts[1]][int(parts[2])] = place
        known = self._fleets.select_known(self._identity.user_id, groups) if len(groups) > 1 else groups.keys()
        for fleet_id, places in groups.items():
            try:
                if fleet_id not in known:
                    raise NotFound(f"fleet {fleet_id[:80]!r} does not exist")
                with self._fleets.use(self._identity.user_id, fleet_id) as fleet:
                    if fleet.config.kind != "episodes" or max(places) >= fleet.config.num_envs:
                        raise NotFound("the episode does not exist")
                    fleet_results = work(fleet, places)
            except EnvfleetError as error:
                fleet_results = dict.fromkeys(places, error)
            results.update({place: fleet_results[row] for row, place in places.items()})
        failures = [
            one for one in results.values() if isinstance(one, EnvfleetError) and not isinstance(one, _PER_EPISODE)
        ]
        if failures and all(isinstance(one, EnvfleetError) for one in results.values()):
            raise failures[0]
        return [results[place] for place in range(len(episode_ids))]


def _require(result: Result) -> Reply:
    if isinstance(result, Exception):
        raise result
    return result


def _refused(request: StepEpisode, error: Exception) -> Reply:
    """Return the result of a step that was refused: the episode ends, as clients expect nothing else."""
    flags = {"terminated": True, "truncated": False}
    info = {"message": str(error), "error": str(error), **flags, "episode_id": request.episode_id}
    return {"observation": [], "reward": 0.0, **flags, "info": info}


def _protocol(fleet: HostedFleet) -> EpisodeProtocol:
    protocol = fleet.meter.hosting.episodes
    if protocol is None:
        raise InvalidArgument(f"{fleet.config.env} does not support the episode protocol: use the fleet protocol")
    return protocol


def _episode_id(fleet: HostedFleet, row: int) -> str:
    return f"{fleet.fleet_id}-{row}-{int(fleet.fleet.episode_ids[row]) // fleet.config.num_envs}"


def _is_over(fleet: HostedFleet, row: int) -> bool:
    return not fleet.meter.columns["is_running"][row]


def _length(fleet: HostedFleet, row: int) -> int:
    """Length of a row's episode in the environment's own unit."""
    return int(fleet.meter.columns[fleet.meter.hosting.unit][row])


def _flags(fleet: HostedFleet, row: int) -> Reply:
    is_truncated = _is_over(fleet, row) and not fleet.fleet.get_attr("reason")[row]
    is_terminated = _is_over(fleet, row) and not is_truncated
    return {"step": _length(fleet, row), "terminated": is_terminated, "truncated": is_truncated}
