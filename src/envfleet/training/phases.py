"""Phases of a curriculum: length, environment, opponent and reward shaping of each.

Sections of a configuration are frozen data and reject unknown keys. Nothing here imports a game: what depends on one
(modes, scripted players, shaping terms) is checked by `plan.resolve`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, model_validator
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from envfleet.registry import GAMES, RANDOM

REMOTE = "remote"
DEFAULT_GAME = next(iter(GAMES))
Episodes = Annotated[int, Field(ge=0)]
Length = Annotated[int, Field(ge=1)]
Number = Annotated[float, Field(strict=False, allow_inf_nan=False)]
NOBODY = "none"
SCRIPT = "basic_"
"""Prefix of a game's scripted players in the type of an opponent."""
TAGS = ("named", "self_play", "snapshots", "weighted_mixture")
"""Kinds of opponent sections; all but the first are also their types."""

Matchmaking = Literal["uniform", "latest", "prioritized", "hardest"]
Weight = Annotated[float, Field(ge=0.0, strict=False, allow_inf_nan=False)]


UNKNOWN: Literal["unknown_key"] = "unknown_key"
"""Type of pydantic's error for an unknown key; its context has the message as `problem`."""


class Section(BaseModel):
    """JSON object of a configuration file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)

    @model_validator(mode="wrap")
    @classmethod
    def _describe_unknown(cls, data: Any, read: Callable[[Any], Self]) -> Self:
        """List the accepted keys in errors about unknown keys."""
        try:
            return read(data)
        except ValidationError as error:
            raise ValidationError.from_exception_data(
                cls.__name__, [cls._describe(one) for one in error.errors()]
            ) from None

    @classmethod
    def _describe(cls, problem: ErrorDetails) -> InitErrorDetails:
        kind, context = problem["type"], problem.get("ctx", {})
        if kind == "extra_forbidden":
            kind, context = UNKNOWN, {"problem": describe_unknown(str(problem["loc"][-1]), list(cls.model_fields))}
        described: Any = PydanticCustomError(UNKNOWN, "{problem}", context) if kind == UNKNOWN else kind
        return InitErrorDetails(type=described, loc=problem["loc"], input=problem["input"], ctx=context)


def describe_unknown(name: str, accepted: list[str]) -> str:
    """Return the problem with an unknown key: the accepted keys, and the one that was probably meant.

    >>> describe_unknown("episode", ["name", "episodes"])
    'is an unknown key, accepted are name, episodes: did you mean episodes?'
    """
    meant = difflib.get_close_matches(name, accepted, n=1, cutoff=0.6)
    advice = f"did you mean {meant[0]}?" if meant else "check the spelling, or leave it out"
    return f"is an unknown key, accepted are {', '.join(accepted)}: {advice}"


# ---------------------------------------------------------------------- opponents


class _Entry(Section):
    """Entry of a mixture, or the only opponent."""

    weight: Weight = 1.0
    """Weight in a mixture, relative to the other entries."""


class _Agent(_Entry):
    """Trained agent."""

    deterministic: bool = False
    """True if the opponent acts without exploration."""


class NamedOpponent(_Entry):
    """Scripted player of the game, random player, idle player, or your own class."""

    type: str = Field(pattern=f"^({NOBODY}|{RANDOM}|{SCRIPT}.+)$|.:.")
    """A scripted player, "random", "none" for an idle opponent, or your own class, such as
    "my_package:MyOpponent"."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of your own class."""

    @property
    def label(self) -> str:
        """Return the name in records: the type and the arguments of a class."""
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.kwargs.items())
        return f"{self.type}({arguments})" if arguments else self.type

    @property
    def is_class(self) -> bool:
        """Return whether a Python class outside the environment chooses the actions."""
        return self.type == RANDOM or ":" in self.type


class SelfPlayOpponent(_Agent):
    """Current learner, or one saved agent."""

    type: Literal["self_play"]
    checkpoint: str | None = None
    """File of a saved agent; null for the current weights of the learner."""

    @property
    def is_learner(self) -> bool:
        """Return whether this is the current learner, with exploration."""
        return self.checkpoint is None and not self.deterministic


class SnapshotOpponent(_Agent):
    """Earlier snapshot of the learner, or an agent from a folder, drawn for each episode."""

    type: Literal["snapshots"]
    folder: str | None = None
    """Folder of saved agents; null for the learner's snapshots in this run."""
    matchmaking: Matchmaking = "prioritized"
    """Distribution to draw from: uniform, latest, prioritized (by p(1-p), where p is the learner's win rate against
    the opponent), hardest (by (1-p)^2)."""


class MixedOpponent(_Entry):
    """Mixture of opponents; one is drawn by weight for each episode."""

    type: Literal["weighted_mixture"]
    opponents: list[Opponent] = Field(min_length=1)
    """Entries of the mixture, which may be mixtures."""


def _kind_of(opponent: Any) -> Any:
    """Return the tag of an opponent: its type, or the common tag of named opponents."""
    kind = opponent.get("type") if isinstance(opponent, dict) else getattr(opponent, "type", None)
    is_named = isinstance(kind, str) and (kind in (NOBODY, RANDOM) or kind.startswith(SCRIPT) or ":" in kind)
    return TAGS[0] if is_named else kind


Single = NamedOpponent | SelfPlayOpponent | SnapshotOpponent
Opponent = Annotated[
    Annotated[NamedOpponent, Tag(TAGS[0])]
    | Annotated[SelfPlayOpponent, Tag("self_play")]
    | Annotated[SnapshotOpponent, Tag("snapshots")]
    | Annotated[MixedOpponent, Tag("weighted_mixture")],
    Discriminator(_kind_of),
]
MixedOpponent.model_rebuild()


def shares_of(opponent: Single | MixedOpponent | None, share: float = 1.0) -> list[tuple[Single, float]]:
    """Flatten a mixture of opponents.

    Args:
        opponent: Opponent section; `None` for no opponent.
        share: Probability of the whole section.

    Returns:
        Opponents that are not mixtures, in the order of the file, each with its probability; probabilities add up to
        `share`. Entries of weight 0 are left out. Empty without an opponent.

    Examples:
        >>> weak, strong = NamedOpponent(type="basic_weak", weight=3.0), NamedOpponent(type="basic_strong")
        >>> mixed = MixedOpponent(type="weighted_mixture", opponents=[weak, strong])
        >>> [(entry.type, share) for entry, share in shares_of(mixed)]
        [('basic_weak', 0.75), ('basic_strong', 0.25)]
    """
    if opponent is None or not share:
        return []
    if not isinstance(opponent, MixedOpponent):
        return [(opponent, share)]
    total = sum(entry.weight for entry in opponent.opponents) or 1.0
    return [one for entry in opponent.opponents for one in shares_of(entry, share * entry.weight / total)]


# ---------------------------------------------------------------------- environments


class WeightedMode(Section):
    """Entry of a mixture of modes."""

    mode: str
    weight: Weight = 1.0
    """Weight of the entry, relative to the other ones."""


class Environment(Section):
    """Environment of a phase."""

    id: str = Field(
        default=DEFAULT_GAME,
        description=f"A two-player game ({', '.join(GAMES)}), a Gymnasium id, a callable such as "
        '"package.module:make_env" that returns a Gymnasium environment or a parallel PettingZoo game for two, or '
        '"remote", which takes the arguments of envfleet.connect as kwargs, including url and env.',
    )
    mode: str | None = None
    """Mode of the game; null without a mixture is the first mode."""
    mixture: list[WeightedMode] | None = Field(default=None, min_length=1)
    """Modes of the game; one is drawn by weight for each episode."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Settings of the game, or arguments of the environment."""

    @property
    def is_known_game(self) -> bool:
        """Return whether this is a two-player game that comes with envfleet."""
        return self.id in GAMES

    @property
    def is_remote(self) -> bool:
        """Return whether the environment runs on a service."""
        return self.id == REMOTE

    @property
    def mode_shares(self) -> dict[str, float]:
        """Return the probability of each mode; they add up to 1."""
        mixture = self.mixture or ([] if self.mode is None else [WeightedMode(mode=self.mode)])
        total = sum(entry.weight for entry in mixture)
        shares: dict[str, float] = {}
        for entry in mixture:
            if entry.weight:
                shares[entry.mode] = shares.get(entry.mode, 0.0) + entry.weight / total
        return shares

    @model_validator(mode="before")
    @classmethod
    def _move_keep_mode(cls, data: Any) -> Any:
        """Move `keep_mode`, which older files have next to `kwargs`, into `kwargs`; all environments had it there."""
        if not isinstance(data, dict) or "keep_mode" not in data or not isinstance(data.get("kwargs", {}), dict):
            return data
        moved, kwargs = {**data}, {**data.get("kwargs", {})}
        keep_mode = moved.pop("keep_mode")
        if "keep_mode" in kwargs:
            raise ValueError("has keep_mode in and next to kwargs, expected it in kwargs: leave the other one out")
        if moved.get("id", DEFAULT_GAME) in GAMES or keep_mode is not True:
            kwargs = {"keep_mode": keep_mode, **kwargs}
        return moved | {"kwargs": kwargs}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.mode is not None and self.mixture is not None:
            raise ValueError("has a mode and a mixture of modes, expected one of both: leave one out")
        if self.mixture is not None and not any(entry.weight for entry in self.mixture):
            raise ValueError("has a mixture with all weights 0: give one a weight")
        if self.is_remote:
            self._check_remote()
        return self

    def _check_remote(self) -> None:
        missing = [name for name in ("url", "env") if name not in self.kwargs]
        if missing:
            raise ValueError(
                f'is "remote" without {" and ".join(missing)}, expected both in kwargs: write '
                '{"url": "http://host:8001", "env": "Turbofan-v0"}'
            )
        for name in ("token", "mode", "num_envs", "autoreset_mode"):
            if name in self.kwargs:
                raise ValueError(
                    f"has {name} in kwargs: leave it out; the token is read from ENVFLEET_TOKEN, the number of "
                    "sub-environments is --num-envs, and runs cannot be ranked, since they draw their seeds"
                )


# ---------------------------------------------------------------------- phases


class RewardShaping(Section):
    """Weights of the game's shaping terms: TERM_START for N episodes, then linear over K episodes to TERM_FINAL."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Number]

    N: Episodes = 600
    """Episodes of the phase with the initial weights."""
    K: Episodes = 400
    """Episodes over which the weights move to the final ones."""

    @property
    def weights(self) -> dict[str, float]:
        """Return the weights by key, such as `"CLOSENESS_START"`; absent keys have the game's default."""
        return dict(self.__pydantic_extra__)


class RewardBonus(Section):
    """Reward added to the step that wins a game, scheduled like `RewardShaping`."""

    N: Episodes = 0
    """Episodes of the phase with the initial bonus."""
    K: Episodes = 2000
    """Episodes over which the bonus moves to the final one."""
    WIN_BONUS_START: Number = 10.0
    WIN_BONUS_FINAL: Number = 1.0


class Promotion(Section):
    """Win rate at which a phase ends early."""

    win_rate: Annotated[float, Field(gt=0.0, lt=1.0, strict=False)]
    """Threshold for the lower bound (95 %, Wilson) of the win rate."""
    games: Length = 200
    """Number of the latest games of the phase, with exploration, that the win rate is computed over."""


class Phase(Section):
    """Part of a run; exactly one of `episodes` and `transitions` sets its length."""

    name: str = Field(min_length=1)
    """Name in plots and tables."""
    episodes: Length | None = None
    """Length in finished episodes, over all sub-environments."""
    transitions: Length | None = None
    """Length in transitions, over all sub-environments."""
    promote_at: Promotion | None = None
    """Condition that ends the phase earlier."""
    environment: Environment = Environment()
    opponent: Opponent | None = None
    """Opponent in two-player games; null in single-player environments."""
    reward_shaping: RewardShaping | None = None
    """Weights of the game's shaping terms; null for none."""
    shaping: str | None = Field(default=None, pattern=".:.")
    """Your own function, such as "my_package:my_shaping", that returns the rewards to learn from."""
    reward_bonus: RewardBonus | None = None
    """Reward for winning; null for none."""
    clear_buffer: bool = True
    """True to empty the replay buffer when the phase begins."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.episodes is None) == (self.transitions is None):
            present = "none" if self.episodes is None else "both"
            raise ValueError(f"has {present} of episodes and transitions, expected one: set the length in one of them")
        if self.opponent is not None and not shares_of(self.opponent):
            raise ValueError("has a mixture of opponents with all weights 0: give one a weight")
        return self


class Curriculum(Section):
    """Phases of training, in order."""

    phases: list[Phase] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        first = self.phases[0].environment
        for phase in self.phases[1:]:
            if phase.environment.id != first.id:
                raise ValueError(
                    f"uses {first.id!r} and, in phase {phase.name!r}, {phase.environment.id!r}, expected one id in all "
                    "phases: one agent has one form of observations and actions; train in several runs"
                )
        names = [phase.name for phase in self.phases]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"has several phases called {repeated[0]!r}: give each a different name")
        return self
