"""Record games of pgx: `python record.py`, where pgx 2.6.0 is installed, writes the files in `data`.

Games lie one after another: step k of game i is row `begins[i] + k` of the arrays of steps; what was before the first
step is in the arrays `first_…`. One game in eight ends by an illegal action.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

DATA = Path(__file__).parent / "data"


def choose(mask: np.ndarray, game: int, step: int, rng: np.random.Generator) -> int:
    """Play at random, or illegally, or, in every third game, the first legal action mostly."""
    if game % 8 == 0 and step > 8 and not mask.all():
        return int(rng.choice(np.flatnonzero(~mask)))
    legal = np.flatnonzero(mask)
    return int(legal[0] if game % 3 == 1 and rng.random() < 0.9 else rng.choice(legal))


def record_connect_four(num_games: int) -> None:
    import jax
    import pgx

    env = pgx.make("connect_four")
    init, step = jax.jit(env.init), jax.jit(env.step)
    rows: list[tuple[Any, ...]] = []
    begins = []
    rng = np.random.default_rng(0)
    for game in range(num_games):
        state = init(jax.random.PRNGKey(game))
        first = int(state.current_player)
        begins.append(len(rows))
        while not state.terminated:
            action = choose(np.asarray(state.legal_action_mask), game, len(rows) - begins[-1], rng)
            is_legal = bool(state.legal_action_mask[action])
            state = step(state, action)
            rewards = np.asarray(state.rewards)[[first, 1 - first]]
            player = int(state.current_player) ^ first
            rows.append(
                (action, is_legal, player, rewards, state.terminated, state.legal_action_mask, state.observation)
            )
    names = ("actions", "is_legal", "players", "rewards", "terminated", "masks", "observations")
    save("connect_four", begins, rows, names)


def record_2048(num_games: int) -> None:
    import jax
    import pgx
    from pgx import play2048

    env = pgx.make("2048")
    init, step = jax.jit(env.init), jax.jit(env.step)
    begun = init(jax.random.PRNGKey(0))
    with mock.patch.object(play2048, "_add_random_num", lambda board, key: board):
        slide = jax.jit(lambda state, action: play2048._step(state, action, None)._board)
        slide(begun, 0)  # traces it while tiles are not added
    rows: list[tuple[Any, ...]] = []
    begins, first = [], []
    rng = np.random.default_rng(1)
    for game in range(num_games):
        keys = jax.random.split(jax.random.PRNGKey(game), 2000)
        state = init(keys[0])
        begins.append(len(rows))
        first.append(np.asarray(state._board))
        while not state.terminated:
            number = len(rows) - begins[-1]
            action = choose(np.asarray(state.legal_action_mask), game, number, rng)
            is_legal = bool(state.legal_action_mask[action])
            slid = np.asarray(slide(state, action))
            state = step(state, action, keys[number + 1])
            planes = np.asarray(state.observation)
            assert (planes.sum(-1) == 1).all()
            board = planes.argmax(-1).ravel()
            place = int(np.flatnonzero(board != slid)[0])
            rows.append((action, is_legal, place, state.rewards[0], state.terminated, state.legal_action_mask, board))
    names = ("actions", "is_legal", "places", "rewards", "terminated", "masks", "boards")
    save("2048", begins, rows, names, first_boards=np.array(first, np.uint8))


def save(name: str, begins: list[int], rows: list[tuple[Any, ...]], names: tuple[str, ...], **more: Any) -> None:
    columns: dict[str, Any] = dict(zip(names, (np.array(column) for column in zip(*rows, strict=True)), strict=True))
    for key, column in columns.items():
        if column.dtype != bool:
            columns[key] = column.astype(np.int16 if key == "rewards" else np.uint8)
    if "boards" in columns:  # transposed, as neighbouring steps are alike
        columns["boards"] = np.ascontiguousarray(columns["boards"].T)
    np.savez_compressed(DATA / f"{name}.npz", begins=np.array(begins), **columns, **more)
    print(name, len(begins), "games", len(rows), "steps", (DATA / f"{name}.npz").stat().st_size, "bytes")


if __name__ == "__main__":
    record_connect_four(400)
    record_2048(240)
