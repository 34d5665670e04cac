"""Compiler of programs: functions as parts, linked and optimized once.

Problem. Numba links, optimizes and generates code for each function together with everything that it calls. A kernel
has hundreds of functions, so the innermost would be optimized hundreds of times.

What does not work. Inlining in numba's own representation is slower still. A subclass of its library that skips the
optimizer only: it still links.

Solution. Numba compiles each function to a *part*: LLVM's intermediate code alone. A *program* links every part once,
is optimized once as a whole, and exports a few functions. `Part` is the pipeline that makes numba do so, with another
typing context (`rules`); `ProgramLibrary` links; `load_machine_code` loads the object code from the cache.

What remains. Parts are numba's private classes with some methods replaced, so a test lists each private name, and
`pyproject.toml` bounds numba's version.

See ADR 9.
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
_NOT_CALLABLE: int = ctypes.cast(ctypes.pythonapi.PyObject_Call, ctypes.c_void_p).value or 0


_NOWHERE = SimpleNamespace(set_env=lambda name, environment: None)
"""Replacement of the code generator for parts: environments are set in machine code, which parts lack."""


class PartLibrary(JITCodeLibrary):
    """Intermediate code of one function, neither linked nor optimized."""

    _own: Any = None
    _shared_module: Any = None

    @property
    def codegen(self) -> Any:
        """Code generator, which numba needs here only to set environments."""
        return _NOWHERE

    def finalize(self) -> None:
        """Mark the part as finished, without linking."""
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """Return a function that raises a TypeError when Python calls it, since parts lack machine code."""
        self._ensure_finalized()
        return _NOT_CALLABLE

    def own_module(self) -> Any:
        """Return the module of the function, for modules that may already contain it."""
        if self._own is None:
            self._own = self._final_module.clone()
            for function in self._own.functions:
                if not function.is_declaration and function.linkage == llvm.Linkage.external:
                    function.linkage = "weak_odr"  # linkonce would be dropped if its caller is linked later
        return self._own

    def _get_module_for_linking(self) -> Any:
        """Return the function with everything that it calls, for numba's own libraries."""
        self._ensure_finalized()
        if self._shared_module is None:
            self._shared_module = self.own_module().clone()
            _link(self._shared_module, self._linking_libraries, {self})
        return self._shared_module


def _link(module: Any, libraries: Iterable[Any], linked: set[Any]) -> None:
    """Link libraries into a module, each once, with everything that they call."""
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
    """Machine code of a few functions and everything that they call."""

    def link(self, parts: Sequence[PartLibrary], exported: set[str]) -> bytes:
        """Link parts, optimize them as a whole, and return the object code.

        Args:
            parts: Parts of the exported functions.
            exported: Names of the functions that are called from outside.
        """
        self._codegen._check_llvm_bugs()
        linked: set[Any] = set(parts)
        for part in parts:
            self._final_module.link_in(part._final_module, preserve=True)
            _link(self._final_module, part._linking_libraries, linked)
        for function in self._final_module.functions:
            if not function.is_declaration and function.name not in exported:
                function.linkage = "internal"  # names are unique within a process, but programs may come from files
        # Interleave two vectors of rows. LLVM would not, as AVX2 has few registers, but a step is one long chain of
        # dependent operations, and two chains make it 1.1 to 1.3 times as fast. Then restore LLVM's default.
        llvm.set_option("", "-force-vector-interleave=2")
        self._optimize_final_module()
        llvm.set_option("", "-force-vector-interleave=0")
        self._final_module.verify()
        self._finalize_dynamic_globals()
        return bytes(self._codegen._tm.emit_object(self._final_module))


RULED = follow_rules(cpu_target.typing_context, types, as_dtype, TypingError)
"""Typing context of parts."""

_helpers: dict[Any, Any] = {}
"""Functions that numba compiles for its own use while it compiles parts; other code has other ones."""


class Part(CompilerBase):
    """Compiler of a function to a part."""

    def define_pipelines(self) -> list[Any]:
        """Return numba's pipeline, with the contexts of parts."""
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
    """Compiler of a function with array arguments that never overlap, so that LLVM can vectorize without checks."""

    def define_pipelines(self) -> list[Any]:
        """Return numba's pipeline, with a flag."""
        self.state.flags.noalias = True
        return super().define_pipelines()


@dataclasses.dataclass(frozen=True, eq=False)  # one per compilation
class MachineCode:
    """Exported functions of a program, ready to run; they do not check the types of their arguments.

    Attributes:
        functions: Functions for Python, by name.
        addresses: Addresses for compiled code, which calls them with `call_at`.
    """

    functions: dict[str, Callable[..., Any]]
    addresses: dict[str, int]


class WholeIndexer(arrayobj.FancyIndexer):
    """Bounds of the memory that `target[index] = values` writes, so that values which overlap it are copied first."""

    indexers_shape: list[Any]

    def get_offset_bounds(self, strides: Any, itemsize: Any) -> Any:
        """Return the bounds of all dimensions.

        Numba pairs the dimensions of the target with those of the result, which lacks those of ints in the index. So it
        omits as many of the last dimensions, and underestimates the written bytes.
        """
        shape = self.indexers_shape
        self.indexers_shape = [*shape, *(self.ll_intp(1) for _ in strides)]
        try:
            return super().get_offset_bounds(strides, itemsize)
        finally:
            self.indexers_shape = shape


@contextlib.contextmanager
def _translating() -> Iterator[None]:
    """Wrap compilation: no other thread compiles, and assignments detect overlapping memory."""
    with global_compiler_lock:
        original, arrayobj.FancyIndexer = arrayobj.FancyIndexer, WholeIndexer
        try:
            yield
        finally:
            arrayobj.FancyIndexer = original


def compile_machine_code(module: ModuleType, samples: Mapping[str, tuple[Any, ...]]) -> tuple[bytes, bool]:
    """Compile functions for `load_machine_code`.

    Args:
        module: Module of the functions, which are decorated by `numba.njit(**ENTRY)`.
        samples: Example arguments of each, by its name.

    Returns:
        The machine code, and whether other processes can use it.
    """
    with _translating():
        parts = {name: _compile_part(vars(module)[name], arguments) for name, arguments in samples.items()}
        symbols = {
            name: (part.fndesc.llvm_func_name, part.fndesc.llvm_cpython_wrapper_name) for name, part in parts.items()
        }
        library = ProgramLibrary(cpu_target.target_context.codegen(), module.__name__)
        code = library.link([part.library for part in parts.values()], set().union(*symbols.values()))
        names = [each.name for each in library._final_module.global_variables if each.name.startswith(_ENVIRONMENT)]
        environments = {name: lookup_environment(name) for name in names}
        constants = {name: list(each.consts) for name, each in environments.items() if each is not None}
        # Of large or non-contiguous global arrays, numba compiles addresses, which only this process has.
        return pickle.dumps((code, symbols, constants)), not library._dynamic_globals


def _compile_part(function: Any, arguments: tuple[Any, ...]) -> Any:
    """Return numba's result for the types of some arguments."""
    kinds = tuple(map(numba.typeof, arguments))
    function.compile(kinds)
    return function.overloads[kinds]


def load_machine_code(module: ModuleType, data: bytes) -> MachineCode:
    """Load machine code that was compiled here or by another process."""
    code, symbols, constants = pickle.loads(data)
    with global_compiler_lock:
        cpu_target.target_context.refresh()  # installs the functions that machine code may call
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
        owners = (library, environments)  # kept alive by each function
        functions, addresses = {}, {}
        for name, (symbol, wrapper) in symbols.items():
            pointer = library.get_pointer_to_function(wrapper)
            addresses[name] = library.get_pointer_to_function(symbol)
            functions[name] = make_function(module, name, "", pointer, Environment(vars(module)), owners)
        return MachineCode(functions, addresses)


MACHINE = repr(cpu_target.target_context.codegen().magic_tuple())
"""Processor and features that code is compiled for."""
