"""Compiled code beside Python: how it is compiled, products of matrices, and a thread that runs it."""
