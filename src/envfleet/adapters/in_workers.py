"""Functions that adapters run in the workers, by `Fleet.apply`.

They are in a separate module because a worker imports the module of the function: it must not import a trainer.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym


def call_method(env: gym.Env[Any, Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a method of the outermost wrapper that has it."""
    return env.get_wrapper_attr(name)(*args, **kwargs)


def is_wrapped(env: gym.Env[Any, Any], module: str, qualified_name: str) -> bool:
    """Return whether one of the wrappers is of a class or a subclass of it.

    The class is passed by name: to unpickle it, the worker would import its module, and maybe a whole trainer.
    """
    layer: Any = env
    while isinstance(layer, gym.Wrapper):
        if _is_a(layer, module, qualified_name):
            return True
        layer = layer.env
    return False


def _is_a(layer: Any, module: str, qualified_name: str) -> bool:
    return any((kind.__module__, kind.__qualname__) == (module, qualified_name) for kind in type(layer).__mro__)
