"""The commands and recipes of CONTRIBUTING.md; `test_examples.py` runs its Python blocks without a title."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.docs.test_examples import Block, blocks_of

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^##+ (.*?)\n(.*?)(?=^##|\Z)", TEXT, re.DOTALL | re.MULTILINE))
RECIPES = ("A test", "A backend", "A benchmark", "An environment", "An agent")
LIMIT_S = 900.0  # of one command, on a busy machine


def commands_of(blocks: list[Block]) -> list[str]:
    lines = [line for block in blocks if block.info == "console" for line in block.lines]
    assert all(line.startswith("$ ") for line in lines)
    return [line.removeprefix("$ ") for line in lines]


COMMANDS = commands_of(blocks_of(TEXT))
WORDS = sorted(
    set(re.findall(r"`make ([a-z]+)", TEXT)) | {one.split()[1] for one in COMMANDS if one.startswith("make ")}
)


def change(path: Path, lines: list[str]) -> None:
    """Apply changes: lines that begin with a space are there, those with `-` go, those with `+` come."""
    text = path.read_text(encoding="utf-8")
    for hunk in "\n".join(lines).split("\n@@\n"):
        before, after = (
            "".join(f"{line[1:]}\n" for line in hunk.splitlines() if line[0] in kept) for kept in (" -", " +")
        )
        assert text.count(before) == 1, f"{path.name} does not have this once:\n{before}"
        text = text.replace(before, after)
    path.write_text(text, encoding="utf-8")


@pytest.mark.timeout(3 * LIMIT_S)
@pytest.mark.parametrize("title", RECIPES)
def test_a_recipe_works_word_for_word(title: str, tmp_path: Path) -> None:
    """In a copy of the repository, with the programs of this environment as those of `.venv`."""
    blocks = blocks_of(SECTIONS[title])
    for folder in ("src", "tests", "benchmarks", "compat"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for block in blocks:
        kind, _, name = block.info.partition(" title=")
        path = tmp_path / name.strip('"')
        if name and kind == "diff":
            change(path, block.lines)
        elif name:
            assert not path.exists()
            path.parent.mkdir(exist_ok=True)
            path.write_text("\n".join([*block.lines, ""]), encoding="utf-8")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "src"), str(tmp_path / "compat" / "src")]),
    }
    for line in commands_of(blocks):
        command = re.sub(r"^\.venv/bin/(?!python)(\w+)", rf"{sys.executable} -m \1", line)
        command = re.sub(r"^\.venv/bin/python", sys.executable, command)
        ran = subprocess.run(
            ["bash", "-ec", command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LIMIT_S,
            check=False,
        )  # fmt: skip
        assert ran.returncode == 0, f"{line}\n{ran.stdout}{ran.stderr}"


@pytest.mark.parametrize("word", WORDS)
def test_make_knows_each_word(word: str) -> None:
    run = subprocess.run(["make", "-n", word], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "apt-get" not in run.stdout


def test_every_command_is_tested() -> None:
    assert {title for title in SECTIONS if title.startswith(("A ", "An "))} == {*RECIPES, "A kernel"}
    tested = [line for title in [*RECIPES, "Dependencies"] for line in commands_of(blocks_of(SECTIONS[title]))]
    assert [one for one in COMMANDS if one not in tested and not one.startswith("make ")] == []


def test_the_recipe_for_pins_keeps_their_form(tmp_path: Path) -> None:
    shutil.copy(ROOT / "constraints.txt", tmp_path)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    recipe = "\n".join(commands_of(blocks_of(SECTIONS["Dependencies"])))
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
