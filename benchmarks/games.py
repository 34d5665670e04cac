"""The kernels that come with envfleet against what a user would pick instead.

    python benchmarks/games.py OUT                    # Gymnasium, minatar, minigrid, EnvPool: about eight minutes
    python benchmarks/games.py OUT --jax PYTHON       # gymnax and pgx, too, where that interpreter has them

All step with the same kind of random actions, through whole `step` calls, in turns; a bare loop over the original steps
8 environments, as its rate hardly depends on how many there are. Rows that are resets are not counted. Writes
OUT/games.json (every round), OUT/games.md (the table) and OUT/games.png.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import json
import random
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import kernel_seats as seats
from elsewhere import rate_in
from kernels import random_actions, reset_share, time_step, warm_up, without_collector

SIZES = (8, 1024, 16_384)
SECONDS, ROUNDS = 0.2, 5
OURS, LOOP, ENVPOOL, JAX = "envfleet", "loop", "EnvPool", "JAX"

Rate = Callable[[float], float]
"""Steps for so many seconds; returns transitions per second."""


@dataclasses.dataclass(frozen=True)
class Game:
    """A kernel and its peers.

    Attributes:
        name: Without its namespace.
        original: Makes one environment as its package has it, if that is Python.
        in_envpool: Its id in EnvPool.
        in_jax: Its package and its name there.
    """

    name: str
    original: Callable[[], Any] | None = None
    in_envpool: str | None = None
    in_jax: tuple[str, str] | None = None


def _of_gymnasium(env_id: str, in_jax: tuple[str, str] | None = None) -> Game:
    return Game(env_id, lambda: gymnasium.make(env_id, disable_env_checker=True), env_id, in_jax)


def _of_minigrid(env_id: str) -> Game:
    def make() -> Any:
        wrappers = importlib.import_module("minigrid.wrappers")
        return wrappers.ImgObsWrapper(gymnasium.make(env_id, disable_env_checker=True))

    return Game(env_id, make, env_id)


class _MinAtar:
    """A game of the package minatar, with what a loop calls of an environment."""

    def __init__(self, game: str) -> None:
        self._env = importlib.import_module("minatar").Environment(game)
        self._actions = self._env.minimal_action_set()
        self.action_space = gymnasium.spaces.Discrete(len(self._actions))

    def reset(self, *, seed: int | None = None) -> None:
        if seed is not None:
            self._env.seed(seed)
        self._env.reset()

    def step(self, action: int) -> Any:
        reward, ended = self._env.act(self._actions[action])
        return self._env.state(), reward, ended, False, {}

    def close(self) -> None:
        """Nothing is open."""


def _of_minatar(name: str, game: str) -> Game:
    return Game(f"MinAtar-{name}-v1", lambda: _MinAtar(game), in_jax=("gymnax", f"{name}-MinAtar"))


GAMES = (
    *(_of_gymnasium(name, ("gymnax", name)) for name in ("CartPole-v1", "Pendulum-v1", "Acrobot-v1")),
    *(_of_gymnasium(name, ("gymnax", name)) for name in ("MountainCar-v0", "MountainCarContinuous-v0")),
    *(_of_gymnasium(name) for name in ("FrozenLake-v1", "Taxi-v3", "CliffWalking-v1", "Blackjack-v1")),
    *(_of_minatar(name, name.lower()) for name in ("Asterix", "Breakout", "Freeway", "Seaquest")),
    _of_minatar("SpaceInvaders", "space_invaders"),
    *(_of_minigrid(f"MiniGrid-{name}-v0") for name in ("Empty-8x8", "DoorKey-8x8", "FourRooms", "LavaCrossingS9N1")),
    _of_minigrid("MiniGrid-MultiRoom-N6-v0"),
    Game("ConnectFour-v0", in_jax=("pgx", "connect_four")),
    Game("2048-v0", in_jax=("pgx", "2048")),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder for figures, the table and the plot")
    parser.add_argument("--jax", metavar="PYTHON", help="an interpreter that has gymnax, pgx and JAX")
    parser.add_argument("--games", nargs="+", help="names, to measure these alone")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[int, dict[str, list[float]]]] = {}
    for game in GAMES:
        if options.games is None or game.name in options.games:
            found[game.name] = {size: _compare(game, size, options.jax) for size in SIZES}
            (options.out / "games.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    text = table(found)
    (options.out / "games.md").write_text(text, encoding="utf-8")
    print(text)
    plot(found, options.out / "games.png")


def _compare(game: Game, num_envs: int, jax_python: str | None) -> dict[str, list[float]]:
    """Transitions a second of every contender in every round."""
    print(f"{num_envs:,} × {game.name}", file=sys.stderr, flush=True)
    order, rates = random.Random(0), dict[str, list[float]]()
    with contextlib.ExitStack() as stack, without_collector():
        contenders = _contenders(game, num_envs, jax_python, stack)
        for _ in range(ROUNDS):
            for name in order.sample(list(contenders), len(contenders)):
                rates.setdefault(name, []).append(contenders[name](SECONDS))
    return rates


def _contenders(game: Game, num_envs: int, jax_python: str | None, stack: contextlib.ExitStack) -> dict[str, Rate]:
    found = {OURS: _stepping(seats.make_ours(f"envfleet/{game.name}", num_envs), num_envs, stack)}
    if game.in_envpool is not None:
        found[ENVPOOL] = _stepping(seats.make_envpool(game.in_envpool, num_envs), num_envs, stack)
    if game.original is not None and num_envs == SIZES[0]:
        found[LOOP] = _stepping(seats.Loop([game.original() for _ in range(num_envs)]), num_envs, stack)
    if game.in_jax is not None and jax_python is not None:
        found[JAX] = rate_in(stack, jax_python, "jax_games.py", *game.in_jax, num_envs)
    return found


def _stepping(vector: Any, num_envs: int, stack: contextlib.ExitStack) -> Rate:
    stack.callback(vector.close)
    ring = random_actions(vector, num_envs)
    warm_up(vector.step, ring)
    num_transitions = num_envs * (1.0 - reset_share(vector, num_envs, ring))
    return lambda seconds: num_transitions / time_step(vector.step, ring, seconds)


def ratio(cases: dict[int, dict[str, list[float]]], num_envs: int, peer: str) -> float | None:
    """Our rate over a peer's, within each round; the median of the rounds."""
    theirs = cases[SIZES[0] if peer == LOOP else num_envs].get(peer)
    if theirs is None:
        return None
    return statistics.median(ours / other for ours, other in zip(cases[num_envs][OURS], theirs, strict=True))


def table(found: dict[str, dict[int, dict[str, list[float]]]]) -> str:
    """Write the table as Markdown: our million transitions a second, and how many times a peer's that is."""
    heads = "".join(f" {size:,}: M/s | × loop | × EnvPool | × JAX |" for size in SIZES)
    lines = [f"| kernel |{heads}", "|---" * (1 + 4 * len(SIZES)) + "|"]
    for name, cases in found.items():
        cells = []
        for size in SIZES:
            cells.append(f"{statistics.median(cases[size][OURS]) / 1e6:.3g}")
            times = [ratio(cases, size, peer) for peer in (LOOP, ENVPOOL, JAX)]
            cells += ["–" if one is None else f"{one:,.0f}" if one >= 10 else f"{one:.1f}" for one in times]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def plot(found: dict[str, dict[int, dict[str, list[float]]]], path: Path) -> None:
    """Draw every contender's transitions a second, a panel for each number of sub-environments."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.0, 0.26 * len(found) + 1.4), layout="constrained")
    panels = figure.subplots(1, len(SIZES), sharey=True, squeeze=False)[0]
    styles = {OURS: ("#d55e00", "o"), ENVPOOL: ("#cc79a7", "D"), JAX: ("#0072b2", "^"), LOOP: ("#777777", "v")}
    for axes, size in zip(panels, SIZES, strict=True):
        for name, (colour, marker) in styles.items():
            points = [
                (statistics.median(cases[size][name]), k)
                for k, cases in enumerate(found.values())
                if name in cases[size]
            ]
            if points:
                label = {JAX: "gymnax, pgx", LOOP: "the original in a loop"}.get(name, name)
                axes.plot(*zip(*points, strict=True), marker, color=colour, label=label, markersize=5)
        axes.set_xscale("log")
        axes.set_title(f"{size:,} sub-environments", loc="left", fontsize=10)
        axes.grid(visible=True, color="#e4e4e4", linewidth=0.6)
        axes.set_xlabel("transitions per second")
    panels[0].set_yticks(range(len(found)), list(found), fontsize=8)
    panels[0].invert_yaxis()
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, fontsize=9, loc="outside upper center", ncols=4)
    figure.savefig(path, dpi=160)


if __name__ == "__main__":
    main()
