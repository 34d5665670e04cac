"""Gymnasium's classic control environments as kernels; docs/kernels.md says how closely they match."""
