"""Private parts of numba that we rely on are where they are sought; a new version of numba shows which moved."""

from __future__ import annotations

import ast
import importlib
import re
from operator import attrgetter
from pathlib import Path

import numba
import pytest
from numba.core import codegen, compiler, funcdesc, ir, types
from numba.core.registry import cpu_target
from numba.np import arrayobj

import envfleet
from envfleet.agents import compiled
from envfleet.native.machine_code import PartLibrary
from envfleet.native.rules import Rules

_SOURCE = Path(envfleet.__file__).parent
_IMPORTED = [
    (node.module or "", name.name)
    for node in ast.walk(ast.parse((_SOURCE / "native" / "numba_private.py").read_text("utf-8")))
    if isinstance(node, ast.ImportFrom)
    for name in node.names
]
_RULED = [name for name in vars(Rules) if name.startswith("resolve_")]
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
    (arrayobj, "raise_with_shape_context"),
    (cpu_target.target_context, "subtarget"),
    (cpu_target.target_context, "typing_context"),
    (cpu_target.target_context, "cached_internal_func"),
    *((cpu_target.target_context, name) for name in ("call_conv.call_function", "call_conv.get_function_type")),
    *((cpu_target.target_context, name) for name in ("call_conv.return_status_propagate", "cast")),
    *((cpu_target.typing_context, name) for name in ("refresh", "callstack", *_RULED)),
    *((types.Record, name) for name in ("has_titles", "typeof")),
    *((compiled.act, name) for name in ("_cache._cache_file._source_stamp", "overloads")),
    *((compiler.CompileResult, name) for name in ("library", "fndesc", "signature")),
    (funcdesc.FunctionDescriptor, "llvm_func_name"),
    (type(cpu_target.target_context), "get_abi_sizeof"),
]


@pytest.mark.parametrize(("module", "name"), _IMPORTED, ids=[name for _, name in _IMPORTED])
def test_private_names_of_numba_are_where_they_are_imported_from(module: str, name: str) -> None:
    try:
        getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        pytest.fail(f"numba {numba.__version__} moved {module}.{name}, which we need: {error}")


@pytest.mark.parametrize(("owner", "name"), _PRIVATE, ids=[name for _, name in _PRIVATE])
def test_private_parts_of_numba_are_there(owner: object, name: str) -> None:
    try:
        attrgetter(name)(owner)
    except AttributeError:
        pytest.fail(f"numba {numba.__version__} has no {name} in {owner!r}, which we need")


def test_one_module_imports_private_parts() -> None:
    assert _modules_with(r"(from|import) numba\.(core|np)\b|from numba import _") == ["native/numba_private.py"]


def test_only_native_uses_private_parts() -> None:
    modules = _modules_with(r"\._(cache|source_stamp)\b|\.(overloads|fndesc|targetctx|nrt|call_conv)\b")
    assert modules
    assert [name for name in modules if not name.startswith("native/")] == []


def _modules_with(private: str) -> list[str]:
    paths = sorted(_SOURCE.rglob("*.py"))
    return [str(path.relative_to(_SOURCE)) for path in paths if re.search(private, path.read_text("utf-8"))]
