"""Wheel and source distribution: complete, valid, and enough for the first example of each extra."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest
from tests.extras.environments import make_environment
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]

EXAMPLES = {
    "cli": "import envfleet.cli.app",
    "kernels": """
import numpy as np
with envfleet.make("envfleet/CartPole-v1", 4, backend="kernel") as fleet:
    fleet.reset(seed=0)
    assert fleet.rollout("random", 5, seed=0).rewards.sum() > 0
""",
    "mujoco": """
with envfleet.make("HalfCheetah-v5", 2, backend="native") as fleet:
    fleet.reset(seed=0)
    assert fleet.step(fleet.action_space.sample())[0].shape == (2, 17)
""",
    "hockey": """
with envfleet.make("envfleet/Hockey-One-Box2D-v0", 2, backend="serial") as fleet:
    fleet.reset(seed=0)
    fleet.step(fleet.action_space.sample())
""",
    "client": "import envfleet.remote.connecting",
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a wheel and a source distribution."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=PATIENCE_S)
    return folder


def test_indices_would_accept_them(built: Path) -> None:
    files = sorted(str(path) for path in built.iterdir())
    assert [Path(file).suffix for file in files] == [".whl", ".gz"]
    check = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *files], capture_output=True, text=True, check=False
    )
    assert check.returncode == 0, check.stdout


def test_the_source_distribution_builds_the_same_wheel(built: Path, tmp_path: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    source = next(tmp_path.iterdir())
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "again")]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=PATIENCE_S)
    wheel, again = next(built.glob("*.whl")), next((tmp_path / "again").glob("*.whl"))
    assert again.read_bytes() == wheel.read_bytes()


@pytest.mark.parametrize("extra", EXAMPLES)
def test_the_first_example_of_each_extra(extra: str, built: Path, tmp_path: Path) -> None:
    folder = tmp_path / "venv"
    python = make_environment(folder, (extra,))
    site = Path(sysconfig.get_path("purelib", "venv", vars={"base": str(folder), "platbase": str(folder)}))
    for path in site.glob("envfleet*"):
        path.unlink()  # links to this clone
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-compile"]
    wheel = str(next(built.glob("*.whl")))
    subprocess.run([*install, "--target", str(site), wheel], check=True, capture_output=True, timeout=PATIENCE_S)
    program = f"import envfleet\nassert {str(site)!r} in envfleet.__file__\n{EXAMPLES[extra]}"
    run = subprocess.run(
        [python, "-P", "-c", program],
        cwd=tmp_path, env={}, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
