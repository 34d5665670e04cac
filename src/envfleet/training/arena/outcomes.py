"""What came of a step, and numbers in its infos."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.agents import Transitions
from envfleet.errors import InvalidArgument
from envfleet.training.events import Results


@dataclasses.dataclass(frozen=True, eq=False)
class ArenaStep:
    """What came of one step of an arena's S seats.

    Attributes:
        observations: `(S, …)`; where an episode ended, the first one of the next.
        transitions: To learn from: one for each seat that the learner had in this step, whose number is `env_indices`.
        results: Of the episodes that ended, as player one saw them; `None` if none did.
    """

    observations: NDArray[Any]
    transitions: Transitions
    results: Results | None


def column(infos: Mapping[str, Any], name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
    """Return a number of the last moment of episodes that ended, one for each of `rows`; 0 where there is none."""
    last = infos.get("final_info", {})
    return np.asarray(last[name])[rows] if name in last else np.zeros(len(rows), np.int64)


def in_step(infos: Mapping[str, Any], name: str, ended: NDArray[np.int64]) -> NDArray[np.float64]:
    """Read a number of all sub-environments as of the step; where one `ended`, `infos` are of the next episode.

    Raises:
        InvalidArgument: The environment does not tell that number.
    """
    _check_told(infos, name)
    if len(ended):
        _check_told(infos.get("final_info", {}), name)
    numbers = np.array(infos[name], np.float64)
    if len(ended):
        numbers[ended] = column(infos, name, ended)
    return numbers


def _check_told(infos: Mapping[str, Any], name: str) -> None:
    if name not in infos:
        known = ", ".join(sorted(key for key in infos if not key.startswith(("_", "final_")))) or "nothing"
        raise InvalidArgument(
            f"rewards are made of {name!r}, which the environment's infos do not have, they have {known}: train "
            "without it, or let the environment tell it in every step"
        )
