"""Private parts of numba that kernels rely on are where they are sought; a new version of numba shows which moved."""

from __future__ import annotations

from operator import attrgetter

import numba
import pytest
from numba import _dynfunc
from numba.core import codegen, environment
from numba.core.registry import cpu_target

from envfleet.kernels.numba_cpu import PartLibrary

_CODEGEN = cpu_target.target_context.codegen()
_PRIVATE = [
    *((_dynfunc, name) for name in ("make_function",)),
    *((environment, name) for name in ("Environment", "lookup_environment")),
    *((codegen.JITCodeLibrary, name) for name in ("_raise_if_finalized", "_ensure_finalized", "add_linking_library")),
    *((codegen.JITCodeLibrary, name) for name in ("_finalize_dynamic_globals", "_get_module_for_linking", "finalize")),
    *((codegen.JITCodeLibrary, name) for name in ("_optimize_final_module", "_finalize_final_module", "codegen")),
    *((codegen.JITCodeLibrary, name) for name in ("enable_object_caching", "get_pointer_to_function")),
    *((codegen.JITCodeLibrary, name) for name in ("_get_compiled_object", "_set_compiled_object")),
    *((PartLibrary(_CODEGEN, "part"), name) for name in ("_final_module", "_linking_libraries", "_shared_module")),
    *((PartLibrary(_CODEGEN, "part"), name) for name in ("_codegen", "_finalized", "name")),
    *((_CODEGEN, name) for name in ("_check_llvm_bugs", "_engine._defined_symbols", "set_env", "magic_tuple")),
    *((cpu_target.target_context, name) for name in ("call_conv.call_function", "call_conv.get_function_type")),
    *((cpu_target.target_context, name) for name in ("call_conv.return_status_propagate", "cast")),
    *((cpu_target.typing_context, name) for name in ("refresh", "_attributes")),
]


@pytest.mark.parametrize(("owner", "name"), _PRIVATE, ids=[name for _, name in _PRIVATE])
def test_private_parts_of_numba_are_there(owner: object, name: str) -> None:
    try:
        attrgetter(name)(owner)
    except AttributeError:
        pytest.fail(f"numba {numba.__version__} has no {name} in {owner!r}, which envfleet.kernels.numba_cpu needs")
