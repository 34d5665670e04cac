"""Gymnasium's classic control environments as kernels, as equal to the originals as docs/kernels.md says."""
