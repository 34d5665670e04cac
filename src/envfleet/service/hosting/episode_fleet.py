"""Episodes of the episode protocol, turbofan engines: any rows of a fleet are stepped, for any number of flights."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import numpy as np

from envfleet.service.hosting.hosted import SEED_BITS, FleetConfig, HostedFleet, Made
from envfleet.service.offers import Offer

TURBOFAN = "envfleet/Turbofan-v0"
MOST_FLIGHTS = 50
"""Flights of one decision, as the original clients allow."""


def episode_fleet_config(offer: Offer, num_envs: int, max_steps: int) -> FleetConfig:
    """What to make for episodes of the episode protocol.

    Args:
        offer: The turbofan's.
        num_envs: How many episodes.
        max_steps: Decisions after which an episode is truncated.

    Raises:
        InvalidArgument: The service does not allow it.
    """
    options = {"max_episode_steps": max_steps, "step_size": MOST_FLIGHTS}
    offer.check(num_envs, {"max_episode_steps": max_steps})
    # Ended rows are never stepped, so that no autoreset happens; in DISABLED a step of the others would be refused.
    return FleetConfig(
        env=TURBOFAN,
        version=offer.version(),
        num_envs=num_envs,
        autoreset_mode="NEXT_STEP",
        mode="ranked",
        options=options,
        kind="episodes",
    )


class EpisodeFleet(HostedFleet):
    """Rows that are stepped and reset one by one; see `HostedFleet`."""

    def complete(self, event: Mapping[str, Any], at: float) -> dict[str, Any]:
        """With the time, and seeds where none were given, which makes the episodes ranked."""
        event = {**event, "at": at}
        if event["do"] == "reset":
            given = event["seeds"] or [None] * len(event["rows"])
            event["is_ranked"] = [seed is None for seed in given]
            event["seeds"] = [secrets.randbits(SEED_BITS) if seed is None else seed for seed in given]
        return event

    def _reset(self, event: Mapping[str, Any]) -> Made:
        rows = np.asarray(event["rows"], np.int64)
        if self.observations is None:
            self.observations = self.fleet.reset(seed=event["seeds"])[0]
        else:
            self.observations[rows] = self.fleet.reset_envs(rows.tolist(), event["seeds"])[0]
        episodes = self.meter.abandon(rows, seq=self.seq, at=event["at"])
        self.meter.begin(rows, seq=self.seq, at=event["at"], is_ranked=np.asarray(event["is_ranked"], np.bool_))
        return Made({"observations": self.observations[rows, 0]}, episodes, 0)

    def _step(self, event: Mapping[str, Any]) -> Made:
        """Step the rows, all for the same number of flights."""
        num_envs, rows = self.config.num_envs, np.asarray(event["rows"], np.int64)
        others = np.setdiff1d(np.arange(num_envs), rows)
        actions = np.zeros(num_envs, np.int64)
        actions[rows] = event["actions"]
        if self.fleet.params["flights"].ravel()[0] != event["flights"]:
            self.fleet.set_attr("flights", event["flights"])
        kept = self.fleet.get_state(others) if len(others) else None
        step = self.fleet.step(actions)
        if kept is not None:
            self.fleet.set_state(kept, others)
        observations, rewards, terminated, truncated = (array[rows] for array in step[:4])
        infos = {name: step[4][name][rows] for name in ("num_rows", "reason")}
        self.observations[rows] = observations
        made = observations, rewards, terminated, truncated, infos
        episodes = self.meter.step(rows, actions[rows], made, seq=self.seq, at=event["at"])
        reply = {
            "observations": observations,
            "rewards": rewards,
            "terminated": terminated,
            "truncated": truncated,
            "num_rows": infos["num_rows"],
            "reasons": infos["reason"],
        }
        return Made(reply, episodes, len(rows))

    # ------------------------------------------------------------------ what its episodes are

    def number(self, row: int) -> int:
        """How many episodes of a row were stepped and reset: part of the running one's id."""
        return int(self.fleet.episode_ids[row]) // self.config.num_envs

    def is_over(self, row: int) -> bool:
        """Whether the row's episode has ended."""
        return not self.meter.columns["is_running"][row]

    def flights(self, row: int) -> int:
        """Flights of a row's episode, a sale included."""
        return int(self.meter.columns["flights"][row])

    def is_truncated(self, row: int) -> bool:
        """Whether the row's episode ended at the limit of its length."""
        return self.is_over(row) and not self.fleet.get_attr("reason")[row]
