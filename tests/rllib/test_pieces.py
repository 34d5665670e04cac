"""Work that each step avoids: RLlib's timers of connector pieces, and memory that is filled before it is written."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ray.rllib.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from envfleet.rllib.passes import in_parts
from envfleet.rllib.pieces import PieceTimes

CONTEXT: dict[str, Any] = {"rl_module": None, "episodes": [], "explore": True, "shared_data": {}, "metrics": None}


class AddOne(ConnectorV2):
    def __call__(self, *, batch: Any, **_: Any) -> Any:
        return {"number": batch["number"] + 1}


class Double(ConnectorV2):
    def __call__(self, *, batch: Any, **_: Any) -> Any:
        return {"number": batch["number"] * 2}


class Forget(ConnectorV2):
    def __call__(self, **_: Any) -> Any:
        return None


def test_pieces_are_called_as_rllibs_pipeline_calls_them() -> None:
    pipeline = ConnectorPipelineV2(connectors=[AddOne(), Double(), AddOne()])
    times, theirs, ours = PieceTimes(), MetricsLogger(root=True), MetricsLogger(root=True)
    context = {**CONTEXT, "metrics": theirs}
    expected = pipeline(batch={"number": 3}, metrics_prefix_key=("before",), **context)
    assert expected == {"number": 9}
    assert [times.run(pipeline, "before", {"number": 3}, **CONTEXT) for _ in range(5)] == [expected] * 5
    times.log(ours)

    def names(tree: Any, path: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
        if not isinstance(tree, dict):
            return {path}
        return {name for key, inner in tree.items() for name in names(inner, (*path, key))}

    assert names(ours.stats) == names(theirs.stats)
    whole = ours.peek(("before", "connector_pipeline_timer"))
    parts = [ours.peek(("before", "timers", "connectors", name)) for name in ("add_one", "double")]
    assert 0 < min(parts) <= max(parts) < whole


def test_a_piece_that_returns_no_batch_is_named() -> None:
    with pytest.raises(ValueError, match="Forget returned NoneType"):
        PieceTimes().run(ConnectorPipelineV2(connectors=[Forget()]), "before", {}, **CONTEXT)


@pytest.mark.parametrize("rows_per_pass", [None, 3])
def test_memory_is_not_filled_during_a_pass(rows_per_pass: int | None) -> None:
    settings: Any = torch.utils.deterministic
    seen = []

    def forward(batch: Any) -> Any:
        seen.append((torch.are_deterministic_algorithms_enabled(), settings.fill_uninitialized_memory))
        return batch + 1

    torch.use_deterministic_algorithms(True)
    try:
        assert in_parts(forward, torch.arange(7), rows_per_pass).tolist() == list(range(1, 8))
        assert settings.fill_uninitialized_memory
    finally:
        torch.use_deterministic_algorithms(False)
    assert set(seen) == {(True, False)}
