"""Actions by number: the public table of eight, and finer ones for agents that choose among many."""

from __future__ import annotations

import functools
import itertools

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument


@functools.cache
def action_table(fineness: int = 1, *, keep_mode: bool = True, combined: bool = False) -> NDArray[np.float32]:
    """Make a table of one player's actions.

    Args:
        fineness: Levels in each direction of an axis: 1 for full force only, 2 for half and full, …
        keep_mode: True if players can shoot.
        combined: True if axes are moved together. If so, the table has every combination of levels (and shooting or
            not); if not, each action moves one axis or shoots.

    Returns:
        The actions, shape `(number of actions, 4)`, or 3 without `keep_mode`; read-only. Action 0 is to do nothing.
        With `fineness=1` and not combined these are the public environment's: 1 and 2 push along x, 3 and 4 along y,
        5 and 6 turn, each negative first, 7 shoots.

    Raises:
        InvalidArgument: `fineness` is below 1.

    Examples:
        >>> action_table()[4], action_table(fineness=2)[3]
        (array([0., 1., 0., 0.], dtype=float32), array([0.5, 0. , 0. , 0. ], dtype=float32))
        >>> len(action_table()), len(action_table(fineness=2)), len(action_table(combined=True))
        (8, 14, 54)
    """
    if fineness < 1:
        raise InvalidArgument(f"fineness={fineness}: pass 1 or more levels")
    strengths = [level / fineness for level in range(1, fineness + 1)]
    levels = [0.0, *(-strength for strength in reversed(strengths)), *strengths]
    axes = [levels, levels, levels, *([[0.0, 1.0]] if keep_mode else [])]
    if combined:
        rows = [*itertools.product(*axes)]
    else:
        nothing = (0.0,) * len(axes)
        moves = [(k, level) for k, some in enumerate(axes) for level in some[1:]]
        rows = [nothing, *((*nothing[:k], level, *nothing[k + 1 :]) for k, level in moves)]
    table = np.array(rows, np.float32)
    table.setflags(write=False)
    return table


def discrete_action(number: int, *, keep_mode: bool = True) -> NDArray[np.float32]:
    """Return the action that has this number in the public table.

    Raises:
        InvalidArgument: The action is unknown.

    Examples:
        >>> discrete_action(7)
        array([0., 0., 0., 1.], dtype=float32)
    """
    table = action_table(keep_mode=keep_mode)
    if not 0 <= number < len(table):
        raise InvalidArgument(f"action {number}: pass a number from 0 to {len(table) - 1}")
    action: NDArray[np.float32] = table[int(number)].copy()
    return action
