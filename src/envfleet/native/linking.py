"""Functions that Python calls, with the parts of `envfleet.native.machine_code` that they call."""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm

from envfleet.native.numba_private import CompilerBase, DefaultPassBuilder, JITCodeLibrary


class WholeLibrary(JITCodeLibrary):
    """Machine code of one function, with all parts that it calls; those are in no other file, so none stays alone."""

    def _optimize_final_module(self) -> None:
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage == llvm.Linkage.weak_odr:
                function.linkage = "linkonce_odr"
        super()._optimize_final_module()


class Whole(CompilerBase):
    """Compiles a function that Python calls, with the parts that it calls."""

    def define_pipelines(self) -> list[Any]:
        """Numba's own pipeline."""
        library = WholeLibrary(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
        library.enable_object_caching()
        self.state.library = library
        return [DefaultPassBuilder.define_nopython_pipeline(self.state)]
