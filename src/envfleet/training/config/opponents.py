"""Who plays against the learner in a phase."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from envfleet.envs.games import RANDOM, known_games
from envfleet.training.config.section import Section

SCRIPT = "basic_"
"""Before the name of a scripted player of a game in the type of an opponent."""
NOBODY = "none"
SCRIPTED = (NOBODY, *dict.fromkeys(f"{SCRIPT}{name}" for game in known_games() for name in game.scripts), RANDOM)
"""Types of opponents that are known by their names."""
TAGS = ("named", "self_play", "snapshots", "weighted_mixture")
"""Kinds of sections; the types of all but the first are called so, too."""

Matchmaking = Literal["uniform", "latest", "prioritised", "hardest"]
Weight = Annotated[float, Field(ge=0.0, strict=False, allow_inf_nan=False)]


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

    type: str = Field(pattern=f"^({'|'.join(SCRIPTED)})$|.:.")
    """A scripted player, "random", "none", where the other side stands still, or a class of your own, such as
    "my_package:MyOpponent"."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of a class of your own."""

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
    matchmaking: Matchmaking = "prioritised"
    """How one is drawn: uniform, latest, prioritised (by p(1-p), p being the learner's win rate against it),
    hardest (by (1-p)^2)."""


class MixedOpponent(_Entry):
    """One of several, drawn by weight for every episode."""

    type: Literal["weighted_mixture"]
    opponents: list[Opponent] = Field(min_length=1)
    """Its entries; a mixture may hold mixtures."""


def _kind_of(opponent: Any) -> Any:
    """Return the tag of an opponent: its type, or that of all named ones."""
    kind = opponent.get("type") if isinstance(opponent, dict) else getattr(opponent, "type", None)
    return TAGS[0] if kind in SCRIPTED or (isinstance(kind, str) and ":" in kind) else kind


Single = NamedOpponent | SelfPlayOpponent | SnapshotOpponent
Opponent = Annotated[
    Annotated[NamedOpponent, Tag(TAGS[0])]
    | Annotated[SelfPlayOpponent, Tag("self_play")]
    | Annotated[SnapshotOpponent, Tag("snapshots")]
    | Annotated[MixedOpponent, Tag("weighted_mixture")],
    Discriminator(_kind_of),
]
MixedOpponent.model_rebuild()


def shares_of(opponent: Single | MixedOpponent | None) -> list[tuple[Single, float]]:
    """Take mixtures apart.

    Returns:
        Opponents that are no mixtures, in the order of the file, each with its chance; chances add up to 1. Entries
        without a chance are left out. Empty without an opponent.

    Examples:
        >>> weak, strong = NamedOpponent(type="basic_weak", weight=3.0), NamedOpponent(type="basic_strong")
        >>> mixed = MixedOpponent(type="weighted_mixture", opponents=[weak, strong])
        >>> [(entry.type, share) for entry, share in shares_of(mixed)]
        [('basic_weak', 0.75), ('basic_strong', 0.25)]
    """
    return [] if opponent is None else [(entry, share) for entry, share in _spread(opponent, 1.0) if share > 0]


def _spread(opponent: Single | MixedOpponent, share: float) -> Iterator[tuple[Single, float]]:
    if not isinstance(opponent, MixedOpponent):
        yield opponent, share
        return
    total = sum(entry.weight for entry in opponent.opponents)
    for entry in opponent.opponents:
        yield from _spread(entry, share * entry.weight / total if total else 0.0)
