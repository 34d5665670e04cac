"""From the `agent` section to the agent's own configuration, with the names of older files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from envfleet.agents import ActionTable, DDDQNConfig, PPOConfig, SACConfig, TD3Config
from envfleet.envs.hockey.discrete import action_table
from envfleet.errors import InvalidArgument
from envfleet.training.config.run import AgentName, RunConfig
from envfleet.training.config.section import describe_unknown

AgentConfig = DDDQNConfig | SACConfig | TD3Config | PPOConfig
CONFIGS: dict[AgentName, type[AgentConfig]] = {
    "SAC": SACConfig,
    "TD3": TD3Config,
    "DDDQN": DDDQNConfig,
    "PPO": PPOConfig,
}

_SHARED = {
    "hidden_dim": "hidden",
    "hidden_dims": "hidden",
    "discount": "gamma",
    "tau": "target_tau",
    "buffer_size": "capacity",
    "buffer_max_size": "capacity",
    "n_step": "num_steps",
}
ALIASES: dict[AgentName, dict[str, str]] = {
    "SAC": _SHARED | {"alpha": "initial_temperature", "max_episode_steps": "noise_length"},
    "TD3": _SHARED
    | {
        "expl_noise": "exploration_noise",
        "policy_noise": "target_noise",
        "noise_clip": "target_noise_clip",
        "policy_freq": "policy_delay",
    },
    "DDDQN": _SHARED
    | {
        "eps": "epsilon_start",
        "eps_min": "epsilon_end",
        "use_per": "prioritised",
        "per_alpha": "priority_alpha",
        "per_beta": "priority_beta",
    },
    "PPO": {
        "hidden_dim": "hidden",
        "hidden_dims": "hidden",
        "discount": "gamma",
        "clip_range": "clip",
        "clip_coef": "clip",
        "n_epochs": "num_epochs",
        "ent_coef": "entropy_weight",
        "vf_coef": "value_weight",
    },
}
"""Names of older files, which are those of `rl_hockey` (left), and ours."""

_FIXED: dict[str, tuple[Any, str]] = {
    "use_huber_loss": (True, "the loss of DDDQN is always Huber's"),
    "learn_alpha": (True, "the temperature of SAC is always learned; initial_temperature says where it begins"),
    "max_action": (1.0, "actions reach as far as the action space says"),
    "priority_replay": (False, "only DDDQN draws by priority"),
    "normalize_obs": (False, "only PPO normalises observations"),
    "action_fineness": (None, "write agent.action_fineness, the levels of force in each direction of an axis"),
}
"""Names of older files for what an agent here always does: the value that says just that, and the reason."""

_COLOURS = {"normal": 0.0, "white": 0.0, "pink": 1.0, "red": 2.0}
_ELSEWHERE = {"warmup": "training.warmup_steps"}


def agent_config(config: RunConfig) -> AgentConfig:
    """Make the agent's own configuration; see `RunConfig.agent_config`."""
    kind = config.agent.type
    values = _named(kind, config.agent.hyperparameters)
    accepted = [field.name for field in dataclasses.fields(CONFIGS[kind])]
    for name, value in config.hyperparameters:
        if value is not None:
            _take_over(values, name, value, kind, accepted)
    if "warmup" in accepted:
        values["warmup"] = config.training.warmup_steps
    try:
        made: AgentConfig = TypeAdapter(CONFIGS[kind]).validate_python(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = "".join(f".{part}" for part in first["loc"][:1])
        reason = first["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
        given = f" is {first['input']!r}" if place else ""
        raise InvalidArgument(f"agent.hyperparameters{place}{given}: {reason}") from None
    if not isinstance(made, PPOConfig) and made.capacity < made.batch_size:
        raise InvalidArgument(
            f"agent.hyperparameters.capacity is {made.capacity}, expected at least batch_size, {made.batch_size}: "
            "nothing is learned before the replay buffer holds a batch"
        )
    return made


def action_table_of(config: RunConfig) -> ActionTable | None:
    """Make the actions that DDDQN chooses from; see `RunConfig.action_table`."""
    place, agent = config.curriculum.phases[0].environment, config.agent
    if agent.type != "DDDQN" or not place.is_hockey:
        return None
    table = action_table(agent.action_fineness, keep_mode=place.keep_mode, combined=agent.action_combined)
    return ActionTable(np.pad(table, ((0, 0), (0, 4 - table.shape[1]))))  # without keep_mode nobody shoots


def _named(kind: AgentName, given: Mapping[str, Any]) -> dict[str, Any]:
    """The hyperparameters under our names."""
    accepted = [field.name for field in dataclasses.fields(CONFIGS[kind]) if field.name not in _ELSEWHERE]
    values: dict[str, Any] = {}
    for name, value in given.items():
        place = f"agent.hyperparameters.{name}"
        if name in _FIXED:
            fixed, reason = _FIXED[name]
            if value != fixed:
                raise InvalidArgument(f"{place} is {value!r}, expected {fixed!r}: {reason}")
            continue
        ours = ALIASES[kind].get(name, name)
        special = _special(kind, name, value, place)
        if special is None and ours not in accepted:
            raise InvalidArgument(f"{place} {_unknown(kind, name, accepted)}")
        for key, one in (special or {ours: tuple(value) if isinstance(value, list) else value}).items():
            if key in values:
                raise InvalidArgument(f"{place} sets {key}, which another hyperparameter has set: leave one out")
            values[key] = one
    return values


def _special(kind: AgentName, name: str, value: Any, place: str) -> dict[str, Any] | None:
    """What names of older files mean that are more than another word for one of ours; `None` for all else."""
    if name == "noise" and kind == "SAC":
        if value not in _COLOURS:
            raise InvalidArgument(f"{place} is {value!r}, expected one of {', '.join(_COLOURS)}")
        return {"noise_exponent": _COLOURS[value]}
    if name == "target_update_freq" and kind == "DDDQN":
        return {"target_period": value, "target_tau": 1.0}
    if name == "eps_decay" and kind == "DDDQN":
        raise InvalidArgument(
            f"{place} is {value!r}, a factor, but epsilon falls in a straight line here: write epsilon_transitions, "
            "the transitions after which it is at epsilon_end, such as 50000"
        )
    if isinstance(value, int) and not isinstance(value, bool) and name in ("hidden", "hidden_dim", "hidden_dims"):
        return {"hidden": (value, value)}
    if name in _ELSEWHERE:
        raise InvalidArgument(f"{place} belongs elsewhere: write {_ELSEWHERE[name]}")
    return None


def _unknown(kind: AgentName, name: str, accepted: list[str]) -> str:
    owners = [other for other in CONFIGS if name in _names_of(other)]
    hint = f" ({name} is known to {', '.join(owners)})" if owners else ""
    return describe_unknown(name, accepted).replace("key here", f"hyperparameter of {kind}{hint}")


def _names_of(kind: AgentName) -> set[str]:
    return {field.name for field in dataclasses.fields(CONFIGS[kind])} | set(ALIASES[kind])


def _take_over(values: dict[str, Any], name: str, value: Any, kind: AgentName, accepted: list[str]) -> None:
    if name not in accepted:
        raise InvalidArgument(
            f"hyperparameters.{name} is {value!r}, but {kind} has none: write agent.hyperparameters.num_minibatches, "
            "the parts that a rollout is cut into"
        )
    if values.get(name, value) != value:
        raise InvalidArgument(
            f"hyperparameters.{name} is {value!r}, agent.hyperparameters.{name} {values[name]!r}: leave one out"
        )
    values[name] = value
