"""The programs and the notebook in `examples` run, with small budgets."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
LIMIT_S = 900.0  # the first time, when kernels are compiled, on a busy machine
RAY_IS_LATE = "The current node timed out during startup"
RAY_STARTS = 5

PROGRAMS = {
    "sb3_ppo.py": ("--steps 512 --num-envs 4", "return after 512 steps: "),
    "cleanrl_ppo.py": ("--total-timesteps 2048", "global_step=2048, episodic_return=[0-9]+"),
    "torchrl_collect.py": ("--steps 64 --num-envs 2", r"batch 4: shape \(2, 8\), mean reward -"),
    "rllib_ppo.py": ("--iterations 1 --num-envs 16", "iteration 1: mean return [0-9]+"),
    "kernel_ppo.py": ("--transitions 8192 --num-envs 64 --out runs", "trained: mean return -?[0-9]"),
    "mujoco_ppo.py": ("--steps 256 --num-envs 4", "PPO: mean length of the last [0-9]+ episodes after 256 steps: "),
    "remote.py": ("--steps 60 --num-envs 2", "[0-9]+ episodes, mean return [0-9]+"),
}
"""Arguments of each program, and what the last line that it prints begins with."""


def run(script: Path, folder: Path, arguments: str = "") -> str:
    """Run a program in a folder; return its last line."""
    command = [sys.executable, str(script), *arguments.split()]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "default"}
    for _ in range(RAY_STARTS):
        ran = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        if RAY_IS_LATE not in ran.stderr:
            break
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()[-1]


@pytest.mark.timeout(LIMIT_S + 20.0)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_runs(name: str, tmp_path: Path) -> None:
    arguments, pattern = PROGRAMS[name]
    line = run(EXAMPLES / name, tmp_path, arguments)
    assert re.match(pattern, line), line


def cells_of(path: Path, kind: str) -> list[str]:
    notebook: Any = json.loads(path.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 4)
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == kind]


@pytest.mark.timeout(LIMIT_S + 20.0)
def test_the_cells_of_the_notebook_run(tmp_path: Path) -> None:
    cells = cells_of(EXAMPLES / "slow_environment.ipynb", "code")
    script = tmp_path / "cells.py"
    script.write_text("\n\n".join(cells), encoding="utf-8")
    assert re.fullmatch("[0-9,]+ steps per second", run(script, tmp_path))


def test_the_notebook_has_no_outputs() -> None:
    notebook: Any = json.loads((EXAMPLES / "slow_environment.ipynb").read_text(encoding="utf-8"))
    assert [cell for cell in notebook["cells"] if cell.get("outputs") or cell.get("execution_count")] == []


def test_every_example_is_listed_and_tested() -> None:
    table = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    files = sorted(path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb"))
    assert [name for name in files if f"]({name})" not in table] == []
    assert [name for name in files if name.endswith(".py")] == sorted(PROGRAMS)
