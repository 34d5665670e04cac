"""The names of test files and tests: `tests/unit` mirrors `src/envfleet`."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE, TESTS, UNIT = ROOT / "src" / "envfleet", ROOT / "tests", ROOT / "tests" / "unit"
MAX_NAME_LENGTH = 60


def subject_of(test_file: Path) -> Path | None:
    """Return the module or package that a test file names, if it exists.

    `a/test_b.py` and `a/test_b_part.py` name `a/b.py`, or the package `a/b`.
    """
    words = test_file.stem.removeprefix("test_").split("_")
    folder = SOURCE / test_file.relative_to(UNIT).parent
    for count in range(len(words), 0, -1):
        name = "_".join(words[:count])
        for subject in (folder / f"{name}.py", folder / name / "__init__.py"):
            if subject.exists():
                return subject
    return None


def test_each_file_names_the_module_that_it_tests() -> None:
    files = [path for path in UNIT.rglob("test_*.py") if path != Path(__file__)]
    assert [str(path.relative_to(ROOT)) for path in sorted(files) if subject_of(path) is None] == []


def test_names_of_tests_are_short() -> None:
    names = [
        f"{path.relative_to(ROOT)}::{node.name}"
        for path in sorted(TESTS.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
        if len(node.name) > MAX_NAME_LENGTH
    ]
    assert names == []
