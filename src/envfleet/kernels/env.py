"""Kernel as an ordinary Gymnasium environment, for all backends, wrappers and libraries."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils.seeding import np_random
from gymnasium.vector import AutoresetMode

from envfleet.fleet.checks import check_choice, check_whole
from envfleet.kernels.batch import CpuBatch
from envfleet.kernels.batch_base import BatchState
from envfleet.kernels.host_actions import batch_of_one
from envfleet.kernels.kernel import Kernel, choose_kernel, mask_for_sample, read_kernel
from envfleet.kernels.requests import LARGEST_SEED, read_params
from envfleet.native.rng import from_generator, read_into, to_generator
from envfleet.options import Options

_ROW = np.zeros(1, np.int64)


@dataclasses.dataclass(frozen=True)
class EnvState(BatchState):
    """Saved state of a `KernelEnv`.

    Attributes:
        flags: Flags `terminated` and `truncated` of the last step.
    """

    flags: tuple[bool, bool]


class KernelEnv(gym.Env[Any, Any]):
    """Compiled kernel as a `gymnasium.Env`.

    `gymnasium.make` adds the registered time limit by a wrapper, as for every environment. An episode that the kernel
    ended is frozen until the next reset: further steps return reward 0, the last observation and the same flags, and do
    not call the kernel, because its state at an end may not allow another step.

    Args:
        kernel: The kernel, or its name `"module:Name"`.
        render_mode: `"rgb_array"` or `None`.
        debug: If True, the kernel's functions check their indices and raise `KernelIndexError`.
        **params: Parameters of the kernel by name.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012  # as Gymnasium's

    def __init__(
        self, kernel: type[Kernel] | str, render_mode: str | None = None, *, debug: bool = False, **params: Any
    ) -> None:
        chosen, params = choose_kernel(kernel, params)
        self._kernel = spec = read_kernel(chosen)
        self._fields = frozenset({*spec.params.names, *spec.state.names})
        check_choice("render_mode", render_mode, (None, "rgb_array"))
        self.render_mode = render_mode
        self.metadata = {**type(self).metadata, "render_fps": spec.kernel.render_fps}
        # Copies: seeding the space of one environment must not affect another's.
        self.observation_space, self.action_space = copy.deepcopy((spec.observation.space, spec.action.space))
        self._debug = debug
        options = Options(autoreset_mode=AutoresetMode.DISABLED, workers=1, debug=debug)
        self._batch = CpuBatch(spec, 1, options, params)
        self._awaiting, self._record = self._batch.kept("awaiting"), self._batch.kept("lives")["rng"]
        self._flags = False, False
        self._generator: np.random.Generator | None = None  # made when it is first used

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: Seed of the generator; by default it continues.
            options: Dict with `"params"`: parameters by name, which stay until changed.
        """
        params = read_params(options)
        if params:
            self._batch.set_params(params)
        if seed is None and self._np_random_seed is None:
            seed = np_random()[1] % 2**63
        if seed is not None:
            self._np_random_seed = check_whole("seed", seed, 0, LARGEST_SEED, most_name="2**64 - 1")
        self._write_generator()
        arrays = self._batch.reset(_ROW, np.array([seed or 0], np.uint64), np.array([seed is not None]))
        self._read_generator()
        self._flags = False, False
        return self._kernel.observation.unpack(arrays[0][0]), self._infos(arrays)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step once; `truncated` is set only by the kernel's `step`, since a wrapper counts the steps."""
        if self._np_random_seed is None:
            raise gym.error.ResetNeeded("step() before the first reset: call reset() first")
        if self._awaiting[0]:
            arrays, reward = self._batch.observe(), 0.0
        else:
            self._write_generator()
            arrays, _ = self._batch.step(batch_of_one(self._kernel, action), now=0)
            self._read_generator()
            reward, self._flags = float(arrays[1][0]), (bool(arrays[2][0]), bool(arrays[3][0]))
        return self._kernel.observation.unpack(arrays[0][0]), reward, *self._flags, self._infos(arrays)

    def _write_generator(self) -> None:
        """Copy the state of `np_random` to compiled code, since callers may have drawn from it."""
        if self._generator is not None:
            self._record[0] = from_generator(self._generator)

    def _read_generator(self) -> None:
        """Copy the state of compiled code to `np_random`."""
        if self._generator is not None:
            read_into(self._generator, self._record[0])

    def _infos(self, arrays: Sequence[Any]) -> dict[str, Any]:
        columns = zip(self._kernel.info_fields, arrays[4:], strict=True)
        # Gymnasium's vector environments expect Python's bools, and NumPy's numbers and arrays.
        infos: dict[str, Any] = {
            name: bool(col[0]) if col.ndim == 1 and col.dtype == np.bool_ else col[0] for name, col in columns
        }
        if "action_mask" in infos:
            infos["action_mask"] = mask_for_sample(self.action_space, infos["action_mask"])
        return infos

    def render(self) -> Any:
        """Return the current frame, uint8 `(height, width, 3)`, if `render_mode` is `"rgb_array"`."""
        return None if self.render_mode is None else self._batch.render(0)

    def close(self) -> None:
        """Release the memory."""
        self._batch.close()

    # ------------------------------------------------------------------ generator, state and attributes

    @property
    def np_random(self) -> np.random.Generator:
        """Generator of the kernel's draws; draws of others, such as a wrapper, come from the same sequence."""
        if self._np_random_seed is None:
            self.np_random, self._np_random_seed = np_random()
        if self._generator is None:
            self._generator = to_generator(self._record[0])
        return self._generator

    @np_random.setter
    def np_random(self, value: np.random.Generator) -> None:
        self._record[0] = from_generator(value)
        self._generator, self._np_random_seed = value, -1

    @property
    def _np_random(self) -> np.random.Generator | None:  # type: ignore[override]  # an attribute that Gymnasium checks
        return None if self._np_random_seed is None else self._generator or to_generator(self._record[0])

    def get_state(self) -> EnvState:
        """Save the episode, the generator and the parameters; the result can be pickled."""
        self._write_generator()
        state = self._batch.save()
        return EnvState(state.arrays, state.params, self._flags)

    def set_state(self, state: EnvState) -> None:
        """Restore a state that `get_state` returned."""
        self._batch.load(state)
        self._read_generator()
        self._flags = state.flags
        self._np_random_seed = -1 if self._np_random_seed is None else self._np_random_seed

    def __reduce__(self) -> tuple[Any, ...]:
        make = functools.partial(type(self), self._kernel.kernel, self.render_mode, debug=self._debug)
        return _revive, (make, self.get_state(), self._np_random_seed, self.spec)

    def has_wrapper_attr(self, name: str) -> bool:
        """Return whether a parameter, field of the state, or attribute exists."""
        return name in self._fields or super().has_wrapper_attr(name)

    def get_wrapper_attr(self, name: str) -> Any:
        """Return a parameter, a field of the state, or an attribute."""
        if name in self._kernel.params.names:
            return self._batch.params[name][0]
        return self._batch.field(name)[0] if name in self._fields else super().get_wrapper_attr(name)

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        """Set a parameter, a field of the state, or an attribute."""
        if name in self._kernel.params.names:
            self._batch.set_params({name: value})
        elif name in self._fields:
            self._batch.field(name)[0] = value
        else:
            return super().set_wrapper_attr(name, value, force=force)
        return True


def _revive(make: Callable[[], KernelEnv], state: EnvState, seed: int | None, spec: Any) -> KernelEnv:
    env = make()
    env.spec = spec
    env.set_state(state)
    env._np_random_seed = seed  # noqa: SLF001  # private in Gymnasium, without a setter
    return env
