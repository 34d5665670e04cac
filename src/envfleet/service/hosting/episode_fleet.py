"""Episodes of the episode protocol: any rows of a fleet are stepped, each decision for any number of steps."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from envfleet.envs.hosting import EpisodeProtocol
from envfleet.errors import InvalidArgument
from envfleet.service.hosting.hosted import SEED_BITS, FleetConfig, HostedFleet, Made
from envfleet.service.offers import Offer


def find_episode_offer(offers: Iterable[Offer], name: str | None = None) -> tuple[Offer, EpisodeProtocol]:
    """Find an environment of which the episode protocol is spoken.

    Args:
        offers: Of the service.
        name: What a client calls it; the first one if it does not say.

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


def episode_fleet_config(offer: Offer, protocol: EpisodeProtocol, num_envs: int, max_steps: int) -> FleetConfig:
    """Return what to make for episodes of the episode protocol.

    Args:
        offer: The environment's.
        protocol: Likewise.
        num_envs: How many episodes.
        max_steps: Decisions after which an episode is truncated; at most the environment's own limit.

    Raises:
        InvalidArgument: The service does not allow it.
    """
    limit = min(max_steps, offer.max_episode_steps or max_steps)
    offer.check(num_envs, {"max_episode_steps": limit})
    # Ended rows are never stepped, so that no autoreset happens; in DISABLED a step of the others would be refused.
    return FleetConfig(
        env=offer.env,
        version=offer.version(),
        num_envs=num_envs,
        autoreset_mode="NEXT_STEP",
        mode="ranked",
        options={"max_episode_steps": limit, protocol.option: protocol.longest},
        kind="episodes",
    )


class EpisodeFleet(HostedFleet):
    """Rows that are stepped and reset one by one; see `HostedFleet`."""

    @property
    def protocol(self) -> EpisodeProtocol:
        """What the episode protocol needs to know of its environment."""
        protocol = self.meter.hosting.episodes
        if protocol is None:
            raise InvalidArgument(f"the episode protocol is not spoken of {self.config.env}: use the fleet protocol")
        return protocol

    def complete(self, event: Mapping[str, Any], at: float) -> dict[str, Any]:
        """With the time, and seeds where none were given, which makes the episodes ranked."""
        event = {**event, "at": at}
        if event["do"] == "reset":
            given = event["seeds"] or [None] * len(event["rows"])
            event["is_ranked"] = [seed is None for seed in given]
            event["seeds"] = [secrets.randbits(SEED_BITS) if seed is None else seed for seed in given]
        return event

    def _step(self, event: Mapping[str, Any]) -> Made:
        """Step the rows, all for the same number of steps."""
        span = self.protocol.span
        if self.fleet.engine.params[span].ravel()[0] != event[span]:
            self.fleet.set_attr(span, event[span])
        return super()._step(event)

    # ------------------------------------------------------------------ what its episodes are

    def latest(self, row: int) -> Any:
        """Return the last row of a row's last observation."""
        return self.fleet.engine.observe(np.array([row]))[0, -1]

    def number(self, row: int) -> int:
        """Return how many episodes of a row were stepped and reset: part of the running one's id."""
        return int(self.fleet.episode_ids[row]) // self.config.num_envs

    def is_over(self, row: int) -> bool:
        """Return whether the row's episode has ended."""
        return not self.meter.columns["is_running"][row]

    def length(self, row: int) -> int:
        """Length of a row's episode in the environment's own unit."""
        return int(self.meter.columns[self.meter.hosting.unit][row])

    def is_truncated(self, row: int) -> bool:
        """Return whether the row's episode ended at the limit of its length."""
        return self.is_over(row) and not self.fleet.get_attr("reason")[row]
