"""What a service that hosts an environment needs to know of it, beyond Gymnasium's interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray


class Hosting:
    """Of an environment of which there is nothing to know; those that have more to tell are children.

    Attributes:
        limits: Arguments that participants may give: of a whole number the most, `None` for a bool.
        readable: Attributes that participants may read.
        warm_options: Options of a kernel's fleets that are made once as a service starts, so that they are compiled.
        columns: What is counted of running episodes, with the dtype of each.
        abandon_penalty: Reward taken from an abandoned episode in scores, at least what leaving it early could save:
            0 where rewards are never negative. `None` if it is not known; then whoever hosts the environment decides.
    """

    limits: ClassVar[Mapping[str, int | None]] = {}
    readable: ClassVar[tuple[str, ...]] = ()
    warm_options: ClassVar[tuple[Mapping[str, Any], ...]] = ({},)
    columns: ClassVar[Mapping[str, Any]] = {}
    abandon_penalty: ClassVar[float | None] = None

    def make(self, spec: EnvSpec, num_envs: int, autoreset_mode: AutoresetMode, options: Mapping[str, Any]) -> Any:
        """Make a fleet in a way of the environment's own; `None` for the usual way."""
        return None

    def count(
        self,
        columns: Mapping[str, NDArray[Any]],
        rows: NDArray[np.int64],
        actions: Any,
        infos: Mapping[str, Any],
        *,
        counted: NDArray[np.bool_],
        ended: NDArray[np.bool_],
    ) -> NDArray[Any] | None:
        """Count a step of some sub-environments.

        Args:
            columns: To write to, `(num_envs,)` each.
            rows: Who stepped, `(K,)`.
            actions: Theirs.
            infos: Theirs, in Gymnasium's form.
            counted: Whose step counts, `(K,)`.
            ended: Whose episode ended with it, `(K,)`.

        Returns:
            Why it ended, an entry for each of `rows`; `None` if that is not known.
        """
        return None

    def details(self, columns: Mapping[str, NDArray[Any]], row: int, reason: Any) -> dict[str, Any]:
        """What is stored of an episode that is over, beside its return and length.

        Args:
            columns: As `count` wrote them.
            row: Whose.
            reason: Its entry of what `count` returned; `None` if it was abandoned.
        """
        return {}

    def log(self) -> Any:
        """What notes an episode for pictures of its own; `None` for the usual ones."""
        return None
