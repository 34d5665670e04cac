"""A fleet in this process, in the shape of Gymnasium's `SyncVectorEnv`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode

from envfleet.adapters import fleet_internals
from envfleet.adapters.gymnasium.base import FleetAsVectorEnv, MakeEnv, ObservationMode
from envfleet.adapters.originals import raise_original, raising_originals
from envfleet.core.rows import StepResult
from envfleet.errors import SubEnvError
from envfleet.make import make


class SyncFleet(FleetAsVectorEnv):
    """Sub-environments in this process, one after the other, in the shape of Gymnasium's `SyncVectorEnv`.

    What differs from Gymnasium's:

    - After a sub-environment raised in `reset` or `step`, the fleet refuses to step until all are reset.
    - `AutoresetMode.DISABLED`: stepping an episode that has ended is `gymnasium.error.ResetNeeded`, which names it.
    - `envs` is a tuple: a fleet keeps its sub-environments' `step`, so that replacing one there would do nothing. Wrap
      them in `env_fns`.
    - After `close`, every call raises `ClosedEnvironmentError`.
    - With `copy=False`, observations are views that stay valid until the next-but-one call, not the next.
    - Actions and observations are checked. Infos keep what Gymnasium truncates (a float beside an int). A `reset_mask`
      stays in the caller's options, and the class of the environment keeps its metadata.

    Args:
        env_fns: Callables without arguments that make one environment each.
        copy: Whether returned observations are the caller's own.
        observation_mode: `"same"`, `"different"` (of one shape and dtype) or a tuple of the batched space and the
            single one.
        autoreset_mode: When sub-environments are reset after an episode.

    Attributes:
        fleet: The fleet inside, for what Gymnasium's class has not.
        envs: The sub-environments.

    Raises:
        AssertionError: The spaces of two sub-environments differ.
        ValueError: An argument cannot be used.

    Examples:
        >>> import gymnasium as gym
        >>> envs = SyncFleet([lambda: gym.make("CartPole-v1")] * 3)
        >>> observations, infos = envs.reset(seed=42)
        >>> envs, observations.shape, envs.np_random_seed
        (SyncFleet(num_envs=3), (3, 4), (42, 43, 44))
        >>> envs.close()
    """

    def __init__(
        self,
        env_fns: Iterable[MakeEnv],
        copy: bool = True,
        observation_mode: ObservationMode = "same",
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    ) -> None:
        env_fns, bounds = list(env_fns), self._bounds(observation_mode)
        built: list[_Built] = []
        try:
            for env_fn in env_fns:
                built.append(_Built(env_fn))  # noqa: PERF401  those built before one that fails must be closed
            with self._explaining_spaces(observation_mode), raising_originals():
                fleet = make(
                    built,
                    backend="serial",
                    autoreset_mode=autoreset_mode,
                    copy=copy,
                    observation_mode=bounds,
                    record_episodes=False,
                )
        except BaseException:
            for one in built:
                one.env.close()
            raise
        super().__init__(fleet, env_fns, copy, observation_mode)
        self.envs = tuple(one.env for one in built)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all sub-environments, or those in `options["reset_mask"]`.

        Args:
            seed: An int seeds sub-environment `i` with `seed + i`; a list gives one seed (or `None`) each.
            options: For all sub-environments. A bool array under `"reset_mask"` tells which to reset, and is not passed
                on; the caller's dict is not changed.

        Returns:
            Observations and infos.

        Raises:
            InvalidArgument: Seeds or mask of a wrong length or type; an `AssertionError`, too, as Gymnasium has it.
        """
        self._check_open()
        self._check_reset(seed, options)
        if options is None or "reset_mask" not in options:
            fleet_internals.mend(self.fleet)
        with raising_originals():
            return self.fleet.reset(seed=seed, options=options)

    def step(self, actions: Any) -> StepResult:
        """Step all sub-environments once.

        Args:
            actions: A batch of actions, as in `action_space`.

        Returns:
            Observations, rewards (float64), terminations, truncations and infos.
        """
        self._check_open()
        try:
            return self._own(self.fleet.step(actions))
        except SubEnvError as error:
            raise_original(error)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the sub-environments; called by `close`."""
        with raising_originals():
            self.fleet.close()


class _Built:
    """A callable for an environment that is built already.

    Pickled it is the callable the environment came of: a file for `envfleet replay` must build a fresh one.
    """

    def __init__(self, env_fn: MakeEnv) -> None:
        self._env_fn = env_fn
        self.env = env_fn()

    def __call__(self) -> gym.Env[Any, Any]:
        return self.env

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (self._env_fn,)


def _itself(env_fn: MakeEnv) -> MakeEnv:
    return env_fn
