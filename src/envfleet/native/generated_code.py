"""Generated source: templates, and machine code that is compiled once and then loaded from the cache."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from string import Template
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from envfleet.errors import EnvfleetError, KernelError
from envfleet.native.cache import alone, load_source, note, read_code, write_code
from envfleet.native.explaining import explain
from envfleet.native.references import fingerprint

if TYPE_CHECKING:
    from envfleet.native.machine_code import MachineCode


def fill(template: str, **values: Any) -> list[str]:
    r"""Return the lines of a template, with its placeholders replaced.

    Args:
        template: Python source with placeholders such as `$name`.
        **values: Values by name. A list or tuple is a block of lines: its placeholder stands alone on a line and
            sets the indentation, and an empty block removes that line. Other values are inserted.

    Examples:
        >>> print("\n".join(fill("for i in range($n):\n    $body", n=3, body=["x += i", "y -= i"])))
        for i in range(3):
            x += i
            y -= i
    """
    lines: list[str] = []
    for line in template.strip("\n").splitlines():
        text = line.lstrip()
        block = values.get(text[1:]) if text.startswith("$") else None
        if isinstance(block, (list, tuple)):
            lines += [line[: len(line) - len(text)] + each for each in block]
        else:
            lines.append(Template(line).substitute(values))
    return lines


def compile_source(
    owner: str,
    text: str,
    name: str,
    samples: Mapping[str, tuple[Any, ...]],
    make_globals: Callable[[], dict[str, Any]],
    *,
    key: Iterable[str],
    target: str = "the CPU",
) -> MachineCode:
    """Load the machine code of generated source from the cache, or compile it.

    If several processes need the same code, one compiles it and the others wait.

    Args:
        owner: Name of the class that has the functions, for folders and messages.
        text: Source of the module.
        name: Name of its file.
        samples: Example arguments of each entry point, by its name.
        make_globals: Function that returns the global names that the source refers to; called only to compile.
        key: Everything else that decides the machine code: fingerprints of functions, layouts of arrays, options.
        target: Name of the target in messages.

    Raises:
        KernelError: The source cannot be compiled; the message names the user's line.
    """
    from envfleet.native.machine_code import MACHINE, compile_machine_code, load_machine_code

    module = make_module(owner, text, name, key=(*key, MACHINE))
    path = Path(str(module.__file__)).with_suffix(".code")
    data = read_code(path)
    if data is None:
        with alone(path, f"{owner} for {target}"), compiling(owner, target):
            data = read_code(path)  # which another process may have written meanwhile
            if data is None:
                vars(module).update(make_globals())
                data, is_lasting = compile_machine_code(module, samples)
                if is_lasting:
                    write_code(path, data)
    return load_machine_code(module, data)


def make_module(owner: str, text: str, name: str, *, key: Iterable[str]) -> ModuleType:
    """Make a module of generated source, in a folder named after everything that decides its machine code.

    Args:
        owner: Name of the class that has the functions.
        text: Source of the module.
        name: Name of its file.
        key: Everything that decides the machine code, except the source, this package and its dependencies' versions.
    """
    import numba

    versions = importlib.metadata.version("envfleet"), numba.__version__, np.__version__, sys.version
    digest = fingerprint([], text, *key, *versions, *_toolbox())
    return load_source(f"{owner}-{digest}", name, text)


@functools.cache
def _toolbox() -> tuple[str, ...]:
    """Return the source of this package, which is part of all machine code."""
    return tuple(file.read_text("utf-8") for file in sorted(Path(__file__).parent.glob("*.py")))


@contextlib.contextmanager
def compiling(owner: str, target: str) -> Iterator[None]:
    """Wrap compilation: explain what cannot be compiled, and report on stderr how long it takes.

    Args:
        owner: Name of the class that has the functions.
        target: Name of the target in messages.

    Raises:
        KernelError: Numba raised an error; the message explains it.
    """
    try:
        with note(f"envfleet: compiling {owner} for {target} (once, then cached) ..."):
            yield
    except (EnvfleetError, MemoryError, OSError):
        raise
    except Exception as error:  # numba's errors, and those of its passes on code they do not expect
        raise KernelError(explain(owner, error)) from error
