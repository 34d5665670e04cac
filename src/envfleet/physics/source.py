"""Templates of the code for one simulation, which numba compiles.

MuJoCo's threads call `step` and `begin` for one simulation at a time, while its `mjData` is in the processor's cache:
actions, physics, reward, end, reset and observation are one call, and no field is copied.

Each function takes the addresses of the `mjModel` and the `mjData`, the index of the sub-environment, and an address in
the table. The table is that of a kernel, followed by the entries `EXTRAS`.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from envfleet.kernels.buffers import Buffer, BufferPlan
from envfleet.kernels.cpu_target import CHECK, FIRST_ADDRESS, HEADER, LIMIT, MODE, NOW, NUM_ROWS
from envfleet.kernels.plain import rehearse
from envfleet.kernels.program import cache_key, fingerprint_of, loop_names
from envfleet.kernels.source import SAME_STEP, Source
from envfleet.native.generated_code import compile_source, fill
from envfleet.physics.plain import PlainTask
from envfleet.physics.simulations import Field, warnings_word
from envfleet.physics.task import TaskSpec, arguments_of

if TYPE_CHECKING:
    from envfleet.native.machine_code import MachineCode

EXTRAS = (
    *("function", "actions", "was_reset", "diverged", "ends_diverged", "frame_skip"),
    *("mj_step", "mj_forward", "mj_reset_data", "mj_rne"),
)
"""Entries behind the addresses of the buffers: the function that the trampoline calls, actions, whether each row was
reset in this step, whether its simulation diverged, whether that ends its episode, and MuJoCo's functions. The address
of the first of them is what compiled functions take."""

_NEEDS_RNE = {"cacc", "cfrc_int", "cfrc_ext"}
"""Fields that MuJoCo computes in `mj_rnePostConstraint` only."""

_BEGIN = """
@inner
def begin_row(m, d, i, place):
    $view
    $load
    call_c(table[$mj_reset_data], m, d)
    $reset
    call_c(table[$mj_forward], m, d)
    $after_reset
    life.episodes += 1
    life.begun = table[$NOW]
    $store
    elapsed[i] = 0
    returns[i] = 0.0
    awaiting[i] = 0
    array_flags(table[$was_reset], n)[i] = 1
    $show


@compiled
def begin(m, d, i, place):
    begin_row(m, d, i, place)
    return 0
"""

_STEP = """
@compiled
def step(m, d, i, place):
    $view
    array_flags(table[$diverged], n)[i] = 0
    if awaiting[i] != 0:
        rewards[i] = 0.0
        terminated[i] = False
        truncated[i] = False
        begin_row(m, d, i, place)
        return 0
    $load
    actions = array_actions(table[$actions], n * $action_size)
    action = read_only($action)
    $control
    warnings = array_words(d + $warnings, 4)
    before = (warnings[0], warnings[1], warnings[2], warnings[3])
    for _ in range(table[$frame_skip]):
        call_c(table[$mj_step], m, d)
    has_diverged = before != (warnings[0], warnings[1], warnings[2], warnings[3])
    $rne
    $after_step
    $store
    steps = elapsed[i] + 1
    rewards[i] = reward * 1.0
    terminated[i] = bool(terminates)
    truncated[i] = $is_late
    if has_diverged:
        array_flags(table[$diverged], n)[i] = 1
        truncated[i] = truncated[i] or table[$ends_diverged] != 0
    elapsed[i] = steps
    returns[i] += rewards[i]
    array_flags(table[$was_reset], n)[i] = 0
    $show
    if terminated[i] or truncated[i]:
        awaiting[i] = 1
        count = i
        $record
        episode.row = i
        if table[$MODE] == $SAME_STEP:
            $view_finals
            $save_finals
            begin_row(m, d, i, place)
    return 0
"""

_SEED = """
@compiled
def seed(place, rows, seeds, is_seeded):
    $view
    for k in range(rows.size):
        i = rows[k]
        $seed
"""

_CONTROL = """
control = $ctrl
for k in range($num_controls):
    control[k] = action[k]
"""

_SAVE_FINAL = """
for k in range($size):
    $target[i * $size + k] = $source[i * $size + k]
"""


class TaskSource:
    """Code of one task.

    Args:
        plan: Buffers of the task.
        has_own_params: True if every sub-environment has its own parameters.
        truncates: True if `after_step` also returns `truncated`.
    """

    def __init__(self, plan: BufferPlan, *, has_own_params: bool, truncates: bool) -> None:
        self._plan, self._has_own_params, self._truncates = plan, has_own_params, truncates
        spec: Any = plan.spec
        self._spec: TaskSpec = spec
        self._source = Source(plan, has_own_params=has_own_params)
        first = FIRST_ADDRESS + len(plan.all)
        self._places = {buffer.name: FIRST_ADDRESS + k for k, buffer in enumerate(plan.all)}
        self._entries = {name: first + k for k, name in enumerate(EXTRAS)}
        self._first = first

    def text(self) -> str:
        """Return the whole module."""
        check = {"is_wrong": self._source.is_wrong(), "action_size": self._spec.action.size}
        parts = (fill(HEADER, name=self._spec.name), self._begin(), self._step(), self._seed(), fill(CHECK, **check))
        return "\n\n\n".join("\n".join(part) for part in parts) + "\n"

    def _fill(self, template: str, **values: Any) -> list[str]:
        constants = {"LIMIT": LIMIT, "MODE": MODE, "NOW": NOW, "SAME_STEP": SAME_STEP}
        return fill(template, **constants, **self._entries, **values)

    def _views(self, buffers: Iterable[Buffer]) -> list[str]:
        lines = []
        for one in buffers:
            rows = "1" if one in self._plan.params.buffers and not self._has_own_params else "n"
            lines.append(f"{one.name} = array_{one.name}(table[{self._places[one.name]}], {rows} * {one.size})")
        return lines

    def _view_table(self, buffers: Iterable[Buffer]) -> list[str]:
        table = f"table = array_words(place - {8 * self._first}, {self._first + len(EXTRAS)})"
        return [table, f"n = table[{NUM_ROWS}]", *self._views(buffers)]

    def _call(self, name: str, *targets: str) -> list[str]:
        """Return a call of a user's function with the arguments that it names."""
        function = self._spec.step if name == "after_step" else getattr(self._spec, name)
        if function is None:
            return []
        may_write = name in ("reset", "before_step")
        arguments = {
            "data": _tuple_text("Data", self._spec.data_fields, "data_at", "d", may_write=may_write),
            "model": _tuple_text("Model", self._spec.model_fields, "model_at", "m", may_write=False),
            "state": "read_only(state)" if name == "observe" else "state",
            "action": "action",
            "rng": "as_generator(life.rng)",
            "params": "read_only(params)",
            "out": "observation_row(observations, i)",
        }
        inner = ", ".join(arguments[argument] for argument in arguments_of(function))
        return [f"{', '.join(targets)} = {name}_({inner})" if targets else f"{name}_({inner})"]

    def _rows(self) -> dict[str, list[str]]:
        """Return how the records of the row are loaded and stored, and what it shows."""
        source, plan = self._source, self._plan
        return {
            "load": source.load(plan.state, plan.params, plan.life),
            "store": [*source.store(plan.life), *source.store(plan.state)],
            "show": [*self._call("observe"), *source.show()[1:]],  # infos as a kernel's
        }

    def _begin(self) -> list[str]:
        plan = self._plan
        return self._fill(
            _BEGIN,
            view=self._view_table((*plan.kept, *plan.params.buffers, *plan.shown)),
            reset=self._call("reset"),
            after_reset=self._call("after_reset"),
            **self._rows(),
        )

    def _step(self) -> list[str]:
        spec, plan = self._spec, self._plan
        results = ("reward", "terminates", "truncates") if self._truncates else ("reward", "terminates")
        ctrl = next(field for field in spec.data_fields if field.name == "ctrl")
        control = fill(_CONTROL, ctrl=_field_text(ctrl, "data_at", "d"), num_controls=spec.num_controls)
        needs_rne = any(field.name in _NEEDS_RNE for field in spec.data_fields)
        finals: list[str] = []
        for old, new in zip(plan.shown, plan.finals, strict=True):
            finals += fill(_SAVE_FINAL, source=old.name, target=new.name, size=old.size)
        return self._fill(
            _STEP,
            view=self._view_table((*plan.kept, *plan.params.buffers, *plan.outputs, plan.ended)),
            action_size=spec.action.size,
            action="action_row(actions, i)" if spec.action.shape else "actions[i]",
            control=self._call("before_step") or control,
            warnings=8 * warnings_word(),
            rne=[f"call_c(table[{self._entries['mj_rne']}], m, d)"] if needs_rne else [],
            after_step=self._call("after_step", *results),
            is_late=f"steps >= table[{LIMIT}]" + (" or bool(truncates)" if self._truncates else ""),
            record=self._source.record(),
            view_finals=self._views(plan.finals),
            save_finals=finals,
            **self._rows(),
        )

    def _seed(self) -> list[str]:
        return fill(_SEED, view=self._view_table(self._plan.life.buffers), seed=self._source.seed())


def _field_text(field: Field, array: str, base: str) -> str:
    if field.shape is None:
        return f"{array}_float64({base} + {8 * field.word}, 1)[0]"
    size = int(np.prod(field.shape))
    address = f"array_words({base}, {field.word + 1})[{field.word}]" if size else "0"
    flat = f"{array}_{field.dtype.name}({address}, {size})"
    return flat if len(field.shape) == 1 else f"view_{'_'.join(map(str, field.shape))}({flat}, 0)"


def _tuple_text(name: str, fields: tuple[Field, ...], array: str, base: str, *, may_write: bool) -> str:
    texts = (_field_text(field, array, base) for field in fields)
    return f"{name}({', '.join(text if may_write else f'read_only({text})' for text in texts)})"


def compile_task(spec: TaskSpec, has_own_params: bool) -> MachineCode:
    """Compile a task, or load it from the cache; a note on stderr reports a compilation.

    The code has `step` and `begin`, which MuJoCo's threads call; `seed(place, rows, seeds, is_seeded)`, and
    `check(actions)`: 0 or `-1 - row` of the first invalid action.

    Raises:
        KernelError: The task cannot be compiled; the message names the user's line.
    """
    return _compile(spec, has_own_params, fingerprint_of(spec))


@functools.lru_cache(maxsize=64)
def _compile(spec: TaskSpec, has_own_params: bool, _fingerprint: str) -> MachineCode:
    truncates = rehearse(PlainTask(spec))
    from envfleet.native import numba_cpu

    plan = BufferPlan(spec)
    text = TaskSource(plan, has_own_params=has_own_params, truncates=truncates).text()
    rows = np.zeros(0, np.int64)
    samples: dict[str, tuple[Any, ...]] = {
        "step": (0, 0, 0, 0),
        "begin": (0, 0, 0, 0),
        "seed": (0, rows, rows.astype(np.uint64), rows.astype(np.bool_)),
        "check": (np.zeros((0, *spec.action.shape), spec.action.dtype),),
    }
    return compile_source(
        spec.name,
        text,
        "task",
        samples,
        lambda: _names(plan, numba_cpu, numba_cpu.make_function),
        key=cache_key(spec),
        target="MuJoCo's threads",
    )


def _names(plan: BufferPlan, target: Any, make_function: Callable[..., Any]) -> dict[str, Any]:
    """Return what the generated source refers to."""
    spec: Any = plan.spec
    forms = repr((spec.state.dtype, spec.params.dtype, spec.data_fields, spec.model_fields))
    names = loop_names(plan, target, make_function)
    functions = {"reset": spec.reset, "after_reset": spec.after_reset, "before_step": spec.before_step}
    functions |= {"after_step": spec.step, "observe": spec.observe}
    names |= {f"{name}_": make_function(one, forms) for name, one in functions.items() if one is not None}
    names |= {"call_c": target.call_c, "array_words": target.array_at(np.dtype(np.int64))}
    names["array_flags"] = target.array_at(np.dtype(np.uint8))
    names["array_actions"] = target.array_at(spec.action.dtype)
    for array, kind, fields in (("data_at", "Data", spec.data_fields), ("model_at", "Model", spec.model_fields)):
        names[kind] = collections.namedtuple(kind, [field.name for field in fields])  # noqa: PYI024  # made here
        for field in fields:
            names[f"{array}_{field.dtype.name}"] = target.array_at(field.dtype)
            if field.shape is not None and len(field.shape) > 1:
                names[f"view_{'_'.join(map(str, field.shape))}"] = target.row_view(field.shape)
    return names
