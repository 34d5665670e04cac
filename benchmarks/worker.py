"""Process that measures on request: another interpreter, another checkout of this project, or other variables.

Imports the standard library only, since an interpreter that has JAX need not have envfleet.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


class Worker(contextlib.AbstractContextManager["Worker"]):
    """Runs a module of this package that ends in `serve(...)`, and waits until it is ready.

    Args:
        module: Module of this package.
        *arguments: Its arguments.
        python: Interpreter.
        checkout: Checkout of this project that the module imports from; by default this one.
        variables: Environment variables.
    """

    def __init__(
        self,
        module: str,
        *arguments: Any,
        python: str = sys.executable,
        checkout: str | Path = ROOT,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        paths = [str(Path(checkout).resolve() / part) for part in ("src", "compat/src")]
        process: Any = subprocess.Popen(
            [python, "-m", f"benchmarks.{module}", *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(variables or {})},
        )
        self._process = process
        if process.stdout.readline() != "ready\n":
            raise SystemExit(f"{python} -m benchmarks.{module} did not start: see its error above")

    def ask(self, question: Any) -> Any:
        """Send a question and wait for the answer."""
        print(json.dumps(question), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


def serve(answer: Callable[[Any], Any]) -> None:
    """Answer one question per line of the standard input."""
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
