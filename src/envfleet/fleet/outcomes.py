"""Outcome of a step for each row, across autoreset.

Problem. The observation that a step returns is not always the one that the action led to. Where an episode ends,
`SAME_STEP` returns the first observation of the next episode and hides the last one of the old. In `NEXT_STEP` the step
after an end ignores the action and only resets the row, so it is not a transition. In `DISABLED` the caller resets.

What does not work. Learning from the returned observations joins two episodes in `SAME_STEP` and learns from resets in
`NEXT_STEP`; shapes and dtypes are right, so nothing fails. `infos["final_obs"]` is an array of objects, and is missing
with `final_infos=False`. A separate record of the rows that ended would have to be saved and restored with the fleet.

Solution. The engine answers both questions after the step: it keeps the hidden observations, and an episode of length
0 after a step began in that step.

What remains. The answers hold until the next step or reset of these rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envfleet.fleet.engine import Engine, Rows
from envfleet.fleet.nested import map_arrays


def find_resets(engine: Engine, rows: Rows | None = None) -> NDArray[np.bool_]:
    """Return the rows that the last step only reset (`NEXT_STEP`), bool `(B,)`; they are not transitions.

    Args:
        engine: Engine that stepped.
        rows: Sub-environments that stepped; `None` for all.
    """
    if engine.traits.autoreset_mode is not AutoresetMode.NEXT_STEP:
        return np.zeros(engine.traits.num_envs if rows is None else len(rows), np.bool_)
    lengths = engine.episodes().lengths
    is_reset: NDArray[np.bool_] = (lengths if rows is None else lengths[rows]) == 0
    return is_reset


def final_observations(engine: Engine, observations: Any, ended: NDArray[np.int64], rows: Rows | None = None) -> Any:
    """Return the last observations of episodes that ended in the last step, in every autoreset mode.

    Args:
        engine: Engine that stepped.
        observations: Observations that the step returned, `(B, …)`.
        ended: Indices of the ended episodes among the B rows, int64 `(E,)`.
        rows: Sub-environments that stepped; `None` for all.

    Returns:
        Observations, `(E, …)`, nested as the observation space; new arrays.
    """
    if engine.traits.autoreset_mode is AutoresetMode.SAME_STEP:
        return engine.observe(ended if rows is None else rows[ended], final=True)
    return map_arrays(observations, lambda array: array[ended])
