"""Measurement of where the time of an iteration went."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.utils.metrics import ALL_MODULES

_STARTED, _CONNECTORS = "envfleet_started", "envfleet_connectors_s"


class _Start(ConnectorV2):
    def __call__(self, *, batch: Any, shared_data: Any, **_: Any) -> Any:
        shared_data[_STARTED] = time.perf_counter()
        return batch


class _Stop(ConnectorV2):
    def __call__(self, *, batch: Any, shared_data: Any, metrics: Any, **_: Any) -> Any:
        metrics.log_value((ALL_MODULES, _CONNECTORS), time.perf_counter() - shared_data[_STARTED], window=1)
        return batch


class IterationTimer:
    """Measures every iteration by itself; RLlib's timers are running means, in which the first counts most.

    Args:
        algorithm: The algorithm to measure from now on.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm, self._update_s = algorithm, 0.0
        group = algorithm.learner_group
        group.foreach_learner(_mark)
        self._update = group.update
        group.update = self._timed_update

    def train(self) -> tuple[dict[str, Any], dict[str, float]]:
        """Train for one iteration.

        Returns:
            RLlib's result, and the seconds of `iteration`, `sampling` (with all that is not learning), `connectors` of
            the Learner and `learner` (without them).
        """
        self._update_s = 0.0
        started = time.perf_counter()
        result = self._algorithm.train()
        iteration_s = time.perf_counter() - started
        connectors_s = float(result["learners"][ALL_MODULES][_CONNECTORS])
        return result, {
            "iteration": iteration_s,
            "sampling": iteration_s - self._update_s,
            "connectors": connectors_s,
            "learner": self._update_s - connectors_s,
        }

    def _timed_update(self, **kwargs: Any) -> Any:
        started = time.perf_counter()
        results = self._update(**kwargs)
        self._update_s += time.perf_counter() - started
        return results


def _mark(learner: Any) -> None:
    pipeline = learner._learner_connector  # noqa: SLF001 (where RLlib's own learners add pieces)
    pipeline.prepend(_Start())
    pipeline.append(_Stop())


def connector_seconds(result: Mapping[str, Any], num_steps: int) -> dict[str, float]:
    """Return seconds per iteration of every connector piece, by RLlib's running means.

    Args:
        result: Of `Algorithm.train`.
        num_steps: Steps of the vector environment per iteration, each of which goes through the pieces between
            environment and module.
    """
    runners, learners = result["env_runners"], result["learners"][ALL_MODULES]
    found: dict[str, float] = {}
    pipelines: list[tuple[str, Mapping[str, Any], Callable[[float], float]]] = [
        ("env to module", runners["env_to_module_connector"], lambda seconds: seconds * num_steps),
        ("module to env", runners["module_to_env_connector"], lambda seconds: seconds * num_steps),
        ("learner", learners["learner_connector"], float),
    ]
    for pipeline, timers, per_iteration in pipelines:
        for piece, seconds in timers["timers"]["connectors"].items():
            if piece not in ("_start", "_stop", "start", "stop"):
                found[f"{pipeline}: {piece}"] = per_iteration(float(seconds))
    return found
