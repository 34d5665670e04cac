"""Builders of sub-environments: values that are sent to the worker that builds them."""

from __future__ import annotations

import contextlib
import dataclasses
import pickle
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import cloudpickle
import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from envfleet.errors import InvalidArgument


class Registrations:
    """Environments registered in this process, to be registered in other processes.

    The pickle contains the registry, so that ids that the program or its packages registered are known where a
    sub-environment is built. Entries that do not pickle or unpickle are left out.
    """

    def __init__(self) -> None:
        self._pickled: tuple[bytes, ...] | None = None
        self._specs: dict[str, EnvSpec] = {}

    def apply(self) -> None:
        """Register the environments of the other process; they replace those that packages imported here registered."""
        gym.registry.update(self._specs)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._pickled is None:
            self._pickled = tuple(_pickle_registry())
        return Registrations._unpickle, (self._pickled,)

    @classmethod
    def _unpickle(cls, pickled: tuple[bytes, ...]) -> Self:
        registrations = cls()
        registrations._pickled = pickled
        for part in pickled:
            with contextlib.suppress(Exception):  # a class that cannot be imported here; its use reports that
                registrations._specs.update(pickle.loads(part))
        return registrations


def _pickle_registry() -> Iterator[bytes]:
    """Yield pickled parts of the registry; entries that may not unpickle elsewhere are separate parts."""
    plain: dict[str, EnvSpec] = {}
    parts = [plain]
    for env_id, spec in list(gym.registry.items()):
        one = without_main(spec)
        values = one.entry_point, one.vector_entry_point, *one.kwargs.values(), *one.additional_wrappers
        if all(isinstance(value, (str, int, float, type(None))) for value in values):
            plain[env_id] = one
        else:
            parts.append({env_id: one})
    for part in parts:
        with contextlib.suppress(Exception):  # what does not pickle
            yield cloudpickle.dumps(part)


def without_main(spec: EnvSpec) -> EnvSpec:
    """Return a spec with entry points in `__main__` as objects: in a worker that name is another module."""
    changes: dict[str, Any] = {}
    for name in ("entry_point", "vector_entry_point"):
        value = getattr(spec, name)
        if isinstance(value, str) and value.startswith("__main__:"):
            with contextlib.suppress(AttributeError):  # building it says so
                changes[name] = pkgutil.resolve_name(value)
    return dataclasses.replace(spec, **changes) if changes else spec


@dataclasses.dataclass(frozen=True)
class EnvBuilder:
    """Builder of one sub-environment.

    Attributes:
        function: Callable of the user.
        seed: First argument of the callable if it takes a seed, else `None`.
        shared_names: Names of the fleet's shared data that are keywords of the callable.
        registrations: Environments registered in the process of the fleet.
    """

    function: Callable[..., gym.Env[Any, Any]]
    seed: int | None = None
    shared_names: tuple[str, ...] = ()
    registrations: Registrations = dataclasses.field(default_factory=Registrations)

    def build(self, shared: Mapping[str, Any], seed: int | None = None) -> gym.Env[Any, Any]:
        """Build the sub-environment.

        Args:
            shared: The fleet's shared data by name.
            seed: Seed to use instead of the builder's, for a sub-environment that is built again.

        Raises:
            InvalidArgument: The callable did not return a Gymnasium environment with spaces.
        """
        self.registrations.apply()
        args = () if self.seed is None else (self.seed if seed is None else seed,)
        env: Any = self.function(*args, **{name: shared[name] for name in self.shared_names})
        if isinstance(env, gym.Env):
            _check_spaces(env)
            return env
        if isinstance(env, gym.vector.VectorEnv):
            hint = "a vector environment cannot be a sub-environment: return a single one"
        elif env is None:
            hint = "the callable returned nothing: end it with `return env`"
        elif isinstance(env, type):
            hint = f"the callable returned a class: return an instance, {env.__name__}(...)"
        elif hasattr(env, "step") and hasattr(env, "reset"):
            hint = "it looks like an environment of another library: wrap it in a gymnasium.Env first"
        else:
            hint = "return a gymnasium.Env"
        raise InvalidArgument(f"the callable returned {type(env).__name__}, expected a gymnasium.Env; {hint}")


def _check_spaces(env: gym.Env[Any, Any]) -> None:
    for name in ("observation_space", "action_space"):
        space = getattr(env, name, None)
        if not isinstance(space, gym.Space):
            what = f"no {name}" if space is None else f"the {name} {space!r}, expected a gymnasium.Space"
            raise InvalidArgument(f"{type(env.unwrapped).__name__} has {what}: set it in __init__")
