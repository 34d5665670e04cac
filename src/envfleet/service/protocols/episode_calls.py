"""What the calls of the episode protocol do; run in threads."""

from __future__ import annotations

import re
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from envfleet.errors import InvalidArgument
from envfleet.remote.codec import shrink
from envfleet.service.hosting.episode_fleet import EpisodeFleet, episode_fleet_config, find_episode_offer
from envfleet.service.hosting.hosted import HostedFleet, Made
from envfleet.service.protocols.requests import read
from envfleet.service.protocols.schemas import (
    CreateEpisodes,
    EpisodeConfig,
    ResetEpisode,
    ResetEpisodes,
    StepEpisode,
    StepEpisodes,
)
from envfleet.service.refusals import EpisodeOver, NotFound, QuotaSpent, Refusal
from envfleet.service.service import Service
from envfleet.service.users.auth import Identity

_EPISODE_ID = re.compile(r"([0-9a-f]{24})-(\d{1,6})-(\d{1,12})")
_LEFT_ALONE_S = 60.0
Reply = dict[str, Any]


class EpisodeCalls:
    """The calls, on behalf of a user.

    Args:
        service: The service.
        identity: The user.
    """

    def __init__(self, service: Service, identity: Identity) -> None:
        self._service, self._identity, self._fleets = service, identity, service.fleets

    # ------------------------------------------------------------------ creating

    def create_one(self, asked: EpisodeConfig) -> Reply:
        """Return one episode."""
        fleet_id, observations = self._create(asked, 1)
        return {"episode_id": f"{fleet_id}-0-0", "initial_observation": observations[0]}

    def create_many(self, asked: CreateEpisodes) -> Reply:
        """Return a group of them."""
        fleet_id, observations = self._create(asked.env_config, asked.num_envs)
        ids = [f"{fleet_id}-{row}-0" for row in range(asked.num_envs)]
        return {"episode_ids": ids, "vectorized_group_id": fleet_id, "initial_observations": observations}

    def _create(self, asked: EpisodeConfig, num_envs: int) -> tuple[str, list[list[float]]]:
        offer, protocol = find_episode_offer(self._service.settings.offers, asked.env_type)
        config = episode_fleet_config(offer, protocol, num_envs, asked.max_steps_per_episode)
        user_id, key = self._identity.user_id, secrets.token_hex(16)
        most = self._service.quotas.limits(self._identity)[0]
        try:
            fleet_id = self._fleets.create(user_id, config, key, most_live_envs=most)
        except QuotaSpent:  # these clients never close anything, so close for them what they left alone
            self._close_left_alone()
            fleet_id = self._fleets.create(user_id, config, key, most_live_envs=most)
        with self._fleets.use(user_id, fleet_id) as hosted:
            made = self._fleets.make(hosted, {"do": "reset", "rows": list(range(num_envs)), "seeds": None})
        return fleet_id, made.reply["observations"][:, 0].tolist()

    def _close_left_alone(self) -> None:
        user_id, now = self._identity.user_id, time.time()
        for row in self._service.store.open_fleets(user_id, idle_since=now - _LEFT_ALONE_S):
            held = self._fleets.held(row["id"])
            if row["config"]["kind"] == "episodes" and (held is None or held.touched_at < now - _LEFT_ALONE_S):
                self._fleets.close_fleet(user_id, row["id"])

    # ------------------------------------------------------------------ looking

    def info(self, episode_id: str) -> Reply:
        """Return what an episode amounts to."""
        fleet_id, row = _parse(episode_id)
        with self._fleets.use(self._identity.user_id, fleet_id) as hosted:
            fleet = _checked(hosted, row)
            total = float(fleet.meter.columns["returns"][row])
            return {"episode_id": _episode_id(fleet, row), "total_reward": total, **_flags(fleet, row)}

    def latest(self, episode_id: str) -> Reply:
        """Return the last observation."""
        fleet_id, row = _parse(episode_id)
        with self._fleets.use(self._identity.user_id, fleet_id) as hosted:
            fleet = _checked(hosted, row)
            return {"observation": fleet.latest(row).tolist(), **_flags(fleet, row)}

    # ------------------------------------------------------------------ resetting

    def reset_one(self, asked: ResetEpisode) -> Reply:
        """Begin one anew."""
        fleet_id, row = _parse(asked.episode_id)
        with self._fleets.use(self._identity.user_id, fleet_id) as hosted:
            fleet = _checked(hosted, row)
            event = {"do": "reset", "rows": [row], "seeds": [asked.seed]}
            made = self._fleets.make(fleet, event)
            return {
                "observation": made.reply["observations"][0, 0].tolist(),
                "new_episode_id": _episode_id(fleet, row),
                "info": {},
            }

    def reset_many(self, body: bytes) -> Reply:
        """Begin some anew; what cannot be is told in its place."""
        asked = read(ResetEpisodes, body, is_json=True)
        seeds = asked.seeds or [None] * len(asked.episode_ids)
        if len(seeds) != len(asked.episode_ids):
            raise InvalidArgument(f"seeds has {len(seeds)} entries, expected {len(asked.episode_ids)}, as episode_ids")
        results: list[Reply] = [{}] * len(seeds)

        def reset(fleet: EpisodeFleet, places: Sequence[tuple[int, int]]) -> None:
            event = {"do": "reset", "rows": [row for _, row in places], "seeds": [seeds[place] for place, _ in places]}
            made = self._fleets.make(fleet, event)
            for k, (place, row) in enumerate(places):
                observation = made.reply["observations"][k, 0].tolist()
                results[place] = {"observation": observation, "id": _episode_id(fleet, row), "info": {}}

        def refuse(place: int, error: str) -> None:
            results[place] = {"observation": [], "id": None, "info": {"error": error}}

        self._by_fleet(asked.episode_ids, reset, refuse)
        return {
            "observations": [result["observation"] for result in results],
            "infos": [result["info"] for result in results],
            "new_episode_ids": [result["id"] for result in results],
        }

    # ------------------------------------------------------------------ stepping

    def step_one(self, asked: StepEpisode) -> Reply:
        """Decide for one episode."""
        fleet_id, row = _parse(asked.episode_id)
        with self._fleets.use(self._identity.user_id, fleet_id) as hosted:
            fleet = _checked(hosted, row)
            if fleet.is_over(row):
                raise EpisodeOver("the episode has ended: reset it")
            fleet.protocol.check_action(asked.action)
            result = self._step(fleet, [(0, row)], [asked])[0]
            info = {"step": result["step"], "episode_id": _episode_id(fleet, row)}
        reply = {name: result[name] for name in ("observation", "reward", "terminated", "truncated", "step")}
        inner = {**info, "total_reward": result["total"]}
        return {**reply, "info": {**info, "reason": result["reason"], "info": inner}}

    def step_many(self, body: bytes) -> Reply:
        """Decide for some episodes; what cannot be done is told in its place."""
        actions = read(StepEpisodes, body, is_json=True).episode_actions
        results: list[Reply] = [{}] * len(actions)

        def refuse(place: int, error: str, **more: Any) -> None:
            info = {"message": error, "error": error, "terminated": True, "truncated": False, **more}
            results[place] = {"observation": [], "reward": 0.0, "terminated": True, "truncated": False, "info": info}

        def step(fleet: EpisodeFleet, places: Sequence[tuple[int, int]]) -> None:
            groups: dict[int, list[tuple[int, int]]] = defaultdict(list)
            for place, row in places:
                if fleet.is_over(row):
                    refuse(place, "the episode has ended: reset it", episode_id=_episode_id(fleet, row))
                    continue
                try:
                    fleet.protocol.check_action(actions[place].action)
                except InvalidArgument as error:
                    refuse(place, str(error))
                else:
                    groups[min(actions[place].step_size, fleet.protocol.longest)].append((place, row))
            for group in groups.values():
                results_of_group = self._step(fleet, group, actions)
                for (place, row), result in zip(group, results_of_group, strict=True):
                    info = {name: result[name] for name in ("step", "terminated", "truncated", "reason")}
                    info["total_reward"] = result["total"]
                    results[place] = {**result, "info": {**info, "episode_id": _episode_id(fleet, row)}}

        self._by_fleet([each.episode_id for each in actions], step, refuse)
        names = ("observation", "reward", "terminated", "truncated", "info")
        return {f"{name}s": [result[name] for result in results] for name in names}

    def _step(
        self, fleet: EpisodeFleet, places: Sequence[tuple[int, int]], actions: Sequence[StepEpisode]
    ) -> list[Reply]:
        """Make decisions for the same number of steps; one result each."""
        protocol = fleet.protocol
        span = min(actions[places[0][0]].step_size, protocol.longest)
        rows = [row for _, row in places]
        most_steps = self._service.quotas.limits(self._identity)[1]
        chosen = shrink(np.array([actions[place].action for place, _ in places]))
        event = {"do": "step", "rows": rows, "actions": chosen, protocol.span: span}
        made = self._fleets.make(fleet, event, most_steps=most_steps)
        return [_result(fleet, made, k, row, actions[place]) for k, (place, row) in enumerate(places)]

    def _by_fleet(
        self,
        episode_ids: Sequence[str],
        use: Callable[[EpisodeFleet, Sequence[tuple[int, int]]], None],
        refuse: Callable[[int, str], None],
    ) -> None:
        """Call `use(fleet, [(place, row), …])` for each fleet; what is refused is refused place by place."""
        groups: dict[str, dict[int, int]] = defaultdict(dict)
        for place, episode_id in enumerate(episode_ids):
            try:
                fleet_id, row = _parse(episode_id)
            except NotFound as error:
                refuse(place, str(error))
                continue
            if row in groups[fleet_id]:
                refuse(place, "the episode is named twice in one call")
            else:
                groups[fleet_id][row] = place
        for fleet_id, rows in groups.items():
            try:
                with self._fleets.use(self._identity.user_id, fleet_id) as hosted:
                    places = [(place, row) for row, place in rows.items()]
                    use(_checked(hosted, max(rows)), places)
            except (Refusal, InvalidArgument) as error:
                if not isinstance(error, Refusal) or error.status in (404, 410):
                    for place in rows.values():
                        refuse(place, str(error))
                else:
                    raise


def _parse(episode_id: str) -> tuple[str, int]:
    """Fleet and row. The number behind them is not asked for: an old id means the episode that took its place."""
    found = _EPISODE_ID.fullmatch(episode_id)
    if found is None:
        raise NotFound(f"there is no episode {episode_id[:80]!r}")
    return found[1], int(found[2])


def _checked(hosted: HostedFleet, row: int) -> EpisodeFleet:
    if not isinstance(hosted, EpisodeFleet) or row >= hosted.config.num_envs:
        raise NotFound("there is no such episode")
    return hosted


def _episode_id(fleet: EpisodeFleet, row: int) -> str:
    return f"{fleet.fleet_id}-{row}-{fleet.number(row)}"


def _flags(fleet: EpisodeFleet, row: int) -> Reply:
    is_truncated = fleet.is_truncated(row)
    is_terminated = fleet.is_over(row) and not is_truncated
    return {"step": fleet.length(row), "terminated": is_terminated, "truncated": is_truncated}


def _result(fleet: EpisodeFleet, made: Made, k: int, row: int, asked: StepEpisode) -> Reply:
    reply = made.reply
    num_rows, reason = (int(reply["infos"][name]["values"][k]) for name in ("num_rows", "reason"))
    rows, truncated = reply["observations"][k, :num_rows], bool(reply["truncated"][k])
    return {
        "observation": (rows if asked.return_all_states else rows[-1]).tolist(),
        "reward": float(reply["rewards"][k]),
        "terminated": bool(reply["terminated"][k]),
        "truncated": truncated,
        "step": fleet.length(row),
        "total": float(fleet.meter.columns["returns"][row]),
        "reason": "max_steps" if truncated else fleet.protocol.reasons.get(reason),
    }
