"""Private parts of numba that kernels rely on are where they are sought; a new version of numba shows which moved."""

from __future__ import annotations

import ast
import importlib
import re
from operator import attrgetter
from pathlib import Path

import numba
import pytest
from numba.core import codegen, ir, types
from numba.core.registry import cpu_target

from envfleet import kernels
from envfleet.kernels.machine_code import PartLibrary
from envfleet.kernels.rules import Rules

_KERNELS = Path(kernels.__file__).parent
_IMPORTED = [
    (node.module or "", name.name)
    for node in ast.walk(ast.parse((_KERNELS / "numba_private.py").read_text("utf-8")))
    if isinstance(node, ast.ImportFrom)
    for name in node.names
]
_CODEGEN = cpu_target.target_context.codegen()
_PRIVATE = [
    *((ir, name) for name in ("Assign", "SetItem", "Global", "Const", "Expr.call")),
    *((codegen.JITCodeLibrary, name) for name in ("_raise_if_finalized", "_ensure_finalized", "add_linking_library")),
    *((codegen.JITCodeLibrary, name) for name in ("_finalize_dynamic_globals", "_get_module_for_linking", "finalize")),
    *((codegen.JITCodeLibrary, name) for name in ("_optimize_final_module", "_finalize_final_module", "codegen")),
    *((codegen.JITCodeLibrary, name) for name in ("enable_object_caching", "get_pointer_to_function")),
    (codegen.JITCodeLibrary, "_set_compiled_object"),
    *((PartLibrary(_CODEGEN, "part"), name) for name in ("_final_module", "_linking_libraries", "_shared_module")),
    *((PartLibrary(_CODEGEN, "part"), name) for name in ("_codegen", "_dynamic_globals", "_finalized", "name")),
    *((_CODEGEN, name) for name in ("_check_llvm_bugs", "_engine._defined_symbols", "set_env", "magic_tuple")),
    (_CODEGEN, "_tm.emit_object"),
    *((cpu_target.target_context, name) for name in ("call_conv.call_function", "call_conv.get_function_type")),
    *((cpu_target.target_context, name) for name in ("call_conv.return_status_propagate", "cast")),
    *((cpu_target.typing_context, name) for name in ("refresh", "_attributes", *Rules.ASKED)),
    *((types.Record, name) for name in ("has_titles", "typeof")),
]


@pytest.mark.parametrize(("module", "name"), _IMPORTED, ids=[name for _, name in _IMPORTED])
def test_private_names_of_numba_are_where_they_are_imported_from(module: str, name: str) -> None:
    try:
        getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        pytest.fail(f"numba {numba.__version__} moved {module}.{name}, which kernels need: {error}")


@pytest.mark.parametrize(("owner", "name"), _PRIVATE, ids=[name for _, name in _PRIVATE])
def test_private_parts_of_numba_are_there(owner: object, name: str) -> None:
    try:
        attrgetter(name)(owner)
    except AttributeError:
        pytest.fail(f"numba {numba.__version__} has no {name} in {owner!r}, which kernels need")


def test_one_module_imports_private_parts() -> None:
    private = re.compile(r"(from|import) numba\.(core|np)\b|from numba import _")
    found = [path.name for path in _KERNELS.rglob("*.py") if private.search(path.read_text("utf-8"))]
    assert found == ["numba_private.py"]
