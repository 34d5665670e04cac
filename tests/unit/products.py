"""Products for Python and for threads; the package has them as parts of other compiled code alone."""

from __future__ import annotations

from envfleet.native import products
from envfleet.native.compiling import compile_function


@compile_function
def multiply(
    left: products.F32, right: products.F32, result: products.F32, is_left_turned: bool, is_right_turned: bool
) -> None:
    """See `envfleet.native.products.multiply`."""
    products.multiply(left, right, result, is_left_turned, is_right_turned)
