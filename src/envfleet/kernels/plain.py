"""Kernels run as plain Python: for debuggers, prints, test runs and comparisons."""

from __future__ import annotations

import copy
import traceback
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from envfleet.errors import KernelError
from envfleet.kernels.kernel import ArraySpec, KernelSpec, mask_for_sample
from envfleet.native import explaining
from envfleet.native.explaining import READ_ONLY, describe_line
from envfleet.native.fields import OF_ARRAY, Fields, describe_loss

_REHEARSED_STEPS = 3
_PHYSICS = Path(__file__).parents[1] / "physics" / "plain.py"
_OF_OTHERS = tuple(
    str(Path(file).parent) for file in (__file__, _PHYSICS, explaining.__file__, np.__file__, gymnasium.__file__)
)
EXPECTED_RESULTS = (
    "expected two values on every path, `return reward, terminated`, or three on every path, `return reward, "
    "terminated, truncated`"
)
_FLAG = (bool, int, np.bool_, np.integer)
_NUMBER = (*_FLAG, float, np.floating)
_ADVICE = (  # class of the error, part of its text, advice
    (
        ZeroDivisionError,
        "",
        "compiled code would continue with inf or nan, or for ints with 0: check the divisor first",
    ),
    (OverflowError, "", "the number does not fit: keep it in the range of the field's type"),
    (IndexError, "", "an observation has shape {spec.observation.shape}, an action {spec.action.shape}"),
    (ValueError, "read-only", f"it {READ_ONLY}"),
)


class PlainArray(np.ndarray[Any, Any]):
    """Array with elements that calculate as in compiled code.

    Compiled code widens narrow numbers before it calculates, and Python's numbers are as wide, but NumPy's stay narrow:
    `np.uint8(200) + 100` is 44. Sums and other results without dimensions are numbers.
    """

    def __array_wrap__(self, array: NDArray[Any], *_how: Any) -> Any:
        view = array.view(type(self))
        return view if view.ndim else view[()]

    def __getitem__(self, index: Any) -> Any:
        value = super().__getitem__(index)
        is_narrow = isinstance(value, (np.bool_, np.number)) and value.itemsize < 8
        return value.item() if is_narrow else value


class PlainRecord:
    """Record of named fields that behaves as in compiled code: fields are typed, and others do not exist.

    Args:
        fields: Fields of the record.
        values: Initial values, `(1,)` of the fields' dtype; the record owns a copy.
        is_constant: If True, assignments are rejected, as for parameters.
    """

    _fields: Fields
    _values: NDArray[Any]

    def __init__(self, fields: Fields, values: NDArray[Any] | None = None, *, is_constant: bool = False) -> None:
        copy = fields.default_record() if values is None else values.copy()
        copy.flags.writeable = not is_constant
        vars(self).update(_fields=fields, _values=copy)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._fields.check_name(name)
        value = self._values[name][0]
        if isinstance(value, np.ndarray):
            return value.view(PlainArray)
        return value if isinstance(value, np.uint64) else value.item()

    def __setattr__(self, name: str, value: Any) -> None:
        self._fields.check_name(name)
        if not self._values.flags.writeable:
            raise KernelError(f"it assigns to {name!r}, which {READ_ONLY}")
        if self._fields.dtype[name].shape:
            raise KernelError(f"it {OF_ARRAY.format(name=name)}")
        try:
            self._values[name][0] = value
        except (TypeError, ValueError) as error:
            raise KernelError(
                f"it assigns {value!r}, a {type(value).__name__}, to {name!r}, which holds one "
                f"{self._fields.dtype[name]}: assign a number, such as one element, or declare the field as an array"
            ) from error
        number = f"{value!r}, of type {type(value).__name__},"
        loss = describe_loss(name, self._fields.dtype[name], np.asarray(value).dtype.kind, number)
        if loss:
            raise KernelError(f"it {loss}")

    def __repr__(self) -> str:
        inner = ", ".join(f"{name}={getattr(self, name)}" for name in self._fields.names)
        return f"{self._fields.owner}({inner})"


class PlainEnv:
    """One sub-environment of a kernel, run uncompiled.

    Args:
        spec: The kernel.
        params: Values `(1,)` of its parameters.

    Attributes:
        num_results: Number of values that `step` returned, 3 with `truncated`; `None` before the first step.
    """

    def __init__(self, spec: KernelSpec, params: NDArray[Any] | None = None) -> None:
        self.spec = spec
        self.state = PlainRecord(spec.state)
        self.params = PlainRecord(spec.params, params, is_constant=True)
        self.rng = np.random.Generator(np.random.PCG64())
        self.num_results: int | None = None

    def _reset(self) -> Any:
        return self.spec.reset(self.state, self.rng, self.params)

    def _step(self, action: Any) -> Any:
        return self.spec.step(self.state, action, self.rng, self.params)

    def _observe(self, state: PlainRecord, out: Any) -> Any:
        return self.spec.observe(state, out)

    def reset(self, seed: int | None = None) -> Any:
        """Begin an episode and return the observation; without a seed, the generator continues."""
        if seed is not None:
            self.rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))
        result = self._reset()
        _expect_nothing(self.spec, "reset", result, "it writes the fields of `state`")
        return self.observe()

    def step(self, action: Any) -> tuple[Any, float, bool, bool]:
        """Step once.

        Args:
            action: Action of the action space; the kernel gets a read-only view of an array.

        Returns:
            Observation, reward, terminated, and truncated, which only kernels with their own time limits set.

        Raises:
            KernelError: The kernel returned something else.
        """
        action = plain_action(self.spec.action, action)
        result = self._step(action)
        if not isinstance(result, tuple) or len(result) not in (2, 3):
            raise KernelError(f"{self.spec.name}.step returned {result!r}, {EXPECTED_RESULTS}")
        if self.num_results not in (None, len(result)):
            before = f"{len(result)} values, and {self.num_results} before"
            raise KernelError(f"{self.spec.name}.step returned {before}, {EXPECTED_RESULTS}")
        self.num_results = len(result)
        for name, value in zip(("reward", "terminated", "truncated"), result, strict=False):
            kinds, expected = (_NUMBER, "one number") if name == "reward" else (_FLAG, "a bool such as `state.x > 1.0`")
            if not isinstance(value, kinds):
                raise KernelError(
                    f"{self.spec.name}.step returned {value!r}, a {type(value).__name__}, as {name}, expected "
                    f"{expected}: `return reward, terminated`, in this order"
                )
        return self.observe(), float(result[0]), bool(result[1]), bool(result[2]) if len(result) == 3 else False

    def observe(self, fill: int = 0) -> Any:
        """Return the current observation: a new array, or a dict or tuple of new arrays.

        Args:
            fill: Initial value of the elements.
        """
        out: Any = np.full(self.spec.observation.shape, fill, self.spec.observation.dtype)
        out = out[()] if self.spec.observation.parts else out  # a record, to which numbers can be assigned
        state = PlainRecord(self.spec.state, vars(self.state)["_values"], is_constant=True)
        result = self._observe(state, out)
        _expect_nothing(self.spec, "observe", result, "it writes the elements of `out`")
        return self.spec.observation.unpack(out)

    def check_observe(self) -> None:
        """Check that `observe` writes every element, which would otherwise be arbitrary.

        Raises:
            KernelError: An element is not written; names the first one.
        """
        once, again = self.observe(0), self.observe(1)
        keys = [key for key, _ in self.spec.observation.parts]
        arrays = [(f"out[{key!r}]", once[key], again[key]) for key in keys] if keys else [("out", once, again)]
        for out, zeros, ones in arrays:
            missing = np.argwhere((zeros != ones) & ((zeros == zeros) | (ones == ones)))  # noqa: PLR0124  # NaN is written
            if len(missing):
                place = out + (str(missing[0].tolist()) if zeros.ndim else "")
                raise KernelError(
                    f"{self.spec.name}.observe leaves {len(missing)} of {zeros.size} elements of `{out}` unwritten, "
                    f"the first is {place}, or it reads them: `{out}` has the shape {zeros.shape} of observation_space "
                    "and arbitrary values at first, so write every element"
                )


def plain_action(form: ArraySpec, action: Any) -> Any:
    """Return an action in the form for uncompiled functions; arrays are read-only."""
    if form.parts:
        return form.join([plain_action(part, action[key]) for key, part in form.parts])
    array = np.asarray(action, form.dtype)
    if not form.shape:
        return array.item()
    array = array.view(PlainArray)
    array.flags.writeable = False
    return array


def _expect_nothing(spec: KernelSpec, name: str, result: Any, instead: str) -> None:
    if result is not None:
        raise KernelError(f"{spec.name}.{name} returned {result!r}, expected no return value: {instead}")


def rehearse(env: PlainEnv) -> bool:
    """Run a few uncompiled steps, so that Python reports mistakes before anything is compiled.

    Returns:
        True if the kernel's steps return `truncated`.

    Raises:
        KernelError: A function raised; names it and the line.
    """
    spec = env.spec
    actions = copy.deepcopy(spec.action.space)  # the user's own may have been seeded
    actions.seed(0)
    try:
        with np.errstate(all="ignore"):
            env.reset(seed=0)
            env.check_observe()
            for _ in range(_REHEARSED_STEPS):
                mask = None
                if "action_mask" in spec.state.names:
                    mask = mask_for_sample(actions, np.array(env.state.action_mask))
                if any(env.step(actions.sample(mask=mask))[2:]):
                    break
    except Exception as error:
        raise describe(spec, error) from error
    return env.num_results == 3


def describe(spec: KernelSpec, error: Exception) -> KernelError:
    """Return the error of a kernel that ran as plain Python, with the line of the user's code.

    Args:
        spec: The kernel.
        error: Exception that it raised.
    """
    text, frames = str(error), traceback.extract_tb(error.__traceback__)
    if not isinstance(error, KernelError):
        advice = (what.format(spec=spec) for kind, part, what in _ADVICE if isinstance(error, kind) and part in text)
        text = "; ".join((f"{type(error).__name__}: {text}", *advice))
    for frame in reversed(frames):  # the innermost ones may be of this package or of libraries that kernels call
        if not frame.filename.startswith(_OF_OTHERS):
            return KernelError(f"{spec.name}, {describe_line(frame.filename, frame.lineno or 0, frame.name)}: {text}")
    return KernelError(text)
