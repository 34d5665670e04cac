"""Recordings of the public hockey environment: games, and how to begin each of them again.

They were made with `hockey` 2.6, Box2D 2.3.10 and numpy 2.4 on x86-64 Linux. In a file of games, steps of game `i` are
the rows `ep_start[i]` to `ep_start[i + 1]`; its observations, one more than steps, begin at row `obs_start[i]`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

DATA = Path(__file__).parent / "data"
GAMES = ("normal_random", "normal_scripted", "nokeep", "train_modes", "multi_episode", "edge_cases")


@functools.cache
def load(name: str) -> dict[str, NDArray[Any]]:
    with np.load(DATA / f"{name}.npz") as file:
        return {key: file[key] for key in file.files}


@dataclasses.dataclass(frozen=True)
class Game:
    """One recorded game; `observations` has one row more than the other arrays, per player."""

    name: str
    mode: int
    keep_mode: bool
    seed: int
    one_starting: bool | None
    prior_resets: int
    continues: bool
    is_placed: bool
    state: NDArray[np.float64]
    bodies: NDArray[np.float32]
    puck_force: NDArray[np.float32]
    observations: tuple[NDArray[np.float32], NDArray[np.float32]]
    actions: NDArray[np.float32]
    rewards: NDArray[np.float64]
    infos: NDArray[np.float64]
    ended: NDArray[np.bool_]
    winners: NDArray[np.int8]


def games(name: str) -> Iterator[Game]:
    file = load(name)
    for i, (first, last) in enumerate(zip(file["ep_start"][:-1], file["ep_start"][1:], strict=True)):
        steps = slice(first, last)
        rows = slice(file["obs_start"][i], file["obs_start"][i + 1])
        starter = int(file["one_starting"][i])
        yield Game(
            name=f"{name} {i} ({file['tag'][i]})",
            mode=int(file["mode"][i]),
            keep_mode=bool(file["keep_mode"][i]),
            seed=int(file["seed"][i]),
            one_starting=None if starter < 0 else bool(starter),
            prior_resets=int(file["prior_resets"][i]),
            continues=bool(file["continued"][i]),
            is_placed=bool(file["has_set_state"][i]),
            state=file["state0"][i],
            bodies=file["init_abs"][i],
            puck_force=file["puck_force0"][i],
            observations=(file["obs1"][rows], file["obs2"][rows]),
            actions=file["actions"][steps],
            rewards=file["rewards"][steps],
            infos=file["infos"][steps],
            ended=file["done"][steps],
            winners=file["winner"][steps],
        )
