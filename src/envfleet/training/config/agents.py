"""From the `agent` section to the agent's own configuration."""

from __future__ import annotations

import dataclasses
from typing import Any

from pydantic import TypeAdapter, ValidationError

from envfleet.errors import InvalidArgument
from envfleet.registry import find_own
from envfleet.training.config.run import RunConfig
from envfleet.training.config.section import describe_unknown


def agent_config(config: RunConfig) -> Any:
    """Make the agent's own configuration: its hyperparameters, with the learning rate, batch size and warm-up.

    Raises:
        InvalidArgument: A hyperparameter is not known, or cannot have that value.
    """
    from envfleet.agents.hyperparameters import OffPolicyConfig  # imports torch
    from envfleet.agents.loading import find_agent

    config_class: Any = find_agent(config.agent.type, "agent.type").config_class
    values = _values(config, [field.name for field in dataclasses.fields(config_class)])
    try:
        made = TypeAdapter(config_class).validate_python(values)
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


def _values(config: RunConfig, accepted: list[str]) -> dict[str, Any]:
    """Return the hyperparameters from all sections that set some; each is set in one place."""
    values = dict(config.agent.hyperparameters)
    for name in values:
        if name == "warmup":
            raise InvalidArgument("agent.hyperparameters.warmup belongs elsewhere: write training.warmup_steps")
        if name not in accepted:
            raise InvalidArgument(f"agent.hyperparameters.{name} {describe_unknown(name, accepted)}")
    for name, value in config.hyperparameters:
        if value is None:
            continue
        if name not in accepted:
            parts = "write agent.hyperparameters.num_minibatches, the parts that a rollout is cut into"
            advice = parts if "num_minibatches" in accepted else "leave it out"
            raise InvalidArgument(f"hyperparameters.{name} is {value!r}, but {config.agent.type} has none: {advice}")
        if values.get(name, value) != value:
            raise InvalidArgument(
                f"hyperparameters.{name} is {value!r}, agent.hyperparameters.{name} {values[name]!r}: leave one out"
            )
        values[name] = value
    if "warmup" in accepted:
        values["warmup"] = config.training.warmup_steps
    return values
