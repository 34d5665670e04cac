"""The installed wheel works without a clone of the repository."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which pip installs a fresh wheel."""
    site = tmp_path_factory.mktemp("site")
    offline = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *offline, "--no-compile", "--target", str(site), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S)
    return site


def run(installed: Path, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "envfleet", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(installed), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_data_files_are_in_the_wheel(installed: Path) -> None:
    ours, theirs = (
        {path.relative_to(folder) for path in (folder / "envfleet").rglob("*") if path.is_file()}
        for folder in (ROOT / "src", installed)
    )
    assert {path for path in ours if "__pycache__" not in path.parts} == theirs


def test_configurations_are_found_by_name_from_any_folder(installed: Path, tmp_path: Path) -> None:
    printed = run(installed, tmp_path, "train", "quickstart", "--print-config")
    assert '"type": "PPO"' in printed.stdout, printed.stderr
    unknown = run(installed, tmp_path, "train", "quikstart")
    assert unknown.returncode == 2
    assert "curriculum_base, curriculum_simple, dddqn," in re.sub(r"[\s│]+", " ", unknown.stderr)
