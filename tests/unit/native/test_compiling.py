"""Compiled functions: parts, the note about compiling, and their code on the disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from envfleet.agents import compiled


def test_python_cannot_call_a_part() -> None:
    rows = np.ones((2, 2), np.float32)
    with pytest.raises(TypeError, match="not callable"):
        compiled.join(rows, rows)


USES_TWICE = """
from pathlib import Path
from typing import NamedTuple
from envfleet.native.compiling import compile_function

class {name}(NamedTuple):
    number: int

@compile_function
def double(pair):
    return 2 * pair.number

print(double({name}(4)))
"""
READ_ONLY = "from numba.core import caching; caching._CacheLocator.ensure_cache_path = lambda self: 1 / 0"


def run_file(path: Path, text: str) -> tuple[str, str]:
    path.write_text(text)
    os.utime(path, (len(text), len(text)))  # another time for another text
    command = [sys.executable, "-c", f"import {path.stem}"]
    done = subprocess.run(command, cwd=path.parent, capture_output=True, text=True, check=True)
    return done.stdout, done.stderr


def test_note_is_printed_once_and_stale_code_is_compiled_again(tmp_path: Path) -> None:
    note = "envfleet: compiling updates of agents (once, then cached) ...\n"
    path = tmp_path / "own.py"
    assert run_file(path, USES_TWICE.format(name="First")) == ("8\n", note)
    assert run_file(path, USES_TWICE.format(name="First")) == ("8\n", "")
    assert run_file(path, USES_TWICE.format(name="Another")) == ("8\n", note)


def test_without_cache_folder_every_process_compiles(tmp_path: Path) -> None:
    program = READ_ONLY.replace("1 / 0", "(_ for _ in ()).throw(OSError)") + USES_TWICE.format(name="First")
    out, note = run_file(tmp_path / "own.py", program)
    assert out == "8\n"
    assert note == (
        "envfleet: compiling updates of agents (in every process: set NUMBA_CACHE_DIR to a writable folder) ...\n"
    )
