"""Products for Python and for threads; the package has them as parts of other compiled code alone."""

from __future__ import annotations

from envfleet.native import bits, products
from envfleet.native.compiling import compile_function


@compile_function
def multiply(
    left: products.F32, right: products.F32, result: products.F32, is_left_turned: bool, is_right_turned: bool
) -> None:
    """See `envfleet.native.products.multiply`."""
    products.multiply(left, right, result, is_left_turned, is_right_turned)


@compile_function
def multiply_bits(
    numbers: products.F32, is_turned: bool, scales: products.F32, right: products.F32, factors: products.F32,
    result: products.F32,
) -> None:  # fmt: skip
    """See `envfleet.native.bits.multiply_bits`; the bits say which numbers are above 0, by row or by column."""
    given = bits.bits_of_columns(numbers) if is_turned else bits.bits_of_rows(numbers)
    bits.multiply_bits(given, scales, right, factors, result)
