"""Modules that sub-environments need, found in their builders, so that one server imports them once."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Sequence
from typing import Any

import cloudpickle
import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

_WORDS = re.compile(rb"[\w:./+-]{3,}")
_IN_EVERY_SERVER = {"__main__", "cloudpickle", "gymnasium", "numpy", *sys.stdlib_module_names}


def find_modules(builders: Sequence[Any]) -> list[str]:
    """Return the names of modules to import before sub-environments are built.

    These are the modules of all classes and functions that are pickled by reference, and of the entry points of
    environments, if their ids are in the pickle. A worker imports all other modules: a module that the program has not
    imported may depend on earlier statements of the callable, for instance one that sets an environment variable.

    Args:
        builders: Builders that are sent to the workers. If they do not pickle, the result is empty.
    """
    finder = _Finder()
    try:
        for builder in {id(builder): builder for builder in builders}.values():
            finder.dump((builder.function, builder.seed))
    except Exception:  # noqa: BLE001  # sending it explains it
        return []
    for word in set(_WORDS.findall(finder.written)):
        module, _, env_id = word.decode().rpartition(":")
        if env_id in gym.registry:
            finder.note_spec(gym.registry[env_id])
            finder.modules.add(module)
    return sorted(name for name in finder.modules if _is_worth_it(name))


def _is_worth_it(name: str) -> bool:
    if name.startswith("gymnasium.envs."):
        return not name.startswith("gymnasium.envs.registration")
    return bool(name) and name.partition(".")[0] not in _IN_EVERY_SERVER


class _Finder(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    """Pickler that records the modules to which a pickle refers.

    Attributes:
        modules: Names of the modules.
        written: The pickle, without large buffers.
    """

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.written = bytearray()
        super().__init__(self)

    def write(self, data: Any) -> None:
        """Record a part of the pickle."""
        if len(data) <= 1 << 17:
            self.written += data

    def reducer_override(self, obj: Any) -> Any:
        """Record the module of an object."""
        if isinstance(obj, types.ModuleType):
            self.modules.add(obj.__name__)
        elif isinstance(obj, (type, types.FunctionType, types.BuiltinFunctionType)):
            self.modules.add(obj.__module__ or "")
        elif isinstance(obj, EnvSpec):
            self.note_spec(obj)
        return super().reducer_override(obj)

    def note_spec(self, spec: EnvSpec) -> None:
        """Record the modules of an environment's entry points."""
        for point in (spec.entry_point, *(wrapper.entry_point for wrapper in spec.additional_wrappers)):
            name = point.partition(":")[0] if isinstance(point, str) else getattr(point, "__module__", "")
            self.modules.add(name)
