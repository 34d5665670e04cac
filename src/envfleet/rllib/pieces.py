"""Calls of connector pieces, without RLlib's bookkeeping for each call."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator
from typing import Any

from envfleet.rllib.internals import (
    CONNECTOR_PIPELINE_TIMER,
    CONNECTOR_TIMERS,
    TIMERS,
    ConnectorPipelineV2,
    MetricsLogger,
    to_snake_case,
)

Key = tuple[str, ...]


class PieceTimes:
    """Durations of the parts of a step, added up and logged as means.

    RLlib's pipelines log the duration of every piece in every call, which for a step of 1,000 sub-environments takes as
    long as the pieces themselves. Here durations are added up until `log`, under RLlib's names.
    """

    def __init__(self) -> None:
        self._sums: dict[Key, list[float]] = {}

    @contextlib.contextmanager
    def measuring(self, key: Key) -> Iterator[None]:
        """Add the duration of a block.

        Args:
            key: Name of the duration among RLlib's metrics.
        """
        start_s = time.perf_counter()
        yield
        entry = self._sums.setdefault(key, [0.0, 0.0])
        entry[0] += time.perf_counter() - start_s
        entry[1] += 1

    def run(self, pipeline: ConnectorPipelineV2, prefix: str, batch: dict[str, Any], **context: Any) -> dict[str, Any]:
        """Pass a batch through the pieces of a pipeline, as the pipeline itself would.

        Args:
            pipeline: Pipeline of connector pieces.
            prefix: Prefix of its durations among the metrics.
            batch: Batch of all sub-environments.
            **context: Further arguments that RLlib passes to every piece.

        Raises:
            ValueError: A piece returned something else than a batch.
        """
        with self.measuring((prefix, CONNECTOR_PIPELINE_TIMER)):
            for piece in pipeline.connectors:
                with self.measuring((prefix, TIMERS, CONNECTOR_TIMERS, _name(type(piece).__name__))):
                    batch = piece(batch=batch, data=batch, metrics_prefix_key=(prefix,), **context)
                if not isinstance(batch, dict):
                    raise ValueError(  # noqa: TRY004 (RLlib's)
                        f"the connector piece {type(piece).__name__} returned {type(batch).__name__}, expected a dict: "
                        "return the batch it was given, changed or not"
                    )
        return batch

    def log(self, metrics: MetricsLogger) -> None:
        """Log the mean of every key since the last call."""
        for key, (seconds, count) in self._sums.items():
            # The same kind of metric as RLlib's, so that checkpoints can be exchanged with its own EnvRunner.
            metrics.log_value(key, seconds / count, reduce="ema", ema_coeff=1.0)
        self._sums = {}


@functools.cache
def _name(class_name: str) -> str:
    name: str = to_snake_case(class_name)
    return name
