"""The commands of CONTRIBUTING.md; `test_examples.py` runs its Python blocks."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = [line.removeprefix("$ ") for block in BLOCKS for line in block.splitlines() if line.startswith("$ ")]
WORDS = sorted(
    set(re.findall(r"`make ([a-z]+)", TEXT)) | {one.split()[1] for one in COMMANDS if one.startswith("make ")}
)


@pytest.mark.parametrize("word", WORDS)
def test_make_knows_each_word(word: str) -> None:
    run = subprocess.run(["make", "-n", word], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "apt-get" not in run.stdout


def test_every_command_is_tested() -> None:
    assert [one for one in COMMANDS if not one.startswith(("make ", "(head -n 1 constraints.txt", "mv pins"))] == []


def test_the_recipe_for_pins_keeps_their_form(tmp_path: Path) -> None:
    shutil.copy(ROOT / "constraints.txt", tmp_path)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    recipe = "\n".join(one for one in COMMANDS if not one.startswith("make "))
    recipe = recipe.replace(".venv/bin/python", sys.executable)  # a link to it would not see its packages
    subprocess.run(["bash", "-ec", recipe], cwd=tmp_path, check=True, capture_output=True)
    before = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    after = (tmp_path / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert after[0] == before[0]
    assert {"numpy", "gymnasium", "pytest"} <= {line.partition("==")[0].lower() for line in after[1:]}
    assert not [line for line in after[1:] if not re.fullmatch(r"[\w.-]+==[\w.!+-]+|-e .*|.* @ .*", line)]


def test_hooks_are_local_and_use_what_the_set_up_installs() -> None:
    text = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    assert re.findall(r"- repo: (\S+)", text) == ["local"]
    programs = re.findall(r"entry: \.venv/bin/(\S+)", text)
    assert programs == ["ruff", "ruff", "lint-imports"]
    assert text.count("language: system") == len(programs)


def test_the_light_set_up_has_neither_torch_nor_ray() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    waiting, names = ["light"], set()
    while waiting:
        for line in extras[waiting.pop()]:
            inner = re.fullmatch(r"envfleet\[(.*)\]", line)
            names.add(re.split(r"[\[<>=;, ]", line)[0])
            waiting += inner[1].split(",") if inner else []
    assert not names & {"torch", "ray", "stable-baselines3"}
