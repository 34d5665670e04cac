"""`python -m vecenv.run_training` is the command `envfleet rllib compare`, with its options; `run` does the same."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BATCH_SIZE = 50_000
DATA = "vec_data.json"


def run(
    *,
    env: str = "envfleet/Pendulum-v1",
    ways: Sequence[str] = ("vec", "packed_vec"),
    num_envs: Sequence[int] = (10, 100, 1000, 5000),
    batch_sizes: Sequence[int] = (BATCH_SIZE,),
    num_epochs: int = 5,
    num_iterations: int = 2,
    out: str | Path = "results/rllib",
    keep_policies: bool = False,
) -> list[Any]:
    """Measure ways over numbers of sub-environments and batch sizes.

    Args:
        env: A Gymnasium id.
        ways: `"vec"`, `"packed_vec"` or both.
        num_envs: Numbers of sub-environments.
        batch_sizes: Samples per batch, of all sub-environments together.
        num_epochs: Passes over each batch.
        num_iterations: Iterations that count, after one more.
        out: Folder for `vec_data.json` and the plots.
        keep_policies: True to keep the trained policies, as checkpoints in `out`.

    Returns:
        One `envfleet.rllib.experiments.training.Iteration` per setting.

    Raises:
        InvalidArgument: No batch has room for a step of all sub-environments.
    """
    from envfleet.rllib.experiments.comparison import grid, sweep
    from envfleet.rllib.experiments.training import TrainingPlan, quiet_ray

    plan = TrainingPlan(env=env, num_epochs=num_epochs)
    plans = grid(plan, ways, num_envs, batch_sizes)
    with quiet_ray():
        return list(sweep(plans, num_iterations, Path(out), file_name=DATA, keeps_policies=keep_policies))


if __name__ == "__main__":
    from envfleet.cli import main

    sys.argv[1:1] = ["rllib", "compare", "--batch-sizes", str(BATCH_SIZE), "--data", DATA]
    main()
