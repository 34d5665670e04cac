"""The programs of the guide "Change over from another library" run, and print the same before and after."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.test_example_programs import LIMIT_S, RAY_IS_LATE, RAY_STARTS

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "guides" / "migrate"


def output_of(name: str, folder: Path) -> str:
    variables = {**os.environ, "RAY_ADDRESS": "local"}
    variables["PYTHONPATH"] = os.pathsep.join([str(ROOT / "compat" / "src"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(FOLDER / f"{name}.py")]
    for _ in range(RAY_STARTS):
        ran = subprocess.run(
            command, cwd=folder, env=variables, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        if RAY_IS_LATE not in ran.stderr:
            break
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.timeout(2 * LIMIT_S + 20.0)
@pytest.mark.parametrize("library", ["subproc", "async", "envpool", "ray"])
def test_a_program_prints_the_same_before_and_after(library: str, tmp_path: Path) -> None:
    before, after = (output_of(f"{library}_{when}", tmp_path) for when in ("before", "after"))
    assert before
    assert before == after


@pytest.mark.timeout(LIMIT_S + 20.0)
def test_stable_baselines3_trains_on_envpool(tmp_path: Path) -> None:
    assert output_of("envpool_sb3", tmp_path) == "True\n"


def test_every_program_is_on_the_page() -> None:
    page = (ROOT / "docs" / "guides" / "migrate.md").read_text(encoding="utf-8")
    assert [path.name for path in FOLDER.glob("*.py") if f'title="{path.name}"' not in page] == []
