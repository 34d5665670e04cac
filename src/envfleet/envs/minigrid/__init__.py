"""Worlds of MiniGrid (M. Chevalier-Boisvert and others) as kernels: the same layouts, rules and views."""
