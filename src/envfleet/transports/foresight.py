"""What can be said of a fleet of worker processes before any process starts: that it will not work, and why."""

from __future__ import annotations

import contextlib
import dis
import types
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym

from envfleet.core.checks import check_distinct
from envfleet.core.transport import GroupPlan
from envfleet.transports.wire import encode_builder

_RETURNING_A_NAME = {"RESUME", "COPY_FREE_VARS", "LOAD_GLOBAL", "LOAD_DEREF", "RETURN_VALUE"}
"""All that a function does that returns what a name outside of it stands for."""


def check_plans(plans: Sequence[GroupPlan]) -> None:
    """Check that what builds the sub-environments can go to worker processes, and looks as if it made new ones.

    Args:
        plans: One per worker.

    Raises:
        InvalidArgument: A callable does not pickle, or hands out an environment that there is already.
    """
    functions = [builder.function for plan in plans for builder in plan.builders]
    envs = [_existing_env(function) for function in functions]
    check_distinct([row if env is None else id(env.unwrapped) for row, env in enumerate(envs)])
    for function in {id(function): function for function in functions}.values():
        encode_builder(function)


def _existing_env(function: Callable[..., Any]) -> gym.Env[Any, Any] | None:
    """The environment that `lambda: env` and its like return, in which nothing is called; `None` for all others."""
    if not isinstance(function, types.FunctionType):
        return None
    steps = list(dis.get_instructions(function))
    if not {step.opname for step in steps} <= _RETURNING_A_NAME:
        return None
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    name = next((str(step.argval) for step in steps if step.opname.startswith("LOAD")), "")
    env = None
    with contextlib.suppress(ValueError):  # of a name that stands for nothing yet: whoever calls the function says so
        env = cells[name].cell_contents if name in cells else function.__globals__.get(name)
    return env if isinstance(env, gym.Env) else None
