"""Environments to measure: the built-in workloads, any Gymnasium id, any callable of the form `module:function`."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import importlib.util
import json
from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, WrapperSpec

from envfleet.errors import InvalidArgument, UnknownEnv
from envfleet.sources import check_keywords, find_callable, find_spec

_MODULE = "envfleet.bench.synthetic"
_REAL_MODULE = "envfleet.bench.real"


@dataclasses.dataclass(frozen=True)
class Workload:
    """An environment to measure, as plain values that pickle.

    Attributes:
        name: What it is called on the command line and in reports.
        spec: How Gymnasium builds one; `spec.kwargs` included.
        argument: What a user passes to `envfleet.make`, as source text.
        import_lines: What that needs imported.
        env_kwargs: The user's own arguments of the environment, for `envfleet.make` to pass on.
        is_callable: Whether it is a callable, rather than registered.
    """

    name: str
    spec: EnvSpec
    argument: str
    import_lines: tuple[str, ...] = ()
    env_kwargs: tuple[tuple[str, Any], ...] = ()
    is_callable: bool = False

    def wrapped(self, class_name: str) -> Workload:
        """Put a wrapper of `envfleet.bench.synthetic` around every sub-environment.

        Args:
            class_name: Name of the wrapper's class.
        """
        if self.is_callable:  # may return wrappers of its own, for which Gymnasium would take those of the spec
            inner = {"class_name": class_name, "entry_point": self.spec.entry_point, "kwargs": self.spec.kwargs}
            spec = dataclasses.replace(self.spec, entry_point=f"{_MODULE}:build_wrapped", kwargs=inner)
        else:
            wrapper = WrapperSpec(class_name, f"{_MODULE}:{class_name}", kwargs={})
            spec = dataclasses.replace(self.spec, additional_wrappers=(*self.spec.additional_wrappers, wrapper))
        return dataclasses.replace(self, spec=spec)

    def staggered(self) -> Workload:
        """Let the sub-environments' episodes end at different times from the start, as they do after a while.

        Otherwise episodes of one length end together: a short measurement then sees all resets or none.
        """
        return self.wrapped("StaggeredStart")

    def make_lines(self, arguments: str) -> list[str]:
        """Write the source lines that make a fleet of it.

        Args:
            arguments: What follows the environment, such as `"num_envs=8"`.
        """
        kwargs = "".join(f", {name}={value!r}" for name, value in self.env_kwargs)
        return [*self.import_lines, f"envfleet.make({self.argument}, {arguments}{kwargs})"]

    def build(self, **kwargs: Any) -> gymnasium.Env[Any, Any]:
        """Build one sub-environment as `gymnasium.make` does."""
        return gymnasium.make(copy.deepcopy(self.spec), **kwargs)


_SYNTHETIC: Mapping[str, str] = {
    "medium": "SpinEnv",  # 200 µs of CPU a step: what a second core is for
    "image": "ImageEnv",  # 84 × 84 × 4 uint8: 28 kB to move a step
    "dict": "DictEnv",  # a nested observation with five leaves
    "infos": "InfoEnv",  # three numeric infos on every step
}
_REGISTERED: Mapping[str, str] = {
    "cheap": "CartPole-v1",  # about 5 µs a step: overhead is all that counts
    "lunar": "LunarLander-v3",  # Box2D physics, tens of µs a step, slow resets
    "hockey": "envfleet/Hockey-Box2D-v0",  # the same with two players
    "halfcheetah": "HalfCheetah-v5",  # MuJoCo physics
}
_PREPARED: Mapping[str, str] = {  # by functions of `envfleet.bench.real`
    "breakout": "envfleet-bench/Breakout-v5",  # Atari: four frames a step, 28 kB an observation
    "minigrid": "envfleet-bench/DoorKey-6x6-v0",  # a gridworld in plain Python
}
BUILT_IN_NAMES: tuple[str, ...] = ("cheap", "lunar", *_SYNTHETIC, "hockey", "halfcheetah", *_PREPARED)


def synthetic(class_name: str, /, *, name: str | None = None, **kwargs: Any) -> Workload:
    """Make a workload of one of the environments in `envfleet.bench.synthetic`.

    Args:
        class_name: Name of the class, such as `"SpinEnv"`.
        name: The workload's name; the class's name if not given.
        **kwargs: Passed to the class.
    """
    env_id = f"envfleet-bench/{class_name.removesuffix('Env')}-v0"
    spec = EnvSpec(env_id, entry_point=f"{_MODULE}:{class_name}", max_episode_steps=200, kwargs=kwargs)
    return Workload(name or class_name, spec, *_source_of(_MODULE, class_name, kwargs))


def resolve(name: str, env_kwargs: Mapping[str, Any] | None = None) -> Workload:
    """Find a workload by name.

    Args:
        name: A built-in workload (one of `BUILT_IN_NAMES`), a Gymnasium id (`CartPole-v1`, `mypackage:MyEnv-v0`), or a
            callable that builds one environment (`mypackage.envs:make`).
        env_kwargs: Arguments of the environment.

    Raises:
        InvalidArgument: Nothing of that name can be built here; the message says what was looked for.
    """
    kwargs = dict(env_kwargs or {})
    if name in _SYNTHETIC:
        check_keywords(synthetic(_SYNTHETIC[name]).spec, kwargs)
        return synthetic(_SYNTHETIC[name], name=name, **kwargs)
    if name in _REGISTERED:
        return dataclasses.replace(_from_id(_REGISTERED[name], kwargs), name=name)
    if name in _PREPARED:
        prepared = _from_callable(f"{_REAL_MODULE}:{name}", kwargs)
        check_keywords(prepared.spec, kwargs)
        return dataclasses.replace(prepared, name=name, spec=dataclasses.replace(prepared.spec, id=_PREPARED[name]))
    return _from_id(name, kwargs) if find_callable(name) is None else _from_callable(name, kwargs)


def require_buildable(workload: Workload) -> None:
    """Check that what the environment imports is installed, without importing it.

    Raises:
        InvalidArgument: Its module is missing; the message names it.
    """
    missing = missing_module(workload.spec)
    if missing is not None:
        raise InvalidArgument(
            f"{workload.spec.id} cannot be built here: it needs the module {missing!r}, which is not installed. "
            f"Install it, or pip install {requirement_of(workload.spec)!r}."
        )


_NEEDS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("gymnasium.envs.box2d", ("Box2D", "pygame"), "box2d"),
    ("gymnasium.envs.mujoco", ("mujoco",), "mujoco"),
    ("gymnasium.envs.phys2d", ("jax",), "jax"),
    ("gymnasium.envs.tabular", ("jax",), "jax"),
    ("shimmy", ("shimmy",), "other"),
    ("envfleet.kernels", ("numba",), "kernels"),
    ("envfleet.envs.hockey", ("Box2D",), "hockey"),
    (f"{_REAL_MODULE}:breakout", ("ale_py", "cv2"), "bench"),
    (f"{_REAL_MODULE}:minigrid", ("minigrid",), "bench"),
)


def missing_module(spec: EnvSpec) -> str | None:
    """Return the name of a module that the environment needs and that is not installed, or `None`.

    Only looks, imports nothing of the environment: quick, and blind to modules it imports by itself.
    """
    if not isinstance(spec.entry_point, str):
        return None
    module_name = spec.entry_point.partition(":")[0]
    needed = [name for prefix, names, _ in _NEEDS if spec.entry_point.startswith(prefix) for name in names]
    if not module_name.startswith("gymnasium."):  # its modules are there; to look for them is to import their package
        needed.append(module_name)
    return next((name for name in needed if not is_installed(name)), None)


def requirement_of(spec: EnvSpec) -> str:
    """Name the package and its extra that bring what an environment needs."""
    entry_point = str(spec.entry_point)
    package = "envfleet" if entry_point.startswith("envfleet.") else "gymnasium"
    return f"{package}[{next((extra for prefix, _, extra in _NEEDS if entry_point.startswith(prefix)), 'all')}]"


def is_installed(module_name: str) -> bool:
    """Return whether a module can be found, without importing it, though its parents are."""
    try:
        return importlib.util.find_spec(module_name) is not None
    except (ImportError, ValueError, AttributeError):  # the parent of a dotted name is missing, broken or no package
        return False


def _from_callable(name: str, kwargs: dict[str, Any]) -> Workload:
    module_name, _, attribute = name.rpartition(":")
    # No wrapper is added: what the callable returns is what a fleet would run.
    plain: dict[str, Any] = {"order_enforce": False, "disable_env_checker": True}
    spec = EnvSpec(attribute.replace(".", "-"), entry_point=name, kwargs=kwargs, **plain)
    return Workload(name, spec, *_source_of(module_name, attribute, kwargs), is_callable=True)


def _source_of(module_name: str, attribute: str, kwargs: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Write a callable as source text, and what must be imported for it."""
    import_line = f"from {module_name} import {attribute}"
    if not kwargs:
        return attribute, (import_line,)
    arguments = ", ".join(f"{name}={value!r}" for name, value in kwargs.items())
    return f"functools.partial({attribute}, {arguments})", ("import functools", import_line)


def _from_id(name: str, kwargs: dict[str, Any]) -> Workload:
    try:
        spec = copy.deepcopy(find_spec(name))
    except UnknownEnv as error:
        close = difflib.get_close_matches(name, [*BUILT_IN_NAMES, *gymnasium.registry], n=3, cutoff=0.5)
        hint = f"Close to it: {', '.join(close)}." if close else "See what there is: envfleet envs."
        raise InvalidArgument(
            f"unknown environment {name!r}: expected a workload ({', '.join(BUILT_IN_NAMES)}), a Gymnasium id, or "
            f"module:function. {hint}"
        ) from error
    if spec.entry_point is None:
        raise InvalidArgument(
            f"{spec.id} has no single environment to build (only a vector one): pass an id that gymnasium.make accepts."
        )
    check_keywords(spec, kwargs)
    spec.kwargs.update(kwargs)
    return Workload(name, spec, json.dumps(name), env_kwargs=tuple(kwargs.items()))
