"""Gymnasium's toy text environments as kernels, equal to the originals from the same seeds."""
