"""Films of MuJoCo tasks without OpenGL end in one line that says what to install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import envfleet
from envfleet.agents import PPO
from envfleet.errors import MissingDependency, SubEnvError
from envfleet.physics import opengl

UNBOUNDED = spaces.Box(-np.inf, np.inf, (4,), np.float64)


@pytest.fixture
def working(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Platforms that work, on a Linux machine without a display."""
    platforms: list[str] = []
    monkeypatch.setattr(opengl, "_problem_of", lambda name: None if name in platforms else "ImportError no library")
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MUJOCO_GL", "")  # restored afterwards
    return platforms


@pytest.mark.parametrize("platform", ["egl", "osmesa"])
def test_the_first_that_works_is_selected(platform: str, working: list[str]) -> None:
    working.append(platform)
    opengl.require_opengl()
    assert os.environ["MUJOCO_GL"] == platform


def test_a_display_is_preferred(working: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    working += ["egl", "glfw"]
    monkeypatch.setenv("DISPLAY", ":0")
    opengl.require_opengl()
    assert os.environ["MUJOCO_GL"] == "glfw"


def test_the_selected_one_has_to_work(working: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    working.append("egl")
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    with pytest.raises(MissingDependency, match=r"\(osmesa: ImportError no library\).*libosmesa6"):
        opengl.require_opengl()


@pytest.mark.parametrize("backend", ["native", "serial"])
def test_a_fleet_without_opengl_names_what_is_missing(backend: Any, working: list[str]) -> None:
    error = MissingDependency if backend == "native" else SubEnvError
    with pytest.raises(error, match=r"egl: .*; osmesa: .*apt install libegl1"):
        envfleet.make("InvertedPendulum-v5", 2, backend=backend, render_mode="rgb_array")


def test_a_film_without_opengl_is_refused_in_one_line(tmp_path: Path) -> None:
    agent = tmp_path / "agent.pt"
    PPO(UNBOUNDED, spaces.Box(-3, 3, (1,)), seed=0).save(agent)
    command = [sys.executable, "-m", "envfleet", "watch", str(agent), "--env", "InvertedPendulum-v5"]
    result = subprocess.run(
        [*command, "--out", str(tmp_path / "film.gif")],
        env={**os.environ, "MUJOCO_GL": "none-such", "COLUMNS": "1000"},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert result.returncode != 0
    assert "Traceback" not in result.stderr
    (line,) = (line for line in result.stderr.splitlines() if "MuJoCo" in line)
    assert "frames of MuJoCo need OpenGL" in line
    assert "apt install libegl1" in line
