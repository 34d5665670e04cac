"""Convert the user's environment argument into builders of sub-environments."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.wrappers import TimeLimit

from envfleet.errors import InvalidArgument, UnknownEnv
from envfleet.fleet.checks import check_whole
from envfleet.kernels.kernel import Kernel
from envfleet.kernels.registration import is_kernel
from envfleet.options import OPTIONS, WHOLE_DICTS, Options, advise
from envfleet.physics.env import make_env
from envfleet.physics.opengl import require_opengl
from envfleet.physics.task import Task, is_task
from envfleet.registry import TASKS, import_own
from envfleet.workers.builders import EnvBuilder, Registrations, without_main

EnvSource: TypeAlias = (
    str
    | EnvSpec
    | type[Kernel]
    | type[Task]
    | Callable[..., gym.Env[Any, Any]]
    | Sequence[Callable[..., gym.Env[Any, Any]]]
)
"""Types that `envfleet.make` accepts as an environment."""

_OF_GYMNASIUM = {"render_mode", "max_episode_steps", "disable_env_checker"}

_PACKAGES = {"ALE": "ale_py", "BabyAI": "minigrid", "MiniGrid": "minigrid"}
"""Modules that register ids with these prefixes."""


@dataclasses.dataclass(frozen=True)
class Blueprint:
    """Arguments of `make`, from which any number of engines can be built.

    Attributes:
        source: The environment.
        num_envs: Number of sub-environments.
        options: Options of the fleet.
        env_kwargs: Arguments of the environment.
    """

    source: Any
    num_envs: int
    options: Options
    env_kwargs: Mapping[str, Any]

    def builders(self, seed: int) -> tuple[EnvBuilder, ...]:
        """Return one builder per sub-environment.

        Args:
            seed: Seed of the first sub-environment, for callables that take one.

        Raises:
            InvalidArgument: The source is not a supported type.
        """
        source, names, kwargs = self.source, tuple(self.options.shared or ()), dict(self.env_kwargs)
        for name in kwargs.keys() & set(names):
            raise InvalidArgument(f"{name} is passed twice, by itself and in shared: leave one of them out")
        if isinstance(source, (str, EnvSpec)):
            spec = find_spec(source)
            check_keywords(spec, kwargs)
            # The fleet checks spaces and order itself; Gymnasium's checkers cost as much as a cheap environment.
            spec = dataclasses.replace(without_main(spec), order_enforce=False)
            has_frames = {**spec.kwargs, **kwargs}.get("render_mode") not in (None, "human")
            function = _make_with_opengl if has_frames and spec.entry_point in TASKS else gym.make
            make = functools.partial(function, spec, **{"disable_env_checker": True, **kwargs})
            return (EnvBuilder(make, shared_names=names),) * self.num_envs
        if is_kernel_class(source):
            limit = kwargs.pop("max_episode_steps", source.max_episode_steps)
            make = functools.partial(_make_kernel_env, source, limit, **kwargs)
            return (EnvBuilder(make, shared_names=names),) * self.num_envs
        if is_task(source):
            return (EnvBuilder(functools.partial(make_env, source, **kwargs), shared_names=names),) * self.num_envs
        functions: list[Any] = list(source) if isinstance(source, Sequence) else [source] * self.num_envs
        if kwargs:
            raise InvalidArgument(_explain_keywords(functions[0], kwargs))
        read: dict[int, tuple[bool, tuple[str, ...]]] = {}
        builders, registrations = [], Registrations()
        for index, function in enumerate(functions):
            if id(function) not in read:
                read[id(function)] = _read_signature(function, index, names)
            takes_seed, taken = read[id(function)]
            builders.append(EnvBuilder(function, seed + index if takes_seed else None, taken, registrations))
        unused = set(names).difference(*(builder.shared_names for builder in builders))
        if unused:
            raise InvalidArgument(
                f"shared data {sorted(unused)} is not an argument of any callable: add a keyword argument of that name"
            )
        return tuple(builders)


def _make_with_opengl(spec: EnvSpec, **kwargs: Any) -> gym.Env[Any, Any]:
    """Make an environment of MuJoCo whose frames are drawn; select OpenGL before MuJoCo is imported."""
    require_opengl()
    return gym.make(spec, **kwargs)


def _make_kernel_env(kernel: type[Kernel], limit: Any, /, **kwargs: Any) -> gym.Env[Any, Any]:
    """Make an ordinary environment from a kernel."""
    from envfleet.kernels.env import KernelEnv
    from envfleet.kernels.requests import read_limit

    env, limit = KernelEnv(kernel, **kwargs), read_limit(limit)
    return env if limit is None else TimeLimit(env, limit)


def is_kernel_class(source: Any) -> bool:
    """Return whether the source is a kernel itself."""
    return isinstance(source, type) and issubclass(source, Kernel)


def names_kernel(source: Any) -> bool:
    """Return whether the source is a kernel, or the id or spec of a registered one."""
    return is_kernel_class(source) or kernel_spec(source) is not None


def kernel_spec(source: Any) -> EnvSpec | None:
    """Return the spec of the registered kernel with a Gymnasium id or spec, if there is one."""
    if not isinstance(source, (str, EnvSpec)):
        return None
    spec = find_spec(source)
    return spec if is_kernel(spec) else None


def find_spec(source: str | EnvSpec) -> EnvSpec:
    """Return the spec of an id; `"module:id"` imports the module first.

    Raises:
        InvalidArgument: The module cannot be imported.
        UnknownEnv: The id is not registered; the message has similar ones.
    """
    if isinstance(source, EnvSpec):
        return source
    module, _, env_id = source.rpartition(":")
    names = dir(import_own(module, f"env is {source!r}")) if module else []
    try:
        return gym.spec(env_id)
    except gym.error.Error as error:
        near = difflib.get_close_matches(env_id, [*names, *gym.registry], n=3)
        package = _PACKAGES.get(re.split("[/-]", env_id)[0])
        if package is not None and package != module:
            near = [f"{package}:{env_id}"]
        advice = f"close to it: {', '.join(near)}" if near else "`envfleet envs` lists what is registered"
        more = (
            f"the module {module!r} has no callable of that name"
            if module
            else "where a package has to be imported first, write 'module:id'"
        )
        raise UnknownEnv(
            f"env={source!r}, expected the id of a registered environment ({str(error).rstrip('.')}): {advice}; {more}"
        ) from error


def find_callable(source: str) -> Callable[..., Any] | None:
    """Return the callable that `"module:name"` names; `None` if it is an id, with or without a module.

    Raises:
        InvalidArgument: The module cannot be imported.
    """
    module, _, name = source.rpartition(":")
    attribute = getattr(import_own(module, f"env is {source!r}"), name, None) if module else None
    return attribute if callable(attribute) and name not in gym.registry else None


def resolve_source(source: Any) -> Any:
    """Return the callable that `"module:name"` names; other environments as they are.

    Raises:
        InvalidArgument: The module cannot be imported.
    """
    return (find_callable(source) if isinstance(source, str) else None) or source


def name_source(source: Any) -> str:
    """Return the name of an environment that is an argument of `make`."""
    if isinstance(source, (str, EnvSpec)):
        return source if isinstance(source, str) else source.id
    function = source[0] if isinstance(source, Sequence) else source
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", "<lambda>").rpartition("<locals>.")[2]
    return "custom environment" if name == "<lambda>" else name


def _read_signature(function: Any, index: int, shared_names: tuple[str, ...]) -> tuple[bool, tuple[str, ...]]:
    """Return whether a callable takes a seed, and the names of shared data that it takes."""
    if isinstance(function, gym.Env):
        raise InvalidArgument(
            f"env {index} is an environment, expected a callable that makes one: `lambda: gym.make(...)`; "
            "a fleet builds each sub-environment where it runs"
        )
    if not callable(function):
        raise InvalidArgument(
            f"env {index} is {function!r:.80}, expected a callable that returns an environment, such as "
            "`lambda: gym.make(...)`; for copies of one, pass its id, its spec or one callable, and num_envs"
        )
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some built-in callables have no signature
        return False, shared_names
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    names = tuple(name for name in shared_names if takes_any or name in {one.name for one in parameters})
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [
        one.name for one in parameters if one.kind in kinds and one.default is one.empty and one.name not in names
    ]
    if len(required) > 1:
        raise InvalidArgument(
            f"env {index} needs the arguments {required}, expected a callable without arguments or with one, the "
            "seed: bind the others with functools.partial or a lambda"
        )
    return bool(required), names


def count_envs(
    source: Any, num_envs: int | None, workers: int | None, envs_per_worker: int | None, others: Iterable[str] = ()
) -> int:
    """Return the number of sub-environments; `others` are the remaining keywords, for the advice in messages.

    Raises:
        InvalidArgument: The number is missing, or the numbers contradict each other.
    """
    num_envs = None if num_envs is None else check_whole("num_envs", num_envs, 1)
    if isinstance(source, Sequence) and not isinstance(source, str):
        if not source:
            raise InvalidArgument("the list of callables is empty: pass one callable per sub-environment")
        if num_envs not in (None, len(source)):
            raise InvalidArgument(f"num_envs={num_envs} but {len(source)} callables were given: leave num_envs out")
        num_envs = len(source)
    if num_envs is None and workers and envs_per_worker:
        num_envs = workers * envs_per_worker
    if num_envs is None:
        near = difflib.get_close_matches("num_envs", others, n=1, cutoff=0.7)
        hint = f", {near[0]} was given" if near else ""
        raise InvalidArgument(f"num_envs is missing{hint}: pass the number of sub-environments, such as 8")
    if workers is not None and workers > num_envs:
        raise InvalidArgument(
            f"workers={workers} but there are only {num_envs} sub-environments: a worker needs at least one; "
            f"pass workers={num_envs} or fewer"
        )
    if workers is not None and envs_per_worker is not None and -(-num_envs // envs_per_worker) != workers:
        raise InvalidArgument(
            f"workers={workers} × envs_per_worker={envs_per_worker} does not hold num_envs={num_envs} "
            "sub-environments: leave one of the three out"
        )
    return num_envs


def check_keywords(spec: EnvSpec, env_kwargs: Mapping[str, Any]) -> None:
    """Check that the constructor of a registered environment accepts all keywords.

    Raises:
        InvalidArgument: A keyword is unknown; the message has the accepted ones.
    """
    unsure = [name for name in env_kwargs if name not in _OF_GYMNASIUM and name not in spec.kwargs]
    accepted = _accepted(spec) if unsure else None
    if accepted is None:
        return
    for name in unsure:
        if name not in accepted:
            raise InvalidArgument(
                f"{name}={env_kwargs[name]!r} is neither an option of make() nor a keyword of {spec.id}, which takes "
                f"{', '.join(accepted) or 'none'}: {advise(name, [*OPTIONS, *accepted])}"
            )


def _accepted(spec: EnvSpec) -> list[str] | None:
    """Return the keywords of a constructor; `None` if it accepts any, or if they are unknown."""
    entry_point: str | Callable[..., Any] | None = spec.entry_point
    try:
        creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
        parameters = inspect.signature(creator).parameters.values() if creator is not None else None
    except (ImportError, AttributeError, TypeError, ValueError):  # building it says why, where it is built
        return None
    if parameters is None or any(one.kind is one.VAR_KEYWORD for one in parameters):
        return None
    return [one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]


def _explain_keywords(function: Any, kwargs: Mapping[str, Any]) -> str:
    """Return the message about keywords that were passed with a callable."""
    name, called = min(kwargs), getattr(function, "__name__", "")
    written = (f"**{value!r}" if key in WHOLE_DICTS else f"{key}={value!r}" for key, value in kwargs.items())
    advice = advise(name, OPTIONS)
    partial = f"pass functools.partial({', '.join((called if called.isidentifier() else 'env', *written))})"
    remedy = advice if name == "wrappers" else partial
    return (
        f"unknown option {name}={kwargs[name]!r} of make(), which takes arguments of ids and kernels only: "
        f"{f'{advice} Otherwise {remedy}' if advice.endswith('?') else remedy}"
    )
