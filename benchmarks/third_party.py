"""Environments of other packages in fleets and in Gymnasium's vector environments: bits, start and speed.

    python -m benchmarks.third_party [NAME ...] [--write docs/concepts/third-party.md]

Each environment is measured in a process of its own, which does what a script does: it imports the package, and makes
fleets of `partial(gymnasium.make, env_id)`. Contenders are stepped by turns. `--write` replaces the table of a page.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.third_party_cases import CASES, Case
from gymnasium.utils.env_checker import data_equivalence

import envfleet
from envfleet.errors import InvalidArgument

COMPARED_S, MOST_STEPS = 4.0, 200
ROUNDS, ROUND_S = 5, 0.4
TIMES = 3
RESULT = "result of the case: "
TABLE = "<!-- table of benchmarks/third_party.py -->\n"


def play(fleet: Any, num_steps: int, limit_s: float = math.inf) -> list[Any]:
    """Return what a fleet shows in some steps of seeded actions; fewer if they take longer than the limit."""
    observations, _ = fleet.reset(seed=1)
    fleet.action_space.seed(1)
    shown, deadline_s = [observations], time.perf_counter() + limit_s
    while len(shown) <= num_steps and time.perf_counter() < deadline_s:
        shown.append(fleet.step(fleet.action_space.sample())[:4])
    return shown


def compare(reference: list[Any], make: Callable[[], Any]) -> str:
    """Return `"same"` if a fleet shows the same bits, else what differs or was raised."""
    try:
        fleet = make()
    except InvalidArgument as refusal:
        return f"refused: {refusal}"
    except Exception as error:  # noqa: BLE001  # is the result
        return f"{type(error).__name__}: {str(error)[:300]}"
    try:
        shown = play(fleet, len(reference) - 1)
    except Exception as error:  # noqa: BLE001  # is the result
        return f"{type(error).__name__}: {str(error)[:300]}"
    finally:
        fleet.close()
    pairs = enumerate(zip(reference, shown, strict=True))
    differing = [step for step, (one, other) in pairs if not data_equivalence(one, other, exact=True)]
    return f"{len(differing)} of {len(shown)} steps differ" if differing else "same"


def seconds(make: Callable[[], Any]) -> float:
    """Return how long it takes to make a fleet."""
    start_s = time.perf_counter()
    fleet = make()
    taken_s = time.perf_counter() - start_s
    fleet.close()
    return taken_s


def rates(makes: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Return steps of sub-environments per second by contender: the median of rounds in which all take turns."""
    fleets = {name: make() for name, make in makes.items()}
    found: dict[str, list[float]] = {name: [] for name in fleets}
    actions = {}
    for name, fleet in fleets.items():
        fleet.reset(seed=1)
        fleet.action_space.seed(1)
        actions[name] = [fleet.action_space.sample() for _ in range(16)]
    for index in range(ROUNDS + 1):  # the first warms up
        for name, fleet in fleets.items():
            steps, start_s = 0, time.perf_counter()
            while (taken_s := time.perf_counter() - start_s) < ROUND_S:
                fleet.step(actions[name][steps % 16])
                steps += 1
            if index > 0:
                found[name].append(steps * fleet.num_envs / taken_s)
    for fleet in fleets.values():
        fleet.close()
    return {name: statistics.median(values) for name, values in found.items()}


def measure_here(case: Case) -> dict[str, Any]:
    """Measure an environment in this process."""
    make_env = case.prepare()
    peers, prefix = importlib.import_module(case.peers[0]), case.peers[1]
    make_envs = [make_env] * case.num_envs

    def sync() -> Any:
        return getattr(peers, f"{prefix}SyncVectorEnv")(make_envs)

    def asynchronous() -> Any:
        return getattr(peers, f"{prefix}AsyncVectorEnv")(make_envs, shared_memory=case.shared_memory)

    def on(backend: str, workers: int | None = None) -> Callable[[], Any]:
        return lambda: envfleet.make(make_env, case.num_envs, backend=backend, workers=workers)

    fleet = sync()
    reference = play(fleet, MOST_STEPS, COMPARED_S)
    fleet.close()
    result: dict[str, Any] = {"again": compare(reference, sync)}
    for backend, workers in (("serial", None), ("thread", 2), ("process", 2)):
        result[backend] = compare(reference, on(backend, workers))
    asynchronous().close()
    starts = [(seconds(on("process")), seconds(asynchronous)) for _ in range(TIMES)]
    result["start_s"], result["async_start_s"] = map(min, zip(*starts, strict=True))
    contenders = {"sync": sync, "async": asynchronous, "serial": on("serial"), "process": on("process")}
    speeds = result["rates"] = rates(contenders)
    result["chosen"] = []
    for _ in range(TIMES):
        with on("auto")() as fleet:
            result["chosen"].append(fleet.plan.backend)
    result["auto"] = min(speeds[one] for one in result["chosen"]) / max(speeds["serial"], speeds["process"])
    return result


def measure(name: str) -> dict[str, Any]:
    """Measure an environment in a process of its own.

    Returns:
        `again`, `serial`, `thread` and `process` say whether they show the bits that `SyncVectorEnv` shows; `start_s`
        and `async_start_s` are the seconds of a later start, `rates` the steps per second, `chosen` what `"auto"`
        chose each time, `auto` the slowest of these divided by the better of `"serial"` and `"process"`.

    Raises:
        RuntimeError: The process failed.
    """
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.third_party", "--here", name]
    environment = {"PYTHONHASHSEED": "0", **os.environ}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    lines = [line for line in done.stdout.splitlines() if line.startswith(RESULT)]
    if not lines:
        raise RuntimeError(f"{name} ended with {done.returncode}:\n{done.stdout[-2_000:]}{done.stderr[-4_000:]}")
    measured: dict[str, Any] = json.loads(lines[0].removeprefix(RESULT))
    return measured


def row(name: str, found: dict[str, Any]) -> str:
    """Return an environment's row of the table."""
    case = CASES[name]
    bits = ["same" if found["again"] == "same" else "differ"]
    bits += [found[backend] if found[backend] == "same" else found[backend].split(":")[0] for backend in BACKENDS]
    start = f"{found['start_s'] / found['async_start_s']:.2f}"
    speeds = [f"{found['rates'][one]:,.0f}" for one in ("sync", "async", "serial", "process")]
    version = importlib.metadata.version(case.distribution)
    cells = [f"{case.distribution} {version}", f"`{case.env_id}` × {case.num_envs}", *bits, start, *speeds]
    return " | ".join(["", *cells, f"{' or '.join(sorted(set(found['chosen'])))}, {found['auto']:.2f}", ""]).strip()


BACKENDS = ("serial", "thread", "process")
COLUMNS = ("package", "environment", "Sync again", *BACKENDS, "start ÷ Async", "Sync", "Async", "serial", "process")
HEAD = " | ".join(["", *COLUMNS, "auto, ÷ better", ""]).strip() + "\n" + "|---" * (len(COLUMNS) + 1) + "|\n"


def main() -> None:
    """Measure, print, and write the table if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*CASES, []], metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--write", type=Path, metavar="PAGE", help="page whose table is replaced")
    parser.add_argument("--here", action="store_true", help="measure one in this process")
    arguments = parser.parse_args()
    if arguments.here:
        print(RESULT + json.dumps(measure_here(CASES[arguments.names[0]])), flush=True)
        return
    rows: list[str] = []
    for name in arguments.names or CASES:
        try:
            found = measure(name)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            continue
        print(name, json.dumps(found), flush=True)
        rows.append(row(name, found))
        if arguments.write is not None:
            before, _, after = arguments.write.read_text().split(TABLE)
            arguments.write.write_text(before + TABLE + HEAD + "\n".join(rows) + "\n" + TABLE + after)


if __name__ == "__main__":
    main()
