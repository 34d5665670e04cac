"""The private parts of numba that kernels import, all of them; `pyproject.toml` bounds its version.

A test says which moved, and that no other module imports any.
"""

from numba._dynfunc import make_function
from numba.core import cgutils, ir
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import FunctionPass, register_pass
from numba.core.environment import Environment, lookup_environment
from numba.core.errors import TypingError
from numba.core.registry import cpu_target
from numba.core.untyped_passes import IRProcessing
from numba.np import arrayobj
from numba.np.numpy_support import as_dtype
