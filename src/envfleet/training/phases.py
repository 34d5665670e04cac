"""The phases of a curriculum: how long, in which environment, against whom, with which help.

Sections of a configuration are frozen, and no key goes unnoticed.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import gymnasium as gym
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, create_model, model_validator
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from envfleet.envs.games import RANDOM, Game, find_game, known_game, known_games
from envfleet.errors import InvalidArgument
from envfleet.options import Options
from envfleet.registry import GAMES
from envfleet.sources import Blueprint, find_callable, is_kernel_class

REMOTE = "remote"
DEFAULT_GAME = next(iter(GAMES))
if TYPE_CHECKING:
    ModeName = str
else:
    ModeName = Literal[tuple(mode for game in known_games() for mode in game.modes)]
Episodes = Annotated[int, Field(ge=0)]
Length = Annotated[int, Field(ge=1)]
Number = Annotated[float, Field(strict=False, allow_inf_nan=False)]
SCRIPT = "basic_"
"""Before the name of a scripted player of a game in the type of an opponent."""
NOBODY = "none"
SCRIPTED = (NOBODY, *dict.fromkeys(f"{SCRIPT}{name}" for game in known_games() for name in game.scripts), RANDOM)
"""Types of opponents that are known by their names."""
TAGS = ("named", "self_play", "snapshots", "weighted_mixture")
"""Kinds of sections; the types of all but the first are called so, too."""

Matchmaking = Literal["uniform", "latest", "prioritized", "hardest"]
Weight = Annotated[float, Field(ge=0.0, strict=False, allow_inf_nan=False)]


UNKNOWN: Literal["unknown_key"] = "unknown_key"
"""Type of the error of a key that is not known; its context has the `problem` in words."""


class Section(BaseModel):
    """A JSON object of a configuration file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)

    @model_validator(mode="wrap")
    @classmethod
    def _describe_unknown(cls, data: Any, read: Callable[[Any], Self]) -> Self:
        """Add to errors of keys that are not known which ones are."""
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
        told: Any = PydanticCustomError(UNKNOWN, "{problem}", context) if kind == UNKNOWN else kind
        return InitErrorDetails(type=told, loc=problem["loc"], input=problem["input"], ctx=context)


def describe_unknown(name: str, accepted: list[str]) -> str:
    """Say that a key is not known, which ones are, and which one may be meant.

    >>> describe_unknown("episode", ["name", "episodes"])
    'is an unknown key, accepted are name, episodes: did you mean episodes?'
    """
    meant = difflib.get_close_matches(name, accepted, n=1, cutoff=0.6)
    advice = f"did you mean {meant[0]}?" if meant else "check the spelling, or leave it out"
    return f"is an unknown key, accepted are {', '.join(accepted)}: {advice}"


# ---------------------------------------------------------------------- opponents


class _Entry(Section):
    """An entry of a mixture, or the only opponent."""

    weight: Weight = 1.0
    """Share among the entries of a mixture, relative to the others'."""


class _Agent(_Entry):
    """A trained agent."""

    deterministic: bool = False
    """Whether the opponent takes its best action instead of drawing."""


class NamedOpponent(_Entry):
    """A scripted player of the game, one that acts at random or not at all, or one of your own."""

    type: str = Field(pattern=f"^({NOBODY}|{RANDOM}|{SCRIPT}.+)$|.:.")
    """A scripted player, "random", "none", where the other side stands still, or a class of your own, such as
    "my_package:MyOpponent"."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of a class of your own."""

    @property
    def label(self) -> str:
        """Return what records call it: the type, and the arguments of a class."""
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.kwargs.items())
        return f"{self.type}({arguments})" if arguments else self.type

    @property
    def is_class(self) -> bool:
        """Return whether a class plays, outside the environment."""
        return self.type == RANDOM or ":" in self.type


class SelfPlayOpponent(_Agent):
    """The learner itself as it is now, or one saved agent."""

    type: Literal["self_play"]
    checkpoint: str | None = None
    """File of a saved agent; null for the learner's own weights of the moment."""

    @property
    def is_learner(self) -> bool:
        """Return whether it is the learner as it is now, exploring."""
        return self.checkpoint is None and not self.deterministic


class SnapshotOpponent(_Agent):
    """An earlier self of the learner, or an agent out of a folder, drawn for every episode."""

    type: Literal["snapshots"]
    folder: str | None = None
    """Folder of saved agents; null for the snapshots that this run takes of the learner."""
    matchmaking: Matchmaking = "prioritized"
    """How one is drawn: uniform, latest, prioritized (by p(1-p), p being the learner's win rate against it),
    hardest (by (1-p)^2)."""


class MixedOpponent(_Entry):
    """One of several, drawn by weight for every episode."""

    type: Literal["weighted_mixture"]
    opponents: list[Opponent] = Field(min_length=1)
    """Its entries; a mixture may hold mixtures."""


def _kind_of(opponent: Any) -> Any:
    """Return the tag of an opponent: its type, or that of all named ones."""
    kind = opponent.get("type") if isinstance(opponent, dict) else getattr(opponent, "type", None)
    return TAGS[0] if isinstance(kind, str) and (kind in SCRIPTED or kind.startswith(SCRIPT) or ":" in kind) else kind


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
    """Take mixtures apart.

    Args:
        opponent: To take apart.
        share: The chance of all of it.

    Returns:
        Opponents that are no mixtures, in the order of the file, each with its chance; chances add up to `share`.
        Entries without a chance are left out. Empty without an opponent.

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
    """An entry of a mixture of modes."""

    mode: ModeName
    weight: Weight = 1.0
    """Relative to the other entries'."""


class Environment(Section):
    """Where a phase plays."""

    id: str = Field(
        default=DEFAULT_GAME,
        description=f"A game for two ({', '.join(GAMES)}), a Gymnasium id, a callable such as "
        '"package.module:make_env" that makes a Gymnasium environment or a parallel PettingZoo game for two, or '
        '"remote", which takes the arguments of envfleet.connect as kwargs, url and env among them.',
    )
    mode: ModeName | None = None
    """Mode of the game; without a mixture, null is the first."""
    mixture: list[WeightedMode] | None = Field(default=None, min_length=1)
    """Modes of the game, one drawn by weight for every episode."""
    keep_mode: bool = True
    """Whether players can catch and shoot, in games with a puck."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of the environment."""

    @property
    def is_known_game(self) -> bool:
        """Return whether it is a game for two that comes with envfleet."""
        return self.id in GAMES

    @property
    def settings(self) -> dict[str, Any]:
        """Return the arguments of a game that comes with envfleet."""
        return {"keep_mode": self.keep_mode, **self.kwargs}

    @property
    def is_remote(self) -> bool:
        """Return whether it lives behind a service."""
        return self.id == REMOTE

    def find_game(self) -> Game | None:
        """Return the game for two that is played; `None` in environments for one.

        Raises:
            InvalidArgument: A callable cannot be imported or called, or its game is not for two.
        """
        return None if self.is_remote else find_game(self.id, self.kwargs)

    def source(self) -> tuple[Any, dict[str, Any]]:
        """Return what `envfleet.make` takes for an environment for one, and its arguments as keywords.

        Raises:
            InvalidArgument: It names a module that cannot be imported.
        """
        found = find_callable(self.id)
        if found is None or is_kernel_class(found):
            return found or self.id, dict(self.kwargs)
        return functools.partial(found, **self.kwargs), {}

    def make(self, **more: Any) -> gym.Env[Any, Any]:
        """Make an environment for one, to look at.

        Args:
            **more: Arguments beside those of the configuration, such as `render_mode`.

        Raises:
            InvalidArgument: It is behind a service.
        """
        if self.is_remote:
            raise InvalidArgument(
                f"{self.kwargs['env']!r} is behind a service and cannot be made here: name one that is installed"
            )
        source, kwargs = self.model_copy(update={"kwargs": {**self.kwargs, **more}}).source()
        return Blueprint(source, 1, Options(), kwargs).builders(0)[0].build({})

    @property
    def mode_shares(self) -> dict[str, float]:
        """Return the chance of each mode that an episode can have; together 1."""
        mixture = self.mixture or ([] if self.mode is None else [WeightedMode(mode=self.mode)])
        total = sum(entry.weight for entry in mixture)
        shares: dict[str, float] = {}
        for entry in mixture:
            if entry.weight:
                shares[entry.mode] = shares.get(entry.mode, 0.0) + entry.weight / total
        return shares

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.mode is not None and self.mixture is not None:
            raise ValueError("has a mode and a mixture of modes, expected one of both: leave one out")
        if self.mixture is not None and not any(entry.weight for entry in self.mixture):
            raise ValueError("has a mixture whose weights are all 0: give one a weight")
        if self.is_known_game:
            known_game(self.id).check(self.kwargs)
        elif (self.mode, self.mixture, self.keep_mode) != (None, None, True):
            raise ValueError(f"is {self.id!r}, which has no mode, mixture or keep_mode: pass its arguments in kwargs")
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
                    f"has {name} in kwargs: leave it out; the token comes from the variable ENVFLEET_TOKEN, --num-envs "
                    "says how many, and runs cannot be ranked, as they draw their seeds"
                )


# ---------------------------------------------------------------------- phases


class _Shaping(Section):
    """Weights of the shaping terms over a phase: START for N episodes, FINAL from K later, a straight line between."""

    N: Episodes = 600
    """Episodes of the phase with the first weights."""
    K: Episodes = 400
    """Episodes over which they move to the last ones."""


_WEIGHTS: dict[str, Any] = {
    f"{term}_{when}": (Number, Field(default=weight, description=f"Of {purpose}." if when == "START" else None))
    for game in known_games()
    for term, (_, *weights, purpose) in game.terms.items()
    for when, weight in zip(("START", "FINAL"), weights, strict=True)
}
if TYPE_CHECKING:
    RewardShaping = _Shaping
else:
    RewardShaping = create_model("RewardShaping", __base__=_Shaping, __doc__=_Shaping.__doc__, **_WEIGHTS)


class RewardBonus(Section):
    """Reward added to the step that wins a game, over a phase as `RewardShaping`."""

    N: Episodes = 0
    """Episodes of the phase with the first bonus."""
    K: Episodes = 2000
    """Episodes over which it moves to the last one."""
    WIN_BONUS_START: Number = 10.0
    WIN_BONUS_FINAL: Number = 1.0


class Promotion(Section):
    """A phase ends early once the learner wins often enough."""

    win_rate: Annotated[float, Field(gt=0.0, lt=1.0, strict=False)]
    """What the lower bound (95 %, Wilson) of the share of won games has to exceed."""
    games: Length = 200
    """Latest games of the phase, with exploration, that are looked at."""


class Phase(Section):
    """A part of a run; exactly one of `episodes` and `transitions` says how long it is."""

    name: str = Field(min_length=1)
    """As plots and tables call it."""
    episodes: Length | None = None
    """Finished episodes, over all sub-environments."""
    transitions: Length | None = None
    """Transitions, over all sub-environments."""
    promote_at: Promotion | None = None
    """When it ends before that."""
    environment: Environment = Environment()
    opponent: Opponent | None = None
    """In games for two; null in environments for one."""
    reward_shaping: RewardShaping | None = None
    """null for the true reward alone."""
    shaping: str | None = Field(default=None, pattern=".:.")
    """A function of your own, such as "my_package:my_shaping", that turns rewards into those to learn from."""
    reward_bonus: RewardBonus | None = None
    """null for none."""
    clear_buffer: bool = True
    """Whether the replay buffer is emptied when the phase begins."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.episodes is None) == (self.transitions is None):
            given = "none" if self.episodes is None else "both"
            raise ValueError(f"has {given} of episodes and transitions, expected one: say how long the phase is in one")
        if self.opponent is not None and not shares_of(self.opponent):
            raise ValueError("has a mixture of opponents whose weights are all 0: give one a weight")
        if self.environment.is_known_game:
            self.check(known_game(self.environment.id))
        elif ":" not in self.environment.id:  # what a callable makes is seen when the run begins
            self.check(None)
        return self

    def check(self, game: Game | None) -> None:
        """Check what depends on the environment.

        Args:
            game: What the environment is; `None` if it is for one.

        Raises:
            ValueError: Something is for two players in an environment for one, or the game does not have it.
        """
        name, opponents = self.environment.id, [one for one, _ in shares_of(self.opponent)]
        if game is None:
            for key in ("opponent", "reward_shaping", "reward_bonus", "promote_at"):
                value = getattr(self, key)
                if value is not None and getattr(value, "type", None) != NOBODY:
                    raise ValueError(
                        f"has {key}, which only games for two have, but plays {name!r}: leave it out, or name a game "
                        "of your own as 'module:callable'"
                    )
            return
        if not opponents:
            raise ValueError(
                f'plays {name!r}, a game for two, without an opponent: add "opponent": {{"type": "self_play"}}'
            )
        for one in opponents:
            if one.type.startswith(SCRIPT) and one.type.removeprefix(SCRIPT) not in game.scripts:
                raise ValueError(
                    f"has the opponent {one.type!r}, but {name!r} has no scripted player of that name: take random, "
                    "self_play, snapshots or a class of your own"
                )
            if isinstance(one, NamedOpponent) and one.kwargs and ":" not in one.type:
                raise ValueError(f"has the opponent {one.type!r} with kwargs, which it does not take: leave them out")
        if self.reward_shaping is not None and not game.terms:
            raise ValueError(f"has reward_shaping, but {name!r} has no terms for it: write shaping, a function")


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
                    f"plays {first.id!r} and, in phase {phase.name!r}, {place.id!r}, expected one id and keep_mode "
                    "in all: one agent cannot have several forms of observations and actions; train in several runs"
                )
        names = [phase.name for phase in self.phases]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"has several phases called {twice[0]!r}: give each a name of its own")
        return self
