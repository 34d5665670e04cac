"""Another checkout of the project, or another interpreter, in a process that measures when it is asked."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
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


def rate_in(stack: contextlib.ExitStack, python: str, script: str, *arguments: Any) -> Callable[[float], float]:
    """Start a script of this folder in another interpreter, such as one that has JAX, and wait until it is ready.

    Args:
        stack: Ends it.
        python: The interpreter.
        script: Prints "ready", then for each line with a number of seconds a rate.
        arguments: Of the script.

    Returns:
        A function of seconds that asks it.
    """
    command = [python, str(Path(__file__).with_name(script)), *map(str, arguments)]
    variables = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # or JAX takes most of a GPU's memory
    program: Any = stack.enter_context(
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=variables)
    )
    stack.callback(program.stdin.close)
    if program.stdout.readline() != "ready\n":
        raise SystemExit(f"{' '.join(command)} did not begin: see above")

    def rate(seconds: float) -> float:
        program.stdin.write(f"{seconds}\n")
        return float(program.stdout.readline())

    return rate
