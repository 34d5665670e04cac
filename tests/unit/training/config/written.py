"""A configuration as the public files are written, and changes of it."""

from __future__ import annotations

import copy
from typing import Any

# Written as older files are, with the keys that nothing there ever used.
PUBLIC: dict[str, Any] = {
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
                    "checkpoint": None,
                    "deterministic": True,
                    "opponents": [
                        {"type": "basic_weak", "weight": 0.5},
                        {"type": "archive", "weight": 1.5, "skill_range": 50},
                    ],
                },
                "reward_shaping": None,
                "clear_buffer": False,
            },
        ]
    },
    "hyperparameters": {"learning_rate": 0.0005, "batch_size": 64},
    "training": {"max_episode_steps": 500, "updates_per_step": 1, "warmup_steps": 400, "checkpoint_save_freq": 100},
    "agent": {
        "type": "SAC",
        "hyperparameters": {
            "discount": 0.98,
            "tau": 0.01,
            "alpha": 0.2,
            "learn_alpha": True,
            "noise": "pink",
            "max_episode_steps": 250,
            "hidden_dim": [32, 64],
        },
    },
}


def clean() -> dict[str, Any]:
    """The same without keys that are warned of."""
    data = copy.deepcopy(PUBLIC)
    data["training"] = {}
    del data["curriculum"]["phases"][1]["opponent"]["opponents"][1]["skill_range"]
    return data


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
