"""From a configuration and options to the fleet, the arena and the agent of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import envfleet
from envfleet.agents import ActionTable, Agent, OffPolicyAgent, load_agent
from envfleet.agents.loading import find_agent
from envfleet.envs.games import Game, Spaces, check_spaces, spaces_of
from envfleet.errors import InvalidArgument
from envfleet.fleet.fleet import Fleet
from envfleet.machine import whole_cores
from envfleet.options import Options
from envfleet.sources import names_kernel
from envfleet.training.arena.arena import Arena
from envfleet.training.arena.shaping import find_shaping
from envfleet.training.arena.stopwatch import Stopwatch
from envfleet.training.config import RunConfig, RunOptions, agent_config
from envfleet.training.opponents.opponents import check_opponents, needs_learner
from envfleet.training.opponents.pool import experienced
from envfleet.training.phases import Environment, Phase


def check_phases(phases: Sequence[Phase], options: RunOptions) -> None:
    """Check the phases of a run before it begins; its last one may be hours away.

    Raises:
        InvalidArgument: A phase has something that its environment does not, names a file, class or function that
            cannot be used, or has other spaces than the first.
    """
    game = phases[0].environment.find_game()
    for phase in phases:
        try:
            phase.check(game)
        except ValueError as error:
            raise InvalidArgument(f"the phase {phase.name!r} {error}") from error
        if phase.shaping is not None:
            find_shaping(phase.shaping)
    _check_alike(phases, options)
    if game is not None:
        check_opponents(phases, game)


def _check_alike(phases: Sequence[Phase], options: RunOptions) -> None:
    """Look into every environment that differs from the first, and into that."""
    first, one = phases[0], dataclasses.replace(options, num_envs=1, backend=None, workers=None)
    others = [it for it in phases if it.environment != first.environment and not it.environment.is_known_game]
    found = list[Spaces]()
    for phase in (first, *others) if others else ():
        with make_fleet(phase.environment, one, phase.environment.find_game()) as fleet:
            found.append((fleet.single_observation_space, fleet.single_action_space))
        names = [f"the phase {it.name!r}" for it in (first, phase)]
        check_spaces(found[0], names[0], found[-1], names[1], "one agent learns in both, so train in several runs")


def make_arena(
    config: RunConfig, options: RunOptions, place: Environment, *, seed: np.random.SeedSequence, stopwatch: Stopwatch
) -> Arena:
    """Make the arena of a phase.

    Args:
        config: Of the run.
        options: Likewise.
        place: Where the phase plays.
        seed: Of the draws of opponents.
        stopwatch: Told where the time goes.

    Raises:
        InvalidArgument: There is no such environment, an option does not fit it, or no agent can play it.
    """
    training, game = config.training, place.find_game()
    plays_itself = any(needs_learner(phase.opponent) for phase in config.curriculum.phases)
    if options.backend is None and options.workers is None and _learns_beside(config, options):
        options = dataclasses.replace(options, workers=max(1, whole_cores() - 1))
    fleet = make_fleet(place, options, game)
    try:
        return Arena(
            fleet,
            game,
            seed=seed,
            reward_scale=training.reward_scale,
            has_both_sides=plays_itself,
            learns_from_both_sides=training.learn_from_both_sides,
            stopwatch=stopwatch,
        )
    except BaseException:
        fleet.close()
        raise


def _learns_beside(config: RunConfig, options: RunOptions) -> bool:
    """Return whether a thread will learn beside the games, if observations are vectors."""
    kind, hyperparameters = find_agent(config.agent.type, "agent.type"), agent_config(config)
    draws_uniformly = issubclass(kind, OffPolicyAgent) and not getattr(hyperparameters, "prioritized", False)
    is_compiled = options.device == "cpu" and kind.may_compile(hyperparameters)
    return config.training.learn_beside and draws_uniformly and is_compiled


def make_fleet(place: Environment, options: RunOptions, game: Game | None) -> Fleet:
    """Make the fleet of a phase, in `SAME_STEP`.

    Args:
        place: Where the phase plays.
        options: Of the run.
        game: What `place` means; `None` if it is for one.

    Raises:
        InvalidArgument: There is no such environment, or an option does not fit it.
        SubEnvError: A sub-environment could not be built.
        ServiceUnreachable: There is no service at the address of a remote one.
    """
    if place.is_remote:
        if options.backend is not None:
            raise InvalidArgument(
                f"backend={options.backend!r} for an environment behind a service, which decides that: leave it out"
            )
        return envfleet.connect(num_envs=options.num_envs, autoreset_mode="SAME_STEP", **place.kwargs)
    if game is None and options.engine is not None:
        raise InvalidArgument(f"engine={options.engine!r}, but {place.id!r} has none to choose from: leave it out")
    source, kwargs = place.source() if game is None else (game.source(options.engine), {})  # set by each phase
    return envfleet.make(
        source,
        options.num_envs,
        backend=options.backend or ("kernel" if names_kernel(source) else "auto"),
        workers=options.workers,
        autoreset_mode="SAME_STEP",
        on_failure=options.on_failure,
        max_restarts=Options.max_restarts if options.max_restarts is None else options.max_restarts,
        **kwargs,
    )


def action_table_of(config: RunConfig, game: Game | None) -> ActionTable | None:
    """Return the actions that DDDQN chooses from in a game that has such a table; `None` for others."""
    if config.agent.type != "DDDQN" or game is None:
        return None
    settings = config.curriculum.phases[0].environment.settings
    table = game.action_table(config.agent.action_fineness, config.agent.action_combined, settings)
    return None if table is None else ActionTable(table)


def make_agent(
    config: RunConfig, options: RunOptions, arena: Arena, *, seed: int, takes_weights: bool = True
) -> Agent[Any]:
    """Make the agent, with the weights of `agent.checkpoint_path` if there is one: then it is experienced.

    Args:
        config: Of the run.
        options: Likewise.
        arena: Where it acts.
        seed: Of the agent.
        takes_weights: Whether those weights are read; not if others are loaded anyway.

    Raises:
        InvalidArgument: The agent cannot learn in such spaces, there is no such device, or the weights do not fit.
    """
    kind, path = find_agent(config.agent.type, "agent.type"), config.agent.checkpoint_path
    hyperparameters = agent_config(config)
    _device("agent.hyperparameters.replay_device", getattr(hyperparameters, "replay_device", None) or "cpu")
    agent: Agent[Any] = kind(
        arena.single_observation_space,
        action_table_of(config, arena.game) or arena.single_action_space,
        hyperparameters if path is None else experienced(hyperparameters),
        num_envs=arena.num_seats,
        seed=seed,
        device=_device("device", options.device),
    )
    if path is not None and takes_weights:
        old = load_agent(path, num_envs=1, trust=True)
        try:
            check_spaces(spaces_of(old), "it", spaces_of(agent), "the run", "pass one that was trained there")
            if (theirs := getattr(old.config, "activation", None)) != getattr(agent.config, "activation", None):
                raise InvalidArgument(f"its activation is {theirs!r}: set agent.hyperparameters.activation to that")
            agent.set_weights(old.weights())
        except InvalidArgument as error:
            raise InvalidArgument(f"agent.checkpoint_path is {path!r}, a {type(old).__name__}, but {error}") from error
    return agent


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
