"""The guide from one machine to a cluster, on a cluster of two nodes; the second has Ray's own niceness."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray.cluster_utils import Cluster
from tests.ray.conftest import NODE, no_actor_stays, node_of

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "ray.md"
ENVIRONMENT = """
import gymnasium as gym

def make_walker():
    return gym.make("CartPole-v1")
"""


def steps_of_the_guide() -> list[str]:
    """Return the Python blocks of the section."""
    section = GUIDE.read_text().split("## From one machine to a cluster")[1].split("\n## ")[0]
    return [textwrap.dedent(block) for block in re.findall(r"```\{ \.python \}\n(.*?)```", section, re.DOTALL)]


def test_the_guide_runs_on_two_nodes(
    ray_cluster: Cluster, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers on both nodes; the plan reports the niceness of the second one."""
    ray_cluster.add_node(**NODE, env_vars={"RAY_worker_niceness": "15"})
    folder = tmp_path / "my_envs"
    folder.mkdir()
    (folder / "__init__.py").write_text(ENVIRONMENT)
    monkeypatch.syspath_prepend(tmp_path)  # as the folder of the program
    make, look = steps_of_the_guide()
    names: dict[str, Any] = {}
    exec(make, names)
    fleet = names["fleet"]
    try:
        fleet.reset(seed=0)
        observations = fleet.step(np.zeros(16, np.int64))[0]
        assert observations.shape == (16, 4)
        exec(look, names)
        shown = capsys.readouterr().out
        assert re.search(r"driver at port 70(0\d|10)", shown)
        assert re.search(
            r"niceness 1[5-9], so other programs go first", shown
        )  # more than 15 if this process gives way
        assert len(set(fleet.call(node_of))) == 2
    finally:
        fleet.close()
    assert no_actor_stays()
