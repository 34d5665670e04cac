"""The command as a real process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tests.waiting import PATIENCE_S, wait_until

COMMAND = [str(Path(sys.executable).with_name("envfleet"))]


def run(*arguments, cwd=None):
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=cwd
    )


def test_it_is_installed_and_answers():
    result = run("envs", "CartPole-v1")
    assert (result.returncode, result.stderr) == (0, "")
    assert "CartPole-v1" in result.stdout


def test_an_error_goes_to_standard_error():
    result = run("bench", "No-v1")
    assert (result.returncode, result.stdout) == (2, "")
    assert "Traceback" not in result.stderr


def test_python_dash_m():
    result = subprocess.run(
        [sys.executable, "-m", "envfleet.cli", "--version"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert result.returncode == 0
    assert result.stdout.startswith("envfleet ")


def test_an_environment_in_the_current_folder_is_found(tmp_path):
    (tmp_path / "own.py").write_text("import gymnasium\n\ndef make():\n    return gymnasium.make('CartPole-v1')\n")
    options = ["-n", "2", "--peers", "loop", "--backends", "serial", "--seconds", "0.01", "--rounds", "1"]
    result = run("bench", "own:make", *options, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "envfleet serial" in result.stdout


def test_ctrl_c_ends_it_quietly_with_all_its_children():
    arguments = ["bench", "CartPole-v1", "-n", "2", "--peers", "loop,gymnasium-async", "--seconds", "3600"]
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    family: dict[int, psutil.Process] = {}

    def is_complete() -> bool:
        family.update({child.pid: child for child in psutil.Process(process.pid).children(recursive=True)})
        return len(family) >= 4  # two contenders' processes and the peer's two workers

    wait_until(is_complete)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    _, alive = psutil.wait_procs(list(family.values()), timeout=PATIENCE_S)
    if alive:
        pytest.fail(f"left behind: {alive}")
