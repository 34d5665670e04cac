"""Worlds of MiniGrid (M. Chevalier-Boisvert and others) as kernels: the same layouts, rules and views."""

from envfleet.envs.minigrid.door_key import DoorKey, DoorKey5x5, DoorKey6x6, DoorKey16x16
from envfleet.envs.minigrid.empty import Empty, Empty5x5, Empty6x6, Empty16x16, EmptyRandom5x5, EmptyRandom6x6
from envfleet.envs.minigrid.four_rooms import FourRooms
from envfleet.envs.minigrid.lava_crossing import LavaCrossing, LavaCrossingS9N2, LavaCrossingS9N3, LavaCrossingS11N5
from envfleet.envs.minigrid.multi_room import MultiRoom, MultiRoomN2S4, MultiRoomN4S5

__all__ = [
    "DoorKey",
    "DoorKey5x5",
    "DoorKey6x6",
    "DoorKey16x16",
    "Empty",
    "Empty5x5",
    "Empty6x6",
    "Empty16x16",
    "EmptyRandom5x5",
    "EmptyRandom6x6",
    "FourRooms",
    "LavaCrossing",
    "LavaCrossingS9N2",
    "LavaCrossingS9N3",
    "LavaCrossingS11N5",
    "MultiRoom",
    "MultiRoomN2S4",
    "MultiRoomN4S5",
]
