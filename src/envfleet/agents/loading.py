"""Find agent classes by name and load saved agents."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from envfleet.agents import saving
from envfleet.agents.agent import Agent, RolloutAgent
from envfleet.agents.off_policy import OffPolicyAgent
from envfleet.errors import InvalidArgument
from envfleet.registry import AGENTS, find_own, resolve


def find_agent(kind: str, place: str) -> type[Agent[Any]]:
    """Return an agent class.

    Args:
        kind: Name in `registry.AGENTS`, or `"module:Name"` of a user-defined class.
        place: Location of the name, with which error messages start.

    Raises:
        InvalidArgument: The class does not exist, or is not an agent that can be trained.
    """
    agent_class = resolve(AGENTS[kind]) if kind in AGENTS else find_own(kind, place)
    if not isinstance(agent_class, type) or not issubclass(agent_class, (OffPolicyAgent, RolloutAgent)):
        raise InvalidArgument(
            f"{place} is {kind!r}, which is not an agent class: derive it from envfleet.agents.OffPolicyAgent, which "
            "learns from a replay buffer, or from RolloutAgent, which learns from rollouts"
        )
    if missing := sorted(agent_class.__abstractmethods__):
        raise InvalidArgument(f"{place} is {kind!r}, which lacks the method {missing[0]}: write it")
    if not dataclasses.is_dataclass(getattr(agent_class, "config_class", None)):
        raise InvalidArgument(
            f"{place} is {kind!r}, which has no config_class: set it to the dataclass of the agent's hyperparameters"
        )
    return agent_class


def load_agent(
    path: str | Path,
    *,
    num_envs: int | None = None,
    seed: int | None = None,
    device: torch.device | str = "cpu",
    trust: bool = False,
) -> Agent[Any]:
    """Load an agent from a file, with its spaces and hyperparameters.

    Args:
        path: File from `Agent.save`, or folder of a run to load its best checkpoint, or the latest if none was
            evaluated. Code in the file is not executed.
        num_envs: Number of sub-environments to act for; `None` for that of the saved agent. If it differs, only weights
            and counters are loaded, since everything else belongs to single sub-environments.
        seed: Seed of the agent's generators if the file does not contain their states.
        device: Device of the networks.
        trust: True to import and call code that the file names: a user-defined agent class or its `network`. Pass True
            for files that you wrote yourself.

    Raises:
        InvalidArgument: The file does not exist or is not a saved agent, it names code and `trust` is False, or the
            class of the agent cannot be imported.
    """
    path = find_checkpoint(Path(path))
    payload = saving.read(path)
    if not trust:
        _refuse_code(path, payload)
    kind = find_agent(payload.get("agent", ""), f"the agent in {path}")
    config = {key: tuple(value) if isinstance(value, list) else value for key, value in payload["config"].items()}
    agent = kind(
        saving.decode_space(payload["observation_space"]),
        saving.decode_space(payload["action_space"]),
        kind.config_class(**config),
        num_envs=payload["num_envs"] if num_envs is None else num_envs,
        seed=seed,
        device=device,
    )
    agent.restore(payload)
    return agent


def saved_spaces(path: str | Path) -> tuple[Any, Any]:
    """Return the observation and action space of the agent in a file, without making the agent.

    Raises:
        InvalidArgument: The file does not exist, or is not a saved agent.
    """
    payload = saving.read(path)
    return saving.decode_space(payload["observation_space"]), saving.decode_space(payload["action_space"])


def _refuse_code(path: Path, payload: Mapping[str, Any]) -> None:
    """Raise an error if making the agent would import or call code that the file names."""
    names = {"agent": payload.get("agent"), "network": payload.get("config", {}).get("network")}
    for what, name in names.items():
        if name is not None and not (what == "agent" and name in AGENTS):
            raise InvalidArgument(
                f"the {what} of {path} is {name!r}, code that loading the file would execute: pass trust=True (--trust "
                "on the command line) if you know who wrote the file"
            )


def find_checkpoint(path: Path) -> Path:
    """Return the file of an agent: of the folder of a run, its best checkpoint, or the latest if none was evaluated.

    Raises:
        InvalidArgument: The folder has no checkpoint.
    """
    if not path.is_dir():
        return path
    folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    best = folder / "best.pt"
    files = [best] if best.is_file() else sorted(file for file in folder.glob("*.pt") if file.stem.isdigit())
    if not files:
        raise InvalidArgument(
            f"{folder} has no checkpoint: pass the folder of a run that has saved one, or a file written by an "
            "agent's save()"
        )
    return files[-1]
