"""Participants who play through the fleet protocol, so that pages have something to show."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.service.conftest import TURBOFAN, Caller

from envfleet.envs.turbofan import ThresholdPolicy


def play_engines(caller: Caller, num_episodes: int, *, num_envs: int = 8, mode: str = "ranked", **policy: Any) -> str:
    """Play engines by thresholds until so many episodes have ended, and leave the others; returns the fleet."""
    fleet = caller.create(num_envs=num_envs, mode=mode, autoreset_mode="SAME_STEP")
    mechanic = ThresholdPolicy(num_envs, **policy)
    reply = caller.call(f"/fleets/{fleet}/reset", seq=0)
    mechanic.begin(np.ones(num_envs, np.bool_))
    ended = 0
    while ended < num_episodes:
        actions = mechanic.act_batch(reply["observations"])
        reply = caller.call(f"/fleets/{fleet}/step", seq=reply["seq"], actions=actions)
        over = reply["terminated"] | reply["truncated"]
        mechanic.begin(over)
        ended += int(over.sum())
    return fleet


def sell_at_once(caller: Caller, mode: str = "ranked") -> None:
    """End one episode in one step."""
    fleet = caller.create(num_envs=1, mode=mode)
    caller.call(f"/fleets/{fleet}/reset", seq=0)
    caller.call(f"/fleets/{fleet}/step", seq=1, actions=np.array([2]))


def play_poles(caller: Caller, env: str, num_steps: int = 120) -> str:
    """Play CartPole without thought; returns the fleet."""
    fleet = caller.create(env, num_envs=3, autoreset_mode="NEXT_STEP")
    reply = caller.call(f"/fleets/{fleet}/reset", seq=0)
    for step in range(num_steps):
        actions = np.array([step % 2, 0, (step // 2) % 2])
        reply = caller.call(f"/fleets/{fleet}/step", seq=reply["seq"], actions=actions)
    return fleet


__all__ = ["TURBOFAN", "play_engines", "play_poles", "sell_at_once"]
