"""Versions of code: an episode can only continue with the code that began it."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from envfleet.machine import version_of

_SHOWN = 12  # characters of a hash


def version_of_code(*objects: Any) -> str:
    """Return the versions of the packages or single files in which objects are defined.

    A package that is installed has its version; the files of all others are hashed, because they may be edited without
    getting a new one.

    Args:
        *objects: Functions, classes, or names of them such as `"module:Name"`.

    >>> version_of_code("numpy:array", "numpy.random:Generator").split()[0]
    'numpy'
    """
    modules = dict.fromkeys(_module_of(each).partition(".")[0] for each in objects)
    return ", ".join(map(_version, modules))


def _module_of(thing: Any) -> str:
    return thing.partition(":")[0] if isinstance(thing, str) else str(getattr(thing, "__module__", None) or type(thing))


def _version(module: str) -> str:
    version, files = version_of(module), _files_of(module)
    name = module if version is None else f"{module} {version}"
    if not files or (version is not None and _is_installed(files[0])):
        return name
    stats = [(file, file.stat()) for file in files]
    return f"{name} ({_hash(tuple((str(file), stat.st_size, stat.st_mtime_ns) for file, stat in stats))})"


def _is_installed(file: Path) -> bool:
    return any(file.is_relative_to(sysconfig.get_path(name)) for name in ("purelib", "platlib", "stdlib"))


def _files_of(module: str) -> list[Path]:
    """Return the Python files of a package or of a single-file module, without importing it."""
    loaded = sys.modules.get(module)
    spec = getattr(loaded, "__spec__", None) if loaded is not None else importlib.util.find_spec(module)
    folders: Iterable[str] = getattr(spec, "submodule_search_locations", None) or ()
    files = sorted(file for folder in folders for file in Path(folder).rglob("*.py"))
    single = getattr(spec, "origin", None) or getattr(loaded, "__file__", None)
    if not files and single is not None and Path(single).is_file():
        files = [Path(single)]
    return files


@functools.lru_cache(64)
def _hash(files: tuple[tuple[str, int, int], ...]) -> str:
    """Hash the contents of files; sizes and times only say whether they were hashed before."""
    total = hashlib.sha256()
    for name, _, _ in files:
        content = Path(name).read_bytes()
        total.update(b"%d:" % len(content) + content)
    return total.hexdigest()[:_SHOWN]
