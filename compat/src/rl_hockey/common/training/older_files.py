"""Configuration files of the older pipeline, in the form that envfleet reads."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

from envfleet.training.config import find_config

_WITHOUT_EFFECT = {
    "max_episode_steps", "checkpoint_save_freq", "resource_log_freq", "episode_resource_window",
    "episode_resource_samples", "skill_range", "agent_type",
}  # fmt: skip
_ALWAYS_SO = {
    "use_huber_loss": True, "learn_alpha": True, "max_action": 1.0, "priority_replay": False, "normalize_obs": False,
    "action_fineness": None,
}  # fmt: skip
"""Hyperparameters with the only value that agents have."""
_COLOURS = {"normal": 0.0, "white": 0.0, "pink": 1.0, "red": 2.0}
_COMMON = {
    "hidden_dim": "hidden", "hidden_dims": "hidden", "discount": "gamma", "tau": "target_tau",
    "buffer_size": "capacity", "buffer_max_size": "capacity", "n_step": "num_steps",
}  # fmt: skip
_NAMES = {
    "SAC": {"alpha": "initial_temperature", "max_episode_steps": "noise_length"},
    "TD3": {
        "expl_noise": "exploration_noise", "policy_noise": "target_noise", "noise_clip": "target_noise_clip",
        "policy_freq": "policy_delay",
    },
    "DDDQN": {
        "eps": "epsilon_start", "eps_min": "epsilon_end", "use_per": "prioritised", "per_alpha": "priority_alpha",
        "per_beta": "priority_beta",
    },
}  # fmt: skip


def read_older(source: str | Path) -> Any:
    """Read a file of the older pipeline, or one of envfleet's.

    Keys that never had an effect are left out, with a warning that names them. Keys whose effect is written in another
    way stay; envfleet refuses them.

    Args:
        source: As for `envfleet.training.config.find_config`.

    Returns:
        The content, as `envfleet.training.train` takes it.

    Raises:
        InvalidArgument: Unknown name.
        OSError: The file cannot be read.
        ValueError: It is no JSON.
    """
    path = find_config(source)
    left_out: list[str] = []
    data = modernise(json.loads(path.read_text(encoding="utf-8")), left_out)
    if left_out:
        warnings.warn(f"{path}: {', '.join(left_out)} never had an effect and are left out", UserWarning, stacklevel=2)
    return data


def modernise(data: Any, left_out: list[str]) -> Any:
    """Return the content of a file in the present form; `left_out` takes the names of keys without effect."""
    if not isinstance(data, dict):
        return data
    training = _without(data.get("training", {}), left_out)
    every = training.pop("train_freq", 1)
    if every != 1:
        training["updates_per_step"] = training.get("updates_per_step", 1) / every
    phases = [_phase(phase, left_out) for phase in data.get("curriculum", {}).get("phases", [])]
    changed = {"curriculum": {"phases": phases}, "training": training, "agent": _agent(data.get("agent", {}))}
    return {**data, **{name: section for name, section in changed.items() if name in data}}


def _without(section: dict[str, Any], left_out: list[str]) -> dict[str, Any]:
    left_out += sorted(_WITHOUT_EFFECT & section.keys())
    return {name: value for name, value in section.items() if name not in _WITHOUT_EFFECT}


def _phase(phase: dict[str, Any], left_out: list[str]) -> dict[str, Any]:
    return phase | {"opponent": _opponent(phase["opponent"], left_out)} if phase.get("opponent") else phase


def _opponent(opponent: dict[str, Any], left_out: list[str]) -> dict[str, Any]:
    found = _without({name: value for name, value in opponent.items() if value is not None}, left_out)
    if found.get("type") in ("archive", "run_checkpoints"):
        found["type"] = "snapshots"
    if found.get("type") not in ("self_play", "snapshots"):  # where it was ignored
        found.pop("deterministic", None)
    if found.get("checkpoint") == "latest":
        del found["checkpoint"]
    if "opponents" in found:
        found["opponents"] = [_opponent(one, left_out) for one in found["opponents"]]
    return found


def _agent(section: dict[str, Any]) -> dict[str, Any]:
    kind = str(section.get("type", ""))
    given: dict[str, Any] = section.get("hyperparameters", {})
    if kind == "DDQN_PER":
        kind, given = "DDDQN", {"use_per": True} | given
    names = _COMMON | _NAMES.get(kind, {})
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name == "noise" and value in _COLOURS:
            found["noise_exponent"] = _COLOURS[value]
        elif name == "target_update_freq":
            found |= {"target_period": value, "target_tau": 1.0}
        elif names.get(name) == "hidden" and isinstance(value, int):
            found["hidden"] = [value, value]
        elif name not in _ALWAYS_SO or value != _ALWAYS_SO[name]:
            found[names.get(name, name)] = value
    return {**section, "type": kind, "hyperparameters": found}
