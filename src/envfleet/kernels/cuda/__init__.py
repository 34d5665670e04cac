"""Kernels on CUDA devices: one thread per sub-environment; state, generators, parameters and results stay there."""
