"""One game on Box2D, from its start to its end; and how it is saved, though Box2D lets nobody look inside."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from envfleet.envs.hockey import constants as c
from envfleet.envs.hockey import control
from envfleet.envs.hockey.rules import Start
from envfleet.envs.hockey.views import place
from envfleet.errors import StateUnsupported

_MAX_EVENTS = 100_000  # of one game, which is over after 251; a bound on memory for those who never reset


@dataclasses.dataclass(frozen=True)
class SavedGame:
    """What a game began with and what has happened since. Played again, it is the same game to the last bit.

    Attributes:
        start: Where everything began.
        holds: Hold counters that it began with.
        keep_mode: Whether rackets catch the puck.
        is_reversed: Which order contacts are solved in.
        events: Actions, and placements by `set_state`, which are the longer ones, in order.
    """

    start: Start
    holds: tuple[int, int]
    keep_mode: bool
    is_reversed: bool
    events: tuple[NDArray[np.floating], ...] = ()


@dataclasses.dataclass(frozen=True)
class SavedHockey:
    """A saved `HockeyEnv`.

    Attributes:
        game: The game.
        mode: What is played from the next reset on.
        limit: The time limit of this game (steps).
        time: Steps played.
        is_one_starting: Whether player one began the last game in `NORMAL`.
        generator: State of the generator.
        opponent: Of `HockeyOneEnv`: a copy of the opponent.
    """

    game: SavedGame
    mode: c.Mode
    limit: int
    time: int
    is_one_starting: bool
    generator: Any
    opponent: Any = None


class Game:
    """A world that is played in.

    Args:
        saved: What it begins with; the events in it are played.

    Attributes:
        world: Where the bodies are.
        keep_mode: Whether rackets catch the puck.
    """

    def __init__(self, saved: SavedGame) -> None:
        from envfleet.envs.hockey.world import World  # needs Box2D

        self._saved = saved
        self.world = World(saved.start, saved.holds, keep_mode=saved.keep_mode, is_reversed=saved.is_reversed)
        self.keep_mode = saved.keep_mode
        self._events: list[NDArray[np.floating]] | None = []
        if saved.start.aim is not None:
            control.serve(self.world.puck, saved.start.aim)
        for event in saved.events:
            if event.size > 2 * c.ACTION_SIZE:
                self.place(event)
            else:
                self.play(event.astype(np.float32, copy=False))

    def play(self, actions: NDArray[np.float32]) -> None:
        """Play one step.

        Args:
            actions: Player one's, then player two's, clipped to [-1, 1]: shape `(8,)`, or `(6,)`, where nobody shoots.
                It is kept, so nobody may write to it any more.
        """
        self._record(actions)
        world, width = self.world, len(actions) // 2
        rackets, puck, holds = world.rackets, world.puck, world.holds
        for player, racket in enumerate(rackets):
            push_x, push_y, torque = actions[player * width : player * width + 3]
            control.push(racket, player, push_x, push_y)
            control.turn(racket, torque)
        control.slow_down(puck)
        if self.keep_mode:
            for player, racket in enumerate(rackets):
                holds[player] = control.hold(racket, puck, player, holds[player], actions[player * width + 3])
        world.step()

    def place(self, state: ArrayLike) -> None:
        """Put rackets and puck where an observation of player one says; see `HockeyEnv.set_state`."""
        place(self.world, state, self.keep_mode)
        self._record(np.array(state, np.float64))

    def forget(self) -> None:
        """Give up saving this game: something is done to it that is no event."""
        self._events = None

    def _record(self, event: NDArray[np.floating]) -> None:
        if self._events is not None:
            self._events.append(event)
            if len(self._events) > _MAX_EVENTS:
                self._events = None

    def save(self) -> SavedGame:
        """Save the game as it is now; `Game(saved)` goes on with it.

        Raises:
            StateUnsupported: Bodies were put somewhere by hand, or the game has gone on for more than 100,000 events.
        """
        if self._events is None:
            raise StateUnsupported(
                f"this game cannot be saved: it was changed by hand, or is longer than {_MAX_EVENTS:,} steps and "
                "placements: reset it first"
            )
        return dataclasses.replace(self._saved, events=tuple(self._events))
