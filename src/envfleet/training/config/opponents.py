"""Who plays against the learner in a phase."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from envfleet.training.config.section import Section

Matchmaking = Literal["uniform", "latest", "prioritised", "hardest"]
Weight = Annotated[float, Field(ge=0.0, strict=False, allow_inf_nan=False)]


class _Entry(Section):
    """An entry of a mixture, or the only opponent."""

    weight: Weight = Field(default=1.0, description="Share among the entries of a mixture, relative to the others'.")


class _Agent(_Entry):
    """A trained agent."""

    deterministic: bool = Field(
        default=False, description="Whether the opponent takes its best action instead of drawing."
    )


class NoOpponent(_Entry):
    """The other side stands still; in environments for one player there is none."""

    type: Literal["none"]


class WeakOpponent(_Entry):
    """The weak scripted player."""

    type: Literal["basic_weak"]


class StrongOpponent(_Entry):
    """The strong scripted player."""

    type: Literal["basic_strong"]


class SelfPlayOpponent(_Agent):
    """The learner itself as it is now, or one saved agent."""

    type: Literal["self_play"]
    checkpoint: str | None = Field(
        default=None,
        description='File of a saved agent; null or "latest" for the learner\'s own weights of the moment.',
    )


class SnapshotOpponent(_Agent):
    """An earlier self of the learner, or an agent out of a folder, drawn for every episode."""

    type: Literal["snapshots"]
    folder: str | None = Field(
        default=None, description="Folder of saved agents; null for the snapshots that this run takes of the learner."
    )
    matchmaking: Matchmaking = Field(
        default="prioritised",
        description="How one is drawn: uniform, latest, prioritised (by p(1-p), p being the learner's win rate against "
        "it), hardest (by (1-p)^2).",
    )


class MixedOpponent(_Entry):
    """One of several, drawn by weight for every episode."""

    type: Literal["weighted_mixture"]
    opponents: list[Opponent] = Field(min_length=1, description="Its entries; a mixture may hold mixtures.")


Single = NoOpponent | WeakOpponent | StrongOpponent | SelfPlayOpponent | SnapshotOpponent
Opponent = Annotated[Single | MixedOpponent, Field(discriminator="type")]
MixedOpponent.model_rebuild()


def shares_of(opponent: Single | MixedOpponent) -> list[tuple[Single, float]]:
    """Take mixtures apart.

    Returns:
        Opponents that are no mixtures, in the order of the file, each with its chance; chances add up to 1. Entries
        without a chance are left out.

    Examples:
        >>> weak, strong = WeakOpponent(type="basic_weak", weight=3.0), StrongOpponent(type="basic_strong")
        >>> mixed = MixedOpponent(type="weighted_mixture", opponents=[weak, strong])
        >>> [(entry.type, share) for entry, share in shares_of(mixed)]
        [('basic_weak', 0.75), ('basic_strong', 0.25)]
    """
    return [(entry, share) for entry, share in _spread(opponent, 1.0) if share > 0]


def _spread(opponent: Single | MixedOpponent, share: float) -> Iterator[tuple[Single, float]]:
    if not isinstance(opponent, MixedOpponent):
        yield opponent, share
        return
    total = sum(entry.weight for entry in opponent.opponents)
    for entry in opponent.opponents:
        yield from _spread(entry, share * entry.weight / total if total else 0.0)
