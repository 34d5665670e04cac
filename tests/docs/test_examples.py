"""The documentation is true: every Python block runs, every `envfleet` command line parses, the cheap ones run.

The Python blocks of a page run in order as one script, so what one defines the next can use. A block

    ```text title="output"
    …
    ```

behind a Python block is what that one prints; `…` stands for anything. A page may import the files next to
it; it shows pieces of them in blocks marked `python title="FILE"`, which do not run by themselves. They are
copies, not includes, so that pages are complete where nothing builds them, as on GitHub.
"""

from __future__ import annotations

import dataclasses
import doctest
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer
from _pytest.mark.structures import ParameterSet

from envfleet import errors

ROOT = Path(__file__).resolve().parents[2]
COMPAT = str(ROOT / "compat" / "src")
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
OUTPUT = 'text title="output"'
END_OF_BLOCK = "\x1e"
PAGE_LIMIT_S = 1200.0  # the first time, when a page's kernels are compiled, on a busy machine
COMPILING = re.compile(r"envfleet: (compiling|waiting for another process,) .*\n")
RAY_IS_LATE = "The current node timed out during startup"
RAY_STARTS = 5  # Ray gives its own processes 30 s to start, which is too little on a busy machine
EXTRAS = re.compile(r"(?:envfleet|['\"]\.)\[([\w,]+)\]")
CHEAP_COMMANDS = {"--version", "--help", "envs"}


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block: what its fence says, the line (from 0) of its first line, its lines without indentation."""

    info: str
    start: int
    lines: list[str]


def blocks_of(text: str) -> list[Block]:
    """Find the fenced blocks of a page, indented ones too."""
    blocks, current, fence = list[Block](), None, ""
    for number, line in enumerate(text.splitlines()):
        opening = re.fullmatch(r"( *)(`{3,})([^`]*)", line)
        if current is None and opening:
            indent, fence = opening[1], opening[2]
            current = Block(opening[3].strip(), number + 1, [])
        elif current is not None and line.strip() == fence:
            blocks.append(current)
            current = None
        elif current is not None:
            current.lines.append(line.removeprefix(indent))
    assert current is None, "the last block has no end"
    return blocks


def script_of(blocks: list[Block]) -> str:
    """Put the Python blocks of a page into one script in which every line has the number it has on the page."""
    lines: list[str] = []
    for block in blocks:
        if block.info == "python":
            lines += [""] * (block.start - len(lines))
            lines += [*block.lines, f"print({END_OF_BLOCK!r})"]
    return "\n".join(lines)


def outputs_of(blocks: list[Block]) -> list[str | None]:
    """Return the documented output of each Python block, or `None`."""
    outputs: list[str | None] = []
    for block, following in zip(blocks, [*blocks[1:], Block("", 0, [])], strict=True):
        if block.info == "python":
            outputs.append("\n".join([*following.lines, ""]) if following.info == OUTPUT else None)
    return outputs


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def pages_with(info: str) -> list[ParameterSet]:
    pages = [page for page in PAGES if any(block.info == info for block in blocks_of(page.read_text(encoding="utf-8")))]
    return [pytest.param(page, id=name_of(page)) for page in pages]


@pytest.mark.timeout(PAGE_LIMIT_S + 20.0)
@pytest.mark.parametrize("page", pages_with("python"))
def test_python_blocks_run(page: Path, tmp_path: Path) -> None:
    blocks = blocks_of(page.read_text(encoding="utf-8"))
    script = tmp_path / f"{page.stem.lower()}_page.py"  # not the name of a module that it imports
    script.write_text(script_of(blocks), encoding="utf-8")
    environment = {
        **os.environ,
        "RAY_ADDRESS": "local",
        "PYTHONPATH": os.pathsep.join([str(page.parent), COMPAT, os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-W", "error", str(script)]
    for _ in range(RAY_STARTS):
        ran = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PAGE_LIMIT_S, check=False
        )
        if RAY_IS_LATE not in ran.stderr:
            break
    errors = COMPILING.sub("", ran.stderr)
    assert (ran.returncode, errors) == (0, ""), f"line numbers are those of {name_of(page)}:\n{ran.stderr}"
    checker = doctest.OutputChecker()
    printed = [part.removeprefix("\n") for part in ran.stdout.split(END_OF_BLOCK)]
    for want, got in zip(outputs_of(blocks), printed, strict=False):
        if want is not None:
            options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            assert checker.check_output(want.replace("…", "..."), got, options), f"it printed:\n{got}"


def commands_of(page: Path) -> list[list[str]]:
    """The arguments of each `$ envfleet …` line of a page; a line that ends in a backslash continues in the next."""
    blocks = [block for block in blocks_of(page.read_text(encoding="utf-8")) if block.info == "console"]
    lines = [line for block in blocks for line in "\n".join(block.lines).replace("\\\n", "").splitlines()]
    return [shlex.split(line, comments=True)[2:] for line in lines if line.startswith("$ envfleet")]


@pytest.mark.parametrize("page", pages_with("console"))
def test_commands_parse_and_the_cheap_ones_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from envfleet.cli.app import app

    monkeypatch.chdir(tmp_path)
    for arguments in commands_of(page):
        command = typer.main.get_group(app)
        name, *rest = arguments
        if name == "replay":
            rest = [str(tmp_path / "replay.pkl")]
            Path(rest[0]).touch()
        if name in CHEAP_COMMANDS:
            assert command.main([name, *rest], standalone_mode=False) in (None, 0), arguments
        else:
            command.commands[name].make_context(name, rest)  # raises a UsageError that names what is wrong
    capsys.readouterr()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_pieces_of_files_are_those_of_the_files(page: Path) -> None:
    for block in blocks_of(page.read_text(encoding="utf-8")):
        piece = re.fullmatch(r'python title="(\w+\.py)"', block.info)
        if piece is not None:
            (file,) = page.parent.rglob(piece[1])
            lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
            shown = [line.strip() for line in block.lines if line.strip()]
            assert shown in [lines[start : start + len(shown)] for start in range(len(lines))], (file, block.start)


def test_every_command_and_option_is_in_the_reference() -> None:
    from envfleet.cli.app import app

    text = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    for name, command in typer.main.get_group(app).commands.items():
        assert f"## envfleet {name}" in text
        section = text.split(f"## envfleet {name}\n")[1].split("\n## ")[0]
        options = [max(one.opts, key=len) for one in command.params if one.param_type_name == "option"]
        missing = [option for option in options if f"`{option}" not in section and option != "--help"]
        assert not missing, f"{name}: {missing}"


def test_every_error_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    classes = [one for one in vars(errors).values() if isinstance(one, type)]
    kinds = [kind for kind in classes if issubclass(kind, errors.EnvfleetError)]
    missing = [kind.__name__ for kind in kinds if f"`{kind.__name__}`" not in text or f"`{kind.code}`" not in text]
    assert missing in ([], ["EnvfleetError"])


def test_extras_of_the_pages_exist_and_each_is_in_the_readme() -> None:
    table = (ROOT / "README.md").read_text(encoding="utf-8").split("| extra |")[1].split("\n\n")[0]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert [name for name in extras if f"`{name}`" not in table] == []
    named = [
        name
        for page in PAGES
        for names in EXTRAS.findall(page.read_text(encoding="utf-8"))
        for name in names.split(",")
    ]
    assert sorted(set(named).difference(extras, {"x"})) == []  # pip would leave out an unknown extra with a warning


def test_blocks_are_found_with_their_lines_and_outputs() -> None:
    page = f"text\n```python\nx = 1\n```\n\n!!! note\n    ```python\n    print(x)\n    ```\n\n```{OUTPUT}\n1\n```\n"
    blocks = blocks_of(page)
    assert [block.start for block in blocks] == [2, 7, 11]
    assert script_of(blocks).splitlines()[2:8:5] == ["x = 1", "print(x)"]
    assert outputs_of(blocks) == [None, "1\n"]
