"""`Kernel`, the base class of environments written as scalar functions, and `KernelSpec`, its checked declaration."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.errors import KernelError
from envfleet.native.fields import Fields, check_precision, read_fields


class Kernel:
    """Base class of environments written as scalar functions in plain Python, compiled to batched CPU and CUDA code.

    A subclass declares the fields of the state, the parameters, and three static functions. These see one
    sub-environment; the engine runs many, counts steps, resets and seeds them.

    - `reset(state, rng, params)` sets the fields of a new episode. Fields that are not set keep their values.
    - `step(state, action, rng, params)` returns `(reward, terminated)`, or `(reward, terminated, truncated)` if the
      kernel has its own time limit. The action is an int for `Discrete`, otherwise an array of the action space's shape
      and dtype.
    - `observe(state, out)` writes the observation into `out`, an array of the observation space's shape and dtype.
    - `render(state, params)`, optional and not compiled, returns a frame, uint8 `(height, width, 3)`.

    `rng` has the methods `random`, `uniform`, `integers`, `standard_normal`, `normal`, `choice`, `shuffle` and
    `permutation` of `numpy.random.Generator` and gives the same numbers. Functions may call functions of any module and
    use constants of modules and classes.

    Attributes:
        observation_space: Space of one sub-environment's observations: `Box`, `Discrete`, `MultiDiscrete` or
            `MultiBinary`, or a `Dict` or `Tuple` of these, with parts that `observe` accesses by key or index.
        action_space: Space of one sub-environment's actions; the same types.
        max_episode_steps: Number of steps after which episodes are truncated; `None` for no limit.
        info_fields: Fields of the state that infos of steps and resets report. A field `action_mask`, int8 `(n,)` for
            `Discrete(n)`, marks allowed actions by 1; random rollouts draw only these. For `MultiDiscrete([n, m, …])`
            it is `(n + m + …,)`, the masks of all elements in order.
        render_fps: Frames per second of recorded videos.
        has_own_params: If True, compile only the code for parameters that differ between sub-environments. By default
            the code for shared parameters, which can be faster, is compiled first, and the other one when parameters
            differ; that is too slow for a kernel that compiles for a minute.
        variant_options: Names of options that select another class, because they change its spaces; see `variant`.

    Examples:
        >>> class Walk(Kernel):
        ...     observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        ...     action_space = spaces.Discrete(2)
        ...     class State:
        ...         x: float
        ...     class Params:
        ...         goal: float = 10.0
        ...     @staticmethod
        ...     def reset(state, rng, params):
        ...         state.x = rng.uniform(-1.0, 1.0)
        ...     @staticmethod
        ...     def step(state, action, rng, params):
        ...         state.x += 2.0 * action - 1.0
        ...         return -1.0, state.x >= params.goal
        ...     @staticmethod
        ...     def observe(state, out):
        ...         out[0] = state.x
    """

    observation_space: ClassVar[gym.Space[Any]]
    action_space: ClassVar[gym.Space[Any]]
    max_episode_steps: ClassVar[int | None] = None
    info_fields: ClassVar[tuple[str, ...]] = ()
    render_fps: ClassVar[int] = 30
    has_own_params: ClassVar[bool] = False
    variant_options: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def variant(cls, **options: Any) -> type[Kernel]:
        """Return the class for some of `variant_options`, the same for the same options; it can be pickled."""
        return cls

    @classmethod
    def check_params(cls, values: Mapping[str, NDArray[Any]]) -> None:
        """Validate parameters; accepts any value of the right type by default.

        Args:
            values: All parameters by name: `(1, …)` for all sub-environments, or one row each.

        Raises:
            InvalidArgument: Raised by subclasses for an invalid value.
        """

    class State:
        """Fields of the state."""

    class Params:
        """Parameters, each with a default."""


@dataclasses.dataclass(frozen=True)
class ArraySpec:
    """Array form of one observation or action: its shape and dtype.

    For a `Dict` or `Tuple` it is one record, with a field for each of the `parts`, which have a key or an index.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    space: Any = dataclasses.field(repr=False)
    parts: tuple[tuple[Any, ArraySpec], ...] = ()

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def limits(self) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """Lower and exclusive upper bounds of each element of integer spaces; `None` if any value is valid.

        Any value is valid for floats and for a Box of all ints of its dtype. Parts have separate limits.
        """
        space = self.space
        if self.parts or self.dtype.kind == "f":
            return None
        if isinstance(space, spaces.Box):
            kind = np.iinfo(self.dtype)
            if (space.low == kind.min).all() and (space.high == kind.max).all():
                return None
            widest = np.dtype(f"{self.dtype.kind}8")
            high = np.minimum(space.high.astype(widest), np.iinfo(np.int64).max - 1).astype(np.int64) + 1
            low: Any = space.low
        else:
            low = getattr(space, "start", 0)  # which MultiBinary lacks
            choices = space.nvec if isinstance(space, spaces.MultiDiscrete) else getattr(space, "n", 0)
            high = low + (2 if isinstance(space, spaces.MultiBinary) else choices)
        first, end = (np.broadcast_to(bound, self.shape).ravel().astype(np.int64) for bound in (low, high))
        return first, end

    def join(self, values: Iterable[Any]) -> Any:
        """Join a value per part to a dict or tuple, as Gymnasium has it."""
        keys = [key for key, _ in self.parts]
        return dict(zip(keys, values, strict=True)) if isinstance(keys[0], str) else tuple(values)

    def unpack(self, packed: Any) -> Any:
        """Return records as a dict or tuple of views, as Gymnasium has it; return other arrays unchanged."""
        if not self.parts:
            return packed
        if isinstance(self.parts[0][0], str):  # a plain loop, because every step executes it
            return {key: packed[key] for key, _ in self.parts}
        return tuple(packed[name] for name in packed.dtype.names)


@dataclasses.dataclass(frozen=True)
class KernelSpec:
    """Checked declaration of a kernel at the time of reading; equal specs have the same arrays and functions.

    Attributes:
        name: Name of the class.
        kernel: The class.
        state: Fields of the state.
        params: Fields of the parameters.
        observation: Array form of one observation.
        action: Array form of one action.
        info_fields: Fields of the state that infos report.
        reset: `reset(state, rng, params)`.
        step: `step(state, action, rng, params) -> (reward, terminated)` or `(reward, terminated, truncated)`.
        observe: `observe(state, out)`.
        render: `render(state, params)`, or `None`.
    """

    name: str
    kernel: type[Kernel]
    state: Fields
    params: Fields
    observation: ArraySpec
    action: ArraySpec
    info_fields: tuple[str, ...]
    reset: Callable[..., Any]
    step: Callable[..., Any]
    observe: Callable[..., Any]
    render: Callable[..., Any] | None

    def __hash__(self) -> int:
        return hash(self.kernel)

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """Functions that are compiled."""
        return self.reset, self.step, self.observe


def find_kernel(target: type[Kernel] | str) -> type[Kernel]:
    """Return a kernel, or import one by its name `"module:Name"`.

    Raises:
        KernelError: The name does not exist, or is not a kernel.
    """
    try:
        kernel: Any = pkgutil.resolve_name(target) if isinstance(target, str) else target
    except (ImportError, AttributeError, ValueError) as error:
        raise KernelError(f"there is no kernel {target!r} ({error}): write it as 'package.module:Name'") from error
    if not (isinstance(kernel, type) and issubclass(kernel, Kernel)):
        raise KernelError(f"{kernel!r} is not a kernel: pass a subclass of envfleet.kernels.Kernel")
    return kernel


def choose_kernel(target: type[Kernel] | str, options: Mapping[str, Any]) -> tuple[type[Kernel], dict[str, Any]]:
    """Return the kernel for the arguments of a function that makes an environment.

    Args:
        target: The kernel, or its name `"module:Name"`.
        options: Options by name: those of `variant_options`, and others.

    Returns:
        The class that `variant_options` select, and the other options.

    Raises:
        KernelError: The kernel does not exist.
    """
    kernel = find_kernel(target)
    chosen = {name: value for name, value in options.items() if name in kernel.variant_options}
    others = {name: value for name, value in options.items() if name not in chosen}
    return (kernel.variant(**chosen) if chosen else kernel), others


_SIMILARITY = 0.85  # of difflib: accepts `info_field`, but not `steps`
_SIGNATURES = {
    "reset": ("state", "rng", "params"),
    "step": ("state", "action", "rng", "params"),
    "observe": ("state", "out"),
    "render": ("state", "params"),
}


def read_kernel(kernel: type[Kernel]) -> KernelSpec:
    """Read and check a kernel's declaration.

    Raises:
        KernelError: Something is missing or has a wrong type; the message says what to write.
    """
    name = find_kernel(kernel).__name__
    for attribute in {each for each in dir(kernel) if not each.startswith("_")} - {*Kernel.__annotations__}:
        for meant in difflib.get_close_matches(attribute, Kernel.__annotations__, 1, _SIMILARITY):
            raise KernelError(f"{name}.{attribute} is unknown to envfleet: did you mean {meant}? Otherwise rename it")
    functions = {key: _read_function(kernel, key, is_needed=key != "render") for key in _SIGNATURES}
    state = read_fields(kernel.State, f"{name}.State", need_defaults=False)
    if not state.names:
        raise KernelError(f"{name} has no state: write `class State:` with a line such as `x: float` for each field")
    params = read_fields(kernel.Params, f"{name}.Params", need_defaults=True)
    info_fields: Any = kernel.info_fields
    if isinstance(info_fields, str):
        raise KernelError(f"{name}.info_fields is a str, expected a tuple: write `({info_fields!r},)`")
    for field in info_fields:
        state.check_name(field)
    if "action_mask" in state.names:
        _check_mask(kernel, state)
    limit: Any = kernel.max_episode_steps
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise KernelError(f"{name}.max_episode_steps is {limit!r}, expected a whole number of at least 1, or None")
    observation, action = (_read_space(kernel, f"{kind}_space") for kind in ("observation", "action"))
    return KernelSpec(name, kernel, state, params, observation, action, tuple(info_fields), **functions)


def _check_mask(kernel: type[Kernel], state: Fields) -> None:
    space, mask = kernel.action_space, state.dtype["action_mask"]
    if "action_mask" not in kernel.info_fields:
        raise KernelError(
            f'{state.owner}.action_mask is not in info_fields: write `info_fields = ("action_mask",)`, or rename the '
            "field"
        )
    if not isinstance(space, spaces.Discrete | spaces.MultiDiscrete) or len(space.shape or ()) > 1:
        raise KernelError(
            f"{state.owner}.action_mask is a mask of {space}, expected Discrete, or MultiDiscrete of one dimension: "
            "rename the field"
        )
    size = sum(num_choices(space))
    if mask != np.dtype((np.int8, (size,))):
        raise KernelError(
            f"{state.owner}.action_mask is {mask}, expected an int8 for each choice of {space}, in order: write "
            f"`action_mask: NDArray[np.int8] = array({size}, np.int8)`"
        )


def num_choices(space: spaces.Discrete[Any] | spaces.MultiDiscrete) -> list[int]:
    """Return the number of choices of each element of an action."""
    return [int(space.n)] if isinstance(space, spaces.Discrete) else space.nvec.tolist()


def mask_for_sample(space: spaces.Space[Any], mask: NDArray[np.int8]) -> Any:
    """Return a row's `action_mask` in the form of `space.sample(mask)`: for `MultiDiscrete` a tuple of arrays."""
    if not isinstance(space, spaces.MultiDiscrete):
        return mask
    return tuple(np.split(mask, np.cumsum(space.nvec)[:-1]))


def _read_function(kernel: type[Kernel], name: str, *, is_needed: bool) -> Any:
    arguments = _SIGNATURES[name]
    advice = f"write `@staticmethod` and `def {name}({', '.join(arguments)}):`"
    function = inspect.getattr_static(kernel, name, None)
    if function is None:
        if is_needed:
            raise KernelError(f"{kernel.__name__} has no function {name!r}: {advice}")
        return None
    if isinstance(function, staticmethod):
        function = function.__func__
    if not inspect.isfunction(function):
        raise KernelError(f"{kernel.__name__}.{name} is a {type(function).__name__}, expected a function: {advice}")
    parameters = inspect.signature(function).parameters
    is_plain = all(each.kind is each.POSITIONAL_OR_KEYWORD for each in parameters.values())
    if len(parameters) != len(arguments) or not is_plain:
        raise KernelError(f"{kernel.__name__}.{name} takes ({', '.join(parameters)}): {advice}")
    return function


def _read_space(kernel: type[Kernel], name: str) -> ArraySpec:
    space = getattr(kernel, name, None)
    if space is None:
        raise KernelError(f"{kernel.__name__} has no {name}: write `{name} = spaces.Box(...)` in its body")
    return read_space(space, f"{kernel.__name__}.{name}")


def read_space(space: gym.Space[Any], where: str) -> ArraySpec:
    """Return the array form of a space.

    Args:
        space: Space of one observation or action.
        where: Name of the space, with which errors begin.

    Raises:
        KernelError: Compiled code cannot read or write its elements.
    """
    if not isinstance(space, (spaces.Dict, spaces.Tuple)) or len(space) == 0:
        return _read_array(space, where)
    items = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    parts = tuple((key, _read_array(part, f"{where}[{key!r}]")) for key, part in items)
    if bools := [key for key, part in parts if part.dtype == np.bool_ and part.shape]:
        raise KernelError(f"{where}[{bools[0]!r}] is an array of bool, which parts do not support: use np.int8")
    fields = [(key if isinstance(key, str) else f"part_{key}", part.dtype, part.shape) for key, part in parts]
    return ArraySpec((), np.dtype(fields, align=True), space, parts)


def _read_array(space: Any, where: str) -> ArraySpec:
    if not isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        raise KernelError(
            f"{where} is a {type(space).__name__}, expected Box, Discrete, MultiDiscrete or MultiBinary, or a Dict or "
            "Tuple of these, one level deep: a kernel reads and writes arrays of fixed shape"
        )
    check_precision(np.dtype(space.dtype), where)
    return ArraySpec(tuple(space.shape or ()), np.dtype(space.dtype), space)
