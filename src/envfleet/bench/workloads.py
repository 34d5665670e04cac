"""Environments to measure: built-in workloads, Gymnasium ids, and callables as `module:function`."""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import json
from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from envfleet.errors import InvalidArgument, UnknownEnv
from envfleet.sources import check_keywords, find_callable, find_spec, is_kernel_class

_MODULE = "envfleet.bench.environments"
BUILT_IN: Mapping[str, str] = {
    "cheap": "CartPole-v1",  # about 5 µs a step: overhead dominates
    "lunar": "LunarLander-v3",  # Box2D physics, tens of µs a step, slow resets
    "medium": f"{_MODULE}:envfleet-bench/Spin-v0",  # 200 µs of CPU a step: gains from a second core
    "image": f"{_MODULE}:envfleet-bench/Image-v0",  # 84 × 84 × 4 uint8: 28 kB to move a step
    "dict": f"{_MODULE}:envfleet-bench/Dict-v0",  # a nested observation with five leaves
    "infos": f"{_MODULE}:envfleet-bench/Info-v0",  # three numeric infos on every step
    "hockey": "envfleet/Hockey-Box2D-v0",  # Box2D physics with two players
    "halfcheetah": "HalfCheetah-v5",  # MuJoCo physics
    "breakout": f"{_MODULE}:envfleet-bench/Breakout-v5",  # Atari: four frames a step, 28 kB an observation
    "minigrid": f"{_MODULE}:envfleet-bench/DoorKey-6x6-v0",  # a gridworld in plain Python
}
"""Workloads by name, as `envfleet.make` takes them."""


@dataclasses.dataclass(frozen=True)
class Workload:
    """Environment to measure, as plain, picklable values.

    Attributes:
        name: Name on the command line and in reports.
        source: First argument of `envfleet.make`: an id, with or without a module, or `module:function`.
        spec: Gymnasium's specification, including `spec.kwargs`.
        env_kwargs: Arguments of the environment given by the user.
    """

    name: str
    source: str
    spec: EnvSpec
    env_kwargs: Mapping[str, Any]

    def make_line(self, arguments: str) -> str:
        """Return the line of code that makes a fleet of it.

        Args:
            arguments: Arguments after the environment, such as `"num_envs=8"`.
        """
        kwargs = "".join(f", {name}={value!r}" for name, value in self.env_kwargs.items())
        if kwargs and self.spec.entry_point == self.source:  # make() does not pass arguments to a callable
            module, path = self.source.partition(":")[0], self.source.replace(":", ".")
            return f"import functools, {module}; envfleet.make(functools.partial({path}{kwargs}), {arguments})"
        return f"envfleet.make({json.dumps(self.source)}, {arguments}{kwargs})"

    def build(self, **kwargs: Any) -> gymnasium.Env[Any, Any]:
        """Build one sub-environment as `gymnasium.make` does."""
        return gymnasium.make(copy.deepcopy(self.spec), **kwargs)


def resolve(name: str, env_kwargs: Mapping[str, Any] | None = None) -> Workload:
    """Return a workload by name.

    Args:
        name: A built-in workload (one of `BUILT_IN`), a Gymnasium id (`CartPole-v1`, `mypackage:MyEnv-v0`), or a
            callable that builds one environment (`mypackage.envs:make`).
        env_kwargs: Arguments of the environment.

    Raises:
        InvalidArgument: The environment is unknown or cannot be built singly, or is a kernel without an id.
    """
    source, kwargs = BUILT_IN.get(name, name), dict(env_kwargs or {})
    if is_kernel_class(target := find_callable(source)):
        module, _, kernel = source.rpartition(":")
        raise InvalidArgument(
            f"{name} is a kernel without an id: call envfleet.kernels.registration.register('mine/{kernel}-v0', "
            f"{kernel}) in its module, and pass {module}:mine/{kernel}-v0"
        )
    if target is None:
        spec = _find_spec(source)
        check_keywords(spec, kwargs)
        spec.kwargs.update(kwargs)
    else:  # without wrappers, as in a fleet
        env_id = source.rpartition(":")[2].replace(".", "-")
        spec = EnvSpec(env_id, entry_point=source, kwargs=kwargs, order_enforce=False, disable_env_checker=True)
    return Workload(name, source, spec, kwargs)


def _find_spec(source: str) -> EnvSpec:
    try:
        spec = copy.deepcopy(find_spec(source))
    except UnknownEnv as error:
        raise InvalidArgument(f"{error}; or pass a built-in workload: {', '.join(BUILT_IN)}") from error
    if spec.entry_point is None:
        raise InvalidArgument(f"{spec.id} is only a vector environment: pass an id that gymnasium.make accepts.")
    return spec


def is_installed(module_name: str) -> bool:
    """Return whether a module can be found; imports its parents only."""
    try:
        return importlib.util.find_spec(module_name) is not None
    except (ImportError, ValueError, AttributeError):  # the parent of a dotted name is missing, broken or not a package
        return False
