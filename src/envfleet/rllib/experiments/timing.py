"""Measurement of the time of an iteration by part."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from ray.rllib.algorithms.algorithm import Algorithm

from envfleet.rllib.internals import ALL_MODULES


class IterationTimer:
    """Measures every iteration by itself; RLlib's timers are running means, in which the first counts most.

    Args:
        algorithm: The algorithm to measure from now on, with its Learner in this process.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        group = algorithm.learner_group
        learner = group._learner  # noqa: SLF001 (RLlib has no public name)
        group.update = self._timed("update", group.update)
        learner._learner_connector = self._timed("connectors", learner._learner_connector)  # noqa: SLF001
        self._train = self._timed("iteration", algorithm.train)
        self._seconds: dict[str, tuple[float, float]] = {}

    def train(self) -> tuple[dict[str, Any], dict[str, float], dict[str, float]]:
        """Train for one iteration.

        Returns:
            RLlib's result, and the seconds of wall time and of CPU time of `iteration`, `sampling` (with all that is
            not learning), `connectors` of the Learner and `learner` (without them).
        """
        result = self._train()
        wall_s, cpu_s = (self._split(clock) for clock in (0, 1))
        return result, wall_s, cpu_s

    def _split(self, clock: int) -> dict[str, float]:
        iteration, update, connectors = (self._seconds[part][clock] for part in ("iteration", "update", "connectors"))
        return {
            "iteration": iteration,
            "sampling": iteration - update,
            "connectors": connectors,
            "learner": update - connectors,
        }

    def _timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(**kwargs: Any) -> Any:
            wall_s, cpu_s = time.perf_counter(), time.process_time()
            result = function(**kwargs)
            self._seconds[part] = time.perf_counter() - wall_s, time.process_time() - cpu_s
            return result

        return timed


def connector_seconds(result: Mapping[str, Any], num_steps: int) -> dict[str, float]:
    """Return seconds per iteration of every connector piece, by RLlib's running means.

    Args:
        result: Result of `Algorithm.train`.
        num_steps: Steps of the vector environment per iteration, each of which passes the pieces between
            environment and module.
    """
    runners, learners = result["env_runners"], result["learners"][ALL_MODULES]
    pipelines = {
        "env to module": (runners["env_to_module_connector"], num_steps),
        "module to env": (runners["module_to_env_connector"], num_steps),
        "learner": (learners["learner_connector"], 1),
    }
    return {
        f"{name}: {piece}": float(seconds) * count
        for name, (timers, count) in pipelines.items()
        for piece, seconds in timers["timers"]["connectors"].items()
    }
