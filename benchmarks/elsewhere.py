"""Another checkout of the project, in a process that measures when it is asked."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


class Elsewhere(contextlib.AbstractContextManager["Elsewhere"]):
    """Runs a script with the packages of another checkout; question and answer are lines of JSON.

    Args:
        folder: Of the checkout.
        script: What to run; it answers each line of its input with one of its output.
        arguments: Of the script.
    """

    def __init__(self, folder: Path, script: str, *arguments: str) -> None:
        paths = os.pathsep.join(str(folder.resolve() / part) for part in ("src", "compat/src"))
        self._process = subprocess.Popen(
            [sys.executable, script, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": paths},
        )
        self._answers = iter(self._process.stdout or ())

    def ask(self, question: Any) -> Any:
        """Ask, and wait for the answer."""
        print(json.dumps(question), file=self._process.stdin, flush=True)
        return json.loads(next(self._answers))

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
