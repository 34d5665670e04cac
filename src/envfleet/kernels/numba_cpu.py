"""What numba needs to compile kernels for the CPU; imported with the first kernel that is.

Everything private to numba is used in this module alone, and `pyproject.toml` bounds numba's version.

Numba links, optimises and generates code for every function with all that it calls, again and again. Here a function is
a part: intermediate code alone, which costs nothing more. A program takes in each part once, is optimised once, and has
a few functions that are called from outside.
"""

from __future__ import annotations

import inspect
import pickle
import types as python_types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import llvmlite.binding as llvm
import numba
import numpy as np
from numba import _dynfunc, types
from numba.core import cgutils, ir
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import AnalysisPass, FunctionPass, register_pass
from numba.core.environment import Environment, lookup_environment
from numba.core.errors import TypingError
from numba.core.registry import cpu_target
from numba.core.typed_passes import NopythonTypeInference
from numba.core.typing.arraydecl import RecordAttribute
from numba.core.untyped_passes import IRProcessing
from numba.extending import intrinsic, overload, overload_method, register_jitable
from numba.np.numpy_support import as_dtype

from envfleet.errors import KernelIndexError
from envfleet.kernels import rng as rng_functions
from envfleet.kernels.assignments import describe_typed_loss
from envfleet.kernels.explaining import describe_line
from envfleet.kernels.jitting import FRAMEWORK, FunctionTree
from envfleet.kernels.rng import RNG_DTYPE
from envfleet.kernels.views import make_row_view, scalar_clip

_ENVIRONMENT = "_ZN08NumbaEnv"


# ---------------------------------------------------------------------- parts, and programs made of them


class _Nowhere:
    """Stands in for the code generator where a part has no machine code that an environment could be given to."""

    @staticmethod
    def set_env(name: str, environment: Any) -> None:
        """Do nothing."""


class PartLibrary(JITCodeLibrary):
    """Intermediate code of one function: neither linked nor optimised as a whole."""

    _own: Any = None
    _shared_module: Any = None

    @property
    def codegen(self) -> Any:
        """For numba, which asks for it only to set environments."""
        return _Nowhere

    def finalize(self) -> None:
        """Take nothing in."""
        self._raise_if_finalized()
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """There is no machine code."""
        self._ensure_finalized()
        return 0

    def own_module(self) -> Any:
        """Return the function, for modules that may have it from elsewhere, too."""
        if self._own is None:
            self._own = self._final_module.clone()
            for function in self._own.functions:
                if not function.is_declaration and function.linkage == llvm.Linkage.external:
                    function.linkage = "weak_odr"  # not linkonce: that is left out if its caller comes later
        return self._own

    def _get_module_for_linking(self) -> Any:
        """Return the function with all that it calls, for numba's own libraries."""
        self._ensure_finalized()
        if self._shared_module is None:
            whole = self.own_module().clone()
            _link(whole, self._linking_libraries, {self})
            self._shared_module = whole
        return self._shared_module


def _link(module: Any, libraries: Iterable[Any], linked: set[Any]) -> None:
    """Take libraries into a module, each with all that it calls and once."""
    for library in libraries:
        if library in linked:
            continue
        linked.add(library)
        if isinstance(library, PartLibrary):
            module.link_in(library.own_module(), preserve=True)
            _link(module, library._linking_libraries, linked)
        else:
            module.link_in(library._get_module_for_linking(), preserve=True)


class ProgramLibrary(JITCodeLibrary):
    """Machine code of a few functions, with a copy of everything that they call."""

    def link(self, parts: Sequence[PartLibrary], exported: set[str]) -> None:
        """Take in some parts and generate code.

        Args:
            parts: With all that they call.
            exported: Names of the functions that are called from outside.
        """
        self._codegen._check_llvm_bugs()
        linked: set[Any] = set(parts)
        for part in parts:
            self._final_module.link_in(part._final_module, preserve=True)
            _link(self._final_module, part._linking_libraries, linked)
        for function in self._final_module.functions:
            if not function.is_declaration and function.name not in exported:
                function.linkage = "internal"  # names are unique within a process, but other programs come from files
        self._optimize_final_module()
        self._final_module.verify()
        self._finalize_final_module()


class Part(CompilerBase):
    """Compiles a function to a part."""

    def define_pipelines(self) -> list[Any]:
        """Numba's own pipeline."""
        library = PartLibrary(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
        self.state.library = library
        return [DefaultPassBuilder.define_nopython_pipeline(self.state)]


class DistinctArrays(Part):
    """Compiles a function whose array arguments never overlap, so that LLVM may vectorise without asking."""

    def define_pipelines(self) -> list[Any]:
        """Return the same, with a flag."""
        self.state.flags.noalias = True
        return super().define_pipelines()


class MachineCode(NamedTuple):
    """Functions that are called from outside, ready to run.

    They take exactly what they were compiled for, unchecked.

    Attributes:
        functions: For Python, by name.
        addresses: For compiled code, which calls them with `call_at`.
        data: All of it, for `load_machine_code`; `None` if it is of use to this process alone.
    """

    functions: dict[str, Callable[..., Any]]
    addresses: dict[str, int]
    data: bytes | None


def compile_machine_code(module: python_types.ModuleType, samples: Mapping[str, tuple[Any, ...]]) -> MachineCode:
    """Compile some functions.

    Args:
        module: Has them, made by `numba.njit(**ENTRY)`.
        samples: Arguments such as each takes, by its name.
    """
    with global_compiler_lock:
        found = {name: _compile_part(vars(module)[name], arguments) for name, arguments in samples.items()}
        symbols = {
            name: (one.fndesc.llvm_func_name, one.fndesc.llvm_cpython_wrapper_name) for name, one in found.items()
        }
        library = ProgramLibrary(cpu_target.target_context.codegen(), module.__name__)
        library.enable_object_caching()
        library.link([one.library for one in found.values()], {name for pair in symbols.values() for name in pair})
        names = [one.name for one in library._final_module.global_variables if one.name.startswith(_ENVIRONMENT)]
        environments = {name: lookup_environment(name) for name in names}
        constants = {name: list(one.consts) for name, one in environments.items() if one is not None}
        data = pickle.dumps((library._get_compiled_object(), symbols, constants))
        # Of global arrays that are large, or not contiguous, numba compiles the addresses in.
        kept = None if library.has_dynamic_globals else data
        return _make_ready(module, library, symbols, environments, kept)


def _compile_part(function: Any, arguments: tuple[Any, ...]) -> Any:
    """Numba's result for arguments such as these."""
    kinds = tuple(map(numba.typeof, arguments))
    function.compile(kinds)
    return function.overloads[kinds]


def load_machine_code(module: python_types.ModuleType, data: bytes) -> MachineCode:
    """Make ready what was compiled before, perhaps by another process."""
    code, symbols, constants = pickle.loads(data)
    with global_compiler_lock:
        cpu_target.target_context.refresh()  # installs what machine code may call
        codegen = cpu_target.target_context.codegen()
        library = ProgramLibrary(codegen, module.__name__)
        library.enable_object_caching()
        library._set_compiled_object(code)
        library._finalize_final_module()
        codegen._engine._defined_symbols.update(name for pair in symbols.values() for name in pair)
        environments = {}
        for name, values in constants.items():
            environments[name] = Environment(vars(module))
            environments[name].consts[:] = values
        return _make_ready(module, library, symbols, environments, data)


def _make_ready(
    module: python_types.ModuleType,
    library: ProgramLibrary,
    symbols: Mapping[str, tuple[str, str]],
    environments: Mapping[str, Any],
    data: bytes | None,
) -> MachineCode:
    codegen = cpu_target.target_context.codegen()
    for name, environment in environments.items():
        if environment is not None:
            codegen.set_env(name, environment)
    kept = (library, environments)  # as long as a function is
    functions, addresses = {}, {}
    for name, (symbol, wrapper) in symbols.items():
        pointer = library.get_pointer_to_function(wrapper)
        addresses[name] = library.get_pointer_to_function(symbol)
        functions[name] = _dynfunc.make_function(module, name, "", pointer, Environment(vars(module)), kept)
    return MachineCode(functions, addresses, data)


def describe_machine() -> str:
    """Return the processor and its features as the compiler takes them."""
    return repr(cpu_target.target_context.codegen().magic_tuple())


# ---------------------------------------------------------------------- a user's functions


@register_pass(mutates_CFG=False, analysis_only=True)
class RefuseLosses(AnalysisPass):
    """Refuses assignments of which a field of a record would lose a part."""

    _name = "envfleet_refuse_losses"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        """Look at one function, whose types are known."""
        for block in state.func_ir.blocks.values():
            for found in block.find_insts(ir.SetAttr):
                record, value = state.typemap[found.target.name], state.typemap[found.value.name]
                loss = describe_typed_loss(types, as_dtype, record, found.attr, value)
                if loss:
                    raise TypingError(loss, found.loc)
        return False


@register_pass(mutates_CFG=False, analysis_only=False)
class CheckIndices(FunctionPass):
    """Puts a call of `check_index` before everything that reads or writes an element."""

    _name = "envfleet_check_indices"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        """Change one function of a user."""
        if state.func_id.modname.startswith(FRAMEWORK):
            return False
        code = state.func_id.code
        for block in state.func_ir.blocks.values():
            body = []
            for statement in block.body:
                body += [*_check_before(statement, block.scope, code), statement]
            block.body = body
        return True


def _check_before(statement: Any, scope: Any, code: Any) -> list[Any]:
    """Return the statements that check the index of one that reads or writes an element, if it does."""
    value = getattr(statement, "value", None)
    if isinstance(value, ir.Expr) and value.op == "getitem":
        array, index = value.value, value.index
    elif isinstance(statement, ir.SetItem):
        array, index = statement.target, statement.index
    else:
        return []
    loc = statement.loc
    function, place, nothing = (scope.make_temp(loc) for _ in range(3))
    text = describe_line(code.co_filename, loc.line, code.co_name)
    return [
        ir.Assign(ir.Global(check_index.__name__, check_index, loc), function, loc),
        ir.Assign(ir.Const(text, loc), place, loc),
        ir.Assign(ir.Expr.call(function, (array, index, place), (), loc), nothing, loc),
    ]


def check_index(array: Any, index: Any, place: str) -> None:
    """Raise `KernelIndexError` if an index lies outside an array; a stand-in for what is compiled."""


@overload(check_index)
def _check_index(array, index, place):  # type: ignore[no-untyped-def]  # numba compares what is annotated
    if isinstance(array, types.UniTuple) and isinstance(index, types.Integer):
        return lambda array, index, place: _check(index, -len(array), len(array), 0, place)
    if isinstance(array, types.NumpyFlatType) and isinstance(index, types.Integer):
        return lambda array, index, place: _check(index, 0, len(array), 0, place)  # numba does not count from its end
    check = _nothing
    if isinstance(array, types.Array):
        parts = index if isinstance(index, types.BaseTuple) else (index,)
        axis, num_axes = 0, sum(not isinstance(part, (types.NoneType, types.EllipsisType)) for part in parts)
        for number, part in enumerate(parts):
            check = _one_more(check, part, number if isinstance(index, types.BaseTuple) else None, axis)
            if isinstance(part, types.EllipsisType):
                axis += array.ndim - num_axes
            elif not isinstance(part, types.NoneType):
                axis += 1
    return lambda array, index, place: check(array, index, place)  # noqa: PLW0108  # numba asks for a new function


def _one_more(check: Any, part: Any, number: int | None, axis: int) -> Any:
    """`check`, then a part of the index, its only one if `number` is `None`, along an axis."""
    if isinstance(part, types.Integer):
        look = _check
    elif isinstance(part, types.Array) and isinstance(part.dtype, types.Integer):
        look = _check_each
    else:
        return check

    @register_jitable
    def check_one_more(array: Any, index: Any, place: str) -> None:
        check(array, index, place)
        size = array.shape[axis]
        look(index if number is None else index[number], -size, size, axis, place)

    return check_one_more


@register_jitable
def _nothing(array: Any, index: Any, place: str) -> None:
    pass


@register_jitable
def _check(index: int, least: int, size: int, axis: int, place: str) -> None:
    if index < least or index >= size:
        raise KernelIndexError(place, index, axis, size)


@register_jitable
def _check_each(indices: Any, least: int, size: int, axis: int, place: str) -> None:
    for index in indices.flat:
        _check(index, least, size, axis, place)


class Strict(Part):
    """Compiles a user's function."""

    def define_pipelines(self) -> list[Any]:
        """Return the same, with a look at assignments."""
        (passes,) = super().define_pipelines()
        passes.add_pass_after(RefuseLosses, NopythonTypeInference)
        passes.finalize()
        return [passes]


class Checked(Strict):
    """Compiles a user's function to one that checks its indices."""

    def define_pipelines(self) -> list[Any]:
        """Return the same, with the checks."""
        (passes,) = super().define_pipelines()
        passes.add_pass_after(CheckIndices, IRProcessing)
        passes.finalize()
        return [passes]


INNER: dict[str, Any] = {
    "error_model": "numpy",
    "nogil": True,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "pipeline_class": Part,
}
"""For what only compiled code calls: it needs no way in from Python."""

DISTINCT: dict[str, Any] = {**INNER, "pipeline_class": DistinctArrays}
"""For the same, of arrays that never overlap."""

ENTRY: dict[str, Any] = {"error_model": "numpy", "nogil": True, "no_cfunc_wrapper": True, "pipeline_class": Part}
"""For what Python calls, too."""

FLAGS: dict[str, Any] = {**INNER, "forceinline": True}
"""A call that is left in a loop keeps it scalar, so functions are inlined whatever their size."""


def _jit(**flags: Any) -> Callable[[Any], Any]:
    """`numba.njit`, of which a function is compiled once for all ints it is called with.

    By itself numba compiles a function anew for each constant among its arguments; hockey took a third longer.
    """

    def make(function: Any) -> Any:
        made = numba.njit(**flags)(function)
        specialise = made.get_call_template

        def generalise(args: Any, kwargs: Any) -> Any:
            try:
                return specialise(
                    tuple(map(types.unliteral, args)),
                    {name: types.unliteral(given) for name, given in kwargs.items()},
                )
            except TypingError:  # it needs the constant, to look something up in a tuple of several types
                return specialise(args, kwargs)

        made.get_call_template = generalise
        return made

    return make


make_function = FunctionTree(_jit(**FLAGS | {"pipeline_class": Strict}), _jit(**INNER | {"pipeline_class": Strict}))
"""Makes a user's function, and all that it calls, compilable."""

# Numba's own check names neither line nor numbers, but sees what ours may leave out.
_CHECKS: dict[str, Any] = {"boundscheck": True, "pipeline_class": Checked}

make_checked_function = FunctionTree(_jit(**FLAGS | _CHECKS), _jit(**INNER | _CHECKS))
"""The same, in code that checks every index."""

_RNG_TYPE = numba.from_dtype(RNG_DTYPE)


def _attach(name: str, function: Callable[..., Any]) -> None:
    """Make `rng.name(...)` call `function(rng, ...)`."""
    compiled = make_function(function)
    of_int = make_function(rng_functions.INT_METHODS.get(name, function))

    def choose(rng: Any, *args: Any, **kwargs: Any) -> Any:
        is_int = isinstance(next(iter((*args, *kwargs.values())), None), types.Integer)
        return None if rng != _RNG_TYPE else of_int.py_func if is_int else compiled.py_func

    choose.__signature__ = inspect.signature(compiled.py_func)  # type: ignore[attr-defined]  # numba compares it
    overload_method(types.Record, name, jit_options=FLAGS)(choose)


for _name, _function in rng_functions.METHODS.items():
    _attach(_name, _function)


@overload(np.clip)
def _clip(a, a_min, a_max):  # type: ignore[no-untyped-def]  # numba compares what is annotated
    """`np.clip` of a number, which numba has of arrays only."""
    return scalar_clip(types, a, a_min, a_max)


def _put_methods_first() -> None:
    """Let numba look for a record's methods before its fields: it takes the first answer, and a field is an error."""
    context = cpu_target.typing_context
    context.refresh()  # numba's own come now, or after ours, or came before them
    context._attributes[types.Record].sort(key=lambda found: isinstance(found, RecordAttribute))


_put_methods_first()


def new_record(dtype: np.dtype[Any]) -> Any:
    """Return an intrinsic without arguments: a record in the stack frame, for LLVM to turn into registers."""
    record = numba.from_dtype(dtype if dtype.names else np.dtype([("unused", np.uint8)]))

    @intrinsic
    def allocate(_context: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
            return cgutils.alloca_once(builder, context.get_data_type(record))

        return record(), generate

    return allocate


def row_view(shape: tuple[int, ...]) -> Any:
    """Return an intrinsic `(flat, index)`: see `make_row_view`."""
    return make_row_view(intrinsic, types, shape)


@intrinsic
def pointer_at(_context: Any, address: Any) -> Any:
    """Return the memory at an address given as an int, for `numba.carray`."""

    def generate(_c: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@intrinsic
def call_at(_context: Any, address: Any, arguments: Any) -> Any:
    """Call a function of a program at its address with a tuple of what it takes; it returns an int."""
    kinds = tuple(map(types.unliteral, arguments.types))

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        convention = context.call_conv
        function = convention.get_function_type(types.int64, kinds)
        values = cgutils.unpack_tuple(builder, args[1])
        values = [context.cast(builder, *one) for one in zip(values, arguments.types, kinds, strict=True)]
        pointer = builder.inttoptr(args[0], function.as_pointer())
        status, result = convention.call_function(builder, pointer, types.int64, kinds, values)
        with cgutils.if_unlikely(builder, status.is_error):
            convention.return_status_propagate(builder, status)
        return result

    return types.int64(types.int64, arguments), generate
