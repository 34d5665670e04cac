"""A scripted player that always does the same for what it sees, for tests of games."""

from __future__ import annotations

from typing import Any

import numpy as np

from envfleet.envs.hockey.opponents import scripted_actions


class Still:
    """The strong scripted player without its swing."""

    name = "still"

    def act_batch(self, observations: Any, deterministic: bool = False) -> Any:
        return scripted_actions(observations, False, True, np.zeros(len(observations)))
