"""Game steps per second of CPU time: compiled hockey with random actions and with scripted players, next to Box2D.

Run as `python benchmarks/hockey_kernel.py`. CPU time, because other work on the machine changes wall time; the best of
three rounds, in which the cases take turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

import envfleet
from envfleet.envs.hockey import BasicOpponent, HockeyEnv
from envfleet.envs.hockey.constants import AGENT, STRONG, WEAK
from envfleet.envs.hockey.kernel.game import Hockey

ROUNDS, STEPS_PER_ROUND, BOX2D_STEPS = 3, 200_000, 3_000
SIZES = (1, 256, 4096)
PLAYERS = {"random": (AGENT, AGENT), "strong against weak": (STRONG, WEAK), "strong against strong": (STRONG, STRONG)}


def compiled(num_envs: int, players: tuple[int, int]) -> Callable[[], int]:
    params = dict(zip(("player_one", "player_two"), players, strict=True))
    fleet = envfleet.make(Hockey, num_envs, backend="kernel", **params)
    fleet.reset(seed=0)
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (16, num_envs, 2, 4)).astype(np.float32)
    steps = max(STEPS_PER_ROUND // num_envs, 20) // (8 if num_envs == 1 else 1)

    def run() -> int:
        for step in range(steps):
            fleet.step(actions[step % 16])
        return steps * num_envs

    return run


def on_box2d(players: tuple[int, int]) -> Callable[[], int]:
    env = HockeyEnv()
    observation, _ = env.reset(seed=0)
    rng = np.random.default_rng(0)
    opponents = [None if player == AGENT else BasicOpponent(weak=player == WEAK, seed=0) for player in players]

    def run() -> int:
        seen = observation
        for _ in range(BOX2D_STEPS):
            views = (seen, env.obs_agent_two())
            acts = [
                rng.uniform(-1, 1, 4) if one is None else one.act(view)
                for one, view in zip(opponents, views, strict=True)
            ]
            seen, _, terminated, truncated, _ = env.step(np.concatenate(acts))
            if terminated or truncated:
                seen, _ = env.reset()
        return BOX2D_STEPS

    return run


def main() -> None:
    cases = {f"{name}, Box2D": on_box2d(players) for name, players in PLAYERS.items()}
    cases |= {f"{name}, {n} compiled": compiled(n, players) for name, players in PLAYERS.items() for n in SIZES}
    best = dict.fromkeys(cases, 0.0)
    for _ in range(ROUNDS):
        for name, run in cases.items():
            started_s = time.process_time()
            count = run()
            best[name] = max(best[name], count / (time.process_time() - started_s))
    for name in sorted(cases):
        print(f"{name:40} {best[name]:12,.0f}")


if __name__ == "__main__":
    main()
