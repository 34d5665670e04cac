"""Environments that a service hosts, with their limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode
from pydantic import BaseModel, ConfigDict, Field

import envfleet
from envfleet.envs.hosting import Hosting
from envfleet.errors import InvalidArgument
from envfleet.kernels.registration import is_kernel
from envfleet.registry import BACKENDS, find_hosting
from envfleet.service.versions import version_of_code
from envfleet.sources import find_spec

_BACKENDS = tuple(name for name in BACKENDS if name != "kernel")
_START_TIMEOUT_S = 60.0


Option = int | tuple[str, ...] | None
"""What participants may give for an argument: a whole number from 1 to this, one of these texts, or a bool."""


def _check_option(option: Option, name: str, value: Any) -> None:
    if option is None:
        is_good, expected = isinstance(value, bool), "True or False"
    elif isinstance(option, int):
        is_good, expected = type(value) is int and 1 <= value <= option, f"a whole number from 1 to {option}"
    else:
        is_good, expected = value in option, f"one of {', '.join(map(repr, option))}"
    if not is_good:
        raise InvalidArgument(f"options[{name!r}]={value!r:.100}: pass {expected}")


class Offer(BaseModel):
    """An environment that a service hosts.

    Attributes:
        env: Gymnasium's id.
        module: Module to import first, so that the environment is registered.
        backend: Backend of `envfleet.make`, for environments that are not kernels.
        workers: Number of worker processes of one fleet, for such environments.
        step_timeout_s: Seconds that one of them may take for a step or a reset, with a backend that can end it.
        max_num_envs: Maximum number of sub-environments of one fleet.
        max_episode_steps: Upper limit; `None` for the registered one.
        options: Arguments that participants may give.
        kwargs: Arguments that the service gives.
        readable: Attributes of sub-environments that participants may read; nothing that reveals an episode's hidden
            state or of its luck.
        infos: Names of infos that participants receive from environments that are not kernels, in addition to action
            masks.
        abandon_penalty: See `Hosting`; `None` allows no ranked attempts.
        ranked_episodes: Number of episodes of a ranked attempt.
    """

    model_config = ConfigDict(frozen=True)

    env: str
    module: str = ""
    backend: str = "process"
    workers: int = Field(default=1, ge=1)
    step_timeout_s: float = Field(default=10.0, gt=0)
    max_num_envs: int = 16_384
    max_episode_steps: int | None = None
    options: dict[str, Option] = Field(default_factory=dict)
    kwargs: dict[str, Any] = Field(default_factory=dict)
    readable: tuple[str, ...] = ()
    infos: tuple[str, ...] = ()
    abandon_penalty: float | None = Field(default=None, ge=0, lt=1e100)
    ranked_episodes: int = Field(default=100, ge=1, le=100_000)

    @property
    def hosting(self) -> Hosting:
        """Hosting options of the environment."""
        hosting: Hosting = find_hosting(self.env)
        return hosting

    @property
    def is_kernel(self) -> bool:
        """True if its state can be saved."""
        return is_kernel(self.spec)

    def count_processes(self, num_envs: int) -> int:
        """Worker processes on this machine of a fleet of so many sub-environments."""
        return min(self.workers, num_envs) if self.backend == "process" and not self.is_kernel else 0

    @property
    def spec(self) -> EnvSpec:
        """Gymnasium's."""
        return find_spec(f"{self.module}:{self.env}" if self.module else self.env)

    def version(self) -> str:
        """Version of its code, on which results depend; it is hashed now unless it is an installed package."""
        spec = self.spec
        return version_of_code(spec.entry_point, *([spec.kwargs["kernel"]] if is_kernel(spec) else []))

    def check(self, num_envs: int, options: Mapping[str, Any], *, is_ranked: bool = False) -> None:
        """Check what a participant asks for.

        Raises:
            InvalidArgument: It is not allowed.
        """
        if not 1 <= num_envs <= self.max_num_envs:
            raise InvalidArgument(f"num_envs={num_envs}: {self.env} may have 1 to {self.max_num_envs} in a fleet here")
        if is_ranked:
            self._check_ranked(num_envs, options)
        for name, value in options.items():
            if name not in self.options:
                known = ", ".join(sorted(self.options)) or "none"
                raise InvalidArgument(f"options has {name!r}, but this service allows for {self.env}: {known}")
            _check_option(self.options[name], name, value)

    def ranked_terms(self, mode: str) -> dict[str, Any]:
        """Return the fields of `FleetConfig` about a fleet's attempt; none in training."""
        if mode != "ranked":
            return {}
        return {"ranked_episodes": self.ranked_episodes, "penalty": self.abandon_penalty}

    def _check_ranked(self, num_envs: int, options: Mapping[str, Any]) -> None:
        if self.abandon_penalty is None:
            raise InvalidArgument(
                f"mode='ranked': {self.env} has no penalty for unfinished episodes, so ranked mode is not available: "
                "pass mode='training', or have the service started with --abandon-penalty"
            )
        if num_envs > self.ranked_episodes:
            raise InvalidArgument(
                f"num_envs={num_envs}: a ranked attempt in {self.env} has {self.ranked_episodes} episodes, pass "
                "at most as many"
            )
        if refused := sorted(set(options) - set(self.hosting.ranked_options)):
            raise InvalidArgument(
                f"options has {refused[0]!r}, which changes the task: leave it out with mode='ranked', where everybody "
                "plays the same"
            )

    def make(self, num_envs: int, autoreset_mode: str, options: Mapping[str, Any]) -> Any:
        """Make the fleet.

        Raises:
            InvalidArgument: It cannot be made with these options.
        """
        kwargs: dict[str, Any] = {**self.kwargs, **options}
        own = self.hosting.make(self.spec, num_envs, AutoresetMode[autoreset_mode], kwargs)
        if own is not None:
            return own
        kwargs |= {"autoreset_mode": autoreset_mode, "seed": 0}
        if self.is_kernel:
            return envfleet.make(self.spec, num_envs, backend="kernel", **kwargs)
        limits = {"step_timeout_s": self.step_timeout_s, "start_timeout_s": _START_TIMEOUT_S}
        limits["workers"] = min(self.workers, num_envs)
        known = BACKENDS[self.backend].options
        kwargs |= {name: limit for name, limit in limits.items() if name in known}
        backend: Any = self.backend  # of a file, and checked by `make`
        return envfleet.make(self.spec, num_envs, backend=backend, **kwargs)


def make_offer(name: str, *, backend: str = "process", has_pictures: bool = False, **limits: Any) -> Offer:
    """Return the usual offer of an environment.

    Args:
        name: Its id, of which the namespace `envfleet/` may be left out, or `"module:id"`.
        backend: Backend of `envfleet.make`, for environments that are not kernels.
        has_pictures: True if participants may see its pictures.
        **limits: Others of the offer's: `workers`, `step_timeout_s`, `max_num_envs`, and `abandon_penalty` for
            environments that state none.

    Raises:
        InvalidArgument: The environment or the backend is unknown.
    """
    if backend not in _BACKENDS:
        raise InvalidArgument(f"backend={backend!r}: pass one of {', '.join(_BACKENDS)}; kernels are compiled anyway")
    spec = find_spec(_full_name(name))
    env, limit = spec.id, spec.max_episode_steps
    hosting = find_hosting(env)
    options: dict[str, Option] = {} if limit is None else {"max_episode_steps": limit}
    options |= hosting.limits
    if has_pictures:
        options["render_mode"] = ("rgb_array",)
    if hosting.abandon_penalty is not None:
        limits["abandon_penalty"] = hosting.abandon_penalty
    limits.setdefault("ranked_episodes", hosting.ranked_episodes)
    return Offer(
        env=env,
        module=name.rpartition(":")[0],
        backend=backend,
        max_episode_steps=limit,
        options=options,
        readable=hosting.readable,
        **limits,
    )


def find_id(name: str) -> str:
    """Return the whole id of an environment; arguments and errors are those of `make_offer`."""
    env_id: str = find_spec(_full_name(name)).id
    return env_id


def _full_name(name: str) -> str:
    return f"envfleet/{name}" if f"envfleet/{name}" in gym.registry and name not in gym.registry else name


def find_offer(offers: Sequence[Offer], name: str) -> Offer:
    """Return the offer of an environment.

    Raises:
        InvalidArgument: It is not offered.
    """
    for offer in offers:
        if name in (offer.env, offer.env.removeprefix("envfleet/")):
            return offer
    raise InvalidArgument(f"env={name!r} is not offered here: {', '.join(offer.env for offer in offers)}")
