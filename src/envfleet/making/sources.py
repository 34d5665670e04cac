"""What a person may give as an environment, as builders of sub-environments."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from envfleet.core.arguments import check_whole
from envfleet.core.builders import EnvBuilder
from envfleet.errors import InvalidArgument
from envfleet.kernels.kernel import Kernel
from envfleet.making.kernels import KernelMaker, is_kernel_class
from envfleet.making.registered import find_spec

EnvSource: TypeAlias = (
    str | EnvSpec | type[Kernel] | Callable[..., gym.Env[Any, Any]] | Sequence[Callable[..., gym.Env[Any, Any]]]
)


class SpecMaker:
    """Makes a registered environment from its spec, which a worker that never saw the registration can do, too.

    Args:
        spec: From Gymnasium's registry.
        kwargs: For `gymnasium.make`.
    """

    def __init__(self, spec: EnvSpec, kwargs: dict[str, Any]) -> None:
        # The fleet checks spaces and order itself; Gymnasium's checkers cost as much as a cheap environment.
        self._spec = copy.copy(spec)
        self._spec.order_enforce = False
        self._kwargs = {"disable_env_checker": True, **kwargs}

    def __call__(self, **shared: Any) -> gym.Env[Any, Any]:
        """Make one; `shared` are shared arrays, as more arguments."""
        return gym.make(self._spec, **self._kwargs, **shared)


def builders_of(
    source: EnvSource, num_envs: int, seed: int, shared_names: tuple[str, ...], env_kwargs: dict[str, Any]
) -> tuple[EnvBuilder, ...]:
    """One builder per sub-environment.

    Args:
        source: What the person gave.
        num_envs: How many.
        seed: The first sub-environment's, for callables that take one.
        shared_names: Names of the shared data.
        env_kwargs: For `gymnasium.make`.

    Raises:
        InvalidArgument: `source` is nothing a sub-environment can be built from.
    """
    if isinstance(source, (str, EnvSpec)):
        return (EnvBuilder(SpecMaker(find_spec(source), env_kwargs), shared_names=shared_names),) * num_envs
    if is_kernel_class(source):
        return (EnvBuilder(KernelMaker(source, env_kwargs), shared_names=shared_names),) * num_envs
    if env_kwargs:
        raise InvalidArgument(
            f"keyword arguments {sorted(env_kwargs)} are neither make()'s nor can they go to a callable: check their "
            "spelling, or bind them with functools.partial"
        )
    functions: list[Any] = list(source) if isinstance(source, Sequence) else [source] * num_envs
    signatures: dict[int, tuple[bool, tuple[str, ...]]] = {}
    builders = []
    for index, function in enumerate(functions):
        if id(function) not in signatures:
            signatures[id(function)] = _read_signature(function, index, shared_names)
        takes_seed, names = signatures[id(function)]
        builders.append(EnvBuilder(function, seed + index if takes_seed else None, names))
    unused = set(shared_names).difference(*(builder.shared_names for builder in builders))
    if unused:
        raise InvalidArgument(
            f"shared data {sorted(unused)} is taken by no callable: give the callable a keyword argument of that name"
        )
    return tuple(builders)


def _read_signature(function: Any, index: int, shared_names: tuple[str, ...]) -> tuple[bool, tuple[str, ...]]:
    """Whether a callable takes a seed, and which shared data it takes."""
    if isinstance(function, gym.Env):
        raise InvalidArgument(
            f"env {index} is an environment, expected a callable that makes one: `lambda: gym.make(...)`; "
            "a fleet builds each sub-environment where it runs"
        )
    if not callable(function):
        raise InvalidArgument(
            f"env {index} is a {type(function).__name__}, expected a Gymnasium id, a spec, or a callable that returns "
            "an environment"
        )
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some built-in callables do not tell
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


def count_envs(source: EnvSource, num_envs: int | None, workers: int | None, envs_per_worker: int | None) -> int:
    """How many sub-environments there are to be; `workers` and `envs_per_worker` are whole numbers from 1, if given.

    Raises:
        InvalidArgument: Not at least one, or numbers that contradict each other.
    """
    num_envs = None if num_envs is None else check_whole("num_envs", num_envs, 1)
    if isinstance(source, Sequence) and not isinstance(source, str):
        if not source:
            raise InvalidArgument("the list of callables is empty: pass one callable per sub-environment")
        if num_envs not in (None, len(source)):
            raise InvalidArgument(f"num_envs={num_envs} but {len(source)} callables were given: leave num_envs out")
        num_envs = len(source)
    if num_envs is None:
        num_envs = workers * envs_per_worker if workers and envs_per_worker else 1
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
