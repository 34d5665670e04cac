"""The whole configuration of a run."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator

from envfleet.registry import AGENTS
from envfleet.training.config.phases import Curriculum, Length, Section

Rate = Annotated[float, Field(ge=0.0, strict=False, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0.0, strict=False, allow_inf_nan=False)]


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
