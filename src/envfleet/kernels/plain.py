"""A kernel run as the plain Python it is: for debuggers, prints, rehearsals and comparisons."""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import KernelError
from envfleet.kernels.fields import Fields
from envfleet.kernels.kernel import KernelSpec

_REHEARSED_STEPS = 3


class PlainRecord:
    """One record of named fields that behaves as in compiled code: fields are typed and no others exist.

    Args:
        fields: Which.
        values: Initial values, `(1,)` of the fields' dtype; the record owns a copy.
    """

    __slots__ = ("_fields", "_values")
    _fields: Fields
    _values: NDArray[Any]

    def __init__(self, fields: Fields, values: NDArray[Any] | None = None) -> None:
        object.__setattr__(self, "_fields", fields)
        object.__setattr__(self, "_values", fields.default_record() if values is None else values.copy())

    def __getattr__(self, name: str) -> Any:
        self._fields.check_name(name)
        value = self._values[name][0]
        # Python's own numbers, where numba's arithmetic is theirs, too; narrower ones keep their width.
        return value.item() if isinstance(value, (np.float64, np.int64, np.bool_)) else value

    def __setattr__(self, name: str, value: Any) -> None:
        self._fields.check_name(name)
        self._values[name][0] = value

    def __repr__(self) -> str:
        inner = ", ".join(f"{name}={getattr(self, name)}" for name in self._fields.names)
        return f"{self._fields.owner}({inner})"


class PlainEnv:
    """One sub-environment of a kernel, run uncompiled.

    Args:
        spec: The kernel.
        params: Values `(1,)` of its parameters.
    """

    def __init__(self, spec: KernelSpec, params: NDArray[Any] | None = None) -> None:
        self.spec = spec
        self.state = PlainRecord(spec.state)
        self.params = PlainRecord(spec.params, params)
        self.rng = np.random.Generator(np.random.PCG64())

    def reset(self, seed: int | None = None) -> NDArray[Any]:
        """Begin an episode, seeded as Gymnasium seeds, or going on with the same generator; returns the observation."""
        if seed is not None:
            self.rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))
        self.spec.reset(self.state, self.rng, self.params)
        return self.observe()

    def step(self, action: Any) -> tuple[NDArray[Any], float, bool]:
        """Step once; returns observation, reward, terminated."""
        result: Any = self.spec.step(self.state, action, self.rng, self.params)
        if not isinstance(result, tuple) or len(result) != 2:
            raise KernelError(
                f"{self.spec.name}.step returned {result!r}, expected two values: `return reward, terminated`"
            )
        return self.observe(), float(result[0]), bool(result[1])

    def observe(self) -> NDArray[Any]:
        """The current observation, a new array."""
        out = np.zeros(self.spec.observation.shape, self.spec.observation.dtype)
        self.spec.observe(self.state, out)
        return out


def rehearse(spec: KernelSpec) -> None:
    """Run a few uncompiled steps, so that mistakes show in the words of Python before anything is compiled.

    Raises:
        KernelError: A function raised; names it and the line.
    """
    env = PlainEnv(spec)
    actions = np.random.Generator(np.random.PCG64(0))
    stage = "reset"
    try:
        env.reset(seed=0)
        stage = "step"
        for _ in range(_REHEARSED_STEPS):
            if env.step(_sample(spec, actions))[2]:
                break
    except Exception as error:
        raise KernelError(f"{_describe_place(spec, error, stage)}: {_describe_error(spec, error)}") from error


def _sample(spec: KernelSpec, rng: np.random.Generator) -> Any:
    spec.action_space.seed(int(rng.integers(2**31)))
    action = spec.action_space.sample()
    return action if spec.action.shape else spec.action.dtype.type(action).item()


def _describe_place(spec: KernelSpec, error: Exception, stage: str) -> str:
    """Name the innermost line of the error that is not this package's machinery."""
    here = str(Path(__file__).parent)
    place, trace = f"{spec.name}.{stage}", error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not code.co_filename.startswith(here):
            line = linecache.getline(code.co_filename, trace.tb_lineno).strip()
            place = f"{spec.name}, in {code.co_name} at {code.co_filename}:{trace.tb_lineno}"
            place += f" (`{line}`)" if line else ""
        trace = trace.tb_next
    return place


def _describe_error(spec: KernelSpec, error: Exception) -> str:
    if isinstance(error, KernelError):
        return str(error)
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, IndexError):
        text += f"; an observation has shape {spec.observation.shape}, an action {spec.action.shape}"
    return text
