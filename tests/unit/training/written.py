"""A configuration of hockey, and changes of it."""

from __future__ import annotations

import copy
from typing import Any

CONFIG: dict[str, Any] = {
    "curriculum": {
        "phases": [
            {
                "name": "shooting",
                "episodes": 100,
                "environment": {"mode": "TRAIN_SHOOTING", "keep_mode": True},
                "opponent": {"type": "none", "weight": 1.0},
                "reward_shaping": {"N": 60, "K": 40, "CLOSENESS_START": 25, "TOUCH_FINAL": 1.5},
            },
            {
                "name": "games",
                "episodes": 200,
                "environment": {
                    "mixture": [{"mode": "TRAIN_DEFENSE", "weight": 0.5}, {"mode": "NORMAL", "weight": 1.5}]
                },
                "opponent": {
                    "type": "weighted_mixture",
                    "weight": 1.0,
                    "opponents": [
                        {"type": "basic_weak", "weight": 0.5},
                        {"type": "snapshots", "weight": 1.5},
                    ],
                },
                "reward_shaping": None,
                "clear_buffer": False,
            },
        ]
    },
    "hyperparameters": {"learning_rate": 0.0005, "batch_size": 64},
    "agent": {"type": "SAC", "hyperparameters": {"gamma": 0.98, "hidden": [32, 64]}},
}


def clean() -> dict[str, Any]:
    """A copy of it."""
    return copy.deepcopy(CONFIG) | {"training": {}}


def changed(*path: Any) -> dict[str, Any]:
    """`clean`, with the last of these put where the others lead."""
    data = clean()
    *way, last, value = path
    place: Any = data
    for key in way:
        place = place[key]
    place[last] = value
    return data


def with_agent(kind: str, **hyperparameters: Any) -> dict[str, Any]:
    return changed("agent", {"type": kind, "hyperparameters": hyperparameters}) | {"hyperparameters": {}}
