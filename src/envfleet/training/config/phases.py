"""The phases of a curriculum: how long, in which environment, against whom, with which help."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from envfleet.training.config.opponents import Opponent, Weight, shares_of
from envfleet.training.config.section import Section

ModeName = Literal["NORMAL", "TRAIN_SHOOTING", "TRAIN_DEFENSE"]
HOCKEY, REMOTE = "hockey", "remote"
Episodes = Annotated[int, Field(ge=0)]
Length = Annotated[int, Field(ge=1)]
Number = Annotated[float, Field(strict=False, allow_inf_nan=False)]


class WeightedMode(Section):
    """An entry of a mixture of modes."""

    mode: ModeName
    weight: Weight = Field(default=1.0, description="Relative to the other entries'.")


class Environment(Section):
    """Where a phase plays."""

    id: str = Field(
        default=HOCKEY,
        description='"hockey", or for one player a Gymnasium id, a callable such as "package.module:make_env", or '
        '"remote", which takes the arguments of envfleet.connect as kwargs, url and env among them.',
    )
    mode: ModeName | None = Field(default=None, description="Mode of hockey; without a mixture, null is NORMAL.")
    mixture: list[WeightedMode] | None = Field(
        default=None, min_length=1, description="Modes of hockey, one drawn by weight for every episode."
    )
    keep_mode: bool = Field(default=True, description="Whether players of hockey can catch and shoot the puck.")
    kwargs: dict[str, Any] = Field(default_factory=dict, description="Further arguments of the environment.")

    @property
    def is_hockey(self) -> bool:
        """Return whether two players play hockey."""
        return self.id == HOCKEY

    @property
    def is_remote(self) -> bool:
        """Return whether it lives behind a service."""
        return self.id == REMOTE

    @property
    def mode_shares(self) -> dict[str, float]:
        """Return the chance of each mode that an episode can have; together 1."""
        if self.mixture is None:
            return {self.mode or "NORMAL": 1.0}
        total = sum(entry.weight for entry in self.mixture)
        shares: dict[str, float] = {}
        for entry in self.mixture:
            if entry.weight:
                shares[entry.mode] = shares.get(entry.mode, 0.0) + entry.weight / total
        return shares

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.mode is not None and self.mixture is not None:
            raise ValueError("has a mode and a mixture of modes, expected one of both: leave one out")
        if self.mixture is not None and not any(entry.weight for entry in self.mixture):
            raise ValueError("has a mixture whose weights are all 0: give one a weight")
        if not self.is_hockey and (self.mode, self.mixture, self.keep_mode) != (None, None, True):
            raise ValueError(f"is {self.id!r}, which has no mode, mixture or keep_mode: pass its arguments in kwargs")
        if self.is_hockey:
            self._check_hockey()
        if self.is_remote:
            self._check_remote()
        return self

    def _check_hockey(self) -> None:
        for name, value in self.kwargs.items():
            if name != "starter":
                raise ValueError(
                    f"has {name!r} in kwargs, where hockey takes starter alone: mode, mixture and keep_mode stand "
                    "beside kwargs, and the opponent says who plays"
                )
            if isinstance(value, bool) or value not in (0, 1, 2):
                raise ValueError(f"has starter={value!r} in kwargs, expected 1 or 2, or 0 to draw it for every game")

    def _check_remote(self) -> None:
        missing = [name for name in ("url", "env") if name not in self.kwargs]
        if missing:
            raise ValueError(
                f'is "remote" without {" and ".join(missing)}, expected both in kwargs: write '
                '{"url": "http://host:8001", "env": "Turbofan-v0"}'
            )
        for name, advice in (
            ("token", "it would be copied into records of the run: put it into the variable ENVFLEET_TOKEN"),
            ("mode", "runs draw their seeds, which ranked fleets refuse; play ranked episodes with the trained agent"),
            ("num_envs", "a run is told how many: --num-envs"),
            ("autoreset_mode", "runs choose it"),
        ):
            if name in self.kwargs:
                raise ValueError(f"has {name} in kwargs: leave it out, {advice}")


class RewardShaping(Section):
    """Weights of the shaping terms over a phase: START for N episodes, FINAL from K later, a straight line between."""

    N: Episodes = Field(default=600, description="Episodes of the phase with the first weights.")
    K: Episodes = Field(default=400, description="Episodes over which they move to the last ones.")
    CLOSENESS_START: Number = Field(default=20.0, description="Of being near the puck in one's own half.")
    CLOSENESS_FINAL: Number = 1.5
    TOUCH_START: Number = Field(default=15.0, description="Of touching the puck.")
    TOUCH_FINAL: Number = 1.0
    DIRECTION_START: Number = Field(default=0.0, description="Of sending the puck towards the opponent's goal.")
    DIRECTION_FINAL: Number = 2.0


class RewardBonus(Section):
    """Reward added to the step that wins a game, over a phase as `RewardShaping`."""

    N: Episodes = Field(default=0, description="Episodes of the phase with the first bonus.")
    K: Episodes = Field(default=2000, description="Episodes over which it moves to the last one.")
    WIN_BONUS_START: Number = 10.0
    WIN_BONUS_FINAL: Number = 1.0


class Promotion(Section):
    """A phase ends early once the learner wins often enough."""

    win_rate: Annotated[float, Field(gt=0.0, lt=1.0, strict=False)] = Field(
        description="What the lower bound (95 %, Wilson) of the share of won games has to exceed."
    )
    games: Length = Field(default=200, description="Latest games of the phase, with exploration, that are looked at.")


class Phase(Section):
    """A part of a run; exactly one of `episodes` and `transitions` says how long it is."""

    name: str = Field(min_length=1, description="As plots and tables call it.")
    episodes: Length | None = Field(default=None, description="Finished episodes, over all sub-environments.")
    transitions: Length | None = Field(default=None, description="Transitions, over all sub-environments.")
    promote_at: Promotion | None = Field(default=None, description="When it ends before that.")
    environment: Environment = Environment()
    opponent: Opponent
    reward_shaping: RewardShaping | None = Field(default=None, description="null for the true reward alone.")
    reward_bonus: RewardBonus | None = Field(default=None, description="null for none.")
    clear_buffer: bool = Field(default=True, description="Whether the replay buffer is emptied when the phase begins.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.episodes is None) == (self.transitions is None):
            given = "none" if self.episodes is None else "both"
            raise ValueError(f"has {given} of episodes and transitions, expected one: say how long the phase is in one")
        if not shares_of(self.opponent):
            raise ValueError("has a mixture of opponents whose weights are all 0: give one a weight")
        if not self.environment.is_hockey:
            self._check_alone()
        return self

    def _check_alone(self) -> None:
        name = self.environment.id
        if self.opponent.type != "none":
            raise ValueError(
                f"has the opponent {self.opponent.type!r}, but {name!r} is for one player: write "
                '"opponent": {"type": "none"}'
            )
        for key in ("reward_shaping", "reward_bonus", "promote_at"):
            if getattr(self, key) is not None:
                raise ValueError(f"has {key}, which is made for hockey, but plays {name!r}: leave it out")


class Curriculum(Section):
    """What is trained, one after the other."""

    phases: list[Phase] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        first = self.phases[0].environment
        for phase in self.phases[1:]:
            place = phase.environment
            if (place.id, place.keep_mode) != (first.id, first.keep_mode):
                raise ValueError(
                    f"phase {phase.name!r} plays {place.id!r} with keep_mode={place.keep_mode}, phase "
                    f"{self.phases[0].name!r} {first.id!r} with keep_mode={first.keep_mode}, expected the same in all: "
                    "one agent cannot have several forms of observations and actions; train in several runs"
                )
        names = [phase.name for phase in self.phases]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"several phases are called {twice[0]!r}: give each a name of its own")
        return self
