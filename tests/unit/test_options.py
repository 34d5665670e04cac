from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from gymnasium.vector import AutoresetMode

import envfleet
from envfleet.options import AutoresetName, BackendName, read_autoreset_mode
from envfleet.registry import BACKENDS

PROGRAM = """
import envfleet

envfleet.make("CartPole-v1", 2, backend="process", on_failure="restart", autoreset_mode="SAME_STEP")
envfleet.make("CartPole-v1", 2, backend="proces")
envfleet.make("CartPole-v1", 2, on_failure="restrat")
envfleet.make("CartPole-v1", 2, autoreset_mode="SAME")
envfleet.make("CartPole-v1", 2, device="gpu")
envfleet.make("CartPole-v1", 2, observation_mode="differnt")
"""


def test_names_in_types_are_those_that_exist() -> None:
    assert get_args(BackendName) == ("auto", *BACKENDS)
    assert {read_autoreset_mode(name) for name in get_args(AutoresetName)} == {*AutoresetMode}
    assert len(get_args(AutoresetName)) == 3 * len(AutoresetMode)


def test_a_type_checker_finds_misspelled_options(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM, encoding="utf-8")
    (tmp_path / "mypy.ini").write_text("[mypy]\nfollow_imports = silent\n[mypy-envfleet.*]\n", encoding="utf-8")
    source = Path(envfleet.__file__).parents[1]
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", tmp_path / "cache", file.name],
        cwd=tmp_path, env={"MYPYPATH": str(source), "PATH": ""}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = [line for line in run.stdout.splitlines() if line.startswith("program.py")]
    assert [int(line.split(":")[1]) for line in lines] == [5, 6, 7, 8, 9], run.stdout
    for line, value in zip(lines, ("proces", "restrat", "SAME", "gpu", "differnt"), strict=True):
        assert f'"{value}"' in line or f"'{value}'" in line


def test_misspelled_options_are_errors() -> None:
    with pytest.raises(envfleet.errors.InvalidArgument, match="backend='proces'"):
        envfleet.make("CartPole-v1", 2, backend="proces")  # type: ignore[arg-type]
