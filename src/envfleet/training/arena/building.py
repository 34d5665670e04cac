"""From a configuration and options to the fleet and the agent of a run."""

from __future__ import annotations

from typing import Any

import torch

from envfleet.agents import ActionTable, Agent, load_agent
from envfleet.agents.loading import find_agent
from envfleet.envs.games import Game
from envfleet.errors import InvalidArgument
from envfleet.training.arena.stage import Stage
from envfleet.training.config import RunConfig, agent_config
from envfleet.training.opponents.pool import experienced
from envfleet.training.options import RunOptions


def action_table_of(config: RunConfig, game: Game | None) -> ActionTable | None:
    """Return the actions that DDDQN chooses from in a game that has such a table; `None` for others."""
    if config.agent.type != "DDDQN" or game is None:
        return None
    settings = config.curriculum.phases[0].environment.settings
    table = game.action_table(config.agent.action_fineness, config.agent.action_combined, settings)
    return None if table is None else ActionTable(table)


def make_agent(
    config: RunConfig, options: RunOptions, stage: Stage, *, seed: int, takes_weights: bool = True
) -> Agent[Any]:
    """Make the agent, with the weights of `agent.checkpoint_path` if there is one: then it is experienced.

    Args:
        config: Of the run.
        options: Likewise.
        stage: Where it acts.
        seed: Of the agent.
        takes_weights: Whether those weights are read; not if others are loaded anyway.

    Raises:
        InvalidArgument: The agent cannot learn in such spaces, there is no such device, or the weights do not fit.
    """
    kind, path, arena = find_agent(config.agent.type, "agent.type"), config.agent.checkpoint_path, stage.arena
    hyperparameters = agent_config(config)
    _device("agent.hyperparameters.replay_device", getattr(hyperparameters, "replay_device", None) or "cpu")
    agent: Agent[Any] = kind(
        arena.single_observation_space,
        action_table_of(config, stage.game) or arena.single_action_space,
        hyperparameters if path is None else experienced(hyperparameters),
        num_envs=arena.num_seats,
        seed=seed,
        device=_device("device", options.device),
    )
    if path is not None and takes_weights:
        _take_weights(agent, path)
    return agent


def _take_weights(agent: Agent[Any], path: str) -> None:
    try:
        agent.set_weights(load_agent(path, num_envs=1).weights())
    except InvalidArgument as error:
        raise InvalidArgument(f"agent.checkpoint_path is {path!r}, but {error}") from error


def _device(option: str, name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
        torch.Generator(device)  # which not all of them have
    except (RuntimeError, AssertionError) as error:
        advice = "pass 'cpu'" + (f", or 'cuda:0' to 'cuda:{torch.cuda.device_count() - 1}'" * torch.cuda.is_available())
        raise InvalidArgument(
            f"{option}={name!r} cannot be used here ({str(error).splitlines()[0]}): {advice}"
        ) from error
    return device
