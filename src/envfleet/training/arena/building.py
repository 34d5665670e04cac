"""Construction of the fleet, the arena and the agent of a run from its plan."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

import envfleet
from envfleet.agents import Agent, load_agent
from envfleet.envs.games import Game, Spaces, check_spaces, spaces_of
from envfleet.errors import InvalidArgument
from envfleet.fleet.fleet import Fleet
from envfleet.machine import whole_cores
from envfleet.options import Options
from envfleet.sources import names_kernel
from envfleet.training.arena.arena import Arena
from envfleet.training.arena.stopwatch import Stopwatch
from envfleet.training.config import RunOptions
from envfleet.training.environments import source_of
from envfleet.training.opponents.opponents import check_opponents
from envfleet.training.opponents.pool import experienced
from envfleet.training.phases import Environment
from envfleet.training.plan import RunPlan


def check_phases(plan: RunPlan) -> None:
    """Check what a later phase of a run needs, which may begin hours after the first.

    Raises:
        InvalidArgument: An opponent's file or class is missing or does not fit, or an environment has other spaces than
            the first.
    """
    _check_alike(plan)
    check_opponents(plan)


def _check_alike(plan: RunPlan) -> None:
    """Compare the spaces of each environment that differs from the first."""
    phases, first = plan.phases, plan.phases[0]
    one = dataclasses.replace(plan.options, num_envs=1, backend=None, workers=None)
    differing = [
        k for k, it in enumerate(phases) if it.environment != first.environment and not it.environment.is_known_game
    ]
    all_spaces = list[Spaces]()
    for index in (0, *differing) if differing else ():
        with make_fleet(phases[index].environment, one, plan.games[index]) as fleet:
            all_spaces.append((fleet.single_observation_space, fleet.single_action_space))
        names = [f"the phase {it.name!r}" for it in (first, phases[index])]
        check_spaces(
            all_spaces[0], names[0], all_spaces[-1], names[1], "one agent learns in both, so train in several runs"
        )


def make_arena(plan: RunPlan, phase: int, *, seed: np.random.SeedSequence, stopwatch: Stopwatch) -> Arena:
    """Make the arena of a phase.

    Args:
        plan: Plan of the run.
        phase: Index of the phase.
        seed: Seed of the draws of opponents.
        stopwatch: Stopwatch that measures where time is spent.

    Raises:
        InvalidArgument: Unknown environment, an option that does not fit it, or spaces that no agent supports.
    """
    options, game = plan.options, plan.games[phase]
    if options.backend is None and options.workers is None and plan.learns_in_thread:
        options = dataclasses.replace(options, workers=max(1, whole_cores() - 1))
    fleet = make_fleet(plan.phases[phase].environment, options, game)
    try:
        return Arena(
            fleet,
            game,
            seed=seed,
            reward_scale=plan.training.reward_scale,
            has_both_sides=plan.is_self_play,
            learns_from_both_sides=plan.training.learn_from_both_sides,
            stopwatch=stopwatch,
        )
    except BaseException:
        fleet.close()
        raise


def make_fleet(environment: Environment, options: RunOptions, game: Game | None) -> Fleet:
    """Make the fleet of a phase, with `SAME_STEP` autoreset.

    Args:
        environment: Environment of the phase.
        options: Options of the run.
        game: Two-player game of the environment; `None` for a single-player environment.

    Raises:
        InvalidArgument: Unknown environment, or an option that does not fit it.
        SubEnvError: A sub-environment could not be built.
        ServiceUnreachable: No service responds at the address of a remote environment.
    """
    if environment.is_remote:
        if options.backend is not None:
            raise InvalidArgument(
                f"backend={options.backend!r}, but the environment is on a service, which chooses its own: leave it out"
            )
        return envfleet.connect(num_envs=options.num_envs, autoreset_mode="SAME_STEP", **environment.kwargs)
    if game is None and options.engine is not None:
        raise InvalidArgument(f"engine={options.engine!r}, but {environment.id!r} has no engines: leave it out")
    # Settings of a game are set when a phase begins.
    source, kwargs = source_of(environment) if game is None else (game.source(options.engine), {})
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


def make_agent(plan: RunPlan, arena: Arena, *, seed: int, takes_weights: bool = True) -> Agent[Any]:
    """Make the agent; with `agent.checkpoint_path` it has those weights and explores like a trained agent.

    Args:
        plan: Plan of the run.
        arena: Arena that the agent acts in.
        seed: Seed of the agent.
        takes_weights: True to read those weights; not if others are loaded afterwards.

    Raises:
        InvalidArgument: The agent does not support these spaces, the device is unavailable, or the weights do not fit.
    """
    path, hyperparameters = plan.config.agent.checkpoint_path, plan.agent_config
    _device("agent.hyperparameters.replay_device", getattr(hyperparameters, "replay_device", None) or "cpu")
    agent: Agent[Any] = plan.agent_class(
        arena.single_observation_space,
        plan.action_table or arena.single_action_space,
        hyperparameters if path is None else experienced(hyperparameters),
        num_envs=arena.num_players,
        seed=seed,
        device=_device("device", plan.options.device),
    )
    if path is not None and takes_weights:
        old = load_agent(path, num_envs=1, trust=True)
        try:
            check_spaces(spaces_of(old), "it", spaces_of(agent), "the run", "pass an agent that was trained there")
            if (saved := getattr(old.config, "activation", None)) != getattr(agent.config, "activation", None):
                raise InvalidArgument(f"its activation is {saved!r}: set agent.hyperparameters.activation to that")
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
