"""A fleet as Stable-Baselines3's `VecEnv`, for its trainers, wrappers and helpers.

Examples:
    >>> from envfleet.adapters.sb3 import FleetVecEnv
    >>> env = FleetVecEnv("CartPole-v1", num_envs=4, backend="serial")
    >>> _ = env.seed(1)
    >>> observations = env.reset()
    >>> observations, rewards, dones, infos = env.step([env.action_space.sample() for _ in range(4)])
    >>> rewards.dtype, len(infos)
    (dtype('float32'), 4)
    >>> env.close()
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from operator import methodcaller
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import concatenate, create_empty_array, iterate

from envfleet.adapters import in_workers
from envfleet.adapters.originals import raising_originals
from envfleet.adapters.sb3_infos import spread_infos, step_infos
from envfleet.errors import InvalidArgument
from envfleet.fleet.checks import check_options, check_whole
from envfleet.fleet.fleet import Fleet
from envfleet.make import make
from envfleet.options import read_autoreset_mode
from envfleet.sources import EnvSource

try:
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env.base_vec_env import VecEnv, VecEnvIndices, VecEnvObs, VecEnvStepReturn
except ImportError as error:
    raise ImportError(
        f"envfleet.adapters.sb3 needs Stable-Baselines3, which cannot be imported here ({error}): "
        "pip install 'stable-baselines3>=2.7'"
    ) from error

_MODE = AutoresetMode.SAME_STEP
_NUMBERS = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class FleetVecEnv(VecEnv):
    """A fleet, on any backend, as a Stable-Baselines3 `VecEnv`.

    It behaves as `DummyVecEnv` and `SubprocVecEnv`: seeds and options apply to the next reset, ended episodes are reset
    in the same step, `infos` is a list of dicts with `terminal_observation` and `TimeLimit.truncated`, rewards are
    float32. Differences:

    - Every ended episode is in `info["episode"]`, in the form of `Monitor`, so that `ep_rew_mean` and `evaluate_policy`
      need no `Monitor`: `env_is_wrapped(Monitor)` is True. An entry of the sub-environment itself is kept.
    - Numbers in infos are Python's bool, int and float instead of numpy's bool, int64 and float64. An int becomes a
      float if another sub-environment reports a float under the same key.
    - `set_attr` sets an attribute on the outermost wrapper that has it, not on the outermost wrapper of all.
    - Exceptions of sub-environments keep their type, also from other processes. `__cause__` has the sub-environment,
      the worker and the traceback there. The death of a worker raises `WorkerDied`, not `EOFError`, and never hangs.
    - Integer actions (`Discrete`, `MultiDiscrete`, `MultiBinary`) that a trainer passes as floats are cast to the dtype
      of their space.
    - If sub-environments are not Python objects (kernels, services, adopted vector environments), `env_method` calls
      all of them or none, and wrappers cannot be found.

    Args:
        env: Fleet with `autoreset_mode="SAME_STEP"`, which this object owns; or the first argument of `envfleet.make`,
            such as a Gymnasium id or a list of callables, so that the class can be the `vec_env_cls` of
            `make_vec_env`.
        num_envs: Argument of `envfleet.make`.
        start_method: Ignored, `"forkserver"` or `None`; an argument of `SubprocVecEnv`.
        **make_kwargs: Options of `envfleet.make`; `autoreset_mode` is always `SAME_STEP`.

    Attributes:
        fleet: The fleet, for methods that `VecEnv` does not have: `stats()`, `stacks()`, `plan`, …
        spec: Specification of the sub-environments, or `None`.

    Raises:
        InvalidArgument: An argument is invalid, or the fleet has another autoreset mode, device or vector rewards.
    """

    def __init__(
        self,
        env: Fleet | EnvSource,
        num_envs: int | None = None,
        *,
        start_method: str | None = None,
        **make_kwargs: Any,
    ) -> None:
        if start_method not in (None, "forkserver"):
            raise InvalidArgument(
                f"start_method={start_method!r}, expected 'forkserver' or None: workers are forked from a small server "
                "that never imports the main module, so leave it out"
            )
        self.fleet = fleet = _fleet_of(env, num_envs, make_kwargs)
        self.spec = fleet.spec
        self._is_stepping = False
        self._rows = None if fleet.batch_size == fleet.num_envs else range(fleet.num_envs)
        self._start_s = time.time()
        super().__init__(fleet.num_envs, fleet.single_observation_space, fleet.single_action_space)
        self.metadata = {key: value for key, value in fleet.metadata.items() if key != "autoreset_mode"}

    # ------------------------------------------------------------------ reset and step

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Set the seeds of the next reset.

        Args:
            seed: Sub-environment `i` gets `seed + i`; `None` draws a number.

        Returns:
            The seed of each sub-environment.

        Raises:
            InvalidArgument: `seed` is not an int of at least 0.
        """
        return super().seed(None if seed is None else check_whole("seed", seed, 0))

    def set_options(self, options: list[dict[str, Any]] | dict[str, Any] | None = None) -> None:
        """Set the options of the next reset.

        Args:
            options: One dict for all sub-environments, or a list with one dict for each.

        Raises:
            InvalidArgument: `options` is neither, or the list has another length.
        """
        check_options(options, self.num_envs)
        super().set_options(options)

    def reset(self) -> VecEnvObs:
        """Reset all sub-environments, with the seeds and options set since the last reset.

        A step in progress is finished first, and its results are discarded.

        Returns:
            Observations; infos are in `reset_infos`.
        """
        if self._is_stepping:
            self.step_wait()
        seeds = self._seeds if any(seed is not None for seed in self._seeds) else None
        first, *others = each = [one or None for one in self._options]
        is_one = all(one is first for one in others)  # set_options got one dict, or was not called
        with raising_originals():
            observations, infos = self.fleet.reset(seed=seeds, options=first if is_one else each)
        self._reset_seeds()
        self._reset_options()
        self.reset_infos = spread_infos(infos, self.num_envs)
        result: VecEnvObs = observations
        return result

    def step(self, actions: Any) -> VecEnvStepReturn:
        """Step all sub-environments; a faster form of `step_async` and `step_wait`."""
        with raising_originals():
            results = self.fleet.step(_batched(actions, self.action_space, self.num_envs))
        return self._translate(*results)

    def step_async(self, actions: Any) -> None:
        """Start a step of all sub-environments.

        Args:
            actions: One action for each.

        Raises:
            CallPending: A step is in progress.
            InvalidArgument: Actions have a wrong shape or type, or are NaN.
        """
        with raising_originals():
            self.fleet.send(_batched(actions, self.action_space, self.num_envs))
        self._is_stepping = True

    def step_wait(self) -> VecEnvStepReturn:
        """Wait for the step that `step_async` started.

        Returns:
            Observations, rewards (float32), dones and infos.

        Raises:
            NothingPending: No step was started.
        """
        self._is_stepping = False
        with raising_originals():
            batch = self.fleet.recv(env_indices=self._rows)
        return self._translate(*batch[:5])

    def _translate(
        self, observations: Any, rewards: Any, terminated: Any, truncated: Any, infos: dict[str, Any]
    ) -> VecEnvStepReturn:
        dones = terminated | truncated
        rows, resets = step_infos(infos, dones, truncated & ~terminated)
        if resets:
            self._end_episodes(rows, resets, infos)
        return observations, rewards.astype(np.float32), dones, rows

    def _end_episodes(self, rows: list[dict[str, Any]], resets: dict[int, dict[str, Any]], infos: Any) -> None:
        """Complete the infos of episodes that ended, and store those of the resets."""
        finals = infos.get("final_obs")
        if finals is None:  # the fleet was made with final_infos=False
            finals = list(iterate(self.fleet.observation_space, self.fleet.final_observations))
        age_s = round(time.time() - self._start_s, 6)
        episodes = self.fleet.engine.ended_episodes()
        for index, total, length in zip(*(column.tolist() for column in episodes[:3]), strict=True):
            rows[index].setdefault("episode", {"r": round(total, 6), "l": length, "t": age_s})
            rows[index]["terminal_observation"] = finals[index]
            self.reset_infos[index] = resets[index]

    # ------------------------------------------------------------------ reaching into the sub-environments

    @property
    def _has_objects(self) -> bool:
        return self.fleet.engine.traits.has_objects

    def has_attr(self, attr_name: str) -> bool:
        """Return whether every sub-environment, or one of its wrappers, has an attribute."""
        if not self._has_objects:
            return super().has_attr(attr_name)
        return all(self._apply(methodcaller("has_wrapper_attr", attr_name), None))

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Return an attribute of sub-environments.

        Args:
            attr_name: Name of the attribute, read from the outermost wrapper that has it.
            indices: Sub-environments: an int, several, or `None` for all.

        Returns:
            One value for each.
        """
        if attr_name == "render_mode":
            return [self.fleet.render_mode] * len(self._chosen(indices))
        if self._has_objects:
            return self._apply(methodcaller("get_wrapper_attr", attr_name), indices)
        with raising_originals():
            values = self.fleet.get_attr(attr_name)
        return [values[index] for index in self._chosen(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute of sub-environments.

        Args:
            attr_name: Name of the attribute, set on the outermost wrapper that has it, else on the outermost wrapper.
            value: Value for all of them.
            indices: Sub-environments: an int, several, or `None` for all.
        """
        if self._has_objects:
            self._apply(methodcaller("set_wrapper_attr", attr_name, value), indices)
            return
        chosen = self._chosen(indices)
        values = [value] * self.num_envs if len(chosen) == self.num_envs else self.get_attr(attr_name)
        for index in chosen:
            values[index] = value
        with raising_originals():
            self.fleet.set_attr(attr_name, values)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of sub-environments.

        Args:
            method_name: Name of the method, of the outermost wrapper that has it.
            *method_args: Arguments of the method.
            indices: Sub-environments: an int, several, or `None` for all.
            **method_kwargs: Keyword arguments of the method.

        Returns:
            One result for each.
        """
        if self._has_objects:
            return self._apply(in_workers.call_method, indices, method_name, method_args, method_kwargs)
        if len(self._chosen(indices)) < self.num_envs:
            raise InvalidArgument(
                f"env_method({method_name!r}, indices={indices}) of a fleet whose sub-environments are not "
                f"Python objects ({self.fleet.plan.backend!r}): it calls all of them, omit indices"
            )
        with raising_originals():
            return list(self.fleet.call(method_name, *method_args, **method_kwargs))

    def env_is_wrapped(
        self, wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """Return whether sub-environments have a wrapper.

        Args:
            wrapper_class: Class of the wrapper.
            indices: Sub-environments: an int, several, or `None` for all.

        Returns:
            One bool for each; True for `Monitor`, because this class adds its infos.
        """
        if wrapper_class is Monitor or not self._has_objects:
            return [wrapper_class is Monitor] * len(self._chosen(indices))
        return self._apply(in_workers.is_wrapped, indices, wrapper_class.__module__, wrapper_class.__qualname__)

    def _apply(self, function: Callable[..., Any], indices: VecEnvIndices, *args: Any) -> list[Any]:
        chosen = self._chosen(indices)
        with raising_originals():
            return self.fleet.apply(function, *args, indices=chosen) if chosen else []

    def _chosen(self, indices: VecEnvIndices) -> list[int]:
        """Return a list of indices; negative ones count from the end, as in `DummyVecEnv`.

        Raises:
            InvalidArgument: Indices are not ints, or out of range.
        """
        count = self.num_envs
        try:
            listed = list(self._get_indices(indices))
        except TypeError:
            listed = [indices]  # type: ignore[list-item]  # a NumPy integer, or invalid
        return [check_whole("indices", index, -count, count - 1) % count for index in listed]

    @property
    def envs(self) -> list[gym.Env[Any, Any]]:
        """The sub-environments, as in `DummyVecEnv`; only with the backend `"serial"`."""
        if self.fleet.engine.traits.is_bound_to_process or not self._has_objects:
            raise AttributeError(
                f"envs of a FleetVecEnv with backend {self.fleet.plan.backend!r}, whose sub-environments are "
                'not objects of this process: call env_method(), get_attr() or set_attr(), or pass backend="serial"'
            )
        return self._apply(_itself, None)

    # ------------------------------------------------------------------ frames, the end

    def get_images(self) -> Sequence[np.ndarray[Any, Any] | None]:
        """Render every sub-environment; one RGB frame for each, `None` without `render_mode="rgb_array"`."""
        if self.render_mode != "rgb_array":
            warnings.warn(
                f"The render mode is {self.render_mode}, but this method assumes it is `rgb_array` to obtain images.",
                stacklevel=2,
            )
            return [None] * self.num_envs
        return self.env_method("render")

    def close(self) -> None:
        """Close the sub-environments and end the workers; idempotent."""
        self._is_stepping = False
        with raising_originals():
            self.fleet.close()

    def __repr__(self) -> str:
        return f"FleetVecEnv({self.fleet!r})"


def _itself(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    return env


def _fleet_of(env: Fleet | EnvSource, num_envs: int | None, make_kwargs: dict[str, Any]) -> Fleet:
    if isinstance(env, Fleet):
        if num_envs is not None or make_kwargs:
            raise InvalidArgument(f"num_envs={num_envs} and {make_kwargs} with an existing fleet: omit both")
        fleet = env
        _check_mode(fleet.autoreset_mode)
    else:
        _check_mode(read_autoreset_mode(make_kwargs.pop("autoreset_mode", _MODE)))
        with raising_originals():
            fleet = make(env, num_envs, autoreset_mode=_MODE, **make_kwargs)
    if fleet.device != "cpu":
        raise InvalidArgument(f"the fleet's arrays are on {fleet.device!r}, expected 'cpu': make it without device")
    fleet.engine.traits.refuse_vector_rewards("Stable-Baselines3")
    return fleet


def _check_mode(mode: AutoresetMode) -> None:
    if mode is not _MODE:
        raise InvalidArgument(
            f"autoreset_mode={mode.name}, expected SAME_STEP, as Stable-Baselines3 requires: make the "
            'fleet with envfleet.make(..., autoreset_mode="SAME_STEP"), or write FleetVecEnv(env, num_envs); '
            'envfleet.adopt takes autoreset_mode="SAME_STEP", too'
        )


def _batched(actions: Any, space: spaces.Space[Any], num_envs: int) -> Any:
    """Return actions, one for each sub-environment, in the form that fleets take."""
    if isinstance(space, spaces.Box):
        return actions
    if not isinstance(space, _NUMBERS):
        return concatenate(space, list(actions), create_empty_array(space, num_envs))
    array = np.asarray(actions)
    if array.dtype.kind != "f":
        return array
    with np.errstate(invalid="ignore"):  # NaN
        whole = array.astype(space.dtype)  # a trainer's Bernoulli distribution gives floats for a `MultiBinary` space
    return whole if np.array_equal(whole, array) else array  # the fleet refuses fractions with an error
