"""Run configuration: a JSON file, validated before anything starts, and the options of a run.

A `RunConfig` is data only: parsing imports no game, no agent and no code of the user's. `plan.resolve` looks all of
them up and returns the plan that a run follows.
"""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, ValidationError, field_validator, model_validator

from envfleet.errors import InvalidArgument
from envfleet.files import read_json
from envfleet.fleet.checks import check_choice, check_whole
from envfleet.registry import AGENTS
from envfleet.training.phases import Curriculum, Length, Section
from envfleet.training.problems import Problems

Backend = Literal["auto", "serial", "thread", "process", "ray", "kernel"]
Rate = Annotated[float, Field(ge=0.0, strict=False, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0.0, strict=False, allow_inf_nan=False)]
SHIPPED = Path(__file__).parent / "configs"
"""Folder of the configurations that come with envfleet, and of their JSON schema."""


class Hyperparameters(Section):
    """Hyperparameters that all agents have."""

    learning_rate: Positive | None = None
    """Adam's learning rate; null for the agent's default."""
    batch_size: Length | None = None
    """Transitions per update; null for the agent's default."""


class Pool(Section):
    """Snapshots of the learner, which opponents of type `snapshots` are drawn from."""

    snapshot_every: Length = 100_000
    """Transitions between snapshots."""
    size: Length = 20
    """Number of snapshots to keep; the oldest is dropped first."""


class Training(Section):
    """Training loop; all counts are in transitions (steps of one sub-environment from the learner's side)."""

    warmup_steps: Annotated[int, Field(ge=0)] = 10_000
    """Transitions before the first update, with uniformly random actions unless the agent has a checkpoint_path;
    PPO has none."""
    updates_per_step: Rate = 1.0
    """Gradient updates per transition; fractions accumulate."""
    updates_per_round: Rate | None = None
    """Gradient updates per round (one step of all sub-environments), instead of updates_per_step."""
    learn_beside: bool = True
    """True to make compiled updates in a background thread while sub-environments step; the acting policy then lags by
    one set of updates."""
    rollout_steps: Length = 128
    """PPO: steps of each sub-environment per rollout."""
    learn_from_both_sides: bool = True
    """True to learn from both sides of games against the learner itself (self_play without a checkpoint, not
    deterministic); a step of such a game is two transitions."""
    reward_scale: Positive = 1.0
    """Factor of the learner's reward."""
    eval_frequency: Length | None = 100_000
    """Transitions between evaluations; null for one at the end."""
    eval_games: Length = 200
    """Games per evaluation and opponent."""
    eval_weak_opponent: bool = True
    """True to include the weaker scripted players in evaluations."""
    checkpoint_frequency: Length | None = 100_000
    """Transitions between checkpoints; null for one at the end."""
    max_checkpoints: Length = 5
    """Number of latest checkpoints to keep in addition to the best."""
    max_restarts: Annotated[int, Field(ge=0)] = 10
    """Failures of sub-environments allowed within any hour with on_failure="restart"."""
    pool: Pool = Pool()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.updates_per_round is not None and self.updates_per_step != 1.0:
            raise ValueError(
                "has updates_per_step and updates_per_round, expected only one: updates_per_step keeps the number "
                "of updates per transition independent of num_envs"
            )
        return self


class AgentSection(Section):
    """Agent to train."""

    type: str = Field(
        json_schema_extra=lambda schema: schema.update(anyOf=[{"enum": list(AGENTS)}, {"pattern": ".:."}])
    )
    """Name of the algorithm, or 'module:Name' of your own class."""
    hyperparameters: dict[str, Any] = Field(default_factory=dict)
    """Hyperparameters of the algorithm, by name."""
    checkpoint_path: str | None = None
    """File of a saved agent with the initial weights; the agent then acts by them during the warm-up, and DDDQN starts
    with its final epsilon."""
    action_fineness: Length = 1
    """DDDQN in games with a table of actions: levels in each direction of an axis."""
    action_combined: bool = False
    """DDDQN in games with a table of actions: true if an action may move several axes."""

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
                "leave it out, or use DDDQN"
            )
        return self


class RunConfig(Section):
    """Content of a configuration file.

    `read_config` reads a file, `parse_config` a dict; both report what is wrong, and where.
    """

    curriculum: Curriculum
    hyperparameters: Hyperparameters = Hyperparameters()
    training: Training = Training()
    agent: AgentSection
    observers: list[str] = Field(default_factory=list)
    """Your own observer classes, which receive all events, as 'module:Name'."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed that all randomness of the run derives from."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of a run.

    Attributes:
        num_envs: Number of sub-environments.
        engine: Engine of the game; `None` for its first.
        backend: Backend of the fleet; `None` chooses `"kernel"` for compiled environments, `"serial"` for one
            sub-environment of any other kind, and `"auto"`, which measures, for several.
        workers: Threads or processes of the fleet; `None` for the fleet's default.
        device: Device of the networks and the replay buffer: `"cpu"`, `"cuda"`, `"cuda:1"`, …
        on_failure: `"raise"`, or `"restart"`: a sub-environment that fails ends its episode as truncated and is
            rebuilt.
        max_restarts: Failures allowed within any hour with `on_failure="restart"`; `None` for the configuration's
            value.
        max_minutes: Time limit in minutes, including evaluations; `None` for none. A running or final evaluation may
            exceed it by a tenth plus one minute.
        max_transitions: Limit in transitions; `None` for none.
        stop_at_return: Stop once the mean return of the last 100 episodes is at least this; `None` for never.

    Raises:
        InvalidArgument: An option has an invalid value.
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

    Without a `configs/NAME.json` in the working directory, that path also means the shipped configuration NAME; a line
    on stderr reports it.

    Args:
        source: Path of a file, or name of a shipped configuration: a `str` without folder and suffix.

    Raises:
        InvalidArgument: Unknown name.
    """
    path = Path(source)
    if path == Path("configs", f"{path.stem}.json") and path.stem in shipped_names() and not path.exists():
        sys.stderr.write(f"envfleet: {path} does not exist here; reading the shipped configuration {path.stem!r}\n")
        return SHIPPED / path.name
    if not isinstance(source, str) or path.suffix or source != path.name:
        return path
    if source not in shipped_names():
        raise InvalidArgument(
            f"the configuration is {source!r}, expected one of {', '.join(shipped_names())}, or the path of a JSON "
            f"file: write ./{source} for a file of that name, envfleet train --env {source} for an environment"
        )
    return SHIPPED / f"{source}.json"


def read_config(source: RunConfig | Mapping[str, Any] | str | Path) -> RunConfig:
    """Read a configuration.

    Args:
        source: Path of a JSON file or name of a shipped configuration, as in `find_config`; content of a file; or a
            `RunConfig`, which is returned unchanged.

    Raises:
        InvalidArgument: Unknown name, missing file, a file that is not JSON, an unknown key or an invalid value; the
            message has the path of each key, its value, and what is accepted.
    """
    if isinstance(source, RunConfig):
        return source
    if isinstance(source, Mapping):
        return parse_config(dict(source))
    return parse_config(*read_file(source))


def read_file(source: str | Path) -> tuple[Any, str]:
    """Read a configuration file without parsing its content.

    Args:
        source: Argument of `find_config`.

    Returns:
        Content and path of the file: the arguments of `parse_config`.

    Raises:
        InvalidArgument: Unknown name, missing file, or a file that is not JSON.
    """
    path = find_config(source)
    advice = f"pass the path of a configuration, or one of the names {', '.join(shipped_names())}"
    return read_json(path, advice), str(path)


def parse_config(data: Any, source: str = "the configuration") -> RunConfig:
    """Parse the content of a configuration file.

    Args:
        data: Nested dicts and lists, as a JSON file holds them.
        source: Name of the configuration in errors.

    Raises:
        InvalidArgument: See `read_config`.
    """
    if not isinstance(data, dict):
        raise InvalidArgument(f'{source} holds a {type(data).__name__}, expected an object: {{"curriculum": …}}')
    try:
        return RunConfig.model_validate({name: value for name, value in data.items() if name != "$schema"})
    except ValidationError as error:
        problems = Problems(source)
        problems.add_invalid(error)
        raise problems.error() from None


def change_config(base: RunConfig, values: Mapping[str, Any], source: str) -> RunConfig:
    """Return a copy of a configuration with changed values.

    Args:
        base: Configuration to copy.
        values: New values by the path of a key, such as `"curriculum.phases[0].transitions"`.
        source: Name of the result in errors.

    Raises:
        InvalidArgument: Unknown key or invalid value.
    """
    data = base.model_dump(mode="json")
    for path, value in values.items():
        *parents, last = [int(part) if part.isdigit() else part for part in re.findall(r"[^.\[\]]+", path)]
        section: Any = data
        try:
            for part in parents:
                section = section[part]
            section[last] = value
        except (LookupError, TypeError):
            raise InvalidArgument(
                f"{source}: unknown key {path!r}: `envfleet train CONFIG --print-config` prints all keys"
            ) from None
    return parse_config(data, source)


def find_difference(one: Any, other: Any, path: str = "") -> tuple[str, Any, Any] | None:
    """Return the path of the first key with different values, and both values; `None` if the contents are equal.

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
