"""Tools on top of numba and LLVM: compiling and caching functions, vector code, and the threads of SciPy's BLAS."""
