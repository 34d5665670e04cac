"""Resolution of a configuration into the plan of a run.

`parse → RunConfig → resolve → RunPlan`: a `RunConfig` is data; `resolve` looks up the game, the agent's class and the
user's own functions and classes once, checks that they fit together, and fills in the defaults of the game. All later
code takes the plan.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from envfleet.agents import ActionTable, Agent, OffPolicyAgent
from envfleet.agents.hyperparameters import OffPolicyConfig
from envfleet.agents.loading import find_agent
from envfleet.envs.games import Game
from envfleet.errors import InvalidArgument
from envfleet.registry import RANDOM, find_own
from envfleet.training.config import RunConfig, RunOptions, Training, parse_config
from envfleet.training.environments import find_game, open_one
from envfleet.training.events import Observer, find_observers
from envfleet.training.phases import (
    NOBODY,
    SCRIPT,
    TAGS,
    Environment,
    NamedOpponent,
    Phase,
    RewardShaping,
    SelfPlayOpponent,
    Single,
    SnapshotOpponent,
    describe_unknown,
    shares_of,
)
from envfleet.training.problems import Problems, describe_hyperparameter

Shaping = Callable[[NDArray[Any], NDArray[Any], NDArray[np.float64], NDArray[Any]], NDArray[np.float64]]
"""A function from observations, actions, rewards and next observations, each `(N, …)`, to rewards, `(N,)`."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RunPlan:
    """Everything that a run needs to know, resolved once.

    Attributes:
        config: Configuration, with the defaults of the game filled in.
        options: Options of the run, with `max_restarts` filled in.
        games: Two-player game of each phase; `None` for single-player environments.
        agent_class: Class of the agent.
        agent_config: Hyperparameters of the agent, an instance of its `config_class`.
        action_table: Actions that DDDQN chooses from in a game that has a table of them; `None` otherwise.
        opponents: Opponents of each phase that are not mixtures, each with its probability.
        shapings: The user's own shaping function of each phase, or `None`.
        observers: The user's own observer classes.
    """

    config: RunConfig
    options: RunOptions
    games: tuple[Game | None, ...]
    agent_class: type[Agent[Any]]
    agent_config: Any
    action_table: ActionTable | None
    opponents: tuple[tuple[tuple[Single, float], ...], ...]
    shapings: tuple[Shaping | None, ...]
    observers: tuple[type[Observer], ...]

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Phases of the curriculum."""
        return tuple(self.config.curriculum.phases)

    @property
    def training(self) -> Training:
        """Section `training` of the configuration."""
        return self.config.training

    @property
    def is_self_play(self) -> bool:
        """True if the learner plays against its current self in some phase, exploring on both sides."""
        sections = [one for opponents in self.opponents for one, _ in opponents]
        return any(isinstance(one, SelfPlayOpponent) and one.is_learner for one in sections)

    @property
    def learns_in_thread(self) -> bool:
        """True if a background thread makes the updates, provided that observations are vectors."""
        draws_uniformly = issubclass(self.agent_class, OffPolicyAgent) and not getattr(
            self.agent_config, "prioritized", False
        )
        is_compiled = self.options.device == "cpu" and self.agent_class.may_compile(self.agent_config)
        return self.training.learn_beside and draws_uniformly and is_compiled


def resolve(config: RunConfig, options: RunOptions | None = None, *, source: str = "the configuration") -> RunPlan:
    """Resolve a configuration.

    Files of opponents and differences between the spaces of phases are checked by `building.check_phases`, when a run
    starts.

    Args:
        config: Parsed configuration.
        options: Options of the run; by default those of `RunOptions`.
        source: Name of the configuration in errors.

    Raises:
        InvalidArgument: A name cannot be found, or sections do not fit each other, the game or the agent; the message
            has the path of each key, its value, and what is accepted.
    """
    options = options or RunOptions()
    if options.max_restarts is None:
        options = dataclasses.replace(options, max_restarts=config.training.max_restarts)
    phases = config.curriculum.phases
    with _name_errors(source):
        agent_class = find_agent(config.agent.type, "agent.type")
        agent_config = make_agent_config(config, agent_class)
        observers = tuple(find_observers(config.observers))
        games = _find_games(phases)
    problems = Problems(source)
    for index, (phase, game) in enumerate(zip(phases, games, strict=True)):
        for line in _check_phase(phase, phases[0], game):
            problems.add(f"curriculum.phases[{index}]{line}")
    if problems:
        raise problems.error()
    config = fill_in(config, games)
    with _name_errors(source):
        return RunPlan(
            config=config,
            options=options,
            games=games,
            agent_class=agent_class,
            agent_config=agent_config,
            action_table=_find_actions(config, games[0]),
            opponents=tuple(tuple(shares_of(phase.opponent)) for phase in phases),
            shapings=tuple(None if phase.shaping is None else find_shaping(phase.shaping) for phase in phases),
            observers=observers,
        )


@contextlib.contextmanager
def _name_errors(source: str) -> Iterator[None]:
    """Begin the messages of errors with the name of the configuration."""
    try:
        yield
    except InvalidArgument as error:
        raise InvalidArgument(f"{source}: {error}") from error.__cause__


def config_for(env: str, agent: str, transitions: int, env_kwargs: Mapping[str, Any] | None = None) -> RunConfig:
    """Return the configuration of an agent with its defaults in one environment; two-player games are self-play.

    Args:
        env: Environment, as in `environment.id`.
        agent: Agent, as in `agent.type`.
        transitions: Length of the run; a short run uses a tenth of it for the warm-up.
        env_kwargs: Arguments of the environment.

    Raises:
        InvalidArgument: See `read_config`.
    """
    environment = Environment(id=env, kwargs=dict(env_kwargs or {}))
    phase = {"name": "train", "transitions": transitions, "environment": environment.model_dump()}
    if find_game(environment) is not None:
        phase["opponent"] = {"type": "self_play"}
    warmup = min(Training().warmup_steps, transitions // 10)
    content = {"curriculum": {"phases": [phase]}, "training": {"warmup_steps": warmup}, "agent": {"type": agent}}
    return parse_config(content, f"the configuration of {agent} in {env}")


# ---------------------------------------------------------------------- games


def _find_games(phases: Sequence[Phase]) -> tuple[Game | None, ...]:
    """Return the game of each phase; equal environments have the same one."""
    games = list[Game | None]()
    for index, phase in enumerate(phases):
        equal = [k for k in range(index) if phases[k].environment.kwargs == phase.environment.kwargs]
        games.append(games[equal[0]] if equal else find_game(phase.environment))
    return tuple(games)


def fill_in(config: RunConfig, games: Sequence[Game | None]) -> RunConfig:
    """Return the configuration with the defaults of its games, one per phase."""
    phases = [
        phase if game is None else _fill_in_phase(phase, game)
        for phase, game in zip(config.curriculum.phases, games, strict=False)
    ]
    return config.model_copy(update={"curriculum": config.curriculum.model_copy(update={"phases": phases})})


def _fill_in_phase(phase: Phase, game: Game) -> Phase:
    environment, shaping = phase.environment, phase.reward_shaping
    environment = environment.model_copy(update={"kwargs": {**game.defaults, **environment.kwargs}})
    if shaping is not None:
        shaping = RewardShaping.model_validate(
            {"N": shaping.N, "K": shaping.K, **_default_weights(game), **shaping.weights}
        )
    return phase.model_copy(update={"environment": environment, "reward_shaping": shaping})


def _default_weights(game: Game) -> dict[str, float]:
    """Return the default weights of the game's shaping terms, by key of a configuration."""
    return {
        f"{term}_{when}": weight
        for term, (_, *weights, _) in game.terms.items()
        for when, weight in zip(("START", "FINAL"), weights, strict=True)
    }


def _check_phase(phase: Phase, first: Phase, game: Game | None) -> Iterator[str]:
    """Yield the problems of a phase with its game, each beginning with the rest of the path.

    Args:
        phase: Phase to check.
        first: First phase of the curriculum.
        game: Two-player game of the phase; `None` for a single-player environment.
    """
    if game is None:
        yield from _check_single_player(phase)
        return
    name, weights = repr(phase.environment.id), _default_weights(game)
    yield from _check_environment(phase.environment, first.environment, game)
    opponents = [one for one, _ in shares_of(phase.opponent)]
    if not opponents:
        yield f' plays {name}, a two-player game, without an opponent: add "opponent": {{"type": "self_play"}}'
    for one in opponents:
        yield from _check_opponent(one, name, game)
    if phase.reward_shaping is not None and not weights:
        yield f" has reward_shaping, but {name} has no shaping terms: write your own function as `shaping`"
    elif phase.reward_shaping is not None:
        for key in phase.reward_shaping.weights:
            if key not in weights:
                yield f".reward_shaping.{key} {describe_unknown(key, ['N', 'K', *weights])}"


def _check_single_player(phase: Phase) -> Iterator[str]:
    """Yield the problems of a phase with sections that need a two-player game."""
    environment, name = phase.environment, repr(phase.environment.id)
    for key in ("opponent", "reward_shaping", "reward_bonus", "promote_at"):
        value = getattr(phase, key)
        if value is not None and getattr(value, "type", None) != NOBODY:
            yield (
                f" has {key}, which only two-player games have, but {name} is for one player: leave it out, or name "
                "your own game as 'module:callable'"
            )
    if (environment.mode, environment.mixture) != (None, None):
        yield f".environment is {name}, which has no mode or mixture: pass its arguments in kwargs"


def _check_opponent(opponent: Single, name: str, game: Game) -> Iterator[str]:
    if opponent.type.startswith(SCRIPT) and opponent.type.removeprefix(SCRIPT) not in game.scripts:
        accepted = [*(f"{SCRIPT}{script}" for script in game.scripts), RANDOM, *TAGS[1:3]]
        yield (
            f" has the opponent {opponent.type!r}, but {name} has no scripted player of that name: use "
            f"{', '.join(accepted)} or your own class"
        )
    if isinstance(opponent, NamedOpponent) and opponent.kwargs and ":" not in opponent.type:
        yield f" has the opponent {opponent.type!r} with kwargs, which it does not accept: leave them out"


def _check_environment(environment: Environment, first: Environment, game: Game) -> Iterator[str]:
    """Yield the problems of an environment section with its game."""
    modes = {".environment.mode": environment.mode} if environment.mode is not None else {}
    modes |= {f".environment.mixture[{k}].mode": entry.mode for k, entry in enumerate(environment.mixture or ())}
    for path, mode in modes.items():
        if not game.modes:
            yield f"{path} is {mode!r}, but {environment.id!r} has no modes: leave it out"
        elif mode not in game.modes:
            yield f"{path} is {mode!r}: expected {', '.join(map(repr, game.modes[:-1]))} or {game.modes[-1]!r}"
    try:
        game.check(environment.kwargs)
    except InvalidArgument as error:
        yield f".environment {error}"
    for key in game.fixed:
        one, other = (it.kwargs.get(key, game.defaults.get(key)) for it in (first, environment))
        if one != other:
            yield (
                f".environment.kwargs.{key} is {other!r}, but {one!r} in the first phase, expected one value in all "
                "phases: one agent has one form of observations and actions; train in several runs"
            )


# ---------------------------------------------------------------------- agent and opponents


def make_agent_config(config: RunConfig, agent_class: type[Agent[Any]]) -> Any:
    """Return the agent's own configuration: its hyperparameters with the learning rate, batch size and warm-up.

    Raises:
        InvalidArgument: Unknown hyperparameter, or invalid value.
    """
    config_class: Any = agent_class.config_class
    values = _collect_values(config, [field.name for field in dataclasses.fields(config_class)])
    try:
        filled = TypeAdapter(config_class).validate_python(values)
    except ValidationError as error:
        raise InvalidArgument("; ".join(map(describe_hyperparameter, error.errors(include_url=False)))) from None
    network = getattr(filled, "network", None)
    if network is not None:
        find_own(network, "agent.hyperparameters.network")
    if isinstance(filled, OffPolicyConfig) and filled.capacity < filled.batch_size:
        raise InvalidArgument(
            f"agent.hyperparameters.capacity is {filled.capacity}, expected at least batch_size, {filled.batch_size}: "
            "updates begin once the replay buffer holds a batch"
        )
    return filled


def _collect_values(config: RunConfig, accepted: list[str]) -> dict[str, Any]:
    """Return the hyperparameters of all sections that have some; each may be set in one place only."""
    values = dict(config.agent.hyperparameters)
    for name in values:
        if name == "warmup":
            raise InvalidArgument("agent.hyperparameters.warmup is set elsewhere: write training.warmup_steps")
        if name not in accepted:
            raise InvalidArgument(f"agent.hyperparameters.{name} {describe_unknown(name, accepted)}")
    for name, value in config.hyperparameters:
        if value is None:
            continue
        if name not in accepted:
            parts = "write agent.hyperparameters.num_minibatches, the number of minibatches of a rollout"
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


def _find_actions(config: RunConfig, game: Game | None) -> ActionTable | None:
    """Return the table of actions of the game for DDDQN; `None` for other agents and for numbered actions.

    To look at the actions of a single-player environment, it is made once.

    Raises:
        InvalidArgument: The agent is DDDQN and the actions are continuous, or the environment cannot be made.
    """
    agent, environment = config.agent, config.curriculum.phases[0].environment
    if agent.type != "DDDQN" or environment.is_remote:
        return None
    if game is not None:
        table = game.action_table(agent.action_fineness, agent.action_combined, environment.kwargs)
        if table is not None:
            return ActionTable(table)
    with contextlib.ExitStack() as closing:
        one: Any = game or closing.enter_context(contextlib.closing(open_one(environment)))
        space = one.action_space
    if isinstance(space, spaces.Box):
        raise InvalidArgument(
            f"agent.type is 'DDDQN', which chooses among numbered actions, but {environment.id!r} has continuous "
            f"actions, {space}: use SAC, TD3 or PPO"
        )
    return None


def needs_pool(opponents: Sequence[tuple[Single, float]]) -> bool:
    """Return whether some opponents are snapshots of the learner in this run."""
    return any(isinstance(one, SnapshotOpponent) and one.folder is None for one, _ in opponents)


def find_shaping(name: str) -> Shaping:
    """Return the function of a phase's `shaping`, which checks the shape of its results.

    Raises:
        InvalidArgument: `"module:name"` cannot be imported, or is not callable.
    """
    function = find_own(name, "shaping")

    def shape(
        observations: NDArray[Any],
        actions: NDArray[Any],
        rewards: NDArray[np.float64],
        next_observations: NDArray[Any],
    ) -> NDArray[np.float64]:
        shaped = np.asarray(function(observations, actions, rewards, next_observations), np.float64)
        if shaped.shape != rewards.shape:
            raise InvalidArgument(
                f"{name} returned rewards of shape {shaped.shape}, expected {rewards.shape}: return one number per row"
            )
        return shaped

    return shape
