"""`Task`, the class a user writes: a MuJoCo environment as scalar functions, and its checked description."""

from __future__ import annotations

import dataclasses
import importlib.resources
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument, KernelError
from envfleet.fleet.checks import check_whole
from envfleet.kernels.kernel import KernelSpec, read_space
from envfleet.native.fields import read_fields
from envfleet.native.references import reachable
from envfleet.physics.simulations import Field, find_fields, loading


class Task:
    """A MuJoCo environment as scalar functions in plain Python, compiled once for all sub-environments.

    Subclass it and write static functions. They see one simulation; the engine runs many in MuJoCo's thread pool,
    counts steps, resets and seeds them. Each function names the arguments that it uses, in the order given here:

    - `reset(data, model, state, rng, params)` starts an episode: it writes `data.qpos` and `data.qvel`, which hold the
      model's defaults. Then MuJoCo computes everything that follows from them (`mj_forward`).
    - `after_reset(data, model, state, rng, params)` is optional: it may store in `state` what follows from the start.
    - `before_step(data, model, state, action, rng, params)` is optional: it writes `data.ctrl`, or applies forces. By
      default `data.ctrl` is the action.
    - `after_step(data, model, state, action, rng, params)` returns `(reward, terminated)`, or `(reward, terminated,
      truncated)`, after `frame_skip` steps of MuJoCo.
    - `observe(data, model, state, params, out)` writes the observation into `out`.

    `data.qpos`, `qvel`, `ctrl`, `xpos`, `cfrc_ext`, `sensordata`, … are the arrays of this simulation, `data.time` is
    its time, and `model` has the arrays of MuJoCo's model. `rng` is used as in `envfleet.kernels.Kernel`, and draws the
    same numbers as Gymnasium's `np_random` with the same seed. Numbers that depend on the model, such as the id of a
    body, are parameters that `read_params` computes once.

    Attributes:
        model: Path of an XML file, `"package:path"` of a resource of a package, or XML text.
        frame_skip: Steps of MuJoCo in one step of the environment.
        max_episode_steps: Episodes are truncated after so many steps; `None` for never.
        observation_space: A `Box`; override `make_observation_space` if it depends on the model or on parameters.
        action_space: Action space, by default a `Box` of the actuators' control ranges.
        info_fields: Fields of the state that the infos of every step have.
        reset_info_fields: Those of `info_fields` that the infos of a reset have.
        fixed_params: Parameters that are set when a fleet is made, one value for all, as they change spaces.

    Examples:
        >>> class Pendulum(Task):
        ...     model = '''<mujoco><worldbody><body><joint name="hinge" axis="0 1 0"/><geom size="0.1" pos="0 0 -1"/>
        ...                </body></worldbody><actuator><motor joint="hinge" ctrlrange="-1 1"/></actuator></mujoco>'''
        ...     observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        ...     @staticmethod
        ...     def reset(data, rng):
        ...         data.qpos[0] = rng.uniform(-0.1, 0.1)
        ...     @staticmethod
        ...     def after_step(data):
        ...         return -np.abs(data.qvel[0]), False
        ...     @staticmethod
        ...     def observe(data, out):
        ...         out[0] = data.qpos[0]
        ...         out[1] = data.qvel[0]
    """

    model: ClassVar[str]
    frame_skip: ClassVar[int] = 1
    max_episode_steps: ClassVar[int | None] = None
    observation_space: ClassVar[gym.Space[Any]]
    action_space: ClassVar[gym.Space[Any] | None] = None
    info_fields: ClassVar[tuple[str, ...]] = ()
    reset_info_fields: ClassVar[tuple[str, ...]] = ()
    fixed_params: ClassVar[tuple[str, ...]] = ()
    has_own_params: ClassVar[bool] = True
    render_fps: ClassVar[int] = 30

    class State:
        """State of an episode in addition to MuJoCo's; may be empty."""

    class Params:
        """Parameters, each with its default."""

        dt: float = 0.0  # seconds of one step, which follow from the model and `frame_skip`

    @classmethod
    def read_params(cls, model: Any, params: dict[str, Any]) -> dict[str, Any]:
        """Return all parameters of a fleet, including those that depend on the model.

        Args:
            model: The `mujoco.MjModel`.
            params: Parameters that the user passed.
        """
        return params

    @classmethod
    def make_observation_space(cls, model: Any, params: Mapping[str, Any]) -> gym.Space[Any]:
        """Return the space of one observation.

        Args:
            model: The `mujoco.MjModel`.
            params: All parameters.
        """
        return cls.observation_space

    @classmethod
    def check_params(cls, values: Mapping[str, NDArray[Any]]) -> None:
        """Validate parameters; accepts any value of the right type by default.

        Args:
            values: All parameters by name: `(1, …)` for all sub-environments, or one row each.
        """


@dataclasses.dataclass(frozen=True)
class TaskSpec(KernelSpec):
    """Description of a task for one model.

    Attributes:
        after_reset: `after_reset(…)`, or `None`.
        before_step: `before_step(…)`, or `None`.
        reset_info_fields: Fields of the state that the infos of a reset have.
        data_fields: Fields of `mjData` that the functions use.
        model_fields: Fields of `mjModel` that the functions use.
        num_controls: Number of actuators.
        model: The `mujoco.MjModel`.
        frame_skip: Steps of MuJoCo in one step.
    """

    after_reset: Callable[..., Any] | None
    before_step: Callable[..., Any] | None
    reset_info_fields: tuple[str, ...]
    data_fields: tuple[Field, ...]
    model_fields: tuple[Field, ...]
    num_controls: int
    model: Any = dataclasses.field(compare=False, repr=False)
    frame_skip: int = dataclasses.field(compare=False)

    def __hash__(self) -> int:
        return hash(self.kernel)

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """Functions that are compiled."""
        return tuple(one for one in (*super().functions, self.after_reset, self.before_step) if one is not None)


ARGUMENTS = {
    "reset": ("data", "model", "state", "rng", "params"),
    "after_reset": ("data", "model", "state", "rng", "params"),
    "before_step": ("data", "model", "state", "action", "rng", "params"),
    "after_step": ("data", "model", "state", "action", "rng", "params"),
    "observe": ("data", "model", "state", "params", "out"),
}
"""Arguments that each function of a task may name, in this order."""

_OPTIONAL = ("after_reset", "before_step")


def is_task(source: Any) -> bool:
    """Return whether an environment is given as a task."""
    return isinstance(source, type) and issubclass(source, Task)


def find_task(target: type[Task] | str) -> type[Task]:
    """Return the task that `"module:Name"` names; a task is returned as it is.

    Raises:
        KernelError: The task does not exist.
    """
    try:
        value: Any = pkgutil.resolve_name(target) if isinstance(target, str) else target
    except (ImportError, AttributeError, ValueError) as error:
        raise KernelError(f"task {target!r} does not exist ({error}): write it as 'package.module:Name'") from error
    if not is_task(value):
        raise KernelError(f"{value!r} is not a task: pass a subclass of envfleet.physics.Task")
    task: type[Task] = value
    return task


def load_model(source: str) -> Any:
    """Load an `mujoco.MjModel` from a path, `"package:path"`, or XML text.

    Raises:
        InvalidArgument: The file does not exist, or MuJoCo cannot read it.
    """
    try:
        with loading() as mujoco:
            if source.lstrip().startswith("<"):
                return mujoco.MjModel.from_xml_string(source)
            package, _, inner = source.partition(":")
            if inner and not Path(source).exists():
                with importlib.resources.as_file(importlib.resources.files(package) / inner) as path:
                    return mujoco.MjModel.from_xml_path(str(path))
            return mujoco.MjModel.from_xml_path(str(Path(source).expanduser()))
    except (ValueError, OSError, ModuleNotFoundError) as error:
        raise InvalidArgument(
            f"model={source[:80]!r} cannot be loaded ({error}): pass the path of an XML file, 'package:path' of one in "
            "a package, or XML text"
        ) from error


def read_frame_skip(task: type[Task], frame_skip: Any) -> int:
    """Return the steps of MuJoCo in one step, by default those of the task.

    Raises:
        InvalidArgument: It is not a whole number of at least 1.
    """
    return task.frame_skip if frame_skip is None else check_whole("frame_skip", frame_skip, 1)


def read_task(
    task: type[Task], model: Any, frame_skip: int, params: Mapping[str, Any]
) -> tuple[TaskSpec, dict[str, Any]]:
    """Check the declaration of a task.

    Args:
        task: The task.
        model: The `mujoco.MjModel`.
        frame_skip: Steps of MuJoCo in one step.
        params: Parameters that the user passed.

    Returns:
        The description, and the parameters to make a fleet with.

    Raises:
        KernelError: Something is missing or has the wrong type; the message says what to write.
    """
    name = task.__name__
    functions = {key: _read_function(task, key) for key in ARGUMENTS}
    state = read_fields(task.State, f"{name}.State", need_defaults=False)
    declared = read_fields(task.Params, f"{name}.Params", need_defaults=True)
    for field in task.info_fields:
        state.check_name(field)
    values = {**task.read_params(model, dict(params)), "dt": model.opt.timestep * frame_skip}
    values = {key: value for key, value in values.items() if key != "dt" or key in declared.names}
    fits = {
        key: key in declared.names and np.shape(value) == declared.dtype[key].shape for key, value in values.items()
    }
    defaults = {key: value for key, value in values.items() if fits[key]}
    action_space = task.action_space
    if action_space is None:
        low, high = model.actuator_ctrlrange.astype(np.float32).T
        action_space = spaces.Box(low, high, dtype=np.float32)
    observation_space = task.make_observation_space(model, {**declared.defaults, **values})
    used = set[str]().union(
        *(_names_in(function) for function in functions.values() if function is not None), ("ctrl",)
    )
    spec = TaskSpec(
        name=name,
        kernel=task,  # type: ignore[arg-type]  # has what is read of a kernel
        state=state,
        params=dataclasses.replace(declared, defaults={**declared.defaults, **defaults}),
        observation=read_space(observation_space, f"{name}.observation_space"),
        action=read_space(action_space, f"{name}.action_space"),
        info_fields=tuple(task.info_fields),
        reset=functions["reset"],
        step=functions["after_step"],
        observe=functions["observe"],
        render=None,
        after_reset=functions["after_reset"],
        before_step=functions["before_step"],
        reset_info_fields=tuple(task.reset_info_fields),
        data_fields=find_fields(model, used, of_model=False),
        model_fields=find_fields(model, used, of_model=True),
        num_controls=int(model.nu),
        model=model,
        frame_skip=frame_skip,
    )
    if functions["before_step"] is None and spec.action.shape != (model.nu,):
        raise KernelError(
            f"{name}.action_space is {action_space}, but the model has {model.nu} controls: write a function "
            "`before_step(data, action)` that sets data.ctrl"
        )
    return spec, values


def _names_in(function: Callable[..., Any]) -> Iterable[str]:
    """Return the names of attributes, among others, in a function and all that it calls."""
    return {name for called in reachable(function) for name in called.__code__.co_names}


def _read_function(task: type[Task], name: str) -> Any:
    accepted = ARGUMENTS[name]
    how = f"write `@staticmethod` and `def {name}({', '.join(accepted)}):`, without the arguments it does not use"
    function = inspect.getattr_static(task, name, None)
    if function is None:
        if name in _OPTIONAL:
            return None
        raise KernelError(f"{task.__name__} has no function {name!r}: {how}")
    if isinstance(function, staticmethod):
        function = function.__func__
    if not inspect.isfunction(function):
        raise KernelError(f"{task.__name__}.{name} is a {type(function).__name__}, expected a function: {how}")
    names = tuple(inspect.signature(function).parameters)
    if names != tuple(argument for argument in accepted if argument in names):
        raise KernelError(f"{task.__name__}.{name} takes ({', '.join(names)}): {how}")
    return function


def arguments_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of a function's arguments."""
    return tuple(inspect.signature(function).parameters)
