"""Agents that are not new: copies that only play, and learners that begin with trained weights."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from envfleet.agents import Agent

Config = TypeVar("Config")


def experienced(config: Config) -> Config:
    """Return the hyperparameters of a trained agent: it explores as such a one does, from its first step.

    Args:
        config: Of an agent of the same kind that begins with nothing.

    Examples:
        >>> from envfleet.agents import DDDQNConfig
        >>> config = experienced(DDDQNConfig(warmup=500, epsilon_start=1.0, epsilon_end=0.05))
        >>> config.warmup, config.epsilon_start
        (0, 0.05)
    """
    return _replace(config, {"warmup": 0, "epsilon_start": getattr(config, "epsilon_end", None)})


def as_player(agent: Agent[Any], *, num_envs: int, seed: int, shares_weights: bool = False) -> Agent[Any]:
    """Copy an agent that only plays: it has no memory, and its exploration is that of a trained one.

    Args:
        agent: Whose form and weights it takes over.
        num_envs: Sub-environments it will play in.
        seed: Of its draws.
        shares_weights: Whether it goes on to have the agent's weights when those change.
    """
    config = _replace(experienced(agent.config), {"capacity": 1, "noise_exponent": 0.0, "prioritised": False})
    player = type(agent)(
        agent.observation_space, agent.action_space, config, num_envs=num_envs, seed=seed, device=agent.device
    )
    if shares_weights:
        player.share_weights(agent)
    else:
        player.set_weights(agent.weights())
    return player


def _replace(config: Config, changes: dict[str, Any]) -> Config:
    """Return a configuration with those of the changes that agents of its kind have."""
    names = {field.name for field in dataclasses.fields(config)}  # type: ignore[arg-type]  # all are dataclasses
    changed: Any = dataclasses.replace(config, **{name: changes[name] for name in changes.keys() & names})  # type: ignore[type-var]
    return changed  # type: ignore[no-any-return]
