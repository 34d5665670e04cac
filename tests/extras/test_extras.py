"""Each command with each extra alone: it works, or one line says what to install."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.extras.environments import make_environment

_COMMANDS = {
    "bench": "bench CartPole-v1 -n 2 --seconds 0.02 --rounds 1 --plot {out}/bench.png",
    "doctor": "doctor CartPole-v1",
    "tune": "tune CartPole-v1 --help",
    "envs": "envs",
    "train": "train --env CartPole-v1 --num-envs 2 --max-transitions 300 --out {out}/runs",
    "evaluate": "evaluate nothing",
    "tournament": "tournament nothing",
    "watch": "watch strong --out {out}/game.gif",
    "play": "play hockey",
    "demo": "demo --help",
    "plot": "plot nothing",
    "export": "export nothing",
    "search": "search quickstart --space {out}/space.json",
    "serve": "serve --host 192.0.2.1 --database sqlite:///{out}/db",
    "token": "token list",
    "status": "status http://127.0.0.1:1",
    "rllib": "rllib train --help",
}
_EXTRAS = ("cli", "client", "hockey", "kernels", "mujoco", "peers", "ray", "serve", "train")
_SECONDS = 500


@pytest.fixture(scope="module")
def python_with(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the `python` of a virtual environment with one extra and the command line."""
    pythons: dict[str, Path] = {}

    def make(extra: str) -> Path:
        if extra not in pythons:
            pythons[extra] = make_environment(tmp_path_factory.mktemp(extra) / "venv", ("cli", extra))
        return pythons[extra]

    return make


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("extra", _EXTRAS)
def test_commands_with_one_extra(extra: str, python_with: Callable[[str], Path], tmp_path: Path) -> None:
    for name, command in _COMMANDS.items():
        words = command.format(out=tmp_path).split()
        run = subprocess.run(
            [python_with(extra), "-m", "envfleet", *words],
            cwd=tmp_path, capture_output=True, text=True, timeout=_SECONDS, check=False,
        )  # fmt: skip
        assert "Traceback" not in run.stderr, f"{name} with {extra}:\n{run.stderr}"
        if run.returncode != 0:
            assert run.returncode == 2, f"{name} with {extra}: {run.returncode}\n{run.stderr}"
            assert len(run.stderr.splitlines()) <= 12, f"{name} with {extra}:\n{run.stderr}"


@pytest.mark.timeout(600)
def test_the_message_names_the_extra(python_with: Callable[[str], Path], tmp_path: Path) -> None:
    python = python_with("cli")
    for words, extra in (
        (["train", "quickstart"], "train"),
        (["search", "quickstart", "--space", "space.json"], "train"),
        (["tournament", "results"], "train"),
        (["demo"], "train"),
        (["serve"], "serve"),
        (["status", "http://127.0.0.1:1"], "client"),
    ):
        run = subprocess.run(
            [python, "-m", "envfleet", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        text = re.sub(r"[│\s]+", " ", run.stderr)
        assert f"pip install 'envfleet[{extra}]'" in text, f"{words}: {run.stderr}"
        assert run.returncode == 2
