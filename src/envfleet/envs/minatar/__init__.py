"""MinAtar's five games as kernels, equal to the package `minatar` where both draw the same numbers."""
