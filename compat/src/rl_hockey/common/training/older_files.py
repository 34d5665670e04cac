"""Configuration files of the older pipeline, in the form that envfleet reads."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envfleet.errors import InvalidArgument
from envfleet.fleet.checks import check_whole
from envfleet.training.config import read_file

_OWN = {"$schema", "seed"}
"""Top-level keys that only envfleet's own files have."""
_WITHOUT_EFFECT = {
    "max_episode_steps", "checkpoint_save_freq", "resource_log_freq", "episode_resource_window",
    "episode_resource_samples", "skill_range", "agent_type",
}  # fmt: skip
_ALWAYS_SO = {
    "use_huber_loss": True, "learn_alpha": True, "max_action": 1.0, "priority_replay": False, "normalize_obs": False,
    "action_fineness": None,
}  # fmt: skip
"""Hyperparameters with the only value that agents have."""
_COLORS = {"normal": 0.0, "white": 0.0, "pink": 1.0, "red": 2.0}
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
        "eps": "epsilon_start", "eps_min": "epsilon_end", "use_per": "prioritized", "per_alpha": "priority_alpha",
        "per_beta": "priority_beta",
    },
}  # fmt: skip
_SHARED_DEFAULTS = {"learning_rate": 1e-4, "batch_size": 256}
_DEFAULTS: dict[str, dict[str, Any]] = {"SAC": {"alpha": 0.2, "max_episode_steps": 250}}
"""Defaults of that pipeline where envfleet has others, by agent."""


def read_older(source: Mapping[str, Any] | str | Path, num_envs: int = 1) -> dict[str, Any]:
    """Read a file of the older pipeline, or one of envfleet's.

    A file with `$schema` or `seed` at its top level is envfleet's own, as all files are that envfleet writes; it is
    returned as it is. Every other file is translated so that its keys keep their meaning; a warning lists what that
    changed, what has another meaning here, and keys that never had an effect. Keys whose effect is written in another
    way stay; envfleet refuses them.

    Args:
        source: The file, as for `envfleet.training.config.find_config`, or its content.
        num_envs: Number of sub-environments of the run, which decides how many updates `train_freq` skips.

    Returns:
        The content, as `envfleet.training.train` takes it; reading it again changes nothing.

    Raises:
        InvalidArgument: Unknown name, missing file, a file that is not JSON or holds no object, or a `train_freq`
            that is not a positive whole number.
    """
    check_whole("num_envs", num_envs, 1)
    data, name = (dict(source), "the configuration") if isinstance(source, Mapping) else read_file(source)
    if not isinstance(data, dict):
        raise InvalidArgument(f'{name} holds a {type(data).__name__}, expected an object: {{"curriculum": …}}')
    if not is_older(data):
        return data
    notes: list[str] = []
    data = modernise(data, notes, num_envs)
    listed = "".join(f"\n- {note}" for note in notes)
    warnings.warn(
        f'{name} is read as a file of rl_hockey (envfleet\'s own have "$schema" or "seed"):{listed}',
        UserWarning,
        stacklevel=2,
    )
    return {"$schema": "schema.json", **data}


def is_older(data: Mapping[str, Any]) -> bool:
    """Return whether the content of a file is that of the older pipeline, without `$schema` and `seed`."""
    return not _OWN & data.keys()


def modernise(data: dict[str, Any], notes: list[str], num_envs: int = 1) -> dict[str, Any]:
    """Return the content of an older file in the present form.

    Args:
        data: The content; sections of a wrong type stay as they are, for envfleet to refuse.
        notes: Takes a line for each change that the user should know of.
        num_envs: Number of sub-environments of the run.

    Raises:
        InvalidArgument: `training.train_freq` is not a positive whole number.
    """
    curriculum, training, shared, agent = (
        data.get(name, {}) for name in ("curriculum", "training", "hyperparameters", "agent")
    )
    if not all(isinstance(section, dict) for section in (curriculum, training, shared, agent)):
        return data
    left_out: set[str] = set()
    phases = curriculum.get("phases")
    if isinstance(phases, list):
        phases = [_phase(one, f"curriculum.phases[{i}]", notes, left_out) for i, one in enumerate(phases)]
        curriculum = {**curriculum, "phases": phases}
    changed = {"curriculum": curriculum, "training": _training(training, num_envs, notes, left_out)}
    changed |= _learning(shared, agent, notes)
    if left_out:
        notes.append(f"{', '.join(sorted(left_out))} never had an effect and are left out")
    return {**data, **{name: section for name, section in changed.items() if section}}


def _without(section: dict[str, Any], left_out: set[str]) -> dict[str, Any]:
    left_out |= _WITHOUT_EFFECT & section.keys()
    return {name: value for name, value in section.items() if name not in _WITHOUT_EFFECT}


def _training(section: dict[str, Any], num_envs: int, notes: list[str], left_out: set[str]) -> dict[str, Any]:
    """Return the section with updates per round: that pipeline made them when a multiple of `train_freq` was reached.

    Its counter grew by `num_envs` per vector step, so one in `train_freq / gcd(train_freq, num_envs)` steps did.
    """
    training = _without(section, left_out)
    if "updates_per_round" in training:
        return training
    every, updates = training.pop("train_freq", 1), training.pop("updates_per_step", 1)
    check_whole("training.train_freq", every, 1)
    if not isinstance(updates, int | float) or isinstance(updates, bool):
        return {**training, "updates_per_step": updates}
    rate = updates * math.gcd(every, num_envs) / every
    divided = f" and train_freq={every}" * (every > 1)
    notes.append(
        f"training.updates_per_step={updates:g}{divided} become updates_per_round={rate:g}, counted per step of all "
        f"{num_envs} sub-environments; envfleet's updates_per_step is per transition"
    )
    return {**training, "updates_per_round": rate}


def _phase(phase: Any, path: str, notes: list[str], left_out: set[str]) -> Any:
    if not isinstance(phase, dict):
        return phase
    environment, opponent = phase.get("environment"), phase.get("opponent")
    if isinstance(environment, dict) and environment.get("mixture"):
        notes.append(f"{path}.environment.mixture is drawn for every episode; there it was once per phase")
    if not isinstance(opponent, dict):
        return phase
    return {**phase, "opponent": _opponent(opponent, f"{path}.opponent", notes, left_out)}


def _opponent(opponent: dict[str, Any], path: str, notes: list[str], left_out: set[str]) -> dict[str, Any]:
    options = _without({name: value for name, value in opponent.items() if value is not None}, left_out)
    if options.get("checkpoint") == "latest":
        del options["checkpoint"]
    if options.get("type") in ("archive", "run_checkpoints"):
        options["type"] = "snapshots"
    if options.get("type") not in ("self_play", "snapshots"):  # other opponents have no such choice
        options.pop("deterministic", None)
    elif options.get("deterministic"):
        notes.append(f"{path}.deterministic was ignored there and counts here; leave it out for an opponent that draws")
    elif options["type"] == "self_play" and "checkpoint" not in options:
        notes.append(
            f"{path} is the learner, which learns from both sides here, so a step counts as two transitions; "
            "training.learn_from_both_sides=false is as there"
        )
    if isinstance(options.get("opponents"), list):
        options["opponents"] = [
            _opponent(one, f"{path}.opponents[{place}]", notes, left_out) if isinstance(one, dict) else one
            for place, one in enumerate(options["opponents"])
        ]
    return options


def _learning(shared: dict[str, Any], agent: dict[str, Any], notes: list[str]) -> dict[str, dict[str, Any]]:
    """Return the sections `hyperparameters` and `agent`; values of the first override the agent's own."""
    kind, values = agent.get("type"), agent.get("hyperparameters", {})
    if not isinstance(kind, str) or not isinstance(values, dict):
        return {}
    if kind == "DDQN_PER":
        kind, values = "DDDQN", {"use_per": True} | values
    if kind in _NAMES:
        absent = _absent("hyperparameters", _SHARED_DEFAULTS, shared)
        shared = _SHARED_DEFAULTS | shared
        notes += [
            f"agent.hyperparameters.{name}={values[name]} gives way to hyperparameters.{name}={value}, as there"
            for name, value in shared.items()
            if values.get(name, value) != value
        ]
        values = {name: value for name, value in values.items() if name not in _SHARED_DEFAULTS}
        defaults = _DEFAULTS.get(kind, {})
        absent += _absent("agent.hyperparameters", defaults, values)
        values = defaults | values
        if absent:
            notes.append(f"absent keys have the defaults of that pipeline: {', '.join(absent)}")
    return {"hyperparameters": shared, "agent": {**agent, "type": kind, "hyperparameters": _renamed(kind, values)}}


def _absent(path: str, defaults: dict[str, Any], section: dict[str, Any]) -> list[str]:
    return [f"{path}.{name}={value}" for name, value in defaults.items() if name not in section]


def _renamed(kind: str, old: dict[str, Any]) -> dict[str, Any]:
    names = _COMMON | _NAMES.get(kind, {})
    hyperparameters: dict[str, Any] = {}
    for name, value in old.items():
        if name == "noise" and value in [*_COLORS]:
            hyperparameters["noise_exponent"] = _COLORS[value]
        elif name == "target_update_freq":
            hyperparameters |= {"target_period": value, "target_tau": 1.0}
        elif names.get(name) == "hidden" and isinstance(value, int):
            hyperparameters["hidden"] = [value, value]
        elif name not in _ALWAYS_SO or value != _ALWAYS_SO[name]:
            hyperparameters[names.get(name, name)] = value
    return hyperparameters
