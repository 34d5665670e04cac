"""Participants that play through the fleet protocol, as content for the pages."""

from __future__ import annotations

import numpy as np
from tests.service.conftest import Caller

from envfleet.envs.turbofan import ThresholdPolicy


def play_engines(caller: Caller, num_episodes: int, *, num_envs: int, seeds: int) -> str:
    """Play engines by thresholds, in training, until so many episodes have ended; returns the fleet."""
    fleet = caller.create(num_envs=num_envs, autoreset_mode="SAME_STEP")
    mechanic = ThresholdPolicy(num_envs)
    reply = caller.call(f"/fleets/{fleet}/reset", seq=0, seeds=seeds)
    mechanic.begin(np.ones(num_envs, np.bool_))
    ended = 0
    while ended < num_episodes:
        actions = mechanic.act_batch(reply["observations"])
        reply = caller.call(f"/fleets/{fleet}/step", seq=reply["seq"], actions=actions)
        over = reply["terminated"] | reply["truncated"]
        mechanic.begin(over)
        ended += int(over.sum())
    return fleet


def sell_at_once(caller: Caller) -> None:
    """End a ranked attempt in one step."""
    fleet = caller.create(num_envs=2, mode="ranked")
    caller.call(f"/fleets/{fleet}/reset", seq=0)
    caller.call(f"/fleets/{fleet}/step", seq=1, actions=np.array([2, 2]))


def play_poles(caller: Caller, env: str, num_steps: int) -> str:
    """Play CartPole without thought; returns the fleet."""
    fleet = caller.create(env, num_envs=3, autoreset_mode="NEXT_STEP")
    reply = caller.call(f"/fleets/{fleet}/reset", seq=0)
    for step in range(num_steps):
        actions = np.array([step % 2, 0, (step // 2) % 2])
        reply = caller.call(f"/fleets/{fleet}/step", seq=reply["seq"], actions=actions)
    return fleet
