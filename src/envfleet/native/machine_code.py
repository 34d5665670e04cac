"""Machine code by numba: parts, each one function, and programs made of them.

Numba links, optimises and generates code for every function with all that it calls, again and again. Here a function is
a part: intermediate code alone, which costs nothing more. A program takes in each part once, is optimised once, and has
a few functions that are called from outside.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import llvmlite.binding as llvm
import numba
from numba import types

from envfleet.native.jitting import FRAMEWORK
from envfleet.native.numba_private import (
    CompilerBase,
    DefaultPassBuilder,
    Environment,
    FunctionPass,
    IRProcessing,
    JITCodeLibrary,
    TypingError,
    arrayobj,
    as_dtype,
    cpu_target,
    global_compiler_lock,
    lookup_environment,
    make_function,
)
from envfleet.native.rules import follow_rules

_ENVIRONMENT = "_ZN08NumbaEnv"
_NOT_CALLABLE: int = ctypes.cast(ctypes.pythonapi.PyObject_Call, ctypes.c_void_p).value or 0  # no closure is


_NOWHERE = SimpleNamespace(set_env=lambda name, environment: None)
"""Stands in for the code generator where a part has no machine code that an environment could be given to."""


class PartLibrary(JITCodeLibrary):
    """Intermediate code of one function: neither linked nor optimised as a whole."""

    _own: Any = None
    _shared_module: Any = None

    @property
    def codegen(self) -> Any:
        """For numba, which asks for it only to set environments."""
        return _NOWHERE

    def finalize(self) -> None:
        """Take nothing in."""
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """Return what raises a TypeError, should Python call the function: it has no machine code of its own."""
        self._ensure_finalized()
        return _NOT_CALLABLE

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
            self._shared_module = self.own_module().clone()
            _link(self._shared_module, self._linking_libraries, {self})
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

    def link(self, parts: Sequence[PartLibrary], exported: set[str]) -> bytes:
        """Take in some parts, optimise them as a whole, and return the code of the processor.

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
        # Loops take two vectors of rows at a time. To LLVM, AVX2 has too few registers for that; but a step is one long
        # chain of operations, so that the processor waits less: 1.1 to 1.3 times as fast. Then as LLVM likes again.
        llvm.set_option("", "-force-vector-interleave=2")
        self._optimize_final_module()
        llvm.set_option("", "-force-vector-interleave=0")
        self._final_module.verify()
        self._finalize_dynamic_globals()
        return bytes(self._codegen._tm.emit_object(self._final_module))


RULED = follow_rules(cpu_target.typing_context, types, as_dtype, TypingError)
"""Typing context of parts."""

_helpers: dict[Any, Any] = {}
"""What numba compiles for its own use while it compiles parts; other code has its own."""


class Part(CompilerBase):
    """Compiles a function of a kernel, or one that kernels call, to a part; what numba's library does is not ruled."""

    def define_pipelines(self) -> list[Any]:
        """Numba's own pipeline, in contexts of our own."""
        self.state.typingctx = RULED
        self.state.targetctx = self.state.targetctx.subtarget(typing_context=RULED, cached_internal_func=_helpers)
        self.state.library = PartLibrary(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
        return [DefaultPassBuilder.define_nopython_pipeline(self.state)]


class StatementPass(FunctionPass):
    """Pass over user functions that inserts statements before others."""

    def __init__(self) -> None:
        super().__init__()

    def before(self, statement: Any, scope: Any, state: Any) -> list[Any]:
        """Return the statements to insert before a statement, which may also be changed.

        Args:
            statement: Statement of numba's intermediate representation.
            scope: Scope of its block, for temporary variables.
            state: State of the compiler.
        """
        raise NotImplementedError

    def run_pass(self, state: Any) -> bool:
        """Change one function, unless it is part of this package."""
        if state.func_id.modname.startswith(FRAMEWORK):
            return False
        for block in state.func_ir.blocks.values():
            body = []
            for statement in block.body:
                body += [*self.before(statement, block.scope, state), statement]
            block.body = body
        return True


class UserPart(Part):
    """Compiler of a user's function to a part, with further passes."""

    passes: tuple[type[StatementPass], ...]

    def define_pipelines(self) -> list[Any]:
        """Return numba's pipeline with the passes."""
        (pipeline,) = super().define_pipelines()
        for each in self.passes:
            pipeline.add_pass_after(each, IRProcessing)
        pipeline.finalize()
        return [pipeline]


class DistinctArrays(Part):
    """Compiler of a function whose array arguments never overlap, so that LLVM can vectorize without checks."""

    def define_pipelines(self) -> list[Any]:
        """Return numba's pipeline, with a flag."""
        self.state.flags.noalias = True
        return super().define_pipelines()


@dataclasses.dataclass(frozen=True, eq=False)  # one per compilation
class MachineCode:
    """Functions that are called from outside, ready to run.

    They take exactly what they were compiled for, unchecked.

    Attributes:
        functions: For Python, by name.
        addresses: For compiled code, which calls them with `call_at`.
    """

    functions: dict[str, Callable[..., Any]]
    addresses: dict[str, int]


class WholeIndexer(arrayobj.FancyIndexer):
    """Finds what memory `target[index] = values` writes, so that values that overlap it are copied first."""

    indexers_shape: list[Any]

    def get_offset_bounds(self, strides: Any, itemsize: Any) -> Any:
        """Return the bounds of all dimensions.

        Numba pairs the dimensions of the target with those of the result, of which ints in the index have none: it
        leaves out as many of the last dimensions, and takes too few bytes for written.
        """
        shape = self.indexers_shape
        self.indexers_shape = [*shape, *(self.ll_intp(1) for _ in strides)]
        try:
            return super().get_offset_bounds(strides, itemsize)
        finally:
            self.indexers_shape = shape


@contextlib.contextmanager
def _translating() -> Iterator[None]:
    """Wrap compilation: no other thread compiles, and assignments see what they overlap."""
    with global_compiler_lock:
        original, arrayobj.FancyIndexer = arrayobj.FancyIndexer, WholeIndexer
        try:
            yield
        finally:
            arrayobj.FancyIndexer = original


def compile_machine_code(module: ModuleType, samples: Mapping[str, tuple[Any, ...]]) -> tuple[bytes, bool]:
    """Compile some functions for `load_machine_code`.

    Args:
        module: Has them, made by `numba.njit(**ENTRY)`.
        samples: Arguments such as each takes, by its name.

    Returns:
        The machine code, and whether it is of use to other processes.
    """
    with _translating():
        found = {name: _compile_part(vars(module)[name], arguments) for name, arguments in samples.items()}
        symbols = {
            name: (one.fndesc.llvm_func_name, one.fndesc.llvm_cpython_wrapper_name) for name, one in found.items()
        }
        library = ProgramLibrary(cpu_target.target_context.codegen(), module.__name__)
        code = library.link([one.library for one in found.values()], set().union(*symbols.values()))
        names = [one.name for one in library._final_module.global_variables if one.name.startswith(_ENVIRONMENT)]
        environments = {name: lookup_environment(name) for name in names}
        constants = {name: list(one.consts) for name, one in environments.items() if one is not None}
        # Of global arrays that are large, or not contiguous, numba compiles the addresses in.
        return pickle.dumps((code, symbols, constants)), not library._dynamic_globals


def _compile_part(function: Any, arguments: tuple[Any, ...]) -> Any:
    """Numba's result for arguments such as these."""
    kinds = tuple(map(numba.typeof, arguments))
    function.compile(kinds)
    return function.overloads[kinds]


def load_machine_code(module: ModuleType, data: bytes) -> MachineCode:
    """Make ready what was compiled, perhaps by another process."""
    code, symbols, constants = pickle.loads(data)
    with global_compiler_lock:
        cpu_target.target_context.refresh()  # installs what machine code may call
        codegen = cpu_target.target_context.codegen()
        library = ProgramLibrary(codegen, module.__name__)
        library.enable_object_caching()
        library._set_compiled_object(code)
        library._finalize_final_module()
        codegen._engine._defined_symbols.update(name for pair in symbols.values() for name in pair)
        environments = {name: Environment(vars(module)) for name in constants}
        for name, environment in environments.items():
            environment.consts[:] = constants[name]
            codegen.set_env(name, environment)
        kept = (library, environments)  # as long as a function is
        functions, addresses = {}, {}
        for name, (symbol, wrapper) in symbols.items():
            pointer = library.get_pointer_to_function(wrapper)
            addresses[name] = library.get_pointer_to_function(symbol)
            functions[name] = make_function(module, name, "", pointer, Environment(vars(module)), kept)
        return MachineCode(functions, addresses)


MACHINE = repr(cpu_target.target_context.codegen().magic_tuple())
"""The processor and its features as the compiler takes them."""
