"""Sub-environments whose worker was lost after their episodes had ended: they begin the next one, and end nothing."""

from __future__ import annotations

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envfleet.core.messages import Reply, ResetPayload, Verb
from envfleet.core.rows import Rows


def reset_ended(rows: Rows, which: NDArray[np.int64] | None = None) -> list[tuple[int, Reply]]:
    """Reset those that a step should have reset (`NEXT_STEP`), and answered as lost in place of that.

    A worker that takes another's place knows nothing of episodes that ended there: it answers the first step of each
    sub-environment as the end of an episode. The fleet knows: who has ended already cannot end again.

    Args:
        rows: The fleet's rows; its current generation holds the results of the step, and `episodes` knows nothing of
            them yet.
        which: The sub-environments that were stepped; `None` for all.

    Returns:
        What the workers say of the resets.
    """
    if rows.options.autoreset_mode is not AutoresetMode.NEXT_STEP or not rows.episodes.has_ended:
        return []
    again = rows.episodes.ended & rows.outputs[rows.generation].flags.any(axis=0)
    indices = np.flatnonzero(again) if which is None else which[again[which]]
    if not indices.size:
        return []
    payloads = {
        worker: ResetPayload(local, (None,) * len(local), (None,) * len(local))
        for worker, _, local in rows.locate(indices.tolist())
    }
    replies = rows.exchange(list(payloads), Verb.RESET, list(payloads.values()))
    rows.store(replies)
    return replies
