"""The environments that come with envfleet, in Gymnasium's registry; nothing is imported before it is made."""

from __future__ import annotations

import gymnasium

from envfleet.kernels.registration import register
from envfleet.registry import ENVIRONMENTS


def register_all() -> None:
    """Register all of them."""
    for one in ENVIRONMENTS.values():
        if one.is_kernel:
            register(one.id, one.target, max_episode_steps=one.max_episode_steps, twin_of=one.twin_of)
        else:
            gymnasium.register(one.id, entry_point=one.target, max_episode_steps=one.max_episode_steps)
