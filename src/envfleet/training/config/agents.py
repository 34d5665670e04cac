"""From the `agent` section to the agent's own configuration, with the names of older files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from envfleet.errors import InvalidArgument
from envfleet.registry import AGENTS, find_own
from envfleet.training.config.run import RunConfig
from envfleet.training.config.section import describe_unknown

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


def agent_config(config: RunConfig) -> Any:
    """Make the agent's own configuration: its hyperparameters, with the learning rate, batch size and warm-up.

    Raises:
        InvalidArgument: A hyperparameter is not known, or cannot have that value.
    """
    from envfleet.agents.hyperparameters import OffPolicyConfig  # imports torch

    kind = config.agent.type
    values = _named(kind, config.agent.hyperparameters)
    accepted = _accepted(kind)
    for name, value in config.hyperparameters:
        if value is not None:
            _take_over(values, name, value, kind, accepted)
    if "warmup" in accepted:
        values["warmup"] = config.training.warmup_steps
    try:
        made = TypeAdapter(_config_class(kind)).validate_python(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = "".join(f".{part}" for part in first["loc"][:1])
        reason = first["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
        given = f" is {first['input']!r}" if place else ""
        raise InvalidArgument(f"agent.hyperparameters{place}{given}: {reason}") from None
    network = getattr(made, "network", None)
    if network is not None and not callable(find_own(network, "agent.hyperparameters.network")):
        raise InvalidArgument(
            f"agent.hyperparameters.network is {network!r}, which cannot be called: name a function that takes the "
            "observation space and returns a torch.nn.Module"
        )
    if isinstance(made, OffPolicyConfig) and made.capacity < made.batch_size:
        raise InvalidArgument(
            f"agent.hyperparameters.capacity is {made.capacity}, expected at least batch_size, {made.batch_size}: "
            "nothing is learned before the replay buffer holds a batch"
        )
    return made


def _named(kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters under our names."""
    accepted = [name for name in _accepted(kind) if name not in _ELSEWHERE]
    values: dict[str, Any] = {}
    for name, value in given.items():
        place = f"agent.hyperparameters.{name}"
        if name in _FIXED and name not in accepted:
            fixed, reason = _FIXED[name]
            if value != fixed:
                raise InvalidArgument(f"{place} is {value!r}, expected {fixed!r}: {reason}")
            continue
        ours = AGENTS[kind].aliases.get(name, name) if kind in AGENTS else name
        special = _special(kind, name, value, place)
        if special is None and ours not in accepted:
            raise InvalidArgument(f"{place} {_unknown(kind, name, accepted)}")
        for key, one in (special or {ours: tuple(value) if isinstance(value, list) else value}).items():
            if key in values:
                raise InvalidArgument(f"{place} sets {key}, which another hyperparameter has set: leave one out")
            values[key] = one
    return values


def _special(kind: str, name: str, value: Any, place: str) -> dict[str, Any] | None:
    """Return what names of older files mean that are more than another word for one of ours; `None` for all else."""
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


def _unknown(kind: str, name: str, accepted: list[str]) -> str:
    owners = [other.name for other in AGENTS.values() if name in other.aliases or name in _accepted(other.name)]
    hint = f" ({name} is known to {', '.join(owners)})" if owners else ""
    return describe_unknown(name, accepted).replace("key here", f"hyperparameter of {kind}{hint}")


def _config_class(kind: str) -> type[Any]:
    from envfleet.agents.loading import find_agent  # imports torch

    config_class: type[Any] = find_agent(kind, "agent.type").config_class
    return config_class


def _accepted(kind: str) -> list[str]:
    return [field.name for field in dataclasses.fields(_config_class(kind))]


def _take_over(values: dict[str, Any], name: str, value: Any, kind: str, accepted: list[str]) -> None:
    if name not in accepted:
        parts = "write agent.hyperparameters.num_minibatches, the parts that a rollout is cut into"
        advice = parts if "num_minibatches" in accepted else "leave it out"
        raise InvalidArgument(f"hyperparameters.{name} is {value!r}, but {kind} has none: {advice}")
    if values.get(name, value) != value:
        raise InvalidArgument(
            f"hyperparameters.{name} is {value!r}, agent.hyperparameters.{name} {values[name]!r}: leave one out"
        )
    values[name] = value
