"""From a file to the agent in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from envfleet.agents import saving
from envfleet.agents.agent import Agent
from envfleet.errors import InvalidArgument
from envfleet.registry import AGENTS, resolve


def load_agent(
    path: str | Path, *, num_envs: int | None = None, seed: int | None = None, device: torch.device | str = "cpu"
) -> Agent[Any]:
    """Make the agent that was saved to a file, with its spaces and hyperparameters.

    Args:
        path: Written by `Agent.save`. Nothing in it is executed.
        num_envs: Sub-environments it will act for; `None` for as many as the saved one. If that differs, only its
            weights are taken over, for what else it knew belongs to each of its sub-environments.
        seed: Of its draws, where the file does not hold its generators.
        device: Where its networks live.

    Raises:
        InvalidArgument: It is no such file.
    """
    payload = saving.read(path)
    if payload.get("agent") not in AGENTS:
        found = f"a {payload['agent']}" if "agent" in payload else "no agent"
        raise InvalidArgument(f"{path} holds {found}, expected one of {', '.join(AGENTS)}")
    kind: type[Agent[Any]] = resolve(AGENTS[payload["agent"]].target)
    config = {name: tuple(value) if isinstance(value, list) else value for name, value in payload["config"].items()}
    observation_space: Any = saving.decode_space(payload["observation_space"])
    action_space: Any = saving.decode_space(payload["action_space"])
    agent = kind(
        observation_space,
        action_space,
        kind.config_class(**config),
        num_envs=payload["num_envs"] if num_envs is None else num_envs,
        seed=seed,
        device=device,
    )
    state = payload["state"]
    agent.load_state_dict(state if agent.num_envs == payload["num_envs"] else {"networks": state["networks"]})
    return agent
