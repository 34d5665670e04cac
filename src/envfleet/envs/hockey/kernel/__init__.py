"""Compiled hockey: the game without Box2D, as kernels for CPU and CUDA."""
