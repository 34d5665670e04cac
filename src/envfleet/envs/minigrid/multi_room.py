"""MultiRoom: walk through a chain of rooms with closed doors to the goal in the last one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.envs.minigrid.world import (
    BLUE,
    CLOSED_DOOR,
    EMPTY,
    GRAY,
    GRAY_WALL,
    GREEN,
    GREEN_GOAL,
    IN,
    PURPLE,
    RED,
    YELLOW,
    MiniGrid,
    begin,
    derive,
    find_empty,
    place_agent,
)
from envfleet.errors import InvalidArgument
from envfleet.kernels import array

MAX_ROOMS = 6
_SIZE = 25
_MIN_ROOM_SIZE = 4
_BOUNDS = {"num_rooms": (1, MAX_ROOMS), "max_room_size": (_MIN_ROOM_SIZE, 10)}
_NUM_TRIES = 8
_DOOR_COLORS = (BLUE, GREEN, GRAY, PURPLE, RED, YELLOW)  # by name, as they are drawn
_ON_RIGHT, _BELOW, _ON_LEFT, _ABOVE = range(4)  # walls of a room
_X, _Y, _WIDTH, _HEIGHT, _DOOR_X, _DOOR_Y = range(6)  # of a room


class MultiRoom(MiniGrid):
    """Six rooms of random sizes in 25 × 25 cells, each behind a door of the one before; the agent is in the first.

    MiniGrid's `MiniGrid-MultiRoom-N6-v0`.
    """

    class State(MiniGrid.State):
        """As of `MiniGrid`, and the rooms: left, top, width and height, walls included, and where the entry is."""

        cells: NDArray[np.uint8] = array((_SIZE, _SIZE), np.uint8)
        rooms: NDArray[np.int16] = array((MAX_ROOMS, 6), np.int16)

    class Params(MiniGrid.Params):
        """The time limit; how many rooms, at most 6; and how long and wide, at most 10 cells, walls included."""

        max_steps: int = 120
        num_rooms: int = 6
        max_room_size: int = 10

    @classmethod
    def check_params(cls, values: Mapping[str, NDArray[Any]]) -> None:
        """Check that there can be such rooms."""
        for name, (low, high) in _BOUNDS.items():
            if name in values and not np.all((values[name] >= low) & (values[name] <= high)):
                raise InvalidArgument(
                    f"{name} is {values[name].tolist()}, expected {low} to {high}: choose one of these"
                )

    @staticmethod
    def reset(state: State, rng: np.random.Generator, params: Params) -> None:
        """Draw chains of rooms until one is complete, then doors, the agent and the goal."""
        begin(state, EMPTY)
        num_rooms = params.num_rooms
        while _draw_chain(state.rooms, rng, num_rooms, params.max_room_size) < num_rooms:
            pass
        color: Any = len(_DOOR_COLORS)
        for index in range(num_rooms):
            _build(state, index)
            if index > 0:
                draw = rng.integers(0, len(_DOOR_COLORS) - (1 if index > 1 else 0))
                color = draw + 1 if draw >= color else draw  # another than that of the door before
                room = state.rooms[index]
                state.cells[room[_DOOR_Y], room[_DOOR_X]] = CLOSED_DOOR + IN * _DOOR_COLORS[color]
        first, last = state.rooms[0], state.rooms[num_rooms - 1]
        place_agent(state, rng, first[_X], first[_Y], first[_X] + first[_WIDTH], first[_Y] + first[_HEIGHT])
        x, y = find_empty(state, rng, last[_X], last[_Y], last[_X] + last[_WIDTH], last[_Y] + last[_HEIGHT])
        state.cells[y, x] = GREEN_GOAL


MultiRoomN2S4 = derive("MultiRoomN2S4", MultiRoom, max_steps=40, num_rooms=2, max_room_size=4)
MultiRoomN4S5 = derive("MultiRoomN4S5", MultiRoom, max_room_size=5)  # six rooms, as there, in spite of the name


def _draw_chain(rooms: NDArray[np.int16], rng: np.random.Generator, num_rooms: int, max_size: int) -> int:
    """Draw a chain of rooms until it is complete or eight tries for the next room failed; returns how many it has."""
    x: Any = rng.integers(0, _SIZE - 2)
    y: Any = rng.integers(0, _SIZE - 2)
    entry: Any = _ON_LEFT
    count = 1 if _fits_room(rooms, rng, 0, entry, x, y, max_size) else 0
    tries = _NUM_TRIES if count == 0 else 0
    while count < num_rooms and tries < _NUM_TRIES:
        tries += 1
        other = rng.integers(0, 3)
        exit_wall: Any = other + 1 if other >= entry else other
        room = rooms[count - 1]
        if exit_wall in (_ON_RIGHT, _ON_LEFT):
            x = room[_X] + (room[_WIDTH] - 1 if exit_wall == _ON_RIGHT else 0)
            y = room[_Y] + rng.integers(1, room[_HEIGHT] - 1)
        else:
            x = room[_X] + rng.integers(1, room[_WIDTH] - 1)
            y = room[_Y] + (room[_HEIGHT] - 1 if exit_wall == _BELOW else 0)
        if _fits_room(rooms, rng, count, (exit_wall + 2) % 4, x, y, max_size):
            entry = (exit_wall + 2) % 4
            count += 1
            tries = 0
    return count


def _fits_room(
    rooms: NDArray[np.int16], rng: np.random.Generator, index: int, entry: int, door_x: Any, door_y: Any, max_size: int
) -> Any:
    """Draw one room behind a door; return whether it is in the world and apart from all rooms but the previous one."""
    width: Any = rng.integers(_MIN_ROOM_SIZE, max_size + 1)
    height: Any = rng.integers(_MIN_ROOM_SIZE, max_size + 1)
    x, y = door_x, door_y
    if index > 0 and entry in (_ON_RIGHT, _ON_LEFT):
        x = door_x - width + 1 if entry == _ON_RIGHT else door_x
        y = rng.integers(door_y - height + 2, door_y)
    elif index > 0:
        x = rng.integers(door_x - width + 2, door_x)
        y = door_y - height + 1 if entry == _BELOW else door_y
    fits = (x >= 0) & (y >= 0) & (x + width <= _SIZE) & (y + height < _SIZE)
    for k in range(index - 1):
        room = rooms[k]
        is_aside = (x + width < room[_X]) | (room[_X] + room[_WIDTH] <= x)
        fits = fits & (is_aside | (y + height < room[_Y]) | (room[_Y] + room[_HEIGHT] <= y))
    room = rooms[index]
    room[_X], room[_Y], room[_WIDTH], room[_HEIGHT] = x, y, width, height
    room[_DOOR_X], room[_DOOR_Y] = door_x, door_y
    return fits


def _build(state: MultiRoom.State, index: int) -> None:
    """Build the walls of a room."""
    room = state.rooms[index]
    right, bottom = room[_X] + room[_WIDTH] - 1, room[_Y] + room[_HEIGHT] - 1
    for x in range(room[_X], right + 1):
        state.cells[room[_Y], x] = state.cells[bottom, x] = GRAY_WALL
    for y in range(room[_Y], bottom + 1):
        state.cells[y, room[_X]] = state.cells[y, right] = GRAY_WALL
