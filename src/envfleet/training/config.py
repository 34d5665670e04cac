"""What a run is told: its configuration, a JSON file that is checked as a whole before anything starts, and options.

Errors say where in a file something is wrong.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import reprlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from gymnasium import spaces
from pydantic import Field, TypeAdapter, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from envfleet.errors import InvalidArgument
from envfleet.files import read_json
from envfleet.fleet.checks import check_choice, check_whole
from envfleet.registry import AGENTS, find_own
from envfleet.training.events import find_observers
from envfleet.training.phases import SCRIPTED, TAGS, UNKNOWN, Curriculum, Environment, Length, Section, describe_unknown

Backend = Literal["auto", "serial", "thread", "process", "ray", "kernel"]
Rate = Annotated[float, Field(ge=0.0, strict=False, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0.0, strict=False, allow_inf_nan=False)]
SHIPPED = Path(__file__).parent / "configs"
"""Folder of the configurations that come with envfleet, and of their JSON schema."""


class Hyperparameters(Section):
    """What agents of all kinds have."""

    learning_rate: Positive | None = None
    """Of Adam; null for the agent's own."""
    batch_size: Length | None = None
    """Transitions per update; null for the agent's own."""


class Pool(Section):
    """Snapshots of the learner that opponents of type `snapshots` are drawn from."""

    snapshot_every: Length = 100_000
    """Transitions from one snapshot to the next."""
    size: Length = 20
    """Snapshots that are kept; of more, the oldest goes."""


class Training(Section):
    """How a run goes; all counts are in transitions (steps of one sub-environment as the learner saw it)."""

    warmup_steps: Annotated[int, Field(ge=0)] = 10_000
    """Transitions before the first update, with uniformly random actions unless the agent has a checkpoint_path;
    PPO has none."""
    updates_per_step: Rate = 1.0
    """Gradient updates per transition; fractions add up."""
    updates_per_round: Rate | None = None
    """Gradient updates per round (one step of all sub-environments) instead."""
    learn_beside: bool = True
    """Whether compiled updates are made by a thread beside the games: the policy that acts is then one set of
    updates old."""
    rollout_steps: Length = 128
    """Steps of every sub-environment between updates of PPO."""
    learn_from_both_sides: bool = True
    """Whether the learner learns from either side of games against itself (self_play without a checkpoint, not
    deterministic); a step of these is two transitions then."""
    reward_scale: Positive = 1.0
    """What the learner's reward is multiplied by."""
    eval_frequency: Length | None = 100_000
    """Transitions between evaluations; null for the end only."""
    eval_games: Length = 200
    """Games per evaluation and opponent."""
    eval_weak_opponent: bool = True
    """Whether the weak scripted player is played, too."""
    checkpoint_frequency: Length | None = 100_000
    """Transitions between checkpoints; null for the end only."""
    max_checkpoints: Length = 5
    """Latest checkpoints that are kept, beside the best."""
    max_restarts: Annotated[int, Field(ge=0)] = 10
    """Failures of sub-environments allowed within any hour, in runs that rebuild those that fail."""
    pool: Pool = Pool()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.updates_per_round is not None and self.updates_per_step != 1.0:
            raise ValueError(
                "has updates_per_step and updates_per_round, expected one of both: updates_per_step keeps the updates "
                "per transition whatever num_envs is"
            )
        return self


class AgentSection(Section):
    """Who learns."""

    type: str = Field(
        json_schema_extra=lambda schema: schema.update(anyOf=[{"enum": list(AGENTS)}, {"pattern": ".:."}])
    )
    """Or 'module:Name' of a class of your own."""
    hyperparameters: dict[str, Any] = Field(default_factory=dict)
    """Of the agent, by name."""
    checkpoint_path: str | None = None
    """File of a saved agent whose weights are the first ones; it then acts by them during the warm-up, too, and
    DDDQN with its last epsilon from the first step."""
    action_fineness: Length = 1
    """DDDQN in games with a table of actions: levels in each direction of an axis."""
    action_combined: bool = False
    """DDDQN in games with a table of actions: whether one may move several axes."""

    @field_validator("type")
    @classmethod
    def _check_type(cls, name: str) -> str:
        if name not in AGENTS and ":" not in name:
            raise ValueError(f"is {name!r}, expected one of {', '.join(map(repr, AGENTS))}, or 'module:Name'")
        return name

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.type != "DDDQN" and (self.action_fineness, self.action_combined) != (1, False):
            raise ValueError(
                f"has an action_fineness or action_combined, but {self.type} does not choose among numbered actions: "
                "leave it out, or take DDDQN"
            )
        return self


class RunConfig(Section):
    """A configuration file.

    Read one with `read_config`, or make one of a dict with `parse_config`; both say what is wrong with it, and where.
    """

    curriculum: Curriculum
    hyperparameters: Hyperparameters = Hyperparameters()
    training: Training = Training()
    agent: AgentSection
    observers: list[str] = Field(default_factory=list)
    """Classes of your own that are told what happens, as 'module:Name'."""
    seed: Annotated[int, Field(ge=0)] = 0
    """All randomness of the run derives from it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of a run.

    Attributes:
        num_envs: Sub-environments.
        engine: Of a game that has several; `None` for the first of them.
        backend: Of the fleet; `None` chooses: `"kernel"` for what is compiled, `"serial"` for one sub-environment of
            anything else, and `"auto"`, which measures, for several.
        workers: Threads or processes of the fleet; `None` for its own choice.
        device: Where networks live and the replay buffer with them: `"cpu"`, `"cuda"`, `"cuda:1"`, …
        on_failure: `"raise"`, or `"restart"`: a sub-environment that fails ends its episode as truncated and is
            rebuilt.
        max_restarts: Failures allowed within any hour with `on_failure="restart"`; `None` for what the configuration
            says.
        max_minutes: The run stops after so many, evaluations included; `None` for never. An evaluation that is under
            way, or is the last one, may take a tenth of that and one minute more.
        max_transitions: The run stops after so many; `None` for never.
        stop_at_return: The run stops once the mean return of the last 100 episodes is at least this; `None` for never.

    Raises:
        InvalidArgument: One of them cannot be.
    """

    num_envs: int = 1
    engine: str | None = None
    backend: Backend | None = None
    workers: int | None = None
    device: str = "cpu"
    on_failure: Literal["raise", "restart"] = "raise"
    max_restarts: int | None = None
    max_minutes: float | None = None
    max_transitions: int | None = None
    stop_at_return: float | None = None

    def __post_init__(self) -> None:
        check_whole("num_envs", self.num_envs, 1)
        check_choice("on_failure", self.on_failure, ("raise", "restart"))
        if self.max_restarts is not None:
            check_whole("max_restarts", self.max_restarts, 0)
        for name in ("max_minutes", "max_transitions"):
            value = vars(self)[name]
            is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
            if value is not None and not (is_number and 0 < value < math.inf):
                raise InvalidArgument(f"{name}={value!r}: pass a number above 0, or leave it out")


# ---------------------------------------------------------------------- files


def shipped_names() -> list[str]:
    """List the names of the configurations that come with envfleet."""
    return sorted(path.stem for path in SHIPPED.glob("*.json") if path.stem != "schema")


def find_config(source: str | Path) -> Path:
    """Return the path of a configuration file.

    Where there is no `configs/NAME.json` in the working directory, that path is the shipped configuration NAME, too; a
    line on stderr says so.

    Args:
        source: The path, or the name of a configuration that comes with envfleet: a `str` without folder and suffix.

    Raises:
        InvalidArgument: Unknown name.
    """
    path = Path(source)
    if path == Path("configs", f"{path.stem}.json") and path.stem in shipped_names() and not path.exists():
        sys.stderr.write(f"envfleet: there is no {path} here; reading the shipped configuration {path.stem!r}\n")
        return SHIPPED / path.name
    if not isinstance(source, str) or path.suffix or source != path.name:
        return path
    if source not in shipped_names():
        raise InvalidArgument(
            f"the configuration is {source!r}, expected one of {', '.join(shipped_names())}, or the path of a JSON "
            f"file: for a file of that name write ./{source}, for an environment envfleet train --env {source}"
        )
    return SHIPPED / f"{source}.json"


def read_config(source: RunConfig | Mapping[str, Any] | str | Path) -> RunConfig:
    """Read a configuration.

    Args:
        source: Path of a JSON file, or the name of a shipped configuration, as for `find_config`; the content of one;
            or a configuration, which is returned as it is.

    Raises:
        InvalidArgument: Unknown name, missing file, or a file that is no JSON or says something that cannot be; the
            message has the path of every key in question, what it is, and what is accepted.
    """
    if isinstance(source, RunConfig):
        return source
    if isinstance(source, Mapping):
        return parse_config(dict(source))
    return parse_config(*read_file(source))


def read_file(source: str | Path) -> tuple[Any, str]:
    """Read the content of a configuration file without checking what it says.

    Args:
        source: As for `find_config`.

    Returns:
        The content, and the path that errors should name: what `parse_config` takes.

    Raises:
        InvalidArgument: Unknown name, missing file, or a file that is not JSON.
    """
    path = find_config(source)
    advice = f"pass the path of a configuration, or one of the names {', '.join(shipped_names())}"
    return read_json(path, advice), str(path)


def config_for(env: str, agent: str, transitions: int, env_kwargs: Mapping[str, Any] | None = None) -> RunConfig:
    """Make the configuration of an agent with its defaults in one environment; games for two it plays against itself.

    Args:
        env: As `environment.id` has it.
        agent: As `agent.type` has it.
        transitions: How many there are; in a short run a tenth of them is for the warm-up.
        env_kwargs: Arguments of the environment.

    Raises:
        InvalidArgument: As `read_config`.
    """
    place = Environment(id=env, kwargs=dict(env_kwargs or {}))
    phase = {"name": "train", "transitions": transitions, "environment": place.model_dump()}
    if place.find_game() is not None:
        phase["opponent"] = {"type": "self_play"}
    warmup = min(Training().warmup_steps, transitions // 10)
    content = {"curriculum": {"phases": [phase]}, "training": {"warmup_steps": warmup}, "agent": {"type": agent}}
    return parse_config(content, f"the configuration of {agent} in {env}")


def parse_config(data: Any, source: str = "the configuration") -> RunConfig:
    """Make a configuration of nested dicts and lists, as a JSON file holds them.

    Args:
        data: The content.
        source: What errors call it.

    Raises:
        InvalidArgument: As `read_config`.
    """
    if not isinstance(data, dict):
        raise InvalidArgument(f'{source} holds a {type(data).__name__}, expected an object: {{"curriculum": …}}')
    try:
        config = RunConfig.model_validate({name: value for name, value in data.items() if name != "$schema"})
        agent_config(config)
        find_observers(config.observers)
        _check_actions(config)
    except ValidationError as error:
        raise InvalidArgument(_explain(error, source)) from None
    except InvalidArgument as error:
        raise InvalidArgument(f"{source}: {error}") from None
    return config


def change_config(base: RunConfig, values: Mapping[str, Any], source: str) -> RunConfig:
    """Return a configuration with other values.

    Args:
        base: The configuration.
        values: By the path of a key, such as `"curriculum.phases[0].transitions"`.
        source: What errors call the result.

    Raises:
        InvalidArgument: A key is not known, or a value cannot be.
    """
    data = base.model_dump(mode="json")
    for path, value in values.items():
        *parents, last = [int(part) if part.isdigit() else part for part in re.findall(r"[^.\[\]]+", path)]
        place: Any = data
        try:
            for part in parents:
                place = place[part]
            place[last] = value
        except (LookupError, TypeError):
            raise InvalidArgument(
                f"{source}: there is no key {path!r}: `envfleet train CONFIG --print-config` prints all keys"
            ) from None
    return parse_config(data, source)


def find_difference(one: Any, other: Any, path: str = "") -> tuple[str, Any, Any] | None:
    """Return the path of the first key in which two contents of a file differ, and both values; `None` if none does.

    Examples:
        >>> find_difference({"seed": 1, "phases": [{"episodes": 5}]}, {"seed": 1, "phases": [{"episodes": 6}]})
        ('phases[0].episodes', 5, 6)
    """
    if isinstance(one, dict) and isinstance(other, dict):
        pairs = [(f"{path}.{key}".lstrip("."), one.get(key), other.get(key)) for key in {**one, **other}]
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = [(f"{path}[{place}]", *pair) for place, pair in enumerate(zip(one, other, strict=True))]
    else:
        return None if one == other else (path, one, other)
    return next(filter(None, (find_difference(first, second, place) for place, first, second in pairs)), None)


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of configuration files, with a description of every key, for editors and other tools."""
    schema = RunConfig.model_json_schema()
    schema["properties"]["$schema"] = {"type": "string"}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


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
        raise InvalidArgument("; ".join(map(_hyperparameter, error.errors(include_url=False)))) from None
    network = getattr(made, "network", None)
    if network is not None:
        find_own(network, "agent.hyperparameters.network")
    if isinstance(made, OffPolicyConfig) and made.capacity < made.batch_size:
        raise InvalidArgument(
            f"agent.hyperparameters.capacity is {made.capacity}, expected at least batch_size, {made.batch_size}: "
            "nothing is learned before the replay buffer holds a batch"
        )
    return made


def _hyperparameter(problem: Mapping[str, Any]) -> str:
    place = "".join(f".{part} is {problem['input']!r}" for part in problem["loc"][:1])
    return f"agent.hyperparameters{place}: {_plain(problem['msg'])}"


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


def _check_actions(config: RunConfig) -> None:
    """Check that DDDQN plays by numbered actions, or by those of a game that has a table of them.

    For DDDQN an environment that is no known game is made once, to look at its actions.

    Raises:
        InvalidArgument: Its actions are continuous, or it cannot be made.
    """
    agent, place = config.agent, config.curriculum.phases[0].environment
    if agent.type != "DDDQN" or place.is_remote:
        return
    game = place.find_game()
    if game is not None and game.action_table(agent.action_fineness, agent.action_combined, place.settings) is not None:
        return
    with contextlib.ExitStack() as closing:
        space = (game or closing.enter_context(contextlib.closing(place.make()))).action_space
    if isinstance(space, spaces.Box):
        raise InvalidArgument(
            f"agent.type is 'DDDQN', which chooses among numbered actions, but {place.id!r} has continuous ones, "
            f"{space}: take SAC, TD3 or PPO"
        )


def _explain(error: ValidationError, source: str) -> str:
    problems = error.errors(include_url=False)
    lines = [_line(problem) for problem in problems]
    if len(lines) == 1:
        return f"{source}: {lines[0]}"
    return "\n".join([f"{source} has {len(problems)} mistakes:", *(f"- {line}" for line in lines)])


def _line(problem: ErrorDetails) -> str:
    keys = [key for key in problem["loc"] if key not in TAGS]  # which pydantic puts between them
    context, kind, given = problem.get("ctx", {}), problem["type"], reprlib.repr(problem["input"])
    if kind == UNKNOWN:
        return f"{_path(keys)} {context['problem']}"
    if kind == "missing":
        return f"{_path(keys)} is missing: add it"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        found = repr(context["tag"]) if "tag" in context else "missing"
        kinds = ", ".join(map(repr, (*SCRIPTED, *TAGS[1:])))
        own = "or a class of your own, 'my_package:MyOpponent'"
        return f"{_path([*keys, 'type'])} is {found}, expected one of {kinds}, {own}"
    if kind == "value_error":
        return f"{_path(keys) or 'it'} {context['error']}"
    return f"{_path(keys)} is {given}: {_plain(problem['msg'])}"


def _plain(text: str) -> str:
    """Say what pydantic says in the words of JSON."""
    text = re.sub(r"(Input|List|String) should (be|have|match)", "expected", text.removeprefix("Value error, "))
    text = re.sub(r" or (object to|instance of) .*| after validation.*", "", text).replace("tuple", "list")
    return text.replace("dictionary", "object").replace("pattern '.:.'", "'module:name'")


def _path(keys: Sequence[int | str]) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).removeprefix(".")
