"""Calling connector pieces step by step, without RLlib's bookkeeping for each call."""

from __future__ import annotations

import functools
import time
from typing import Any

from ray.rllib.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from ray.rllib.utils.metrics import CONNECTOR_PIPELINE_TIMER, CONNECTOR_TIMERS, TIMERS
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger
from ray.rllib.utils.metrics.utils import to_snake_case

Key = tuple[str, ...]


class PieceTimes:
    """Adds up the seconds of what is done in every step, to log their means once."""

    def __init__(self) -> None:
        self._sums: dict[Key, list[float]] = {}

    def add(self, key: Key, seconds: float) -> None:
        """Count one duration.

        Args:
            key: What took it, as RLlib's metrics name it.
            seconds: The duration.
        """
        entry = self._sums.setdefault(key, [0.0, 0.0])
        entry[0] += seconds
        entry[1] += 1

    def log(self, metrics: MetricsLogger) -> None:
        """Log the mean of every key since the last call."""
        for key, (seconds, count) in self._sums.items():
            # Of the kind that RLlib's are, so that its checkpoints go on here, and these there.
            metrics.log_value(key, seconds / count, reduce="ema", ema_coeff=1.0)
        self._sums = {}


class Pieces:
    """The pieces of a pipeline, called in turn as the pipeline itself would.

    RLlib's pipelines enter the time of every piece into the metrics of every call, which for a step of a thousand
    sub-environments takes as long as what the pieces do. Here times add up until `PieceTimes.log`, under RLlib's names.

    Args:
        pipeline: The pipeline; pieces may be added to it later.
        prefix: Of its times among the metrics.
        times: Where they add up.
    """

    def __init__(self, pipeline: ConnectorPipelineV2, prefix: str, times: PieceTimes) -> None:
        self._pipeline, self._prefix, self._times = pipeline, prefix, times

    def __call__(self, batch: dict[str, Any], **context: Any) -> dict[str, Any]:
        """Put a batch through all pieces.

        Args:
            batch: The batch.
            **context: What RLlib gives every piece.

        Raises:
            ValueError: A piece returned something else than a batch.
        """
        begin_s = start_s = time.perf_counter()
        for piece in self._pipeline.connectors:
            batch = piece(batch=batch, data=batch, metrics_prefix_key=(self._prefix,), **context)
            if not isinstance(batch, dict):
                raise ValueError(  # noqa: TRY004 (RLlib's)
                    f"the connector piece {type(piece).__name__} returned {type(batch).__name__}, expected a dict: "
                    "return the batch it was given, changed or not"
                )
            end_s = time.perf_counter()
            self._times.add((self._prefix, TIMERS, CONNECTOR_TIMERS, _name(type(piece).__name__)), end_s - start_s)
            start_s = end_s
        self._times.add((self._prefix, CONNECTOR_PIPELINE_TIMER), start_s - begin_s)
        return batch


@functools.cache
def _name(class_name: str) -> str:
    name: str = to_snake_case(class_name)
    return name
