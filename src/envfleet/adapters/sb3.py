"""A fleet in the shape of Stable-Baselines3's `VecEnv`, for its trainers, callbacks and wrappers.

Examples:
    >>> import numpy as np
    >>> from envfleet.adapters.sb3 import FleetVecEnv  # was: from stable_baselines3.common.vec_env import SubprocVecEnv
    >>> env = FleetVecEnv.make("CartPole-v1", num_envs=2, backend="serial")
    >>> env.seed(7)
    [7, 8]
    >>> env.reset().shape
    (2, 4)
    >>> observations, rewards, dones, infos = env.step(np.array([0, 1]))
    >>> rewards, infos
    (array([1., 1.], dtype=float32), [{'TimeLimit.truncated': False}, {'TimeLimit.truncated': False}])
    >>> env.close()

SB3's own `make_vec_env` makes one, too, with its `Monitor` around each sub-environment:

    make_vec_env("CartPole-v1", n_envs=8, vec_env_cls=FleetVecEnv.make, vec_env_kwargs={"backend": "process"})
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Self

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from envfleet.adapters import fleet_internals, in_workers
from envfleet.adapters.originals import raise_original, raising_originals
from envfleet.adapters.sb3_infos import spread_infos, step_infos
from envfleet.core.fleet import Fleet
from envfleet.core.rows import StepResult
from envfleet.errors import CallPending, InvalidArgument, NothingPending, SubEnvError
from envfleet.make import make
from envfleet.making.sources import EnvSource

try:
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env.base_vec_env import VecEnv, VecEnvIndices, VecEnvObs, VecEnvStepReturn
except ImportError as error:
    raise ImportError(
        f"envfleet.adapters.sb3 needs Stable-Baselines3, which cannot be imported here ({error}): "
        "pip install 'stable-baselines3>=2.7'"
    ) from error


class FleetVecEnv(VecEnv):
    """A fleet as a Stable-Baselines3 `VecEnv`.

    Behaves as `DummyVecEnv` and `SubprocVecEnv`: seeds and options wait for the next reset, ended episodes are reset
    in the same step, `infos` is a list of dicts with `terminal_observation` and `TimeLimit.truncated`, rewards are
    float32. What differs, and why:

    - Every episode that ends is in `info["episode"]`, as `Monitor` has it, so that `ep_rew_mean` and `evaluate_policy`
      need no `Monitor`: `env_is_wrapped(Monitor)` is true. A sub-environment's own entry is kept. With
      `record_episodes=False` there is none of that.
    - Numbers in infos are Python's own bool, int and float where numpy's bool, int64 and float64 were given.
    - `set_attr` sets an attribute on the outermost wrapper that has it, not beside it on the outermost wrapper of all.
    - What a sub-environment raises arrives under its own type, also from other processes. Its `__cause__` tells the
      sub-environment, the worker and the traceback there. A worker that died is `WorkerDied`, not `EOFError` or a hang.
    - Whole actions (`Discrete`, `MultiDiscrete`, `MultiBinary`) that a trainer gives as floats reach the
      sub-environments with the dtype of their space.

    Args:
        fleet: Made with `autoreset_mode=AutoresetMode.SAME_STEP`. It belongs to this object from now on: `close` closes
            it.

    Attributes:
        fleet: The fleet, for what `VecEnv` has not: `stats()`, `stacks()`, `plan`, …
        spec: The specification of the sub-environments, if they have one.

    Raises:
        InvalidArgument: The fleet cannot be used; says how to make one that can.
    """

    def __init__(self, fleet: Fleet) -> None:
        _check_fleet(fleet)
        self.fleet = fleet
        self.spec = fleet.spec
        self._finish: Callable[[float | None], StepResult] | None = None
        self._start_s = time.time()
        super().__init__(fleet.num_envs, fleet.single_observation_space, fleet.single_action_space)
        self.metadata = {key: value for key, value in fleet.metadata.items() if key != "autoreset_mode"}

    @classmethod
    def make(cls, env: EnvSource, num_envs: int | None = None, **make_kwargs: Any) -> Self:
        """Make a fleet and adapt it.

        Args:
            env: As for `envfleet.make`.
            num_envs: As for `envfleet.make`.
            **make_kwargs: For `envfleet.make`; `autoreset_mode` is `SAME_STEP` already.

        Raises:
            InvalidArgument: From `envfleet.make`, or another autoreset mode was asked for.
        """
        with raising_originals():
            fleet = make(env, num_envs, **{"autoreset_mode": AutoresetMode.SAME_STEP, **make_kwargs})
        try:
            return cls(fleet)
        except BaseException:
            fleet.close(terminate=True)
            raise

    # ------------------------------------------------------------------ reset and step

    def reset(self) -> VecEnvObs:
        """Reset all sub-environments, with the seeds and options set since the last reset.

        A step that is under way is waited for, and its results are dropped.

        Returns:
            The observations; the infos are in `reset_infos`.
        """
        if self._finish is not None:
            self.step_wait()
        seeds = self._seeds if any(seed is not None for seed in self._seeds) else None
        options = [one or None for one in self._options]
        with raising_originals():
            if all(one is options[0] for one in options):  # set_options was given one dict, or nothing
                observations, infos = self.fleet.reset(seed=seeds, options=options[0])
            else:
                observations, infos = self.fleet.reset_envs(range(self.num_envs), seeds, options)
        self._reset_seeds()
        self._reset_options()
        self.reset_infos = spread_infos(infos, self.num_envs)
        result: VecEnvObs = observations
        return result

    def step_async(self, actions: Any) -> None:
        """Start to step all sub-environments.

        Args:
            actions: One for each.

        Raises:
            CallPending: A step is under way.
            InvalidArgument: Actions of a wrong shape or type, or NaN among them.
        """
        if self._finish is not None:
            raise CallPending("step_async() while a step is under way: call step_wait() first")
        self._finish = fleet_internals.start_step(self.fleet, _as_the_space_has_them(actions, self.action_space))

    def step_wait(self) -> VecEnvStepReturn:
        """Wait for what `step_async` started.

        Returns:
            Observations, rewards (float32), dones and infos.

        Raises:
            NothingPending: Nothing was started.
        """
        finish, self._finish = self._finish, None
        if finish is None:
            raise NothingPending("step_wait() with no step under way: call step_async(actions) first")
        try:
            observations, rewards, terminated, truncated, infos = finish(None)
        except SubEnvError as error:
            raise_original(error)
        listed, resets = step_infos(infos, terminated, truncated, time.time() - self._start_s)
        for index, info in resets.items():
            self.reset_infos[index] = info
        return observations, rewards.astype(np.float32), terminated | truncated, listed

    # ------------------------------------------------------------------ reaching into the sub-environments

    def has_attr(self, attr_name: str) -> bool:
        """Whether every sub-environment, or a wrapper of it, has an attribute."""
        return all(self._apply(in_workers.has_attr, None, attr_name))

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Get an attribute of sub-environments.

        Args:
            attr_name: Of the outermost wrapper that has it.
            indices: Which sub-environments: an int, several, or `None` for all.

        Returns:
            One value for each.
        """
        return self._apply(in_workers.get_attr, indices, attr_name)

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute of sub-environments.

        Args:
            attr_name: Of the outermost wrapper that has it; new on the outermost if none has.
            value: The same for each.
            indices: Which sub-environments: an int, several, or `None` for all.
        """
        self._apply(in_workers.set_attr, indices, attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of sub-environments.

        Args:
            method_name: Of the outermost wrapper that has it.
            *method_args: For the method.
            indices: Which sub-environments: an int, several, or `None` for all.
            **method_kwargs: For the method.

        Returns:
            One result for each.
        """
        return self._apply(in_workers.call_method, indices, method_name, method_args, method_kwargs)

    def env_is_wrapped(
        self, wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """Whether sub-environments have a wrapper.

        Args:
            wrapper_class: Its class.
            indices: Which sub-environments: an int, several, or `None` for all.

        Returns:
            One answer for each. For `Monitor` true if the fleet records episodes, whose infos are then the same.
        """
        found = self._apply(in_workers.is_wrapped, indices, wrapper_class.__module__, wrapper_class.__qualname__)
        if wrapper_class is Monitor and fleet_internals.records_episodes(self.fleet):
            return [True] * len(found)  # the fleet does what it does, and those who ask want to know just that
        return found

    def _apply(self, function: Callable[..., Any], indices: VecEnvIndices, *args: Any) -> list[Any]:
        if indices is None:
            chosen = None
        else:
            # As the index of a list, which is what the sub-environments are in DummyVecEnv: -1 is the last.
            chosen = [range(self.num_envs)[index] for index in self._get_indices(indices)]
            if not chosen:
                return []
        with raising_originals():
            return self.fleet.apply(function, *args, indices=chosen)

    # ------------------------------------------------------------------ frames, the end

    def get_images(self) -> Sequence[np.ndarray[Any, Any] | None]:
        """Render every sub-environment; one RGB frame for each, `None` without `render_mode="rgb_array"`."""
        if self.render_mode != "rgb_array":
            warnings.warn(
                f"The render mode is {self.render_mode}, but this method assumes it is `rgb_array` to obtain images.",
                stacklevel=2,
            )
            return [None] * self.num_envs
        with raising_originals():
            return list(self.fleet.render() or ())

    def close(self) -> None:
        """Close the sub-environments and end the workers; idempotent."""
        self._finish = None
        with raising_originals():
            self.fleet.close()

    def __repr__(self) -> str:
        return f"FleetVecEnv({self.fleet!r})"


def _check_fleet(fleet: Any) -> None:
    if not isinstance(fleet, Fleet):
        raise InvalidArgument(
            f"FleetVecEnv({fleet!r}) is a {type(fleet).__name__}, expected a fleet from envfleet.make: for an "
            "environment, its id or callables write FleetVecEnv.make(env, num_envs); for Gymnasium's vector wrappers "
            "put SB3's own around the FleetVecEnv instead"
        )
    mode = fleet.metadata["autoreset_mode"]
    if mode is not AutoresetMode.SAME_STEP:
        raise InvalidArgument(
            f"the fleet has autoreset_mode={mode.name}, expected SAME_STEP, which all of Stable-Baselines3 is written "
            "for: make it with envfleet.make(..., autoreset_mode=AutoresetMode.SAME_STEP), or write "
            "FleetVecEnv.make(env, num_envs)"
        )


def _as_the_space_has_them(actions: Any, space: spaces.Space[Any]) -> Any:
    """Make integers of whole floats: a trainer's Bernoulli distribution gives floats for a `MultiBinary` space."""
    if isinstance(space, spaces.Box):
        return actions
    given = np.asarray(actions)
    if given.dtype.kind != "f":
        return given
    with np.errstate(invalid="ignore"):  # NaN
        whole = given.astype(space.dtype)
    return whole if np.array_equal(whole, given) else given  # what is not whole the fleet refuses, with reasons
